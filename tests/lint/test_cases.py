"""The jobs of tests/faults as `lint` reads them: those that only differ by their ranks' way, and the healthy ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.facts import Launch
from ddpdoctor.evidence.sources import SourceFile
from ddpdoctor.judge.runner import run_checks
from ddpdoctor.source.gather import read_sources
from tests.lint.judging import REGISTRY, RULES

CASES = Path(__file__).resolve().parent.parent / "faults" / "cases"
FOUND = (
    "barrier-not-reached", "batch-skipped-by-except", "hang-at-exit", "hang-eight-ranks", "hang-except-continue", "hang-gather-object", "hang-guard-in-decorator",
    "hang-groups-by-helper", "hang-guard-in-helper", "hang-guard-in-method", "hang-monitored-barrier", "hang-new-group-of-leaders", "hang-new-group-on-members",
    "hang-groups-hierarchical", "hang-meter-on-first-rank", "hang-new-group-on-some", "hang-return-before-group", "hang-validation-through-wrapper", "hang-wrap-on-some",
    "public-rank0-only-sharded-save",
)  # fmt: skip
"""Cases whose fault is a call that some ranks do not reach, by a test on the rank."""
UNSEEN = "sharded-"
"""Begins the names of broken jobs that were written without knowing the rules: docs/accuracy.md counts what these find
in them and their alarms. The healthy jobs beside them have to be read in silence like all others."""


@cache
def read_case(name: str) -> tuple[SourceFile, ...]:
    """Return what one case shows: each is a program of its own, read apart from the others."""
    return read_sources([str(CASES / name)], RULES)


@pytest.mark.parametrize("case", FOUND)
def test_broken_job_is_found_without_running_it(case: str) -> None:
    assert [each for file in read_case(case) for each in file.uneven]


@pytest.mark.unmeasured
def test_no_other_job_gives_an_alarm() -> None:
    """Healthy jobs, and those that break in another way."""
    names = [each.name for each in sorted(CASES.iterdir()) if each.is_dir()]
    folders = [name for name in names if name not in FOUND and not name.startswith(UNSEEN)]
    assert sum("healthy" in each for each in folders) > 40
    assert [each for name in folders for file in read_case(name) for each in file.uneven] == []


FACTS = {
    "attribute-on-wrapper": {"DDP014"},
    "checkpoint-raced": {"CKP001"},
    "checkpoint-read-early": {"CKP002"},
    "cache-deleted-by-all": {"CKP005"},
    "checkpoint-renamed-by-all": {"CKP001"},
    "device-ids-on-cpu": {"DDP016"},
    "directory-raced": {"CKP005"},
    "download-raced": {"DAT008"},
    "group-initialised-twice": {"ENV019"},
    "frozen-after-wrap": {"DDP006"},
    "group-not-initialised": {"ENV019"},
    "hang-barrier-under-file-lock": {"COL009"},
    "hang-both-receive": {"COL011"},
    "hang-patience-of-own-loss": {"NUM005"},
    "hang-ports-of-their-own": {"ENV004"},
    "hang-ring-receives-first": {"COL011"},
    "hang-spawned-ports": {"ENV004"},
    "hang-wrong-root": {"COL003"},
    "local-rank-argument": {"ENV007"},
    "prefix-of-wrapper": {"CKP004"},
    "ready-twice": {"DDP003"},
    "sampler-before-group": {"ENV019"},
    "shared-memory-small": {"DAT001"},
    "shares-overlap": {"DAT005"},
    "silent-accumulation-reduced": {"PRF005"},
    "silent-bypass-bare": {"DDP005"},
    "silent-bypass-callbacks": {"DDP005"},
    "silent-bypass-closure": {"DDP005"},
    "silent-bypass-critic": {"DDP005"},
    "silent-bypass-elbo": {"DDP005"},
    "silent-bypass-method": {"DDP005"},
    "silent-bypass-module": {"DDP005"},
    "silent-bypass-warm-up": {"DDP005"},
    "silent-changed-head": {"DDP006"},
    "silent-changed-module": {"DDP006"},
    "silent-changed-unfrozen-by-callback": {"DDP006"},
    "silent-changed-vocabulary": {"DDP006"},
    "silent-data-in-order": {"DAT001"},
    "silent-data-own-order": {"DAT001"},
    "silent-data-shuffled-alike": {"DAT001"},
    "silent-data-stream": {"DAT001"},
    "silent-data-stream-by-worker": {"DAT001"},
    "silent-data-stream-packed": {"DAT001"},
    "silent-data-stream-twice": {"DAT001"},
    "silent-epoch-batch-sampler": {"DAT002"},
    "silent-epoch-behind-hasattr": {"DAT002"},
    "silent-epoch-ignored": {"DAT002"},
    "silent-epoch-of-other-sampler": {"DAT002"},
    "silent-epoch-prepared": {"DAT002"},
    "silent-epoch-shared-loop": {"DAT002"},
    "silent-epoch-unset": {"DAT002"},
    "silent-gather-contrastive": {"COL010"},
    "silent-gather-dual-encoder": {"COL010"},
    "silent-gradients-averaged-twice": {"NUM009"},
    "silent-loss-over-tokens-of-all-ranks": {"NUM009"},
    "silent-moments-resumed-in-second-session": {"NUM006"},
    "silent-moments-resumed-on-rank-0": {"NUM006"},
    "silent-no-sync-off-by-one": {"DDP008"},
    "silent-no-sync-shifted-window": {"DDP008"},
    "silent-no-sync-without-forward": {"DDP007"},
    "silent-noise-of-one-seed": {"DAT006"},
    "silent-optimizer-restored-on-one": {"NUM006"},
    "silent-prefix-passed-over": {"CKP004"},
    "silent-rate-plateau": {"NUM005"},
    "silent-rate-plateau-in-trainer": {"NUM005"},
    "silent-rollback-by-own-loss": {"NUM005"},
    "silent-rollback-to-own-best": {"NUM005"},
    "silent-steps-of-its-own": {"DDP005"},
    "silent-steps-skipped": {"NUM005"},
    "silent-teacher-before-sync": {"NUM001"},
    "silent-teacher-before-wrap": {"NUM001"},
    "silent-unused-one-step": {"DDP001"},
    "silent-unwrapped-discriminator": {"DDP015"},
    "silent-unwrapped-head": {"DDP015"},
    "silent-unwrapped-thrown-away": {"DDP015"},
    "silent-unwrapped-unseeded": {"DDP015"},
    "silent-weights-loaded-after-wrap": {"NUM001"},
    "silent-weights-restored-on-main": {"NUM001"},
    "spawn-unguarded": {"ENV017"},
    "split-differs": {"DAT004"},
    "split-differs-by-seed": {"DAT004"},
    "tokens-read-early": {"CKP002"},
    "unused-on-all": {"DDP001"},
    "work-gathered-early": {"COL007"},
    "work-list-forgotten": {"COL007"},
    "work-receive-read-early": {"COL007"},
    "work-send-dropped": {"COL007"},
}
"""Cases in which rules see a mistake, and which; in that of shared memory it is one beside the case's own."""


def test_rules_find_what_is_wrong_and_nothing_else() -> None:
    found = {}
    for folder in sorted(
        each for each in CASES.iterdir() if each.is_dir() and not each.name.startswith(UNSEEN)
    ):
        evidence = Evidence(launch=Launch("lint", nproc=0, world_size=0), sources=read_case(folder.name))
        _, findings = run_checks(REGISTRY.checks_of("lint"), evidence)
        codes = {each.code for each in findings if each.severity != "info"} - {"COL002", "COL006"}
        if codes:
            found[folder.name] = codes
    assert found == FACTS
