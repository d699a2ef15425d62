"""Words of codes that lines of NCCL, its plugins and the kernel speak for."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.evidence import RankSet
from ddpdoctor.judge import Fix
from ddpdoctor_checks.common.wording import choose_form, name_set
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.failures import Level
from ddpdoctor_checks.job.blame.lagging import BUSY
from ddpdoctor_checks.job.ends.clauses import Clause, Describe
from ddpdoctor_checks.job.ends.findings import describe_line
from ddpdoctor_checks.job.ends.rerun import rerun


def _describe(diagnosis: Diagnosis, group: Group) -> Clause:
    clause = describe_line(diagnosis, group)
    small = Fix("test every backend in a small job", "ddpdoctor check --only facts,smoke,rendezvous,backends")
    return replace(clause, fix=(*clause.fix, small))


def _describe_dead(diagnosis: Diagnosis, group: Group) -> Clause:
    """Describe a process that NCCL's RAS service does not reach; another line of the page names its rank."""
    if group.level == Level.COMPLAINT and diagnosis.suspects:
        return _describe_busy(diagnosis, group)
    missing = [
        text.groups["missing"]
        for text in diagnosis.evidence.texts
        if text.entry in ("ras-ranks-missing", "ras-rank-silent") and "missing" in text.groups
    ]
    ranks = RankSet(
        int(part) for text in missing for part in text.replace(",", " ").split() if part.isdigit()
    )
    clause = describe_line(diagnosis, group)
    return replace(clause, ranks=ranks) if ranks else clause


def _describe_busy(diagnosis: Diagnosis, group: Group) -> Clause:
    """Describe a rank that did something long by itself while the others waited for it."""
    busy = next((text.groups.get("what", "") for text in diagnosis.evidence.texts if text.entry == BUSY), "")
    who, others = name_set(diagnosis.suspects), name_set(group.ranks) if group.ranks else "the others"
    return Clause(
        f'{who[:1].upper()}{who[1:]} was still at work ("{busy}") when the limit of {others}, which waited for it '
        "in a collective, was over.",
        (
            Fix(
                "let the others wait longer", code="dist.init_process_group(..., timeout=timedelta(hours=2))"
            ),
            Fix(
                "or do the work before the group is made, or in parts on all ranks",
                "py-spy dump --pid PID",
            ),
        ),
        whole=True,
        ranks=diagnosis.suspects,
        confidence="medium",
    )


def _describe_blocked(diagnosis: Diagnosis, group: Group) -> Clause:
    seconds = next(
        (f.groups["seconds"] for f in group.failures if f.groups.get("seconds", "").isdigit()), None
    )
    since = f" for {int(seconds):,} s" if seconds else ""
    who = name_set(group.ranks) if group.ranks else "a rank"
    return Clause(
        f"The NCCL watchdog of {who} was blocked{since} and ended the "
        f"{choose_form(max(1, len(group.ranks)), 'process', 'processes')}: a CUDA call or the GIL blocked "
        "it.",
        (
            Fix("dump all threads of the rank while it hangs", "py-spy dump --native --pid PID"),
            Fix(
                "allow longer stalls, such as loading and checkpoints",
                rerun(diagnosis, environment=("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1800",)),
            ),
        ),
        {"seconds": int(seconds) if seconds else None},
        whole=True,
        ranks=RankSet(),
        confidence="medium",
    )


CLAUSES: dict[str, Describe] = {
    "BKD010": _describe,
    "BKD012": _describe,
    "BKD013": _describe,
    "NET013": _describe,
    "NET016": _describe,
    "ENV004": _describe,
    "ENV005": _describe,
    "ENV013": _describe,
    "COL001": _describe,
    "COL009": _describe_dead,
    "COL011": _describe,
    "ERR011": _describe_blocked,
}
