"""COL007: asynchronous work that nobody waits for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.job import ProcessRecord, UnwaitedWork
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, check
from ddpdoctor_checks.common.frames import user_frames
from ddpdoctor_checks.common.jobs import JOB
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.wording import capitalise, choose_form, count_of, name_set
from ddpdoctor_checks.job.blame.judging import diagnose
from ddpdoctor_checks.job.silent.well_ended import ended_well, find_ranks, job_ended_well

MOST_LINES = 8
"""Lines that are findings of their own; more are in the details of the last."""
MOST_CALLERS = 3
MISSED = ("COL005", "COL008")
"""Codes of jobs in which ranks waited for others that did not come."""
_RISKS = {
    "isend": "the message may never leave, and the tensor may change before it does",
    "irecv": "the tensor may be read before the message has arrived",
}
_RISK = "its result may be used before it is complete"


@dataclass(slots=True)
class _Line:
    """One line that begins work, over all ranks."""

    op: str
    frames: tuple[Frame, ...]
    device: str | None
    rows: list[tuple[int, UnwaitedWork]] = field(default_factory=list)

    @property
    def ranks(self) -> RankSet:
        """Which begin it."""
        return RankSet(rank for rank, _ in self.rows)

    @property
    def most(self) -> UnwaitedWork:
        """What the rank saw that forgot most often."""
        return max((work for _, work in self.rows), key=_count_lost)


def _count_lost(work: UnwaitedWork) -> int:
    return work.dropped + work.kept


@check("COL007", family="silent", needs=("processes",), id="silent.work", required=False, commands=JOB)
def find_unwaited(evidence: Evidence) -> Iterable[Finding]:
    """A collective with ``async_op=True``, an isend or an irecv is begun, and nobody ever waits for it."""
    ranks = [each for each in find_ranks(evidence) if ended_well(each, evidence)]
    blind = [each.rank for each in ranks if any(work.blind for work in each.unwaited)]
    lines = _read_lines(each for each in ranks if each.rank not in blind)
    if blind and not lines:
        raise CannotLook("the program replaces Work.wait: its waits are not visible")
    missed = find_missed(evidence)
    ordered = sorted(lines, key=lambda line: (-_count_lost(line.most), line.most.first))
    for line in ordered[:MOST_LINES]:
        yield _tell(line, missed, len(lines))


def find_missed(evidence: Evidence) -> RankSet:
    """Return the ranks that failed waiting for others; nobody in a job that ended well, or failed of something else."""
    if job_ended_well(evidence):
        return RankSet()
    cause = diagnose(evidence).cause
    return (
        RankSet(each.rank for each in cause.failures if each.rank is not None)
        if cause and cause.code in MISSED
        else RankSet()
    )


def left_unsent(evidence: Evidence) -> RankSet:
    """Return the ranks that left right after they had begun something that they did not wait for."""
    ranks = [each for each in evidence.processes if each.rank is not None and ended_well(each, evidence)]
    return RankSet(rank for line in _read_lines(ranks) for rank, work in line.rows if work.last == work.calls)


def _read_lines(ranks: Iterable[ProcessRecord]) -> list[_Line]:
    """Return the lines that forget more than half of what they begin."""
    found: dict[tuple[str, str, int], _Line] = {}
    for process in ranks:
        for work in process.unwaited:
            frames = user_frames(work.frames)
            if not frames or 2 * _count_lost(work) <= work.begun:
                continue
            line = found.setdefault(
                (work.op, frames[0].file, frames[0].line), _Line(work.op, frames, work.device)
            )
            line.rows.append((process.rank or 0, work))
    return list(found.values())


def _tell(line: _Line, missed: RankSet, lines: int) -> Finding:
    ranks, most = line.ranks, line.most
    on_host = line.device in (None, "cpu")
    last = on_host and all(work.last == work.calls for _, work in line.rows)
    harmed = missed.minus(ranks) if last else RankSet()
    severity = "error" if harmed else "warning" if on_host else "info"
    frame, lost = line.frames[0], _count_lost(most)
    begin = choose_form(len(ranks), "begins", "begin")
    times = "" if most.begun == 1 else f", {lost:,} of {most.begun:,} times"
    if harmed:
        leave = choose_form(len(ranks), "leaves", "leave")
        rest = (
            f"and {leave} without having waited for it{times}; {name_set(harmed)} waited until it timed out"
        )
    else:
        wait = choose_form(len(ranks), "waits", "wait")
        rest = f"and never {wait} for it{times}: {_RISKS.get(line.op, _RISK)}"
    return Finding(
        message=f"{capitalise(name_set(ranks))} {begin} {line.op} at {frame.file}:{frame.line} {rest}.",
        ranks=ranks,
        victims=harmed,
        where=tuple(
            in_frame(each, ranks, "culprit" if number == 0 else "caller")
            for number, each in enumerate(line.frames[: 1 + MOST_CALLERS])
        ),
        evidence=tuple(
            EvidenceItem("work", _describe(work), RankSet([rank])) for rank, work in line.rows[:MOST_LINES]
        ),
        fix=_fixes(line),
        details={"op": line.op, "begun": most.begun, "dropped": most.dropped, "kept": most.kept,
                 "device": line.device, "lines": lines},
        severity=severity,
        confidence="high" if on_host else "low",
        decisive=bool(harmed),
    )  # fmt: skip


def _describe(work: UnwaitedWork) -> str:
    parts = [
        f"{work.dropped:,} dropped" if work.dropped else "",
        f"{work.kept:,} held until exit" if work.kept else "",
    ]
    calls = f"call {work.first:,}" if work.first == work.last else f"calls {work.first:,} to {work.last:,}"
    lost = " and ".join(part for part in parts if part)
    return f"of {count_of(work.begun, 'Work object')} {lost} without having been used ({calls})"


def _fixes(line: _Line) -> tuple[Fix, ...]:
    call = f"dist.{line.op}(tensor, peer)" if line.op in _RISKS else f"dist.{line.op}(tensor, async_op=True)"
    wait = Fix(
        (
            "keep the Work object, and wait for it before the tensor is used or modified and before the "
            "process exits"
        ),
        code=f"work = {call}\n…\nwork.wait()",
    )
    if line.op in _RISKS:
        return (wait, Fix(f"or use the blocking call: dist.{line.op[1:]}"))
    return (wait, Fix("or drop async_op=True: the call is then blocking"))
