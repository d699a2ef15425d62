"""Ranks that wait in init_process_group for others that were not seen, ask for another world or look elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.standstill import Call
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
from ddpdoctor_checks.job.hangs.reading import INIT, Reading, name_line, part, ranks_of
from ddpdoctor_checks.job.hangs.standing import Place
from ddpdoctor_checks.job.hangs.waits import what_was_seen

_OWN = Fix(
    "let the launcher count the ranks: init_process_group reads RANK and WORLD_SIZE, which it sets",
    code="dist.init_process_group(backend)\nworld_size = dist.get_world_size()",
)

_ONE_PORT = Fix(
    "choose the port once, before the ranks are started, and give all of them the same",
    code='os.environ["MASTER_PORT"] = str(find_free_port())   # in the process that spawns the ranks\n'
    "mp.spawn(worker, nprocs=world_size)",
)
MOST_PORTS = 4
"""Ports that a message names."""


def find_unjoined(reading: Reading, living: Sequence[Place], stage: str) -> Finding | None:
    """Return whom ranks that all wait in init_process_group wait for; None where all of them are there.

    Args:
        reading: of the look.
        living: ranks that live.
        stage: of the look.
    """
    calls = _list_meeting(living)
    if not calls:
        return None
    asked, given = len(calls[0].members), {place.stand.given_size for place in living}
    if not reading.unseen:
        return None
    if given == {len(living)} and ranks_of(living) == RankSet.span(len(living)):
        return _tell_larger(reading, living, asked, stage)
    if reading.look.still_s < reading.look.hang_timeout_s:
        return None  # those of other hosts may be on their way
    return _tell_missing(reading, living, stage)


def _list_meeting(living: Sequence[Place]) -> list[Call]:
    """Return the calls of ranks that all wait in init_process_group; none where one does not."""
    calls = [place.call for place in living if place.call is not None and place.call.op == INIT]
    return calls if len(calls) == len(living) and all(call.members for call in calls) else []


def find_sizes(reading: Reading, stage: str) -> Finding | None:
    """Return that ranks that all wait in init_process_group ask for worlds of different size.

    Args:
        reading: of the look.
        stage: of the look.
    """
    living = [place for place in reading.places if place.kind != "gone"]
    if not _list_meeting(living):
        return None
    sides = part(living, lambda place: len(place.call.members) if place.call is not None else 0)
    if len(sides) < 2:
        return None
    sizes = {len(call.members): side for side in sides if (call := side[0].call) is not None}
    told = join_words(f"{size} on {name_set(ranks_of(side))}" for size, side in sizes.items())
    odd = [place for side in sides[1:] for place in side] if len(sides[0]) > len(sides[1]) else []
    blamed = odd or [place for side in sides for place in side]
    return _make(
        reading,
        "ENV003",
        f"The ranks are blocked in init_process_group with different world sizes: {told}.",
        blamed,
        stage,
        (_OWN, Fix("start all nodes with the same --nnodes and --nproc-per-node")),
        {"sizes": {str(size): list(ranks_of(side))[:64] for size, side in sizes.items()}},
    )


def find_ports(reading: Reading, stage: str) -> Finding | None:
    """Return that ranks that all wait in init_process_group look for the first rank at different ports.

    Args:
        reading: of the look.
        stage: of the look.
    """
    living = [place for place in reading.places if place.kind != "gone"]
    if not _list_meeting(living) or any(place.stand.port is None for place in living):
        return None
    sides = part(living, lambda place: place.stand.port)
    if len(sides) < 2:
        return None
    told = join_words(
        (f"{side[0].stand.port} on {name_set(ranks_of(side))}" for side in sides), few=MOST_PORTS
    )
    odd = [place for side in sides[1:] for place in side] if len(sides[0]) > len(sides[1]) else living
    made = _make(
        reading,
        "ENV004",
        f"The ranks are blocked in init_process_group{name_line(living[0].line)} and look for rank 0 at different "
        f"ports: {told}. They never meet.",
        odd,
        stage,
        (_ONE_PORT,),
        {"ports": {str(side[0].stand.port): list(ranks_of(side))[:64] for side in sides[:64]}},
    )
    return replace(made, severity="error")


def _tell_larger(reading: Reading, living: Sequence[Place], asked: int, stage: str) -> Finding:
    """The script asks for a larger world than the launcher has started."""
    who = "Rank 0 is blocked" if len(living) == 1 else f"{name_all(len(living))} are blocked"
    message = (
        f"{who} in init_process_group{name_line(living[0].line)} with a world size of {asked}, but the "
        f"launcher started {len(living)}: {name_set(reading.unseen)} "
        f"{choose_form(len(reading.unseen), 'was', 'were')} never started."
    )
    return _make(
        reading,
        "ENV003",
        message,
        living,
        stage,
        (
            _OWN,
            Fix("or start as many ranks as the script asks for", command=f"ddpdoctor run --nproc {asked} …"),
        ),
        {"expected": asked, "started": len(living)},
    )


def _tell_missing(reading: Reading, living: Sequence[Place], stage: str) -> Finding:
    """Ranks have not come that nobody here has seen."""
    missing = reading.unseen
    age = format_age(reading.look.still_s)
    message = (
        f"{capitalise(name_set(ranks_of(living)))} {choose_form(len(living), 'has', 'have')} been in "
        f"init_process_group{name_line(living[0].line)} for {age}, waiting for a world size of "
        f"{reading.world_size}: no process of {name_set(missing)} was seen."
    )
    made = _make(
        reading,
        "NET006",
        message,
        living,
        stage,
        (
            Fix("check whether these ranks were started, on which host, and what they do there"),
            Fix("if the script sets the world size itself, let the launcher set it", code=_OWN.code),
        ),
        {"missing": list(missing)[:64]},
        sure="medium",
    )
    return made


def _make(
    reading: Reading,
    code: str,
    message: str,
    places: Sequence[Place],
    stage: str,
    fix: tuple[Fix, ...],
    details: dict[str, object],
    sure: str | None = None,
) -> Finding:
    role = "noticed" if code == "NET006" else "culprit"
    where = []
    for side in part(places, lambda place: place.line):
        line = side[0].line
        if line is not None:
            where.append(in_frame(line, ranks_of(side), role))
    given = sorted({place.stand.given_size for place in places if place.stand.given_size is not None})
    seen = [EvidenceItem("variable", f"WORLD_SIZE={size} as the launcher set it") for size in given]
    return Finding(
        message=message,
        code=code,
        ranks=reading.unseen if code == "NET006" else ranks_of(places),
        where=tuple(where),
        evidence=(*what_was_seen(reading), *seen),
        fix=fix,
        details={**details, "proof": False, "stage": stage},
        confidence=sure or ("high" if stage == "confirmed" else "medium"),
        decisive=True,
    )
