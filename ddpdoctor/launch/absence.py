"""Why kinds of evidence are missing after a check: not asked for, not applicable, or not reached."""

from __future__ import annotations

from ddpdoctor.evidence import Absent, Evidence
from ddpdoctor.evidence.bundle import JOB_KINDS
from ddpdoctor.launch.plan import Plan

STAGE_KINDS: dict[str, tuple[str, ...]] = {
    "facts": ("nodes",),
    "smoke": ("smoke",),
    "tcp": ("resolutions", "ports", "links", "host_matches"),
    "rendezvous": ("rendezvous", "ranks"),
    "backends": ("backends",),
    "collectives": ("collectives", "initialisations"),
    "ddp": ("experiments", "model"),
    "bandwidth": ("bandwidth", "pairs", "baselines"),
    "strategies": ("strategies",),
}
"""Which evidence each stage brings."""


def absent_kinds(plan: Plan, evidence: Evidence) -> dict[str, Absent]:
    """Say for each kind of evidence whose stage did not pass why it may be missing."""
    absent: dict[str, Absent] = {}
    for record in evidence.stages:
        for kind in STAGE_KINDS.get(record.stage, ()):
            if record.status == "skipped":
                absent[kind] = Absent(f"stage {record.stage}: {record.reason}", applicable=False)
            elif record.status != "passed":
                absent.setdefault(kind, Absent(f"stage {record.stage} {record.status}: {record.reason}"))
    for kind in JOB_KINDS:
        absent[kind] = Absent("`check` does not watch a job", applicable=False)
    if not plan.runs("strategies"):
        absent["strategies"] = Absent("no --strategy was given", applicable=False)
    if plan.launch.model is None:
        absent["model"] = Absent("no --model was given", applicable=False)
    if plan.launch.world_size == 1:
        for kind in ("bandwidth", "pairs"):
            absent[kind] = Absent("requires at least two ranks", applicable=False)
    if plan.launch.nnodes == 1:
        for kind in ("links", "host_matches"):
            absent[kind] = Absent("single node", applicable=False)
    return absent
