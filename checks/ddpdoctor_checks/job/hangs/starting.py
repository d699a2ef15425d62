"""Ranks that wait outside of every process group: in a store, in torch.distributed.rpc, for a lock on a file."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.evidence import RankSet
from ddpdoctor.judge import EvidenceItem, Finding
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.wording import capitalise, choose_form, format_age, join_words, name_set
from ddpdoctor_checks.job.hangs.doing import Doing, describe_doing
from ddpdoctor_checks.job.hangs.reading import Reading, part, ranks_of
from ddpdoctor_checks.job.hangs.sides import spot_of
from ddpdoctor_checks.job.hangs.standing import Place
from ddpdoctor_checks.job.hangs.waits import what_was_seen

KINDS = ("store", "rpc", "filelock")
"""What a rank may wait in for others without a process group."""
MOST_SIDES, MOST_LOCKS = 3, 4
WORKING = ("running", "disk-sleep")
"""States of a child that gets on."""


def find_starting(reading: Reading, stage: str, seen: Sequence[EvidenceItem] | None = None) -> Finding | None:
    """Return what ranks wait for that wait in no call of a process group; None where one of them may get on.

    Args:
        reading: of a look in which no rank waits in a collective.
        stage: of the look.
        seen: what the finding rests on, where it is not the usual.
    """
    living = [place for place in reading.places if place.kind != "gone"]
    if not living or any(place.kind != "outside" or place.moved for place in living):
        return None
    doings = {place.rank: describe_doing(place) for place in living}
    waiting = [place for place in living if doings[place.rank].kind in KINDS]
    others = [place for place in living if place not in waiting]
    if not waiting or any(child.state in WORKING for place in living for child in place.stand.children):
        return None
    if others and reading.look.still_s < reading.look.hang_timeout_s:
        return None  # they may do what the waiting ones wait for
    blamed = others or waiting
    age = format_age(reading.look.still_s)
    told = [_say(side, doings[side[0].rank]) for side in _part(waiting)]
    told += [_say(side, doings[side[0].rank]) for side in _part(others)]
    gone = [place for place in reading.places if place.kind == "gone"]
    absent = ""
    if gone:
        absent = f"; {name_set(ranks_of(gone))} {choose_form(len(gone), 'has', 'have')} ended"
    elif reading.unseen:
        absent = f"; no process of {name_set(reading.unseen)} was seen"
    where = [
        in_frame(line, ranks_of(side), "culprit" if side[0] in blamed else "noticed")
        for places in (blamed, waiting if others else ())
        for side in _part(places)
        if (line := side[0].line) is not None
    ]
    sure = "high" if stage == "confirmed" else "medium"
    return Finding(
        message=(
            f"{capitalise(join_words(told, few=MOST_SIDES))}{absent}. No progress for {age}, and no rank is "
            "blocked in a collective."
        ),
        code="COL009",
        ranks=ranks_of(blamed),
        where=tuple(where),
        evidence=(*(what_was_seen(reading) if seen is None else seen), *_list_locks(living)),
        fix=tuple(dict.fromkeys(doings[place.rank].fix for place in (*blamed, *waiting))),
        details={
            "doing": doings[blamed[0].rank].kind,
            "waiting": list(ranks_of(waiting))[:64],
            "proof": False,
            "stage": stage,
        },
        confidence=sure if reading.places[0].stand.watched else "medium",
        decisive=True,
    )


def _part(places: Sequence[Place]) -> list[list[Place]]:
    return part(
        places,
        lambda place: (describe_doing(place).text, spot_of(place.line) if place.line is not None else None),
    )


def _say(side: Sequence[Place], doing: Doing) -> str:
    """Return ``rank 1 waits for the key "plan" of the store … at plan.py:7``."""
    line = side[0].line
    inside = f" in {line.function}" if line is not None and line.function != "<module>" else ""
    at = f"at {line.file}:{line.line}{inside}" if line is not None else "outside of its own code"
    lock = next((each for each in side[0].stand.locks if not each.held and each.path is not None), None)
    path = f" ({lock.path})" if lock is not None else ""
    verb = choose_form(len(side), "is", "are")
    each = "it" if len(side) == 1 else "each"
    return f"{name_set(ranks_of(side))} {verb} {at}, where {each} {doing.text}{path}"


def _list_locks(living: Sequence[Place]) -> list[EvidenceItem]:
    """Return who holds the locks on files that ranks wait for, and what they hold themselves."""
    ranks = {place.stand.pid: place.rank for place in living}
    items = []
    for place in living:
        for lock in place.stand.locks:
            path = lock.path or "a file"
            if lock.held:
                text = f"holds a lock on {path}"
            else:
                held = join_words(
                    [f"rank {ranks[pid]}" if pid in ranks else f"process {pid}" for pid in lock.holders]
                )
                text = f"waits for a lock on {path}" + (
                    f", which {held} {choose_form(len(lock.holders), 'holds', 'hold')}" if held else ""
                )
            items.append(EvidenceItem("lock", text, RankSet([place.rank])))
    return items[:MOST_LOCKS]
