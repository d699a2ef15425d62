"""A command line with three made-up checks, a made-up launch, and a directory of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import ddpdoctor.plugins
from ddpdoctor import cli
from ddpdoctor.cli import check as check_command
from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.gatherers import GathererFailure, GathererRegistry, merge_extra, run_gatherers
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, Registry, check
from ddpdoctor.launch.request import CheckOutcome, CheckRequest, Progress
from ddpdoctor.plugins import CHECKS, Entry
from ddpdoctor.testing import STARTED, make_world


@check(
    "NET001",
    name="port-in-use",
    title="The port is taken",
    severity="error",
    family="network",
    needs=("ports",),
    since="0.1.0",
    id="net.port.free",
)
def find_port(evidence: Evidence) -> Iterable[Finding]:
    """The port is taken.

    Symptoms:
        A port that somebody holds.
    """
    for probe in evidence.ports:
        if probe.status == "taken":
            yield Finding(
                f"Port {probe.port} is held by process {probe.holder_pid}.",
                ranks=RankSet([0]),
                victims=RankSet([1]),
                evidence=(EvidenceItem("bind", "Address already in use"),),
                fix=(Fix("stop that process", f"kill {probe.holder_pid}"),),
            )


@check(
    "ENV011",
    name="threads-oversubscribed",
    title="More threads than cores",
    severity="warning",
    family="environment",
    needs=("nodes",),
    since="0.1.0",
    id="env.threads.fit",
)
def find_threads(evidence: Evidence) -> Iterable[Finding]:
    """More threads than cores."""
    for node in evidence.nodes:
        if node.cpus is None:
            raise CannotLook("cores are not known")
        if node.cpus.affinity < 2:
            yield Finding(
                f"{node.host} has too few cores.", nodes=(node.host,), fix=(Fix("use fewer threads"),)
            )


@check(
    "NET012",
    name="address-family-noise",
    title="Harmless retries",
    severity="info",
    family="network",
    needs=("errors",),
    since="0.1.0",
    id="net.noise",
)
def find_noise(evidence: Evidence) -> Iterable[Finding]:
    """Harmless retries."""
    for error in evidence.errors:
        yield Finding(f"rank {error.rank} said errno 97.")


def register(registry: Registry) -> None:
    registry.add(find_port, find_threads, find_noise)


@dataclass
class Stage:
    """What the made-up launch gives, and what it was asked for."""

    evidence: Evidence = field(default_factory=make_world)
    outcome: dict[str, Any] = field(default_factory=dict)
    requests: list[CheckRequest] = field(default_factory=list)
    error: BaseException | None = None

    def launch(
        self, request: CheckRequest, progress: Progress, gatherers: GathererRegistry, ground: object = None
    ) -> CheckOutcome:
        self.requests.append(request)
        progress.stage("facts", 10.0)
        if self.error is not None:
            raise self.error
        evidence = self.evidence
        failures: list[GathererFailure] = []
        if evidence.nodes:
            extra, failures = run_gatherers(gatherers, evidence.nodes[0])
            evidence = merge_extra(evidence, extra)
        more: dict[str, Any] = {"gatherer_failures": tuple(failures), **self.outcome}
        return CheckOutcome(evidence, STARTED, 1.5, **more)


@dataclass
class Result:
    """How one command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    """The entry points that are found; tests may add to them."""
    found = [Entry("ddpdoctor", CHECKS, "builtin", lambda: register)]

    def find(groups: Iterable[str] = ()) -> list[Entry]:
        return [entry for entry in found if entry.group in groups or not groups]

    monkeypatch.setattr(ddpdoctor.plugins, "find_entries", find)
    return found


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage()
    monkeypatch.setattr(check_command, "prepare", lambda stages: nullcontext())
    monkeypatch.setattr(check_command, "launch", made.launch)
    return made


@pytest.fixture
def run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    entries: list[Entry],
    stage: Stage,
) -> Run:
    """Runs the command line in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("NO_COLOR", "COLUMNS", "MASTER_ADDR", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> Result:
        code = cli.main(list(arguments))
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture
def gatherers(entries: list[Entry]) -> Callable[[Callable[[GathererRegistry], object]], None]:
    """Adds a distribution with gatherers."""

    def add(function: Callable[[GathererRegistry], object]) -> None:
        entries.append(Entry("some-dist", ddpdoctor.plugins.GATHERERS, "it", lambda: function))

    return add
