"""Stages that were cut at their limit, ranks that died in them, and exceptions that ended them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import (
    STAGES,
    Evidence,
    Launch,
    RankExit,
    RankSet,
    StackClass,
    StageRecord,
    encode,
)
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.commands import examine_again
from ddpdoctor_checks.common.frames import describe_stack, fold_frames, is_waiting, place_stacks
from ddpdoctor_checks.common.places import Places
from ddpdoctor_checks.common.stage_evidence import (
    describe_deaths,
    describe_exit,
    explain_missing,
    hosts_of_ranks,
    stage_records,
    unclean_exits,
)
from ddpdoctor_checks.common.wording import count_of, format_number, join_words, name_set

STOPPED = ("T", "t", "D")
"""States of /proc/PID/stat in which a process cannot go on by itself: stopped, traced, uninterruptible
(proc(5))."""

KILLED = Fix(
    "check whether the kernel killed it for memory; if not, find out who on this machine ends processes",
    command="sudo dmesg -T | grep -iE 'killed process|out of memory' | tail",
)

MOST_STACKS = 32
"""Classes of equal stacks that the details hold; ranks that stand at more than 32 different places are shown
by the first ones, and the count says how many there were."""


@check(
    "BKD011",
    family="backends",
    needs=("stages",),
    variants={f"stage.{stage}.in_time": stage for stage in STAGES},
)
def find_stage_timed_out(evidence: Evidence, *, variant: str) -> Iterable[Finding]:
    """A stage of ``ddpdoctor check`` did not end within its limit and was cut."""
    records = stage_records(evidence, variant)
    if not records:
        raise explain_missing(evidence, variant, "its duration")
    cut = [record for record in records if record.status == "cut"]
    if cut:
        yield _timed_out(evidence, variant, cut)
        return
    statuses = {record.status for record in records}
    if statuses == {"skipped"}:
        raise NotApplicable(records[0].reason or f"stage {variant} was skipped")
    unreached = next((record for record in records if record.status == "unreached"), None)
    if unreached is not None:
        raise CannotLook(unreached.reason or f"stage {variant} was not reached")


def _timed_out(evidence: Evidence, stage: str, cut: Sequence[StageRecord]) -> Finding:
    finished = RankSet().union(*(record.finished for record in cut))
    unfinished = RankSet().union(*(record.unfinished for record in cut))
    stacks = [stack for record in cut for stack in record.stacks]
    dead = unclean_exits(evidence, (stage,))
    ranks, victims, confidence = _blame(unfinished, stacks, dead)
    places = Places(evidence)
    nodes = hosts_of_ranks(evidence, ranks) or places.hosts(record.node for record in cut)
    limit = max((record.limit_s or 0.0 for record in cut), default=0.0)
    option = next((record.limit_option for record in cut if record.limit_option), None)
    started = bool(evidence.ranks) or bool(unfinished) or bool(finished)
    return Finding(
        message=_tell(cut, nodes, unfinished, finished, stacks, dead, none_started=not started),
        ranks=ranks,
        victims=victims,
        nodes=nodes,
        where=place_stacks(stacks, ranks)[:MOST_STACKS],
        evidence=_stack_evidence(cut, stacks, dead),
        fix=_fixes(evidence.launch, stage, limit, option, stacks, dead),
        details=encode(
            {
                "stage": stage,
                "limit_s": limit,
                "limit_option": option or "--stage-timeout",
                "finished": finished,
                "unfinished": unfinished,
                "stacks": [_detail_stack(stack) for stack in stacks[:MOST_STACKS]],
                "stacks_left_out": max(0, len(stacks) - MOST_STACKS),
            }
        ),
        confidence=confidence,
    )


def _blame(
    unfinished: RankSet, stacks: Sequence[StackClass], dead: Sequence[RankExit]
) -> tuple[RankSet, RankSet, str]:
    """Return culprits, victims and the confidence in that."""
    if dead:
        culprits = RankSet(each.rank for each in dead)
        return culprits, unfinished.minus(culprits), "high"
    stopped = RankSet().union(*(stack.ranks for stack in stacks if (stack.state or "")[:1] in STOPPED))
    if stopped:
        return stopped, unfinished.minus(stopped), "high"
    waiting = RankSet().union(*(stack.ranks for stack in stacks if is_waiting(stack.frames)))
    elsewhere = RankSet().union(
        *(stack.ranks for stack in stacks if stack.frames and not is_waiting(stack.frames))
    )
    elsewhere = elsewhere.minus(waiting)
    if waiting and elsewhere:
        return elsewhere, unfinished.minus(elsewhere), "medium"
    return unfinished, RankSet(), "medium"


def _name_limit(cut: Sequence[StageRecord]) -> str:
    """Say what ended a stage: its own limit, or which other one and after how long."""
    first = next((record for record in cut if record.limit_option), cut[0])
    limit = format_number(first.limit_s or 0.0)
    if first.limit_option is None:
        return f"Stage {first.stage} was stopped at its limit of {limit} s"
    ran = "" if first.duration_s is None else f" after {first.duration_s:.1f} s"
    return f"Stage {first.stage} was stopped{ran} by {first.limit_option} {limit}"


def _tell(
    cut: Sequence[StageRecord],
    nodes: Sequence[str],
    unfinished: RankSet,
    finished: RankSet,
    stacks: Sequence[StackClass],
    dead: Sequence[RankExit],
    *,
    none_started: bool,
) -> str:
    text = _name_limit(cut)
    if dead:
        others = unfinished.minus(RankSet(each.rank for each in dead))
        text += f": {describe_deaths(dead)}" + (f", and {name_set(others)} did not finish" if others else "")
    elif unfinished:
        text += f": {name_set(unfinished)} did not finish"
    elif nodes:
        text += f" on {join_words(nodes)}"
        if none_started and cut[0].stage == "rendezvous":
            text += ", where no rank had started"
    if finished:
        text += f", {name_set(finished)} had"
    if stacks:
        text += f"; {join_words((describe_stack(stack) for stack in stacks), few=3)}"
    return text + "."


def _stack_evidence(
    cut: Sequence[StageRecord], stacks: Sequence[StackClass], dead: Sequence[RankExit]
) -> tuple[EvidenceItem, ...]:
    items = [
        EvidenceItem("exit", f"pid {each.pid} {describe_exit(each)}", RankSet([each.rank]))
        for each in dead[:6]
    ]
    for stack in stacks[:6]:
        shown, hidden = fold_frames(stack.frames)
        lines = [f"{frame.function} ({frame.file}:{frame.line})" for frame in shown[:6]]
        folded = f" … {count_of(hidden, 'library frame')} folded" if hidden else ""
        text = " < ".join(lines) or (describe_stack(stack) if not stack.frames else "library code only")
        items.append(EvidenceItem("stack", text + folded, stack.ranks))
    for note in dict.fromkeys(record.stacks_note for record in cut if record.stacks_note):
        items.append(EvidenceItem("stack", f"no stacks: {note}"))
    return tuple(items)


def _detail_stack(stack: StackClass) -> dict[str, object]:
    shown, hidden = fold_frames(stack.frames)
    return {
        "ranks": stack.ranks,
        "state": stack.state,
        "waiting": is_waiting(stack.frames),
        "frames": list(shown),
        "library_frames_folded": hidden,
        "innermost": stack.frames[0] if stack.frames else None,
    }


def _fixes(
    launch: Launch,
    stage: str,
    limit: float,
    option: str | None,
    stacks: Sequence[StackClass],
    dead: Sequence[RankExit],
) -> tuple[Fix, ...]:
    if any(each.signal == 9 for each in dead):
        return (KILLED,)
    again = examine_again(launch, "--only", ",".join(STAGES[: STAGES.index(stage) + 1]), "-v")
    fixes = [Fix("rerun the stages up to this one and show all frames of all ranks", command=again)]
    if not stacks and not dead:
        fixes.append(
            Fix(
                "let py-spy read the ranks next time (in a container also: --cap-add SYS_PTRACE)",
                command="sudo sysctl kernel.yama.ptrace_scope=0",
            )
        )
    if option is None:
        words, setting = "the stage", ("--stage-timeout", f"{stage}={round(limit * 4) or 60}")
    else:
        words, setting = "the command", (option, str(round(limit * 4) or 60))
    more = f"if the machine is merely slow, allow {words} more than {format_number(limit)} s"
    fixes.append(Fix(more, command=examine_again(launch, *setting)))
    return tuple(fixes)
