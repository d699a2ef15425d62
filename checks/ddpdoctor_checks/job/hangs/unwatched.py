"""Ranks that write nothing down: what their stacks alone say of who waits for whom, never with high confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.judge import EvidenceItem, Finding, Fix, Where
from ddpdoctor_checks.common.frames import user_frames
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.wording import (
    capitalise,
    choose_form,
    count_of,
    format_age,
    join_words,
    name_all,
    name_set,
)
from ddpdoctor_checks.job.hangs.doing import describe_doing
from ddpdoctor_checks.job.hangs.paths import describe_sockets
from ddpdoctor_checks.job.hangs.ras import quote_ras, read_ras
from ddpdoctor_checks.job.hangs.reading import INIT, MAKERS, Reading, name_call, name_line, part, ranks_of
from ddpdoctor_checks.job.hangs.sides import op_of, spot_of
from ddpdoctor_checks.job.hangs.stalls import list_unclear, show_native
from ddpdoctor_checks.job.hangs.standing import Place
from ddpdoctor_checks.job.hangs.starting import find_starting
from ddpdoctor_checks.job.hangs.symmetric import advise_library

WAITED_S = 10.0
"""Seconds that ranks have to be blocked in a call before a rank is named; `run` suspects a rank after as long
(--stall-after)."""
BUSY_S = 300.0
"""Seconds that ranks wait for one that computes before that is worth a warning; `run` confirms a stall after as
long."""
SYMMETRIC_S = 30.0
"""Seconds that all ranks have to be blocked in one call where no rank shows as the root cause: a long transfer looks
the same."""
MOST_SIDES = 4
MOST_CALLERS = 2
STATES = {"R": "running", "S": "sleeping", "D": "in an uninterruptible wait", "T": "stopped", "t": "traced"}


def judge_stacks(reading: Reading) -> Finding | None:
    """Return what a look at ranks says of which some wrote no calls down; None where nobody can be named.

    Args:
        reading: of a look in which nothing moved.
    """
    waiting = [place for place in reading.places if place.waits]
    outside = [place for place in reading.places if place.kind == "outside"]
    blind = [place for place in outside if not place.stand.frames and not place.stand.native]
    if blind or any(place.moved for place in outside):
        return None
    if not waiting:
        return _find_starting(reading, outside)
    given = reading.look.given
    # Who waited longest has waited for those who are not there; the others came later.
    longest = max(waited_for(place, reading) for place in waiting)
    if longest < WAITED_S and not given:
        return None
    gone = [place for place in reading.places if place.kind == "gone"]
    if gone:
        return _find_gone(reading, waiting, gone, longest)
    if outside:
        return _find_outside(reading, waiting, outside, longest)
    named = _find_by_ras(reading, waiting, longest)
    if named is not None:
        return named
    if reading.unseen:
        return None  # those of other nodes may be what all of them wait for
    sides = part_sides(waiting)
    if len(sides) > 1:
        waited = min(max(waited_for(place, reading) for place in side) for side in sides)
        return _find_sides(reading, sides, waited) if waited >= WAITED_S or given else None
    waited = waited_together(waiting, reading)
    return _find_together(reading, waiting, waited) if waited >= SYMMETRIC_S else None


def find_busy(reading: Reading) -> Finding | None:
    """Return that ranks have waited for very long for one that computes; None where nobody has.

    Args:
        reading: of a look in which something moved.
    """
    waiting = [place for place in reading.places if place.waits and (place.stand.asleep_s or 0.0) >= BUSY_S]
    outside = [place for place in reading.places if place.kind == "outside" and place.stand.frames]
    busy = [place for place in outside if place.moved]
    rest = [place for place in outside if not place.moved]
    if not waiting or not busy or len(waiting) + len(outside) != len(reading.places):
        return None
    waited = max(place.stand.asleep_s or 0.0 for place in waiting)
    hosts = name_hosts(reading)
    others = join_words((say_side(side) for side in part_sides(waiting)), few=MOST_SIDES)
    told = join_words((say_side(side, hosts) for side in part_sides(busy)), few=MOST_SIDES)
    if rest:
        others = "; ".join(
            (others, join_words((say_side(side, hosts) for side in part_sides(rest)), few=MOST_SIDES))
        )
    finding = _make(
        reading,
        f"{capitalise(others)} for {format_age(waited)}; {told}, and {choose_form(len(busy), 'computes', 'compute')}.",
        "COL009",
        outside,
        waiting,
        waited,
        (
            Fix(
                "if one rank is meant to work while the others wait (evaluation, checkpointing), "
                "nothing is wrong"
            ),
            Fix(
                "otherwise check whether its line changes, and the loop that it is in",
                command="ddpdoctor attach --watch 10",
            ),
        ),
        {"doing": "computing"},
    )
    return replace(finding, severity="warning", confidence="low", decisive=False)


def waited_for(place: Place, reading: Reading) -> float:
    """Return for how many seconds a rank has stood where it stands, at least."""
    stand = place.stand
    known = stand.still_s if stand.watched else stand.asleep_s
    return max(known or 0.0, reading.look.interval_s)


def waited_together(places: Sequence[Place], reading: Reading) -> float:
    """Return for how long all of them have stood there; the kernel does not tell it of each."""
    known = [place for place in places if place.stand.watched or place.stand.asleep_s is not None]
    if 2 * len(known) < len(places):
        return reading.look.interval_s
    return min((waited_for(place, reading) for place in known), default=reading.look.interval_s)


def part_sides(places: Sequence[Place]) -> list[list[Place]]:
    """Return ranks by the call and the line in which they stand, those of the most ranks first."""
    return part(places, lambda place: (op_of(place), spot_of(place.line) if place.line is not None else None))


def say_side(side: Sequence[Place], hosts: Mapping[int, str] | None = None) -> str:
    """Return ``ranks 0, 2 wait in all_reduce (train.py:88, step)``; outside of every call, it stands in its line."""
    first, name = side[0], name_set(ranks_of(side))
    there = {(hosts or {}).get(place.rank) for place in side}
    if len(there) == 1 and (host := there.pop()) is not None:
        name = f"{name} on {host}"
    if first.kind == "gone":
        return f"{name} {choose_form(len(side), 'is', 'are')} gone"
    if first.kind == "outside":
        stands = choose_form(len(side), "has", "have")
        if not first.stand.frames:
            if first.stand.native:
                return f"{name} {stands} been outside of Python"
            return f"the stack of {name} could not be read"
        line = first.line or first.stand.frames[0]
        return f"{name} {stands} been in {line.function} ({line.file}:{line.line})"
    return (
        f"{name} {choose_form(len(side), 'waits', 'wait')} in {name_call(first.call)}{name_line(first.line)}"
    )


def describe_standing(reading: Reading) -> str:
    """Return in one sentence where all ranks stand, for a look that names nobody."""
    places = sorted(reading.places, key=lambda place: not place.waits)
    sides = sorted(part_sides(places), key=lambda side: not side[0].waits)
    still = waited_together([place for place in places if place.kind != "gone"], reading)
    text = join_words((say_side(side) for side in sides), few=MOST_SIDES)
    notes = list(dict.fromkeys(place.stand.note for place in places if place.stand.note))
    more = [] if reading.look.given else [f"nothing has moved for {format_age(still)}"]
    if reading.look.stage == "brief":
        more[0] += ", which is too short to name a rank"
    if reading.unseen and reading.look.given:
        more.append(f"there is no stack of {name_set(reading.unseen)}")
    elif reading.unseen:
        more.append(f"{name_set(reading.unseen)} on other nodes were not seen: attach there as well")
    elif not notes and reading.look.stage != "brief":
        waits = any(place.waits for place in places)
        more.append(
            ("the rank that blocks them is not visible")
            if waits
            else "no rank is in a call of torch.distributed"
        )
    return "; ".join([text, *more, *notes[:1]])


def _find_starting(reading: Reading, outside: Sequence[Place]) -> Finding | None:
    """Return what ranks wait for of which none waits in a collective."""
    waited = waited_together(outside, reading)
    if waited < WAITED_S and not reading.look.given:
        return None
    look = replace(reading.look, still_s=waited)
    return find_starting(replace(reading, look=look), look.stage, _what_was_seen(reading, outside))


def _find_outside(
    reading: Reading, waiting: Sequence[Place], outside: Sequence[Place], waited: float
) -> Finding:
    doing = describe_doing(outside[0])
    told = "; ".join(
        join_words((say_side(side, hosts) for side in part_sides(places)), few=MOST_SIDES)
        for places, hosts in ((waiting, {}), (outside, name_hosts(reading)))
    )
    still = waited_together(outside, reading)
    spent = f" for {format_age(still)}" if still >= WAITED_S else ""
    fix = doing.fix
    does = f": it {doing.text}" if len(outside) == 1 else ""
    if (
        reading.look.given and doing.kind == "native" and not outside[0].stand.native
    ):  # one stack alone does not tell that nothing moved
        does, fix = "", Fix("check what that line waits for, and add a timeout")
    return _make(
        reading,
        f"{capitalise(told)}{spent}{does}.",
        "COL009",
        outside,
        waiting,
        waited,
        (fix,),
        {"doing": doing.kind, **list_unclear(outside)},
    )


def _find_gone(reading: Reading, waiting: Sequence[Place], gone: Sequence[Place], waited: float) -> Finding:
    sides = part_sides(waiting)
    told = capitalise(join_words((say_side(side) for side in sides), few=MOST_SIDES))
    there = choose_form(len(gone), "it has no process", "they have no processes")
    return _make(
        reading,
        f"{told}; {name_set(ranks_of(gone))} {choose_form(len(gone), 'is', 'are')} gone: {there} on this host.",
        "COL008",
        gone,
        waiting,
        waited,
        (
            Fix(
                "check its log for how it ended; all ranks must leave the loop together",
                code="stop = torch.tensor([int(done)], device=device)\ndist.all_reduce(stop, op=dist.ReduceOp.MAX)",
            ),
        ),
        {},
    )


def _find_sides(reading: Reading, sides: Sequence[Sequence[Place]], waited: float) -> Finding:
    calls = [side[0].call for side in sides]
    code = "COL002"
    if any(call is not None and call.op in MAKERS for call in calls):
        code = "COL006"
    elif all(call is not None and call.point_to_point for call in calls):
        code = "COL011"
    odd = [place for side in sides[1:] for place in side] if len(sides[0]) > len(sides[1]) else []
    told = capitalise(join_words((say_side(side) for side in sides), few=MOST_SIDES))
    doubt = (
        ("none of them reaches the other's collective")
        if odd
        else "the evidence does not show which side is wrong"
    )
    return _make(
        reading,
        f"{told}: all of them are blocked, and {doubt}.",
        code,
        odd or [place for side in sides for place in side],
        (),  # without the numbers of calls nothing shows that the larger side is right
        waited,
        (
            Fix(
                "every rank must issue the same collectives in the same order: check what decides "
                "between these lines"
            ),
            Fix(
                "start the job under ddpdoctor to get sequence numbers, which prove a deadlock",
                command="ddpdoctor run --nproc N train.py",
            ),
        ),
        {"calls": [name_call(call) for call in calls[:16]]},
    )


def _find_by_ras(reading: Reading, waiting: Sequence[Place], waited: float) -> Finding | None:
    """Return whom NCCL's RAS service names where all ranks that were seen wait; None where it names nobody."""
    told = read_ras(reading.look)
    here = ranks_of(waiting)
    size = reading.look.world_size or 0
    missing = RankSet(rank for rank in told.missing if rank < size).minus(here)
    behind = told.behind.minus(missing)
    named = missing or behind
    if not named or (not missing and waited < SYMMETRIC_S):
        return None
    sides = capitalise(join_words((say_side(side) for side in part_sides(waiting)), few=MOST_SIDES))
    if missing:
        process = f" ({join_words(told.processes, few=MOST_SIDES)})" if told.processes else ""
        what = f"NCCL's RAS service does not reach {name_set(missing)}{process}"
        fix = Fix(
            "check on that node whether the process still runs, and where it is blocked",
            command="py-spy dump --native --pid PID; dmesg -T | tail -50",
        )
    else:
        what = f"NCCL's RAS service counts {name_set(behind)} behind: {'; '.join(told.counts[:MOST_SIDES])}"
        fix = Fix(
            "find where that rank is blocked: attach on its node",
            command="ddpdoctor attach --native",
        )
    finding = _make(
        reading,
        f"{sides} for {format_age(waited)}; {what}.",
        "COL009" if missing else "COL002",
        [place for place in reading.places if place.rank in named],
        [place for place in waiting if place.rank not in named],
        waited,
        (fix,),
        {"ras": True},
    )
    return replace(finding, ranks=named)


def _find_together(reading: Reading, waiting: Sequence[Place], waited: float) -> Finding | None:
    first = waiting[0]
    if len(waiting) < 2 or first.call is None or first.call.op == INIT:
        return None
    finding = _make(
        reading,
        f"{name_all(len(waiting))} have been blocked in {name_call(first.call)}{name_line(first.line)} for "
        f"{format_age(waited)}; their stacks do not show whether it is the same call on each rank.",
        "COL005",
        (),
        (),
        waited,
        (
            *advise_library(reading, first.stand.pid),
            Fix(
                "a large collective can be slow on a slow link; sample again",
                command="ddpdoctor attach --watch 30",
            ),
        ),
        {"symmetric": True},
    )
    sockets = tuple(EvidenceItem("socket", text) for text in describe_sockets(reading))
    where = tuple(_list_places(waiting, "noticed", name_hosts(reading)))
    return replace(finding, confidence="low", where=where, evidence=(*finding.evidence, *sockets))


def _make(
    reading: Reading,
    message: str,
    code: str,
    culprits: Sequence[Place],
    victims: Sequence[Place],
    waited: float,
    fix: tuple[Fix, ...],
    details: dict[str, object],
) -> Finding:
    hosts = name_hosts(reading)
    where = [*_list_places(culprits, "culprit", hosts), *_list_places(victims, "victim", hosts)]
    order = ("culprit", "caller", "condition", "victim")
    return Finding(
        message=message,
        code=code,
        ranks=ranks_of(culprits),
        victims=ranks_of(victims),
        nodes=tuple(dict.fromkeys(hosts[place.rank] for place in culprits if place.rank in hosts)),
        where=tuple(sorted(where, key=lambda each: order.index(each.role))),
        evidence=tuple(_what_was_seen(reading, culprits)),
        fix=fix,
        details={**details, "proof": False, "waited_s": round(waited, 1), "stage": reading.look.stage},
        confidence="medium",
        decisive=True,
    )


def name_hosts(reading: Reading) -> dict[int, str]:
    """Return rank -> host where there are several hosts; else nothing, for one need not be named."""
    hosts = {place.rank: place.stand.host for place in reading.places if place.stand.host}
    return hosts if len(set(hosts.values())) > 1 else {}


def _list_places(places: Sequence[Place], role: str, hosts: Mapping[int, str]) -> list[Where]:
    found = []
    for side in part_sides(places):
        line = side[0].line
        if line is None:
            continue
        ranks = ranks_of(side)
        host = hosts.get(side[0].rank) if len({hosts.get(place.rank) for place in side}) == 1 else None
        found.append(in_frame(line, ranks, role, host))
        if role == "culprit":
            callers: Sequence[Frame] = user_frames(side[0].stand.frames)[1 : 1 + MOST_CALLERS]
            found += [in_frame(each, ranks, "caller", host) for each in callers]
    return found


def _what_was_seen(reading: Reading, culprits: Sequence[Place]) -> list[EvidenceItem]:
    look = reading.look
    living = [place for place in reading.places if place.kind != "gone"]
    if look.given:
        return [EvidenceItem("stack", f"the stacks of {count_of(len(living), 'rank')}, from files")]
    text = f"the stacks of {count_of(len(living), 'rank')}, taken over {look.interval_s:.1f} s"
    if look.stage != "moving":
        text += ", do not change"
    watched = [place.stand.watched for place in living]
    if not any(watched):
        text += "; there are no sequence numbers, because the job was not started by ddpdoctor run"
    elif not all(watched):
        text += "; some have no sequence numbers"
    seen = [EvidenceItem("stack", text)]
    for place in [place for place in culprits if place.kind != "gone"][:MOST_SIDES]:
        stand = place.stand
        parts = [f"pid {stand.pid} is {STATES.get(stand.state or '', 'in state ' + (stand.state or '?'))}"]
        if stand.cpu_share is not None:
            parts.append(f"{stand.cpu_share:.0%} of a core")
        if stand.asleep_s is not None:
            parts.append(f"its main thread last ran {format_age(stand.asleep_s)} ago")
        if stand.wait_channel:
            parts.append(f"in the kernel: {stand.wait_channel}")
        seen.append(EvidenceItem("process", ", ".join(parts), RankSet([place.rank])))
    seen += show_native(culprits)
    if reading.unseen:
        seen.append(EvidenceItem("stack", f"nothing was seen of {name_set(reading.unseen)}", reading.unseen))
    seen += quote_ras(look)
    return seen
