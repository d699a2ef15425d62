"""Whether a job hung when its calls were dumped: a dump is of one moment, and who gets on is in some call too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.collectives import RETIRED, CallLog, RankCalls
from ddpdoctor.facts.hangs import HANG_S, STALL_S
from ddpdoctor.judge import EvidenceItem, Fix
from ddpdoctor_checks.common.wording import choose_form, format_age, name_set
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, interrupted_by_user
from ddpdoctor_checks.job.calls.matching import Matching
from ddpdoctor_checks.job.calls.sequences import MEETING
from ddpdoctor_checks.job.calls.votes import Difference
from ddpdoctor_checks.job.recorder.difference_words import Told
from ddpdoctor_checks.job.recorder.own_ends import ended_well

LATE_S = 120.0
"""A dump that a time-out made is written so soon after it: torch waits 15 s for one, and its heartbeat looks each 30 s
(TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC, TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC; ProcessGroupNCCL.cpp)."""
EARLY_S = 1.0
"""The watchdog may see a time-out a little before a clock of whole seconds does."""
MOMENTARY = ("missing", "absent", "unstarted", "together")
"""Differences that are none a moment later where the job gets on; of the others no time makes calls fit."""


AGAIN = Fix("if it does hang, write the dumps then")
LATER = Fix(
    "add evidence of whether it hung: the log of the job, or dumps written some minutes later",
    "ddpdoctor analyze DUMPS LATER_DUMPS train.log",
)
SURENESS = ("low", "medium", "high")


@dataclass(frozen=True, slots=True)
class Moment:
    """What is known of the time at which the dumps were made."""

    stage: str
    """hung; passing (there is no sign of a hang); open (nothing tells)."""
    text: str = ""
    """What tells it: a part of a sentence."""


def weaken(told: Told, moment: Moment) -> Told:
    """Lower what is told of a difference to what the moment of the dumps allows to say."""
    told.details["moment"] = moment.stage
    if moment.text:
        told.seen = (*told.seen, EvidenceItem("dump", moment.text))
    if moment.stage == "hung":
        return told
    sentence = f"At the moment of the dumps {told.message[0].lower()}{told.message[1:]}"
    told.confidence = (
        "low" if moment.stage == "passing" else min(told.confidence, "medium", key=SURENESS.index)
    )
    if moment.stage == "passing":
        told.severity, told.ranks, told.victims = "info", RankSet(), RankSet()
        told.message = f"{sentence.removesuffix('.')}; {moment.text}: no sign of a hang."
        told.where = tuple(replace(place, role="condition") for place in told.where)
    else:
        told.severity = "warning"
        told.message = f"{sentence.removesuffix('.')}; there is no evidence of whether that was a hang."
    told.fix = (AGAIN,) if moment.stage == "passing" else (LATER, *told.fix)
    return told


def judge_moment(matching: Matching, difference: Difference, ends: Diagnosis | None) -> Moment:
    """Say whether the job hung at the moment of the dumps.

    Args:
        matching: of all dumps.
        difference: the first one.
        ends: how the job's processes ended; None where nothing is known.
    """
    if difference.kind not in MOMENTARY:
        return Moment("hung")
    if ends is not None and ended_well(ends, difference.waiting) == difference.waiting:
        return Moment("passing", f"{name_set(difference.waiting)} continued and exited cleanly")
    if ends is not None and ends.failures and not interrupted_by_user(ends):
        return Moment("hung")
    log = matching.log
    rows = {row.rank: row for row in log.ranks}
    waiting = [
        (rows[rank], place)
        for rank in difference.waiting
        if (place := _find(log, rows[rank], difference)) >= 0
    ]
    begun = {
        row.rank: row.begun_ns[place] for row, place in waiting if row.begun_ns and row.begun_ns[place] > 0
    }
    found = (
        _compare_dumps(difference, rows)
        or _compare_files(log, waiting, begun)
        or _find_older(difference, rows, begun)
        or _find_failed(log, waiting)
        or _compare_calls(log, begun)
        or Moment("open")
    )  # fmt: skip
    # A rank of which there is no dump may be dead: that is no job that gets on.
    return replace(found, stage="open") if found.stage == "passing" and difference.kind == "absent" else found


def _find(log: CallLog, row: RankCalls, difference: Difference) -> int:
    """Return the place of the call in the rows of a rank; -1 where it is not there."""
    name = difference.group.name
    for place in range(len(row.calls) - 1, -1, -1):
        if row.sequences[place] != difference.number:
            continue
        call = log.calls[row.calls[place]]
        if not call.p2p and log.groups[call.group].name == name:
            return place
    return -1


def _compare_dumps(difference: Difference, rows: Mapping[int, RankCalls]) -> Moment | None:
    """Where there are several dumps of each rank that is late: had it called anything in between?"""
    held = difference.behind if difference.kind == "missing" else difference.waiting
    still = [rows[rank].still_ns for rank in held if rank in rows]
    known = [each for each in still if each is not None]
    if not known or len(known) < len(still) or min(known) < HANG_S * 1e9:
        return None
    who, age = name_set(RankSet(held)), format_age(min(known) / 1e9)
    return Moment("hung", f"{who} issued nothing between two dumps {age} apart")


def _compare_files(
    log: CallLog, waiting: Sequence[tuple[RankCalls, int]], begun: Mapping[int, int]
) -> Moment | None:
    """Compare when the calls were made with when the dumps were written: a copy of a file may be younger, not older."""
    ages = {
        row.rank: (row.written_ns - begun[row.rank]) / 1e9
        for row, _ in waiting
        if row.written_ns is not None and row.rank in begun
    }
    for row, place in waiting:
        limit = log.calls[row.calls[place]].timeout_ms
        if limit and row.rank in ages and limit / 1e3 - EARLY_S <= ages[row.rank] <= limit / 1e3 + LATE_S:
            told = f"the dump of rank {row.rank} was written {format_age(ages[row.rank])} after its call"
            return Moment("hung", f"{told}, whose timeout is {format_age(limit / 1000.0)}")
    longest = max(ages.values(), default=-1.0)
    if len(ages) == len(waiting) and min(ages.values(), default=-1.0) >= 0 and longest < STALL_S:
        return Moment("passing", f"the dumps were written {longest:.1f} s after the call at the latest")
    return None


def _find_older(
    difference: Difference, rows: Mapping[int, RankCalls], begun: Mapping[int, int]
) -> Moment | None:
    """Whether the dumps of those who are late were written before the others made the call."""
    if difference.kind != "missing" or not begun:
        return None
    first = min(begun.values())
    written = [rows[rank].written_ns for rank in difference.behind if rank in rows]
    if not written or not all(each is not None and each < first for each in written):
        return None
    dumps = choose_form(len(difference.behind), "the dump", "the dumps")
    verb = choose_form(len(difference.behind), "was", "were")
    who = name_set(difference.behind)
    return Moment("passing", f"{dumps} of {who} {verb} written before the others issued the collective")


def _find_failed(log: CallLog, waiting: Iterable[tuple[RankCalls, int]]) -> Moment | None:
    """Whether the call has ended on somebody although not all have made it: then it failed."""
    failed = RankSet(
        row.rank
        for row, place in waiting
        if row.states[place] & RETIRED and log.calls[row.calls[place]].op in MEETING
    )
    return Moment("hung", f"the collective failed on {name_set(failed)}") if failed else None


def _compare_calls(log: CallLog, begun: Mapping[int, int]) -> Moment | None:
    """Whether ranks have made other calls long after those who wait made theirs."""
    if not begun:
        return None
    last = max((row.begun_ns[len(row.begun_ns) - 1] for row in log.ranks if row.begun_ns), default=0)
    spent = (last - min(begun.values())) / 1e9
    if spent < HANG_S:
        return None
    return Moment("hung", f"other collectives were issued up to {format_age(spent)} later")
