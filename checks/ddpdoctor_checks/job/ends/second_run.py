"""What a second run with a toggle showed of the same failure: its true line, or why there is none."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.job import Rerun
from ddpdoctor.judge import EvidenceItem, Fix, Where
from ddpdoctor_checks.common.frames import MOST_PLACES, user_frames
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.judging import diagnose
from ddpdoctor_checks.job.ends.rerun import rerun as command

DECISIVE = {
    "blocking": ("CUDA_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL"),
    "detail": ("TORCH_DISTRIBUTED_DEBUG",),
}
"""The variable that tells the second run from the first, in the words of a finding."""
MOST_LINES = 4
"""Different lines of one failure that are shown."""
LIMIT_S = 600.0
"""Where the limit of a second run that was stopped is not known."""


@dataclass(slots=True)
class Again:
    """What a second run adds to a finding."""

    what: str
    """A part of a sentence, e.g. ``run again with CUDA_LAUNCH_BLOCKING=1 it was raised at model.py:12``."""
    group: Group | None = None
    """Group of the same failure in the second run; None where it did not happen there."""
    places: tuple[Where, ...] = ()
    """Its true line and who called it; empty where the first run named that line already."""
    seen: tuple[EvidenceItem, ...] = ()
    fix: tuple[Fix, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


def look_again(diagnosis: Diagnosis, group: Group, toggle: str, codes: Collection[str]) -> Again | None:
    """Return what the second run with a toggle showed; None where none was asked for.

    Args:
        diagnosis: of the first run.
        group: the failure.
        toggle: blocking or detail.
        codes: of failures in the second run that are this one.
    """
    rerun = next((each for each in diagnosis.evidence.reruns if each.toggle == toggle), None)
    if rerun is None:
        return None
    if rerun.state == "skipped":
        return Again(
            f"it was not rerun: {rerun.reason}",
            seen=(EvidenceItem("rerun", f"not run: {rerun.reason}"),),
            details={"rerun": "skipped"},
        )
    second = diagnose(_evidence_of(rerun, diagnosis.evidence))
    same = next(
        (each for each in (second.cause, *second.others) if each is not None and each.code in codes), None
    )
    return _not_shown(rerun, second, diagnosis) if same is None else _shown(rerun, group, same, toggle)


def _evidence_of(rerun: Rerun, first: Evidence) -> Evidence:
    return Evidence(
        launch=first.launch,
        processes=rerun.processes,
        exceptions=rerun.exceptions,
        crashes=rerun.crashes,
        wrappers=rerun.wrappers,
        texts=rerun.texts,
        memory=rerun.memory,
        job=rerun.job,
    )


def _name(rerun: Rerun) -> str:
    """Return the decisive variable with its value; of a run that was not made, the usual one."""
    names = DECISIVE.get(rerun.toggle, ())
    return next(
        (f"{name}={rerun.variables[name]}" for name in names if name in rerun.variables), rerun.toggle
    )


def _took(rerun: Rerun) -> str:
    seconds = rerun.job[0].duration_s if rerun.job else None
    kept = f", kept in {rerun.directory}/" if rerun.directory else ""
    return f"rerun with {_name(rerun)}" + (f" ({seconds:.3g} s{kept})" if seconds else "")


def _not_shown(rerun: Rerun, second: Diagnosis, first: Diagnosis) -> Again:
    """The second run did not come to the same failure: say how it ended instead."""
    fixes: tuple[Fix, ...] = ()
    what = f"in a rerun with {_name(rerun)} it was not reproduced"
    if rerun.state == "timed-out":
        within = f" within {rerun.limit_s:.0f} s" if rerun.limit_s else " in time"
        what, how = (
            f"in a rerun with {_name(rerun)} it did not occur{within}",
            "was stopped at its time limit",
        )
        more = f"{2 * (rerun.limit_s or LIMIT_S):.0f}"
        again = command(first, "--rerun", rerun.toggle, "--rerun-limit", more)
        fixes = (Fix("allow more time for the rerun", again),)
    elif rerun.state == "stopped":
        what, how = f"a rerun with {_name(rerun)} hung before that", "hung and was stopped"
    elif rerun.state == "interrupted":
        what, how = f"a rerun with {_name(rerun)} was interrupted before that", "was interrupted"
    elif rerun.job and rerun.job[0].exit_code == 0:
        how = "exited cleanly"
    elif second.cause is not None:
        how = f"failed differently: {second.cause.first.words}"
        if rerun.toggle == "detail" and second.cause.code == "ERR004":
            how += (
                " (torch has been seen to crash in DDP() with this setting on gloo; the script is not the "
                "cause)"
            )
    else:
        how = "failed, and nothing shows why"
    return Again(
        what,
        seen=(EvidenceItem("rerun", f"{_took(rerun)}: {how}"),),
        fix=fixes,
        details={"rerun": "not reproduced"},
    )


def _shown(rerun: Rerun, group: Group, same: Group, toggle: str) -> Again:
    item = EvidenceItem("rerun", f"{_took(rerun)}: {same.first.words}", same.ranks or None)
    line, before = same.first.line, group.first.line
    if line is None:
        return Again(
            f"in a rerun with {_name(rerun)} it failed in the same way, without a line of user code",
            group=same,
            seen=(item,),
            details={"rerun": "reproduced"},
        )
    place = f"{line.file}:{line.line}" + (f" in {line.function}" if line.function != "<module>" else "")
    details: dict[str, Any] = {"rerun": "reproduced", "true_line": {"file": line.file, "line": line.line}}
    if before is not None:
        details["reported_line"] = {"file": before.file, "line": before.line}
        if (before.file, before.line) == (line.file, line.line):
            return Again(
                f"in a rerun with {_name(rerun)} it was raised at the same line"
                + (", so this is the true one" if toggle == "blocking" else ""),
                group=same,
                seen=(item,),
                details=details,
            )
    return Again(
        f"in a rerun with {_name(rerun)} it was raised at {place}"
        + (", which is the true line" if toggle == "blocking" else ""),
        group=same,
        places=place_failures(same),
        seen=(item,),
        details=details,
    )


def place_failures(group: Group, culprits: RankSet | None = None) -> tuple[Where, ...]:
    """Return the innermost line of a failure with its callers, then lines of other ranks.

    Args:
        group: the failure.
        culprits: ranks at fault, of those that failed so; None where all are.
    """
    mine = (
        RankSet(each.rank for each in group.failures if each.rank is not None)
        if culprits is None
        else culprits
    )
    ordered = sorted(group.failures, key=lambda each: (each.rank not in mine, each is not group.first))
    lines: dict[tuple[bool, str, int], tuple[Frame, list[int]]] = {}
    for failure in ordered:
        line = failure.line
        if line is not None and failure.rank is not None:
            key = (failure.rank in mine, line.file, line.line)
            lines.setdefault(key, (line, []))[1].append(failure.rank)
    places: list[Where] = []
    for (guilty, _, _), (line, ranks) in list(lines.items())[:MOST_LINES]:
        role = "culprit" if guilty else "victim"
        places.append(in_frame(line, RankSet(ranks), role))
        if len(places) == 1:
            callers = user_frames(ordered[0].frames)[1:MOST_PLACES]
            places += [in_frame(each, RankSet(ranks), "caller") for each in callers]
    return tuple(places)
