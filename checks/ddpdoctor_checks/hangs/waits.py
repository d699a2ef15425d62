"""Ranks that can never go on: who waits for whom, and who is at fault."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.standstill import Call, Stand, name_points
from ddpdoctor.judge import EvidenceItem, Finding, Fix, Where
from ddpdoctor_checks.crash.frames import user_frames, user_line
from ddpdoctor_checks.hangs.needs import call_at
from ddpdoctor_checks.hangs.reading import (
    BACKWARD,
    FORWARD,
    INIT,
    MAKERS,
    WRAP,
    Place,
    Reading,
    largest,
    lines_called,
    name_call,
    name_group,
    name_line,
    ranks_of,
)
from ddpdoctor_checks.wording import choose_form, count_of, format_age, join_words, name_set

_RANK_WORDS = re.compile(
    r"rank|main_process|is_master|is_main|is_chief|\bmaster\b|local_process|process_index", re.I
)
"""How scripts call what tells ranks apart."""
MOST_SIDES = 4
"""Sides of a disagreement that a sentence names."""
ASKED = ("work", "device")
"""Kinds of places at which a rank waits for what it asked for on another line."""
MOST_CALLERS = 2
LAUNCHER_S = 45.0
"""A launcher that sees a rank fail ends the others, or starts all anew; torchrun gives them 30 s to end
(torch/distributed/run.py, --shutdown-timeout). What is left to it for so long is no hang."""
MOST_FOLLOWED = 64
"""Calls of ranks in a cycle that are followed."""
MOST_BACK = 16
"""Steps back to the call at which ranks part."""


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
    """It can never go on; else it may, as far as the calls tell."""
    loop: Frame | None = None
    """What those at fault have left and the others are in."""


def find_deadlock(reading: Reading) -> Deadlock | None:
    """Return what holds the stuck ranks, None where none is."""
    ranks = set(reading.stuck or reading.likely)
    stuck = [place for place in reading.places if place.rank in ranks]
    if not stuck:
        return None
    deadlock = _judge(reading, stuck)
    if deadlock is not None and not reading.stuck:
        deadlock.proof, deadlock.confidence = False, "medium"
    if deadlock is not None and deadlock.role != "cause" and reading.look.still_s < LAUNCHER_S:
        deadlock.proof = False
    return deadlock


def _judge(reading: Reading, stuck: Sequence[Place]) -> Deadlock | None:
    for_gone = [place for place in stuck if any(map(_is_gone, _list_needed(reading, place)))]
    if for_gone:
        main = largest(for_gone)
        return _judge_gone(main, [place for place in _list_needed(reading, main[0]) if _is_gone(place)])
    stuck = _find_core(reading, stuck)
    points = [place for place in stuck if place.kind == "point"]
    if points:
        return _judge_points(reading, points)
    main = _go_back(reading, largest(stuck), stuck)
    need = reading.need(main[0])
    needed = _list_needed(reading, main[0])
    ranks = {place.rank for place in stuck}
    waiting = [
        _go_to(place, main[0]) if place.rank in need.differing else place
        for place in needed
        if place.rank in ranks
    ]
    if not waiting:
        return None
    joined = _find_joined(main, waiting, stuck)
    waiting = _follow(reading, joined, waiting, stuck)
    if _op(main[0]) in MAKERS or any(_op(place) in MAKERS for place in waiting):
        return _judge_makers(main, waiting)
    differing = [place for place in waiting if place.rank in need.differing]
    if differing and not _is_missing(joined, differing):
        return _judge_mismatch(joined, differing)
    return _judge_missing(joined, waiting)


def _is_gone(place: Place) -> bool:
    return place.kind == "gone"


def _list_needed(reading: Reading, place: Place) -> list[Place]:
    """Return those whom a waiting rank needs, of those that were seen."""
    ranks = sorted(reading.need(place).ranks)
    return [needed for rank in ranks if (needed := reading.get(rank)) is not None]


def _find_core(reading: Reading, stuck: Sequence[Place]) -> list[Place]:
    """Return the stuck ranks without those for which no other one waits: these are victims, whatever they wait in."""
    classes: dict[tuple[object, ...], list[Place]] = {}
    for place in stuck:
        classes.setdefault(place.key, []).append(place)
    needs = {key: reading.need(members[0]).ranks for key, members in classes.items()}
    wanted = Counter(rank for ranks in needs.values() for rank in ranks)
    key_of = {place.rank: place.key for place in stuck}
    todo = [key for key, members in classes.items() if not any(wanted[place.rank] for place in members)]
    while todo:
        key = todo.pop()
        members = classes.pop(key)
        wanted.subtract(needs[key])
        for rank in needs[key]:
            other = key_of.get(rank)
            if (
                other in classes
                and other not in todo
                and not any(wanted[each.rank] for each in classes[other])
            ):
                todo.append(other)
        del members
    return [place for place in stuck if place.key in classes] or list(stuck)


def _follow(
    reading: Reading, main: Sequence[Place], waiting: Sequence[Place], stuck: Sequence[Place]
) -> list[Place]:
    """Return those that are waited for, with those that these wait for in turn: a cycle has more than two sides."""
    by_rank = {place.rank: place for place in stuck}
    found = {place.rank: place for place in waiting}
    known = {place.rank for place in main}
    todo = list({place.key: place for place in waiting}.values())
    for _ in range(MOST_FOLLOWED):
        if not todo:
            break
        new = [
            by_rank[rank]
            for rank in sorted(reading.need(todo.pop()).ranks)
            if rank in by_rank and rank not in found and rank not in known
        ]
        found.update((place.rank, place) for place in new)
        todo += {place.key: place for place in new}.values()
    return list(found.values())


def _go_back(reading: Reading, main: list[Place], stuck: Sequence[Place]) -> list[Place]:
    """Return the ranks in the earliest call of the series in which most wait: there the ranks part."""
    for _ in range(MOST_BACK):
        call, need = main[0].call, reading.need(main[0])
        if call is None:
            break
        earlier = [
            place
            for place in stuck
            if place.rank in need.ranks
            and place.call is not None
            and place.kind in ("collective", "wrapper")
            and place.call.series == call.series
            and place.call.ordinal < call.ordinal
        ]
        if not earlier:
            break
        first = min(earlier, key=lambda place: place.call.ordinal if place.call is not None else 0)
        main = [place for place in stuck if place.key == first.key]
    return main


def _go_to(place: Place, main: Place) -> Place:
    """Return a rank at the call that it made at the number of another one's."""
    call = call_at(place, main.call.series, main.call.ordinal) if main.call is not None else None
    if call is None or call is place.call:
        return place
    return replace(place, call=call, kind="collective", stand=replace(place.stand, conditions=()))


def _find_joined(main: Sequence[Place], waiting: Sequence[Place], stuck: Sequence[Place]) -> list[Place]:
    """Return the ranks that wait in a call, and those that have made it and wait behind it."""
    call = main[0].call
    apart = {place.rank for place in (*main, *waiting)}
    if main[0].kind != "collective" or call is None:
        return list(main)
    behind = [
        _go_to(place, main[0])
        for place in stuck
        if place.rank not in apart and call_at(place, call.series, call.ordinal) is not None
    ]
    return [*main, *behind]


def _op(place: Place) -> str:
    return place.call.op if place.call is not None else ""


def to_finding(deadlock: Deadlock, reading: Reading) -> Finding:
    """Return the finding of a deadlock."""
    look = reading.look
    hosts = {place.rank: place.stand.host for place in reading.places if place.stand.host}
    several = len(set(hosts.values())) > 1
    where: list[Where] = []
    for number, side in enumerate(deadlock.sides):
        role = "culprit" if number < deadlock.blamed else "victim"
        where.extend(_places(side, role, hosts if several else {}))
    if deadlock.loop is not None:
        loop = deadlock.loop
        where.append(Where(deadlock.culprits, "condition", loop.file, loop.line, None, loop.source))
    seen = [*what_was_seen(reading), *deadlock.seen]
    return Finding(
        message=deadlock.message,
        ranks=deadlock.culprits,
        victims=deadlock.victims,
        nodes=tuple(dict.fromkeys(hosts[rank] for rank in deadlock.culprits if rank in hosts))
        if several
        else (),
        where=tuple(sorted(where, key=lambda each: _ORDER.index(each.role))),
        evidence=tuple(seen),
        fix=tuple(deadlock.fix),
        details={
            **deadlock.details,
            "proof": deadlock.proof,
            "stage": look.stage,
            "still_s": round(look.still_s, 3),
        },
        confidence=deadlock.confidence,
        role=deadlock.role,
        decisive=deadlock.role == "cause",
    )


_ORDER = ("culprit", "condition", "caller", "victim")


def what_was_seen(reading: Reading) -> list[EvidenceItem]:
    """Return what a finding of a look rests on."""
    look = reading.look
    still = format_age(look.still_s) if look.still_s >= 10 else f"{look.still_s:.1f} s"
    seen = [
        EvidenceItem(
            "ring",
            f"the calls of {count_of(len(reading.places), 'rank')}, and their stacks taken twice "
            f"{look.interval_s:.1f} s apart; nothing had moved for {still}",
        )
    ]
    if reading.unseen:
        seen.append(EvidenceItem("ring", f"nothing was seen of {name_set(reading.unseen)}", reading.unseen))
    return seen


def _places(side: Sequence[Place], role: str, hosts: dict[int, str]) -> Iterable[Where]:
    """Return one place per line on which ranks of a side stand, and for culprits who called and on what condition."""
    by_line: dict[tuple[str, int] | None, list[Place]] = {}
    for place in side:
        line = place.line
        by_line.setdefault((line.file, line.line) if line is not None else None, []).append(place)
    for key, members in by_line.items():
        line = members[0].line
        if key is None or line is None:
            continue
        ranks = ranks_of(members)
        host = next((hosts[rank] for rank in ranks if rank in hosts), None)
        yield Where(ranks, role, line.file, line.line, line.function, line.source, host)
        call = members[0].call
        frames = user_frames(call.frames if call is not None and call.frames else members[0].stand.frames)
        for frame in frames[1 : 1 + MOST_CALLERS] if role == "culprit" else ():
            yield Where(ranks, "caller", frame.file, frame.line, frame.function, frame.source, host)
        guard = guard_of(members[0])
        if guard is not None:
            yield Where(ranks, "condition", guard.file, guard.line, None, guard.source, host)


def guard_of(place: Place) -> Frame | None:
    """Return the test on the rank that decides whether a rank comes to the line on which it stands."""
    return next((each for each in place.stand.conditions if _is_test(each)), None)


def _is_test(condition: Frame) -> bool:
    return condition.function in ("if", "else", "unless", "while") and bool(
        _RANK_WORDS.search(condition.source or "")
    )


def _judge_points(reading: Reading, points: Sequence[Place]) -> Deadlock:
    first = points[0]
    assert first.call is not None
    waiting = {place.rank for place in points}
    peers = {rank for place in points for rank in reading.need(place).ranks}
    others = [place for place in reading.places if place.rank in peers and place.rank not in waiting]
    told = join_words([_say(place) for place in points[:MOST_SIDES]], last="and")
    fix = [
        Fix(
            "every send needs its receive on the other rank: same tag and group, and an order in which one side sends "
            "while the other receives",
            code="if rank % 2 == 0:\n    dist.send(out, peer); dist.recv(inp, peer)\nelse:\n"
            "    dist.recv(inp, peer); dist.send(out, peer)",
        ),
        Fix("or post both at once", code="for work in dist.batch_isend_irecv(ops):\n    work.wait()"),
    ]
    told = f"{told[0].upper()}{told[1:]}"
    if not others:
        both = f"{told}: each waits for the other's side, and nobody is left to make it"
        return Deadlock("COL011", f"{both}.", ranks_of(points), RankSet(), [points], fix=fix)
    message = f"{told}, but {_say_sides(others)}: the other side of it is never made."
    return Deadlock(
        "COL011",
        message,
        ranks_of(others),
        ranks_of(points),
        [*_sides(others), points],
        blamed=len(_sides(others)),
        fix=fix,
        seen=_count_points(reading, points),
    )


_SIDES = {True: ("send", "to", "receive", "from"), False: ("receive", "from", "send", "to")}


def _count_points(reading: Reading, points: Sequence[Place]) -> list[EvidenceItem]:
    """Return how many messages each side has begun of those that wait."""
    items = []
    for place in points[:MOST_SIDES]:
        call = place.call
        if call is None or call.peer is None or not call.ordinal:
            continue
        other = reading.get(call.peer)
        sends = "send" in call.op
        series = name_points(not sends, place.rank, call.tag or 0, call.group)
        made = other.stand.counts.get(series, 0) if other is not None else 0
        mine, side, theirs, back = _SIDES[sends]
        items.append(
            EvidenceItem(
                "count",
                f"rank {place.rank} has begun {count_of(call.ordinal, mine)} {side} rank "
                f"{call.peer}, and rank {call.peer} {count_of(made, theirs)} {back} it",
            )
        )
    return items


def _judge_gone(main: Sequence[Place], gone: Sequence[Place]) -> Deadlock:
    ranks = ranks_of(gone)
    failed = [place for place in gone if _has_failed(place.stand)]
    how = _say_gone(gone)
    one = len(ranks) == 1
    message = f"{_name(main)} {_wait(main)}; {how}: {'it' if one else 'they'} will never come."
    fix = [
        Fix(
            "all ranks have to leave the loop together: let them agree on it",
            code="stop = torch.tensor([int(done)], device=device)\ndist.all_reduce(stop, op=dist.ReduceOp.MAX)\n"
            "if stop.item():\n    break",
        ),
        Fix(
            "where a rank runs out of data earlier, give all the same number of batches, or let the others go on",
            code="sampler = DistributedSampler(dataset, drop_last=True)   # or: with Join([model]): …",
        ),
    ]
    if _op(main[0]) in (INIT, WRAP, *MAKERS):
        fix = [
            Fix(
                "every rank has to come here, also one that has nothing to do: let it take part with nothing, or let "
                "all decide alike",
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
        seen=_count_forwards([*main, *gone]),
        details={"waiting_in": name_call(main[0].call)},
        role="consequence" if failed else "cause",
    )


def _has_failed(stand: Stand) -> bool:
    """Whether a rank that is gone has ended badly, or without a word."""
    return bool(stand.exit_code or stand.signal) or (stand.exit_code is None and not stand.ended)


def _say_gone(gone: Sequence[Place]) -> str:
    stand = gone[0].stand
    line = name_line(gone[0].line)
    name = name_set(ranks_of(gone))
    if stand.signal is not None:
        return f"{name} was killed by signal {stand.signal}"
    if stand.exit_frames:
        code = f" with status {stand.exit_code}" if stand.exit_code else ""
        return f"{name} has left the program{code}{line}"
    if stand.exit_code:
        return f"{name} has ended with exit code {stand.exit_code}"
    last = stand.recent[-1] if stand.recent else None
    own = next(iter(user_frames(last.frames)), None) if last is not None else None
    after = f" after {name_call(last)}{name_line(own)}" if last is not None else ""
    if not stand.ended and stand.exit_code is None:
        return f"{name} is gone{after}"
    return f"{name} has come to the end of the script{after}"


def _judge_makers(main: Sequence[Place], waiting: Sequence[Place]) -> Deadlock:
    places = [*main, *waiting]
    makers = largest(place for place in places if _op(place) in MAKERS)
    making = {place.rank for place in makers}
    rest = [place for place in places if place.rank not in making]
    call, line = makers[0].call, makers[0].line
    guarded = guard_of(makers[0]) is not None
    culprits = min(makers, rest, key=len) if rest else makers
    others = [place.call for place in rest if _op(place) in MAKERS]
    told = _say_sides(rest) if rest else ""
    if call is not None and others and others[0] is not None:
        told = f"{told}, of {_say_members(others[0])}"
    made = f"{_name(makers)} {_wait(makers)}" + (f", of {_say_members(call)}" if call is not None else "")
    return Deadlock(
        "COL006",
        f"{made}; {told}: every rank has to make the same groups, of the same ranks and in the same order.",
        ranks_of(culprits),
        ranks_of(place for place in places if place not in culprits),
        [makers, rest] if guarded or culprits is makers else [rest, makers],
        fix=[
            Fix(
                "call it on all ranks of the job, with the same ranks, outside of any test of the rank",
                code=f"{line.source}   # on every rank" if line is not None and line.source else None,
            ),
        ],
        details={"calls": [name_call(place.call) for place in (makers[0], *rest[:1])]},
    )


def _say_members(call: Call) -> str:
    return name_set(call.members) if call.members else "all ranks"


def _is_missing(main: Sequence[Place], others: Sequence[Place]) -> bool:
    """Whether calls at one number are different calls of the program, one of which some ranks pass by.

    They are where one side's line is in everybody's history and the other's is not, and where one stands under a test
    on the rank and the other does not stand on the other side of that test.
    """
    one, other = main[0], others[0]
    if _site(one) is None or _site(other) is None or _at(one) == _at(other):
        return False
    if _are_opposite(one, other):
        return False
    guards = [guard_of(one), guard_of(other)]
    if guards[0] is not None and guards[1] is not None:
        return _where(guards[0]) != _where(guards[1])
    if guards[0] is not None or guards[1] is not None:
        return True
    mine, theirs = _at(one) in lines_called(other.stand), _at(other) in lines_called(one.stand)
    return mine != theirs


def _are_opposite(one: Place, other: Place) -> bool:
    """Whether two ranks stand on the two sides of one test: there each makes the call that is the other's."""
    kinds = {_where(each): each.function for each in one.stand.conditions}
    return any({kinds.get(_where(each)), each.function} == {"if", "else"} for each in other.stand.conditions)


def _site(place: Place) -> Frame | None:
    """Return the line from which a rank made its call; that of a wait for it may be another."""
    return (user_line(place.call.frames) if place.call is not None else None) or place.line


def _at(place: Place) -> tuple[str, int] | None:
    site = _site(place)
    return _where(site) if site is not None else None


def _where(frame: Frame) -> tuple[str, int]:
    return frame.file, frame.line


def _judge_mismatch(main: Sequence[Place], others: Sequence[Place]) -> Deadlock:
    # At the call, also where a rank waits for it on another line.
    once = {each.rank: replace(each, kind="collective") for each in (*main, *others)}
    sides = _sides(once.values())
    sides.sort(key=len)
    tied = len(sides) > 1 and len(sides[0]) == len(sides[-1])
    call = main[0].call
    assert call is not None
    told = join_words([_say_call(side) for side in sides[:MOST_SIDES]], last="and")
    culprits = RankSet(once) if tied else ranks_of(place for side in sides[:-1] for place in side)
    group = name_group(call)
    doubt = "; which of them is wrong cannot be told" if tied else ""
    return Deadlock(
        "COL003",
        f"At call #{call.ordinal}{group} {told}{doubt}.",
        culprits,
        RankSet() if tied else ranks_of(sides[-1]),
        sides,
        blamed=len(sides) if tied else len(sides) - 1,
        fix=[
            Fix(
                "the same calls, in the same order, with the same shapes and types on every rank; sort what is "
                "iterated over",
                code="for name in sorted(metrics):\n    dist.all_reduce(metrics[name])",
            ),
        ],
        details={"group": call.group, "ordinal": call.ordinal, "differs": _differences(sides)},
    )


def _differences(sides: Sequence[Sequence[Place]]) -> list[str]:
    calls = [side[0].call for side in sides if side[0].call is not None]
    return [
        name
        for name in ("op", "shape", "dtype", "reduction", "peer")
        if len({getattr(call, name) for call in calls}) > 1
    ]


def _judge_missing(main: Sequence[Place], waiting: Sequence[Place]) -> Deadlock:
    """Some ranks wait in a call that others never make, for these wait elsewhere."""
    sides = _sides([*main, *waiting])
    odd = _odd_sides(sides)
    rest = [side for side in sides if side not in odd] if odd else []
    culprits = [place for side in (odd or sides) for place in side]
    guard = next((found for place in culprits if (found := guard_of(place)) is not None), None)
    passed = next((side for side in rest if guard is None and guard_of(side[0]) is not None), None)
    loop = _find_left_loop(culprits, rest) if rest and guard is None and passed is None else None
    told = _say_sides([place for side in (rest or sides) for place in side])
    if rest:
        first = rest[0][0].call
        never = "never called it" if first is not None and first.op != BACKWARD else "is not in it"
        where = _say_sides(culprits, bare=True)
        message = f"{told[0].upper()}{told[1:]}; {name_set(ranks_of(culprits))} {never}: {where}."
        if loop is not None:
            left = f"{choose_form(len(culprits), 'has', 'have')} left the loop ({loop.file}:{loop.line})"
            message = f"{told[0].upper()}{told[1:]}; {name_set(ranks_of(culprits))} {left}: {where}."
        if guard is not None and not _covers(guard, rest):
            message = f"{_say_sides(culprits, first=True)}, which the others never call; they wait elsewhere: {told}."
    else:
        none = (
            "neither comes to the other's call" if len(sides) == 2 else "none of them comes to another's call"
        )
        message = f"{told[0].upper()}{told[1:]}: {none}, and which is wrong cannot be told."
    return Deadlock(
        "COL002",
        message,
        ranks_of(culprits),
        ranks_of(place for side in rest for place in side),
        [*(odd or sides), *rest],
        blamed=len(odd) or len(sides),
        fix=_advise(culprits, guard, [place for side in rest for place in side])
        if passed is None
        else _advise(passed, guard_of(passed[0]), culprits),
        seen=_count_forwards([*main, *waiting]),
        details={"calls": [name_call(side[0].call) for side in sides[:16]]},
        loop=loop,
    )


def _find_left_loop(culprits: Sequence[Place], rest: Sequence[Sequence[Place]]) -> Frame | None:
    """Return the innermost loop that the others are in and that all of some ranks have left; None where there is none.

    They were in it where they have made the others' call before, or have run the wrapped model less often.
    """
    inside = rest[0][0]
    for condition in inside.stand.conditions:
        if condition.function not in ("for", "while"):
            continue
        for place in culprits:
            if any(_where(condition) == _where(each) for each in place.stand.conditions):
                return None
            mine, theirs = forwards(place), forwards(inside)
            fewer = mine is not None and theirs is not None and 0 < mine < theirs
            if not fewer and _at(inside) not in lines_called(place.stand):
                return None
        return condition
    return None


def _covers(guard: Frame, sides: Sequence[Sequence[Place]]) -> bool:
    """Whether other sides stand under the same test, on its other side."""
    return any(
        (found := guard_of(side[0])) is not None and _where(found) == _where(guard) for side in sides if side
    )


def _odd_sides(sides: Sequence[Sequence[Place]]) -> list[Sequence[Place]]:
    """Return the sides at fault: the fewer; of two equal ones the one under a test on the rank, or on a new line."""
    largest = max(len(side) for side in sides)
    fewer = [side for side in sides if len(side) < largest]
    if fewer and len(sides) - len(fewer) == 1:
        return fewer
    guarded = [side for side in sides if guard_of(side[0]) is not None]
    if len(guarded) == 1:
        return guarded
    fresh = [side for side in sides if not _was_here_before(side[0])]
    return fresh if len(fresh) == 1 and len(sides) == 2 else []


def _was_here_before(place: Place) -> bool:
    """Whether a rank has made a call from its line before: a loop that it is still in."""
    if place.call is None:
        return False
    if place.call.op in (BACKWARD, FORWARD):
        return place.call.ordinal > 1
    times = sum(
        (frame := next(iter(user_frames(call.frames)), None)) is not None and _where(frame) == _at(place)
        for call in place.stand.recent
    )
    return times > 1


def _sides(places: Iterable[Place]) -> list[list[Place]]:
    """Return ranks by where they stand, those of the most ranks first."""
    sides: dict[tuple[object, ...], list[Place]] = {}
    for place in places:
        line = place.line
        key = place.key if place.kind not in ASKED else (place.kind, place.call.op if place.call else "")
        sides.setdefault((*key, line.file if line else "", line.line if line else 0), []).append(place)
    return sorted(sides.values(), key=lambda side: (-len(side), side[0].rank))


def _advise(culprits: Sequence[Place], guard: Frame | None, rest: Sequence[Place]) -> list[Fix]:
    call = culprits[0].call
    op = call.op if call is not None else ""
    line = culprits[0].line
    if op in (FORWARD, BACKWARD) and guard is not None:
        return [
            Fix(
                "evaluate the bare model on one rank: it takes part in no collective",
                code="model.module.eval()\nwith torch.no_grad():\n    loss = criterion(model.module(x), y)",
            ),
            Fix("or evaluate on every rank"),
        ]
    if guard is not None:
        source = f"{line.source}   # on every rank" if line is not None and line.source else None
        return [
            Fix(
                f"take the call out of the test ({guard.file}:{guard.line}), so that every rank makes it",
                code=source,
            )
        ]
    counts = {place.rank: forwards(place) for place in (*culprits, *rest)}
    if len({count for count in counts.values() if count is not None}) > 1:
        return [
            Fix(
                "give every rank the same number of batches, or let those that have more go on without the others",
                code="sampler = DistributedSampler(dataset, drop_last=True)   # or: with Join([model]): …",
            ),
            Fix(
                "a loop that one rank leaves on a value of its own has to be left by all",
                code="stop = torch.tensor([int(done)], device=device)\ndist.all_reduce(stop, op=dist.ReduceOp.MAX)",
            ),
        ]
    return [Fix("make the same calls in the same order on every rank: both lines are above")]


def forwards(place: Place) -> int | None:
    """Return how many forwards of a wrapped model a rank has begun; None where it has none."""
    return max((call.ordinal for call in place.stand.recent if call.op == FORWARD), default=None)


def _count_forwards(places: Sequence[Place]) -> list[EvidenceItem]:
    counts: dict[int, list[int]] = {}
    for place in places:
        count = forwards(place)
        if count is not None:
            counts.setdefault(count, []).append(place.rank)
    if len(counts) < 2:
        return []
    told = join_words(
        f"{name_set(RankSet(ranks))} ran {count_of(count, 'forward')} of the wrapped model"
        for count, ranks in sorted(counts.items())
    )
    return [EvidenceItem("count", told)]


def _name(places: Sequence[Place]) -> str:
    name = name_set(ranks_of(places))
    return f"{name[0].upper()}{name[1:]}"


def _wait(places: Sequence[Place]) -> str:
    verb = "waits" if len(places) == 1 else "wait"
    return f"{verb} in {name_call(places[0].call)}{name_line(places[0].line)}"


def _say(place: Place, *, bare: bool = False) -> str:
    name = "" if bare else f"rank {place.rank} "
    if place.kind == "gone":
        return _say_gone([place])
    if place.kind == "work":
        return f"{name}waits for {_say_asked(place)}{name_line(place.line)}"
    if place.kind == "device":
        return (
            f"{name}waits for its device, which has {_say_asked(place)} in its queue{name_line(place.line)}"
        )
    if place.kind == "outside":
        return f"{name}is elsewhere{name_line(place.line)}"
    return f"{name}waits in {name_call(place.call)}{name_line(place.line)}"


def _say_asked(place: Place) -> str:
    """Return what a rank waits for that it asked for on another line."""
    asked = user_line(place.call.frames) if place.call is not None else None
    same = asked is None or (place.line is not None and _where(asked) == _where(place.line))
    return f"{name_call(place.call)}" if same else f"{name_call(place.call)}, asked for{name_line(asked)},"


def _say_sides(places: Sequence[Place], *, bare: bool = False, first: bool = False) -> str:
    """Return ``ranks 0, 2 wait in all_reduce #8 (train.py:88) and rank 3 waits in barrier #9 (train.py:97)``."""
    parts = []
    for side in _sides(places)[:MOST_SIDES]:
        if bare and len(side) == len(places):
            it = "it" if len(side) == 1 else "they"
            parts.append(
                f"{it} {_wait(side)}" if side[0].kind not in ASKED else f"{it} {_say(side[0], bare=True)}"
            )
        elif side[0].kind in ASKED:
            parts += [_say(place) for place in side[:MOST_SIDES]]
        else:
            parts.append(f"{name_set(ranks_of(side))} {_wait(side)}")
    text = join_words(parts)
    return f"{text[0].upper()}{text[1:]}" if first else text


def _say_call(side: Sequence[Place]) -> str:
    call = side[0].call
    assert call is not None
    verb = "calls" if len(side) == 1 else "call"
    return f"{name_set(ranks_of(side))} {verb} {describe_arguments(call)}{name_line(side[0].line)}"


def describe_arguments(call: Call) -> str:
    """Return a call with what must agree: ``all_reduce(sum) of [3] float32``."""
    inside = [call.reduction] if call.reduction else []
    if call.peer is not None and not call.point_to_point:
        inside.append(f"root {call.peer}")
    what = f"{call.op}({', '.join(inside)})" if inside else call.op
    if call.op in (WRAP, INIT):
        what = name_call(call)
    if call.shape is None:
        return what
    return f"{what} of {list(call.shape)} {call.dtype or ''}".rstrip()
