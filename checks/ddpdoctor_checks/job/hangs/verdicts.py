"""What is wrong with ranks that can never go on: who is at fault, what to say of it and what to do."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.standstill import Stand
from ddpdoctor.judge import EvidenceItem, Fix
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.common.wording import capitalise, choose_form, join_words, name_set
from ddpdoctor_checks.job.calls import habits
from ddpdoctor_checks.job.calls.argument_fixes import fix_mismatch
from ddpdoctor_checks.job.hangs.reading import (
    BACKWARD,
    FORWARD,
    INIT,
    MAKERS,
    WRAP,
    largest,
    lines_called,
    name_call,
    name_group,
    ranks_of,
)
from ddpdoctor_checks.job.hangs.sides import (
    MOST_SIDES,
    called_at,
    count_forwards,
    forwards,
    guard_of,
    name_ranks,
    op_of,
    part_by_line,
    say_call,
    say_gone,
    say_members,
    say_sides,
    say_wait,
    spot_of,
)
from ddpdoctor_checks.job.hangs.skips import find_break, find_skip, find_turn, is_fixed, stands_in_if
from ddpdoctor_checks.job.hangs.standing import Place


@dataclass(slots=True)
class Deadlock:
    """What is wrong with ranks that are stuck."""

    code: str
    message: str
    culprits: RankSet
    victims: RankSet
    sides: Sequence[Sequence[Place]]
    """Ranks by where they stand, those at fault first."""
    blamed: int = 1
    """Sides at fault, from the first on."""
    fix: list[Fix] = field(default_factory=list)
    seen: list[EvidenceItem] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    confidence: str = "high"
    role: str = "cause"
    proof: bool = True
    """Whether it can never go on; else it may, as far as the calls tell."""
    around: Frame | None = None
    """The loop that those at fault have left and the others are in, or the `if` in which their call stands."""
    skip: Frame | None = None
    """The `if` by which those at fault came past the call in which the others wait, or behind which both diverged."""


def judge_gone(main: Sequence[Place], gone: Sequence[Place]) -> Deadlock:
    """Ranks wait for some that have left the program."""
    ranks = ranks_of(gone)
    failed = [place for place in gone if _has_failed(place.stand)]
    how = say_gone(gone)
    one = len(ranks) == 1
    message = f"{name_ranks(main)} {say_wait(main)}; {how}: {'it' if one else 'they'} will never arrive."
    fix = [
        Fix(
            "all ranks must leave the loop together: decide collectively",
            code="stop = torch.tensor([int(done)], device=device)\ndist.all_reduce(stop, op=dist.ReduceOp.MAX)\n"
            "if stop.item():\n    break",
        ),
        Fix(
            (
                "if a rank runs out of data earlier, give all ranks the same number of batches, or use the "
                "Join context manager"
            ),
            code="sampler = DistributedSampler(dataset, drop_last=True)   # or: with Join([model]): …",
        ),
    ]
    if op_of(main[0]) in (INIT, WRAP, *MAKERS):
        fix = [
            Fix(
                "every rank must reach this call, even with no work: let it participate with an empty "
                "input, or make the decision collectively",
                code="files = names[rank::world_size]   # may be empty\ndist.init_process_group(backend)",
            )
        ]
    return Deadlock(
        "COL008",
        message,
        ranks,
        ranks_of(main),
        [gone, main],
        fix=fix,
        seen=count_forwards([*main, *gone]),
        details={"waiting_in": name_call(main[0].call)},
        role="consequence" if failed else "cause",
    )


def _has_failed(stand: Stand) -> bool:
    """Whether a rank that is gone has ended badly, or without a word."""
    return bool(stand.exit_code or stand.signal) or (stand.exit_code is None and not stand.ended)


def judge_makers(main: Sequence[Place], waiting: Sequence[Place]) -> Deadlock:
    """Some ranks make a process group, and others do not take part."""
    places = [*main, *waiting]
    makers = largest(place for place in places if op_of(place) in MAKERS)
    making = {place.rank for place in makers}
    rest = [place for place in places if place.rank not in making]
    call, line = makers[0].call, makers[0].line
    sides = [side for side in (makers, rest) if side]
    if guard_of(makers[0]) is None:
        sides.sort(key=len)  # the fewer are at fault; of as many as the others nobody can tell
    tied = len(sides) == 1 or (guard_of(makers[0]) is None and len(makers) == len(rest))
    odd = sides if tied else sides[:1]
    culprits = ranks_of(place for side in odd for place in side)
    others = [place.call for place in rest if op_of(place) in MAKERS]
    told = say_sides(rest) if rest else ""
    if call is not None and others and others[0] is not None:
        told = f"{told}, of {say_members(others[0])}"
    made = f"{name_ranks(makers)} {say_wait(makers)}" + (
        f", of {say_members(call)}" if call is not None else ""
    )
    return Deadlock(
        "COL006",
        f"{made}; {told}: every rank must create the same groups, with the same ranks and in the same order.",
        culprits,
        ranks_of(places).minus(culprits),
        sides,
        blamed=len(odd),
        fix=[
            Fix(
                "call it on all ranks of the job, with the same ranks, outside of any rank-dependent `if`",
                code=f"{line.source}   # on every rank" if line is not None and line.source else None,
            ),
        ],
        details={"calls": [name_call(place.call) for place in (makers[0], *rest[:1])]},
    )


def judge_mismatch(main: Sequence[Place], others: Sequence[Place]) -> Deadlock:
    """At one number ranks make calls that do not fit."""
    # At the call, also where a rank waits for it on another line.
    once = {each.rank: replace(each, kind="collective") for each in (*main, *others)}
    sides = part_by_line(once.values())
    votes = Counter(place.key for place in once.values())  # one call may be made from several lines
    most = max(votes.values())
    sides.sort(key=lambda side: (votes[side[0].key], len(side)))
    tied = list(votes.values()).count(most) > 1
    leaving = find_leaving(sides) if tied else []
    if leaving:
        tied = False
        sides.sort(key=lambda side: side not in leaving)
    odd = leaving or (sides if tied else [side for side in sides if votes[side[0].key] < most])
    skip = _find_skip(sides, odd)
    if skip is not None:
        odd, tied = [skip[0]], False
        sides.sort(key=lambda side: side is not skip[0])
    call = main[0].call
    assert call is not None
    told = join_words(say_call(side) for side in sides[:MOST_SIDES])
    culprits = ranks_of(place for side in odd for place in side)
    group = name_group(call)
    differs = _differences(sides)
    doubt = "; the evidence does not show which side is wrong" if tied else ""
    if skip is not None:
        doubt = f"; {_say_skip(*skip)}"
    return Deadlock(
        "COL003",
        f"At collective #{call.ordinal}{group} {told}{doubt}.",
        culprits,
        RankSet(once).minus(culprits),
        sides,
        blamed=len(odd),
        fix=_fix_skip(skip[1])
        if skip is not None
        else fix_mismatch(differs, [side[0].line for side in sides], main[0].stand.conditions),
        details={"group": call.group, "ordinal": call.ordinal, "differs": differs},
        skip=skip[1] if skip is not None else None,
    )


_Skip = tuple[Sequence[Place], Frame]


def _find_skip(sides: Sequence[Sequence[Place]], odd: Sequence[Sequence[Place]]) -> _Skip | None:
    """Return which of two sides has skipped the other's call, where it may be at fault, and by which `if`."""
    if len(sides) != 2:
        return None
    for past, inside in (sides, sides[::-1]):
        found = find_skip(inside[0], past[0]) if not odd or past in odd else None
        if found is not None:
            return past, found
    return None


def _find_turn(sides: Sequence[Sequence[Place]]) -> _Skip | None:
    """Return which of two sides is a turn of a loop ahead of the other's call, and the loop."""
    if len(sides) != 2:
        return None
    for past, inside in (sides, sides[::-1]):
        found = find_turn(inside[0], past[0]) if guard_of(inside[0]) is None else None
        if found is not None:
            return past, found
    return None


_NO_WAY_PAST = Fix(
    "let nothing lead past the call on one rank alone: an exception that is caught before it, or an early return. What "
    "may fail belongs before it, in a `try` of its own",
    code="try:\n    save(state)\nfinally:\n    dist.barrier()   # on every rank, whether saving failed or not",
)


def _say_skip(past: Sequence[Place], test: Frame) -> str:
    return f"{name_set(ranks_of(past))} skipped that call at the `if` in {test.file}:{test.line}"


def _fix_skip(test: Frame) -> list[Fix]:
    return [
        Fix(
            f"let every rank issue the call, also where {test.file}:{test.line} leads past it: with an empty input, or "
            "after all ranks have made that decision together",
            code=test.source,
        )
    ]


def _differences(sides: Sequence[Sequence[Place]]) -> list[str]:
    calls = [side[0].call for side in sides if side[0].call is not None]
    return [
        name
        for name in ("op", "shape", "dtype", "reduction", "peer")
        if len({getattr(call, name) for call in calls}) > 1
    ]


def judge_missing(main: Sequence[Place], waiting: Sequence[Place]) -> Deadlock:
    """Some ranks wait in a call that others never make, for these wait elsewhere."""
    sides = part_by_line([*main, *waiting])
    odd = _odd_sides(sides)
    skip = _find_skip(sides, odd)
    turn = _find_turn(sides) if skip is None else None
    if skip is not None:
        odd = [skip[0]]
    if turn is not None:
        odd = [turn[0]]
    rest = [side for side in sides if side not in odd] if odd else []
    culprits = [place for side in (odd or sides) for place in side]
    guard = next((found for place in culprits if (found := guard_of(place)) is not None), None)
    # Two ranks of which one left a loop: it may have had too little to do, or the other one too much.
    proven = guard is not None or 2 * len(culprits) < sum(map(len, sides))
    passed = next((side for side in rest if guard is None and guard_of(side[0]) is not None), None)
    # The other way round: those that differ went into an `if` that the others came past.
    alone = skip is None and turn is None
    entered = find_skip(odd[0][0], rest[0][0]) if alone and len(sides) == 2 and rest else None
    undecided = guard is None and passed is None and entered is None and turn is None
    loop = _find_left_loop(culprits, rest) if rest and undecided else None
    end = find_break(rest[0][0].stand.conditions, loop) if loop is not None else None
    decides = skip[1] if skip is not None else entered
    there = entered is not None and odd[0][0].kind != "device" and stands_in_if(odd[0][0], entered)
    around = entered if there else None  # a rank that waits for its device has gone on from there
    told = say_sides([place for side in (rest or sides) for place in side])
    if rest:
        first = rest[0][0].call
        never = "never issued it" if first is not None and first.op != BACKWARD else "is not in it"
        where = say_sides(culprits, bare=True)
        message = f"{capitalise(told)}; {name_set(ranks_of(culprits))} {never}: {where}."
        if loop is not None:
            left = f"{choose_form(len(culprits), 'has', 'have')} left the loop ({loop.file}:{loop.line})"
            if end is not None:
                left += f" by the break at the `if` in {end.file}:{end.line}"
            message = f"{capitalise(told)}; {name_set(ranks_of(culprits))} {left}: {where}."
        if guard is not None and not _covers(guard, rest):
            message = (
                f"{say_sides(culprits, first=True)}, which the others never issue; they are blocked "
                f"elsewhere: {told}."
            )
        if skip is not None:
            message = f"{capitalise(told)}; {_say_skip(*skip)}: {where}."
        if turn is not None:
            loop = turn[1]
            ahead = f"{choose_form(len(culprits), 'is', 'are')} in the next turn of the loop at {loop.file}:{loop.line}"
            message = f"{capitalise(told)}; {name_set(ranks_of(culprits))} came past that call, and {ahead}: {where}."
        if entered is not None:
            test = f"went into the `if` in {entered.file}:{entered.line}, the others past it"
            message = f"{capitalise(told)}; {name_set(ranks_of(culprits))} {test}: {where}."
    else:
        none = (
            ("neither reaches the other's collective")
            if len(sides) == 2
            else "none of them reaches another's collective"
        )
        message = (
            f"{capitalise(told)}: {none}; the evidence does not show which side is wrong.{_tell_apart(sides)}"
        )
    return Deadlock(
        "COL002",
        message,
        ranks_of(culprits),
        ranks_of(place for side in rest for place in side) if proven else RankSet(),
        [*(odd or sides), *rest],
        blamed=len(odd) or len(sides),
        fix=_fix_skip(decides)
        if decides is not None
        else [_NO_WAY_PAST]
        if turn is not None
        else _advise(culprits, guard, [place for side in rest for place in side], left_loop=loop is not None)
        if passed is None
        else _advise(passed, guard_of(passed[0]), culprits),
        seen=count_forwards([*main, *waiting]),
        details={"calls": [name_call(side[0].call) for side in sides[:16]]},
        around=around or loop,
        skip=None if around is not None else decides or end,
    )


def _tell_apart(sides: Sequence[Sequence[Place]]) -> str:
    """Return that calls are of different groups, where their ranks do not show it."""
    calls = [call for side in sides for place in side if (call := place.call) is not None and call.group]
    groups = sorted({call.group for call in calls})
    if len(groups) < 2 or len({call.members for call in calls}) > 1:
        return ""
    return f" These are groups {join_words(groups)}, which have the same ranks."


def _find_left_loop(culprits: Sequence[Place], rest: Sequence[Sequence[Place]]) -> Frame | None:
    """Return the innermost loop that the others are in and that all of some ranks have left; None where there is none.

    They were in it where they have made the others' call before, or have run the wrapped model less often. Of a loop
    that runs as often on all ranks, it is the next one around it.
    """
    inside = rest[0][0]
    within = inside.stand.conditions
    loops = [each for each in within if each.function in ("for", "while")]
    shared = {spot_of(each) for place in culprits for each in place.stand.conditions}
    left = list(itertools.takewhile(lambda each: spot_of(each) not in shared, loops))
    if not left:
        return None
    for place in culprits:
        mine, theirs = forwards(place), forwards(inside)
        fewer = mine is not None and theirs is not None and 0 < mine < theirs
        if not fewer and called_at(inside) not in lines_called(place.stand):
            return None
    return next((each for each in left if not is_fixed(within, each)), left[0])


def _covers(guard: Frame, sides: Sequence[Sequence[Place]]) -> bool:
    """Whether other sides stand under the same test, on its other side."""
    return any(
        (found := guard_of(side[0])) is not None and spot_of(found) == spot_of(guard)
        for side in sides
        if side
    )


def _odd_sides(sides: Sequence[Sequence[Place]]) -> list[Sequence[Place]]:
    """Return the sides at fault: the fewer; of two equal ones the one under a test on the rank, or on a new line.

    Else the one whose call is not what followed the same calls before.
    """
    votes = Counter(place.key for side in sides for place in side)  # one call may be made from several lines
    most = max(votes.values())
    fewer = [side for side in sides if votes[side[0].key] < most]
    if fewer and list(votes.values()).count(most) == 1:
        return fewer
    guarded = [side for side in sides if guard_of(side[0]) is not None]
    if len(guarded) == 1:
        return guarded
    fresh = [side for side in sides if not _was_here_before(side[0])]
    return fresh if len(fresh) == 1 and len(sides) == 2 else find_leaving(sides)


def _was_here_before(place: Place) -> bool:
    """Whether a rank has made a call from its line before: a loop that it is still in."""
    if place.call is None:
        return False
    if place.call.op in (BACKWARD, FORWARD):
        return place.call.ordinal > 1
    times = sum(
        (frame := user_line(call.frames)) is not None and spot_of(frame) == called_at(place)
        for call in place.stand.recent
    )
    return times > 1


def _advise(
    culprits: Sequence[Place], guard: Frame | None, rest: Sequence[Place], *, left_loop: bool = False
) -> list[Fix]:
    call = culprits[0].call
    op = call.op if call is not None else ""
    line = culprits[0].line
    if op in (FORWARD, BACKWARD) and guard is not None:
        return [
            Fix(
                "evaluate the bare model on one rank: it issues no collective",
                code="model.module.eval()\nwith torch.no_grad():\n    loss = criterion(model.module(x), y)",
            ),
            Fix("or evaluate on every rank"),
        ]
    if guard is not None:
        source = f"{line.source}   # on every rank" if line is not None and line.source else None
        return [
            Fix(
                f"move the call out of the `if` at {guard.file}:{guard.line} so every rank reaches it",
                code=source,
            )
        ]
    counts = {place.rank: forwards(place) for place in (*culprits, *rest)}
    if left_loop or len({count for count in counts.values() if count is not None}) > 1:
        return [
            Fix(
                (
                    "give every rank the same number of batches, or use the Join context manager for uneven "
                    "inputs"
                ),
                code="sampler = DistributedSampler(dataset, drop_last=True)   # or: with Join([model]): …",
            ),
            Fix(
                "all ranks must leave the loop together: decide collectively",
                code="stop = torch.tensor([int(done)], device=device)\ndist.all_reduce(stop, op=dist.ReduceOp.MAX)",
            ),
        ]
    return [Fix("issue the same collectives in the same order on every rank: both lines are above")]


def find_leaving(sides: Sequence[Sequence[Place]]) -> list[Sequence[Place]]:
    """Return the one side that has left its way, where all others are on theirs; nothing else."""
    found = habits.find_leaving([list_calls(side[0]) for side in sides])
    return [] if found is None else [sides[found]]


def list_calls(place: Place) -> list[Hashable]:
    """Return what tells a rank's latest calls apart, up to that in which it waits; none where it waits in none."""
    call, recent = place.call, list(place.stand.recent)
    if call is None or not recent:
        return []
    if (recent[-1].series, recent[-1].ordinal) != (call.series, call.ordinal):
        recent.append(call)
    lines = [user_line(each.frames) for each in recent]
    return [
        (each.op, each.group, each.shape, (line.file, line.line) if line is not None else None)
        for each, line in zip(recent, lines, strict=True)
    ]
