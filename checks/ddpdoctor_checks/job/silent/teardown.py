"""COL012: process groups that are destroyed on some ranks only, or never."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.job import ProcessRecord
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.common.jobs import JOB
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.wording import capitalise, choose_form, name_set
from ddpdoctor_checks.job.silent.well_ended import ended_well, find_ranks, job_ended_well, ranks_of

EVERYWHERE = Fix(
    "destroy it on every rank, in a finally block around the whole program",
    code="dist.init_process_group()\ntry:\n    main()\nfinally:\n    dist.destroy_process_group()",
)
MOST_LINES = 4


@check("COL012", family="silent", needs=("processes",), id="silent.teardown", required=False, commands=JOB)
def find_teardown(evidence: Evidence) -> Iterable[Finding]:
    """The process group is destroyed on some ranks only, or, with NCCL, on none."""
    ranks = [each for each in find_ranks(evidence) if _last(each, "init") is not None]
    if not ranks:
        raise NotApplicable("no rank created a process group")
    if not job_ended_well(evidence) or not all(ended_well(each, evidence) for each in ranks):
        raise NotApplicable("a job that failed has no orderly teardown")
    left = [each for each in ranks if not _is_destroyed(each)]
    if not left:
        return
    if len(left) < len(ranks):
        yield _tell_some(left, [each for each in ranks if _is_destroyed(each)])
    elif any("nccl" in (each.backend or "") for each in ranks):
        everybody = ranks_of(ranks)
        yield Finding(
            message="No rank calls destroy_process_group before the program ends.",
            ranks=everybody,
            evidence=(
                EvidenceItem("milestone", "created a process group and never destroyed it", everybody),
            ),
            fix=(EVERYWHERE,),
            details={"kind": "never"},
            severity="info",
            role="advice",
        )


def _last(process: ProcessRecord, name: str) -> int | None:
    """Return the place of the last milestone of a name; None where it was not reached."""
    places = [number for number, each in enumerate(process.milestones) if each.name == name]
    return places[-1] if places else None


def _is_destroyed(process: ProcessRecord) -> bool:
    return (_last(process, "destroy") or -1) > (_last(process, "init") or 0)


def _tell_some(left: list[ProcessRecord], done: list[ProcessRecord]) -> Finding:
    never, others = ranks_of(left), ranks_of(done)
    lines: dict[Frame, list[int]] = {}
    for process in done:
        line = user_line(process.milestones[_last(process, "destroy") or 0].frames)
        if line is not None:
            lines.setdefault(line, []).append(process.rank or 0)
    where = [in_frame(line, RankSet(ranks), "culprit") for line, ranks in list(lines.items())[:MOST_LINES]]
    at = f" ({where[0].file}:{where[0].line})" if where else ""
    calls, ends = choose_form(len(others), "calls", "call"), choose_form(len(never), "ends", "end")
    done_by = f"{capitalise(name_set(others))} {calls} destroy_process_group{at}"
    return Finding(
        message=f"{done_by}; {name_set(never)} {ends} without it.",
        ranks=never,
        where=tuple(where),
        evidence=(
            EvidenceItem("milestone", "created a process group and never destroyed it", never),
            EvidenceItem("milestone", "destroyed the process group", others),
        ),
        fix=(EVERYWHERE,),
        details={"kind": "some", "never": str(never), "destroyed": str(others)},
    )
