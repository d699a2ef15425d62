"""Standstills in which all ranks wait: whether each of them was seen in the same call, and if not, what that leaves."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.judge import EvidenceItem, Finding, Fix
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.wording import (
    capitalise,
    choose_form,
    format_age,
    join_words,
    name_all,
    name_set,
)
from ddpdoctor_checks.job.hangs.flight_recorder import name_wait
from ddpdoctor_checks.job.hangs.functional import find_apart
from ddpdoctor_checks.job.hangs.paths import describe_sockets, flows
from ddpdoctor_checks.job.hangs.reading import Reading, is_busy, name_line, part, ranks_of
from ddpdoctor_checks.job.hangs.standing import Place
from ddpdoctor_checks.job.hangs.unjoined import find_unjoined
from ddpdoctor_checks.job.hangs.waits import what_was_seen

DEVICE_S = 120.0
"""Ranks that all wait for their devices may only have queued much on them."""
MOST_SIDES = 3


def find_symmetric(reading: Reading, stage: str) -> Finding | None:
    """Return that all ranks wait, and each for what is on its way.

    Args:
        reading: of a look in which no rank waits for one that is outside of every call.
        stage: of the look.

    Returns:
        None where some rank is not seen, computes, or where data moves.
    """
    living = [place for place in reading.places if place.kind != "gone"]
    if len(living) < 2 or not all(place.waits for place in living):
        return None
    unjoined = find_unjoined(reading, living, stage)
    if unjoined is not None or reading.unseen:
        return unjoined
    if reading.look.still_s < DEVICE_S and any(place.kind == "device" for place in living):
        return None
    if flows(reading) or any(map(is_busy, living)):
        return None  # slow, and not still
    numbered = not any(place.kind == "functional" for place in living)
    apart = None if numbered else find_apart(reading, stage)
    if apart is not None:
        return apart
    together = numbered and _is_one_call(living)
    sides = part(living, lambda place: place.key)
    age = format_age(reading.look.still_s)
    if together:
        name = f"{name_wait(living)}{name_line(living[0].line)}"
        message = (
            f"{name_all(len(living))} have been blocked in {name} for {age} after the same number of "
            "collectives; no rank diverged and no data is moving between them."
        )
    else:
        told = join_words((_say_waiting(side) for side in sides), few=MOST_SIDES)
        why = _why(living, numbered)
        message = f"{capitalise(told)}. No progress for {age}, and {why}: no rank can be named."
    return Finding(
        message=message,
        code="COL005",
        where=tuple(
            in_frame(line, ranks_of(side), "noticed") for side in sides if (line := side[0].line) is not None
        ),
        evidence=(
            *what_was_seen(reading),
            *(EvidenceItem("socket", text) for text in describe_sockets(reading)),
        ),
        fix=_advise(reading, living),
        details={
            "proof": False,
            "stage": stage,
            "symmetric": together,
            "waiting": list(ranks_of(living))[:64],
        },
        confidence="high" if stage == "confirmed" and together else "low",
        decisive=True,
    )


def _is_one_call(living: Sequence[Place]) -> bool:
    """Whether all members of one group were seen in one call of it, by one thread of each, and nothing had raised.

    Only then the counts of calls say that no rank has left one out.
    """
    call = living[0].call
    if call is None or any(place.key != living[0].key for place in living):
        return False
    if any(place.stand.threads > 1 or place.stand.beside or place.stand.raised for place in living):
        return False
    return bool(call.members) and call.members == ranks_of(living)


def _why(living: Sequence[Place], numbered: bool) -> str:
    """Return why the calls name nobody."""
    if not numbered:
        return "functional collectives carry no sequence numbers that would show which rank skipped one"
    if any(place.stand.threads > 1 or place.stand.beside for place in living):
        return "several threads of a rank issue collectives, whose order is not known"
    if any(place.stand.raised for place in living):
        return "some collectives raised before, so the sequence numbers no longer match"
    return "the sequence numbers do not show which rank skipped one"


def advise_library(reading: Reading, pid: int) -> tuple[Fix, ...]:
    """Return what to look at below the call: the network only where ranks are on several hosts.

    Args:
        reading: of the look.
        pid: of a rank.
    """
    if reading.hosts > 1:
        return (Fix("test the network between the nodes", command="ddpdoctor check --nproc 2"),)
    return (
        Fix("check where the library is blocked below the call", command=f"ddpdoctor attach --native {pid}"),
    )


def _advise(reading: Reading, living: Sequence[Place]) -> tuple[Fix, ...]:
    library = advise_library(reading, living[0].stand.pid)
    if reading.hosts > 1:
        slow = Fix(
            "a large collective can be slow on a slow link; compare with the bandwidth measured by "
            "`ddpdoctor check`"
        )
        return (*library, slow)
    return (
        *library,
        Fix(
            "let torch compare the collectives of all ranks before it issues them",
            command="ddpdoctor run --debug detail …",
        ),
    )


def _say_waiting(side: Sequence[Place]) -> str:
    verb = choose_form(len(side), "waits", "wait")
    return f"{name_set(ranks_of(side))} {verb} in {name_wait(side)}{name_line(side[0].line)}"
