from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import Training
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, Where, check
from ddpdoctor.judge.finding import CONFIDENCES
from ddpdoctor.report import RenderOptions, Report
from ddpdoctor.report.terminal import TextRenderer
from ddpdoctor.testing import make_report, make_world
from ddpdoctor.text.characters import width_of
from tests.report.extremes import sample_many, sample_still

GOLD = Path(__file__).parent / "gold"

CAUSE = Finding(
    "Ranks 0, 2 and 3 wait in all_reduce; rank 1 on node-0 never issued it: for 43 s it has been in read_shard.",
    ranks=RankSet([1]),
    victims=RankSet([0, 2, 3]),
    where=(
        Where(
            RankSet([1]),
            "culprit",
            "src/training/loop.py",
            131,
            "save_checkpoint",
            "torch.save(model.state_dict(), path)",
        ),
        Where(RankSet([1]), "caller", "train.py", 97, "main", "if len(batch) < 2: break"),
        Where(RankSet([0, 2, 3]), "victim", "train.py", 88, "train_step", "dist.all_reduce(loss)"),
    ),
    evidence=(
        EvidenceItem("stack", "taken twice 1 s apart, both equal", RankSet.span(4)),
        EvidenceItem("log", "RuntimeError: Connection closed by peer", RankSet([0]), ("rank-0.log", 17)),
    ),
    fix=(
        Fix("Let every rank call it.", code="with Join([model]):\n    train()"),
        Fix("See which process it waits for.", "py-spy dump --pid 4242"),
    ),
)


@check(
    "X-a-001",
    name="rank-stalled",
    title="t",
    severity="error",
    family="collectives",
    needs=(),
    since="1",
    id="a.stalled",
    explains=("X-a-003",),
)
def find_stalled(evidence: Evidence) -> Iterable[Finding]:
    """Stalled."""
    if evidence.extra.get("stalled"):
        yield CAUSE


@check(
    "X-a-002",
    name="link-slow",
    title="t",
    severity="warning",
    family="bandwidth",
    needs=(),
    since="1",
    id="a.slow",
)
def find_slow(evidence: Evidence) -> Iterable[Finding]:
    """Slow."""
    if evidence.extra.get("slow"):
        yield Finding(
            "node-0 sends to node-1 at 0.11 GB/s; the others reach 1.2 GB/s.",
            nodes=("node-0",),
            pairs=(("node-0", "node-1"),),
            fix=(Fix("Look at the cable."),),
            confidence="medium",
        )


@check(
    "X-a-003",
    name="stage-timed-out",
    title="t",
    severity="error",
    family="backends",
    needs=(),
    since="1",
    id="a.cut",
)
def find_cut(evidence: Evidence) -> Iterable[Finding]:
    """Cut."""
    if evidence.extra.get("stalled"):
        yield Finding("Stage collectives was stopped after 30 s.", fix=(Fix("raise the limit"),))


@check(
    "X-a-004",
    name="threads-oversubscribed",
    title="t",
    severity="info",
    family="environment",
    needs=(),
    since="1",
    id="a.threads",
)
def find_threads(evidence: Evidence) -> Iterable[Finding]:
    """Threads."""
    if evidence.extra.get("noted"):
        yield Finding(
            "4 ranks x 2 threads on 2 cores.", fix=(Fix("for real runs", "export OMP_NUM_THREADS=1"),)
        )


@check(
    "X-a-005",
    name="n5",
    title="t",
    severity="error",
    family="backends",
    needs=(),
    since="1",
    variants={f"a.gpu{i}": i for i in range(3)},
)
def skip_gpu(evidence: Evidence, *, variant: int) -> Iterable[Finding]:
    """No GPU."""
    raise NotApplicable("no GPU")


@check(
    "X-a-006",
    name="n6",
    title="t",
    severity="error",
    family="ddp",
    needs=(),
    since="1",
    id="a.blind",
    required=False,
)
def cannot_look(evidence: Evidence) -> Iterable[Finding]:
    """Blind."""
    if evidence.extra.get("blind"):
        raise CannotLook("stage ddp was stopped")
    return ()


CHECKS = (find_stalled, find_slow, find_cut, find_threads, skip_gpu, cannot_look)


def scrub(report: Report) -> Report:
    """Durations differ from run to run."""
    return replace(
        report, duration_s=2.7, checks=tuple(replace(row, duration_s=0.0) for row in report.checks)
    )


def sample(*what: str, **changes: object) -> Report:
    return scrub(make_report(make_world(1, 4, extra=dict.fromkeys(what, True), **changes), *CHECKS))


def render(report: Report, **options: Any) -> str:
    return TextRenderer().render(report, RenderOptions(**options))


SAMPLES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "healthy": ((), {}),
    "healthy-note": (("noted", "blind"), {"written": ("report.html", "report.json")}),
    "problems": (("stalled", "slow", "noted"), {}),
    "problems-verbose": (("stalled", "slow", "noted", "blind"), {"verbosity": 1}),
    "warning": (("slow",), {}),
    "ascii": (("stalled", "noted"), {"ascii": True}),
}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", SAMPLES)
def test_text_is_as_it_was_approved(name: str, width: int) -> None:
    """Gold files; to approve a change, write the new text over them and read the difference."""
    what, options = SAMPLES[name]
    text = render(sample(*what), width=width, **options)
    assert text == (GOLD / f"{name}-{width}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", SAMPLES)
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    what, options = SAMPLES[name]
    lines = render(sample(*what), width=width, **options).splitlines()
    assert max(width_of(line) for line in lines) <= width
    assert not any(line != line.rstrip() for line in lines)


def test_verdict_is_first_and_the_one_next_command_last() -> None:
    lines = render(sample("stalled", "slow")).splitlines()
    assert lines[0].startswith("ddpdoctor ✖ X-a-001 rank-stalled")
    assert lines[-2:] == [
        "  next: ddpdoctor explain X-a-001",
        "  5 of 8 checks ran (3 skipped; -v shows why)",
    ]
    assert sum("next:" in line for line in lines) == 1


def test_victims_are_one_line_and_consequences_are_not_causes() -> None:
    text = render(sample("stalled"))
    assert "affected ranks 0, 2-3 (not the cause)" in text
    assert "follows  X-a-003 stage-timed-out: Stage collectives was stopped after 30 s." in text
    assert "✖ X-a-003" not in text


def test_skips_are_counted_with_their_reasons() -> None:
    assert "3 skipped; -v shows why" in render(sample())
    assert "3 skipped: no GPU" not in render(sample())
    assert "3 skipped: no GPU" in render(sample(), verbosity=1)


def test_unreached_stages_are_one_reason_and_long_ones_are_cut() -> None:
    report = sample()
    why = "the run ended in stage rendezvous: " + "x" * 200
    reasons = [f"stage ddp unreached: {why}", f"stage backends unreached: {why}", "stage tcp: not selected"]
    rows = tuple(
        replace(row, status="unknown", reason=reason)
        for row, reason in zip(report.checks, reasons, strict=False)
    )
    text = " ".join(render(replace(report, checks=rows)).split())
    assert "3 inconclusive: 2 the run ended in stage rendezvous: xxx" in text
    assert "x…, 1 not selected" in text


def test_could_not_look_is_never_shown_as_fine() -> None:
    text = render(sample("blind"))
    assert "1 inconclusive: stage ddp was stopped" in text
    family = next(line for line in text.splitlines() if line.startswith("  ddp "))
    assert "? 1" in family
    assert "✓" not in family


def test_quiet_is_the_verdict_alone() -> None:
    assert render(sample("stalled"), verbosity=-1, width=120).count("\n") == 1


def test_verbose_shows_every_check() -> None:
    report = sample("blind")
    text = render(report, verbosity=1)
    assert all(row.id in text for row in report.checks)
    assert "a.gpu0 skipped: no GPU" in text


def test_colours_change_nothing_but_colours() -> None:
    import re

    plain, coloured = render(sample("stalled", "slow")), render(sample("stalled", "slow"), color=True)
    assert "\x1b[31;1m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


def test_ascii_terminal_gets_ascii() -> None:
    text = render(sample("stalled", "noted", "slow"), ascii=True)
    assert text.isascii()
    assert text.startswith("ddpdoctor FAIL X-a-001")


def test_hostile_text_anywhere_is_harmless() -> None:
    evil = "\x1b]0;x\x07\x9b2J\u202e\r"
    where = Where(RankSet([0]), "culprit", evil, 1, evil, evil, evil)
    finding = Finding(
        evil,
        RankSet([0]),
        nodes=(evil,),
        where=(where,),
        evidence=(EvidenceItem("x", evil, None, (evil, 1)),),
        fix=(Fix(evil, evil, evil),),
        code=evil,
        name=evil,
        severity="error",
    )
    report = replace(
        sample(), findings=(finding, replace(finding, role="consequence"), replace(finding, severity="info"))
    )
    verdict = replace(report.verdict, status="problems", code=evil, headline=evil)
    text = render(replace(report, verdict=verdict, interrupted=evil), verbosity=1, written=(evil,))
    assert not any(sign in text for sign in "\x1b\x07\x9b\u202e\r")


def test_many_places_and_observations_are_cut_and_counted() -> None:
    many = replace(
        CAUSE,
        where=CAUSE.where * 5,
        evidence=CAUSE.evidence * 5,
        code="X-a-001",
        name="rank-stalled",
        severity="error",
    )
    report = replace(sample("stalled"), findings=(many,))
    text = render(report)
    assert "… 9 more places (-v shows them)" in text
    assert "… 4 more (-v shows them)" in text
    assert "more places" not in render(report, verbosity=1)


@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_confidence_is_said(confidence: str) -> None:
    report = sample("slow")
    findings = tuple(replace(finding, confidence=confidence) for finding in report.findings)
    assert f"{confidence} confidence" in render(replace(report, findings=findings)).splitlines()[0]


def test_withdrawn_finding_is_not_shown() -> None:
    report = sample("slow")
    gone = tuple(replace(finding, state="withdrawn") for finding in report.findings)
    healthy = replace(report, findings=gone, verdict=sample().verdict)
    assert "X-a-002" not in render(healthy)


@pytest.mark.unmeasured
def test_sixteen_thousand_ranks_are_a_screenful() -> None:
    report = make_report(make_world(2048, 8), *CHECKS)
    text = render(report)
    assert "16384 ranks on 2048 nodes" in text
    assert "node-[1000-2047]" in text
    assert len(text.splitlines()) < 40


def test_empty_evidence_can_be_shown() -> None:
    assert render(make_report(Evidence())).startswith("ddpdoctor ? ")


def test_what_the_watcher_left_out_is_told_with_verbose() -> None:
    training = Training(ranks=RankSet([0, 1]), abstained={"the step is compiled": RankSet([1])}, share=0.004)
    report = make_report(make_world(1, 4, training=(training,)), *CHECKS)
    quiet, told = (
        TextRenderer().render(report, RenderOptions(width=120, verbosity=level)) for level in (0, 1)
    )
    assert "not sampled" not in quiet
    assert "not sampled rank 1: the step is compiled" in told


def test_severity_that_nobody_knows_is_shown_as_it_is() -> None:
    report = sample_many(1)
    grave = replace(report, findings=(replace(report.findings[0], severity="grave"),))
    shown = " ".join(TextRenderer().render(grave, RenderOptions()).split())
    assert "! 1 grave in 1 file" in shown
    assert "COL002 collective-missing · grave · high confidence" in shown


def test_job_of_which_nobody_can_be_named_is_told_apart_from_a_failure_of_ours() -> None:
    still = sample_still()
    assert "? hang, root cause not determined" in TextRenderer().render(still, RenderOptions())
    broken = replace(still, verdict=replace(still.verdict, status="error"))
    assert "? failed" in TextRenderer().render(broken, RenderOptions())
