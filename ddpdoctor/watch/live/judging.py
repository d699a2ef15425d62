"""What the checks say of a job that still runs: of one look at its ranks, of their calls, of their loaders."""

from __future__ import annotations

from ddpdoctor.evidence import Evidence, Launch
from ddpdoctor.evidence.collectives import CallLog
from ddpdoctor.evidence.standstill import Standstill
from ddpdoctor.evidence.training.fingerprints import Training
from ddpdoctor.judge.finding import Finding
from ddpdoctor.judge.registry import Registry
from ddpdoctor.judge.runner import run_checks
from ddpdoctor.judge.verdict import order_findings
from ddpdoctor.watch.live.policy import Ruling

UNEVEN_BATCHES = "DAT003"
"""The one code that is foreseen: loaders tell it from the first batch on, hours before ranks wait."""


def judge_loaders(training: Training, registry: Registry) -> Finding | None:
    """Return what the checks find in the numbers of batches of a job that still runs; None for nothing."""
    evidence = Evidence(launch=Launch(command="run"), training=(training,))
    return next(iter(_judge("training", evidence, registry, code=UNEVEN_BATCHES)), None)


def judge_calls(log: CallLog, registry: Registry) -> Finding | None:
    """Return what the checks of recorded calls find in those of a live job; None for nothing."""
    evidence = Evidence(launch=Launch(command="run"), calls=(log,))
    found = _judge("calls", evidence, registry)
    return next((each for each in found if each.severity != "info"), None)


def judge_look(look: Standstill, registry: Registry) -> Ruling:
    """Return what the checks of hangs say of one look."""
    evidence = Evidence(launch=Launch(command="run"), standstills=(look,))
    active = _judge("standstills", evidence, registry)
    if not active:
        return Ruling()
    first = active[0]
    proved = bool(first.details.get("proof"))
    unclear = tuple(first.details.get("unclear", ()))
    return Ruling(proved, not proved, first.code, first.message, tuple(first.ranks), unclear)


def _judge(kind: str, evidence: Evidence, registry: Registry, code: str | None = None) -> list[Finding]:
    """Return what those checks find that need one kind of evidence alone, root cause first; all, or of one code."""
    checks = [
        each
        for each in registry.checks_of("run")
        if each.needs == (kind,) and (code is None or code in each.codes)
    ]
    _, findings = run_checks(checks, evidence, wanted=lambda found: code in (None, found))
    return [each for each in order_findings(findings, checks) if each.state == "active"]
