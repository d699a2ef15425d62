"""What a look at the ranks says: what each waits in, whom it needs, and who can never go on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.native import is_in_driver
from ddpdoctor.evidence.standstill import BUSY_SHARE, MAKERS, Call, Stand, Standstill, last_looks
from ddpdoctor.facts.ownership import TORCH
from ddpdoctor.judge import NotApplicable
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.common.wording import name_set
from ddpdoctor_checks.job.hangs.giving_up import restore_given_up
from ddpdoctor_checks.job.hangs.needs import (
    BACKWARD,
    FORWARD,
    PENDING,
    Need,
    Ranks,
    is_queued,
    list_pending,
    list_queued,
)
from ddpdoctor_checks.job.hangs.standing import Place

__all__ = ["BACKWARD", "FORWARD", "INIT", "MAKERS", "WRAP", "Reading", "last_look", "read_look"]

INIT, WRAP = "init_process_group", "DistributedDataParallel"
STILL_S = 0.5
"""A rank that made a call more recently moves, though both samples may have met it on one line of its loop."""
FUNCTIONAL, DEEP = "torch/distributed/_functional_collectives.py", 12
"""Where functional collectives, DTensor's and FSDP's too, are waited for; frames in which it is looked for."""
WRAPPER = "torch/nn/parallel/distributed.py"
STOPPED = ("T", "t")
"""States of /proc in which a process runs no further, whatever it is in: stopped by a signal, or traced."""


@dataclass(frozen=True, slots=True)
class Reading:
    """All ranks of a look, and who of them can never go on."""

    look: Standstill
    places: tuple[Place, ...]
    stuck: RankSet
    """Ranks that wait for one that is gone or stuck itself."""
    likely: RankSet = field(default_factory=RankSet)
    """Ranks that are stuck where calls count too whose numbers do not tell for sure."""
    ranks: Ranks = field(default_factory=lambda: Ranks({}))

    def get(self, rank: int) -> Place | None:
        """Return where a rank stands; None where it was not seen."""
        return self.ranks.by_rank.get(rank)

    def need(self, place: Place) -> Need:
        """Return whom a waiting rank needs for the first call that it cannot get back from."""
        if place.kind in ("work", "device"):
            return next(iter(self.ranks.list_needs(place)), Need())
        return self.ranks.find_need(place, place.call) if place.call is not None else Need()

    @property
    def unseen(self) -> RankSet:
        """Ranks of the world of which nothing was seen: on other nodes, or never begun."""
        seen = {place.rank for place in self.places}
        return RankSet(rank for rank in range(self.world_size) if rank not in seen)

    @property
    def world_size(self) -> int:
        """Ranks of the world: of the one that is, or of that which ranks ask init_process_group for."""
        asked = (place.call for place in self.places if place.call is not None and place.call.op == INIT)
        return max(self.look.world_size or 0, *(len(call.members) for call in asked), 0)

    @property
    def hosts(self) -> int:
        """Hosts of the ranks that were seen; 1 where they are not known."""
        return len({place.stand.host for place in self.places if place.stand.host}) or 1


def largest(places: Iterable[Place]) -> list[Place]:
    """Return the ranks in the call in which most are; of several, those with the lowest rank."""
    return next(iter(part(places, lambda place: place.key)), [])


def part(places: Iterable[Place], read: Callable[[Place], Hashable]) -> list[list[Place]]:
    """Return ranks by what is read of each, those of the most ranks first; of as many, those with the lowest rank."""
    sides: dict[Hashable, list[Place]] = {}
    for place in places:
        sides.setdefault(read(place), []).append(place)
    return sorted(sides.values(), key=lambda side: (-len(side), side[0].rank))


def last_look(evidence: Evidence) -> Standstill:
    """Return the look that counts: the last one of each node.

    Raises:
        NotApplicable: the job was never seen to stand still.
    """
    look = last_looks([look for look in evidence.standstills if not look.asked])
    if look is None:
        raise NotApplicable("no hang was observed")
    return restore_given_up(look, evidence)


def read_look(look: Standstill) -> Reading:
    """Return what a look says."""
    places = tuple(_place(stand) for stand in look.stands)
    ranks = Ranks({place.rank: place for place in places})
    places = tuple(_name_work(each, ranks) if each.kind in ("work", "device") else each for each in places)
    by_rank = {place.rank: place for place in places}
    ranks = Ranks(by_rank, len(by_rank) < (look.world_size or 0))
    stuck, likely = _find_stuck(places, ranks)
    return Reading(look, places, stuck, likely, ranks)


def _place(stand: Stand) -> Place:
    if not stand.alive:
        return Place(stand, "gone", stand.recent[-1] if stand.recent else None)
    call = stand.call
    if stand.state in STOPPED:
        return Place(stand, "outside", call)
    if call is not None and call.op != FORWARD and _is_called_back(stand, call):
        return Place(stand, "outside", call, not _still(stand))
    if call is not None and call.op in (INIT, WRAP, FORWARD):
        if call.op != FORWARD or _in_torch(stand, "_sync_buffers"):
            return Place(stand, "wrapper", call)
        call = None  # in the forward, but in the user's modules
    if call is not None and not call.asynchronous:
        return Place(stand, "point" if call.point_to_point else "collective", call)
    newest = stand.recent[-1] if stand.recent else None
    if newest is not None and newest.op == "monitored_barrier" and _in_torch(stand, "monitored_barrier"):
        return Place(stand, "collective", newest)
    if _in_backward(stand) and _still(stand):
        wraps = [each for each in stand.recent if each.op in (WRAP, FORWARD)]
        if wraps and wraps[-1].reduces:
            frames = stand.frames
            last = wraps[-1]
            made = Call(BACKWARD, members=last.members, ordinal=last.ordinal, index=last.index, frames=frames)
            return Place(stand, "wrapper", made)
    begun = _begin_forward(stand) if call is None else None
    if begun is not None:
        return Place(stand, "wrapper", begun)
    if _waits_for_work(stand) and _still(stand):
        place = Place(stand, "work")
        if list_pending(place):
            return place
    if any(FUNCTIONAL in frame.file for frame in stand.frames[:DEEP]) and _still(stand):
        return Place(stand, "functional", _read_functional(stand))
    if _waits_for_device(stand):
        return Place(stand, "device")
    return Place(stand, "outside", None, not _still(stand))


def _read_functional(stand: Stand) -> Call:
    """Return the functional collective in which a rank stands, as far as torch's recorder tells."""
    told = stand.recorder.open if stand.recorder is not None else ()
    first = next((each for each in told if each.own is False), None)
    if first is None:
        return Call("a functional collective", frames=stand.frames)
    return Call(first.op, members=first.members, frames=stand.frames)


def is_busy(place: Place) -> bool:
    """Whether a rank that seems to wait computes or moves; one that waits for an accelerator may spin."""
    spins = place.kind == "device" or any(is_queued(call) for call in place.stand.recent[-PENDING:])
    spins = spins or "nccl" in (place.stand.backend or "").lower()
    return place.kind != "gone" and not spins and not _still(place.stand)


def _still(stand: Stand) -> bool:
    """Whether a rank did not move between the samples, as far as can be seen."""
    if stand.watched and stand.still_s is not None and stand.still_s < STILL_S:
        return False  # it has just made a call
    if _is_running(stand):
        return False
    if not stand.frames or not stand.frames_before:
        return not stand.frames and not stand.frames_before
    return _lines(stand.frames) == _lines(stand.frames_before)


def _lines(frames: Sequence[Frame]) -> list[tuple[str, int, str]]:
    return [(frame.file, frame.line, frame.function) for frame in frames]


def _in_torch(stand: Stand, function: str) -> bool:
    return any(frame.function == function and frame.whose == TORCH for frame in stand.frames[:12])


def _is_called_back(stand: Stand, call: Call) -> bool:
    """Whether torch, within a call, runs code of the user's own: pickling an object, listing parameters.

    Such a rank does not wait for others, who may wait for it.
    """
    own = stand.frames[0] if stand.frames else None
    if own is None or own.source is None or not call.frames:
        return False
    site = (call.frames[0].file, call.frames[0].line)
    for frame in stand.frames:
        if (frame.file, frame.line) == site:
            return False
        if "torch/" in frame.file:
            return True
    return False


def _begin_forward(stand: Stand) -> Call | None:
    """Return the forward of a wrapped model that a rank is about to begin, where it waits in C++ before that.

    There the ranks agree on the buckets of the reducer (``_rebuild_buckets``), before their second forward. On a device
    its broadcast is queued, and the rank waits for the device, which may look like work.
    """
    frames = stand.frames
    if not frames or (frames[0].file.endswith(WRAPPER), frames[0].function) != (True, "_pre_forward"):
        return None
    if not (_still(stand) or _waits_for_device(stand)):
        return None
    known = {call.index: call for call in stand.recent if call.op in (WRAP, FORWARD)}
    line = user_line(frames)
    there = [call for call in known.values() if line is not None and user_line(call.frames) == line]
    chosen = there if there or len(known) > 1 else list(known.values())
    if len(chosen) != 1:
        return None  # of several wrapped models it is not known which
    last = chosen[0]
    number = last.ordinal + 1 if last.op == FORWARD else 1
    return Call(FORWARD, members=last.members, ordinal=number, index=last.index, frames=frames)


def _in_backward(stand: Stand) -> bool:
    """Whether the innermost frame is the autograd engine, which waits there for the reducer's all-reduces."""
    return bool(stand.frames) and stand.frames[0].function == "_engine_run_backward"


def _name_work(place: Place, ranks: Ranks) -> Place:
    """Give a rank that waits for what it asked for earlier the first of it that is not over."""
    pending = ranks.list_open(place)
    missing = (call for call in pending if ranks.find_need(place, call).ranks)
    last = pending[-1] if pending else list_pending(place)[-1]
    if place.kind == "device":  # which does what was queued in order
        last = next((call for call in pending if call.over is False), last)
    call = next(missing, last)
    # What decides of the line of that call; the rank has gone on from there.
    stand = replace(place.stand, conditions=call.conditions) if call.conditions else place.stand
    return replace(place, stand=stand, call=call, pending=pending)


def _waits_for_work(stand: Stand) -> bool:
    """Whether a rank stands on a line of its own that waits for what it asked for earlier: ``work.wait()``."""
    own = stand.frames[0] if stand.frames else None
    return (
        own is not None
        and own.source is not None
        and any(f"{word}(" in own.source for word in ("wait", "synchronize"))
    )


_FETCHES = (
    "item(",
    "cpu(",
    "tolist(",
    "numpy(",
    "synchronize(",
    ".to(",
    "wait(",
    "backward(",
    "print(",
    "float(",
)
"""What a line says that waits until a device has done what was queued."""


def _waits_for_device(stand: Stand) -> bool:
    """Whether a rank stands, in both samples, where it waits for a device on which it has queued collectives.

    It may use a whole core meanwhile: CUDA spins. Where its native frames were read, they decide: whatever asks the
    driver may have to wait until the device has done what was queued, also a kernel that is loaded for the first time.
    A rank that sleeps waits for it only where it is known to have queued a collective.
    """
    if not stand.frames or _lines(stand.frames) != _lines(stand.frames_before):
        return False
    if not list_queued(stand):
        return False
    if stand.native:
        return is_in_driver(stand.native)
    if not _is_running(stand) and not any(is_queued(call) for call in stand.recent[-PENDING:]):
        return False
    own = next((frame for frame in stand.frames if frame.source is not None), None)
    source = own.source if own is not None and own.source is not None else ""
    return _in_torch(stand, "synchronize") or any(word in source for word in _FETCHES)


def _is_running(stand: Stand) -> bool:
    """Whether a rank uses a core, or would: a machine with too few cores gives it little of them."""
    return stand.state == "R" or (stand.cpu_share is not None and stand.cpu_share >= BUSY_SHARE)


def _find_stuck(places: Sequence[Place], ranks: Ranks) -> tuple[RankSet, RankSet]:
    """Return the ranks that wait for one that is gone, or for one that is stuck itself: no time will help them.

    Returns:
        Those of which the numbers of calls tell it for sure, and all.
    """
    classes: dict[tuple[object, ...], list[Place]] = {}
    for place in places:
        if place.waits:
            classes.setdefault(place.key, []).append(place)
    needs = {key: ranks.list_needs(members[0]) for key, members in classes.items()}
    gone = {place.rank for place in places if place.kind == "gone"}
    return _settle(classes, needs, gone, sure=True), _settle(classes, needs, gone, sure=False)


def _settle(
    classes: Mapping[tuple[object, ...], Sequence[Place]],
    needs: Mapping[tuple[object, ...], Sequence[Need]],
    gone: set[int],
    *,
    sure: bool,
) -> RankSet:
    hopeless = gone | {place.rank for members in classes.values() for place in members}
    left = dict(needs)
    while True:
        free = [key for key, each in left.items() if not _is_hopeless(each, hopeless, sure)]
        if not free:
            return RankSet(place.rank for key in left for place in classes[key])
        for key in free:
            hopeless -= {place.rank for place in classes[key]}
            del left[key]


def _is_hopeless(needs: Sequence[Need], hopeless: set[int], sure: bool) -> bool:
    """Whether none of what a rank waits for can ever come."""
    return bool(needs) and all(
        bool(need.ranks)
        and (need.sure or not sure)
        and (any if need.every else all)(rank in hopeless for rank in need.ranks)
        for need in needs
    )


def name_call(call: Call | None) -> str:
    """Return a call as a sentence names it: ``all_reduce #128``."""
    if call is None:
        return "a call"
    if call.op == BACKWARD and call.device is not None:
        return f"the all-reduce of gradients after forward pass #{call.ordinal} of DistributedDataParallel"
    if call.op == BACKWARD:
        return "the backward pass of DistributedDataParallel"
    if call.op == FORWARD:
        number = f" #{call.ordinal}" if call.ordinal else ""
        return f"the forward pass{number} of DistributedDataParallel, which waits for all ranks"
    if call.op == WRAP:
        return "DistributedDataParallel(…)"
    if call.op == INIT:
        return "init_process_group"
    if call.point_to_point and not call.ordinal:
        return call.op  # read from a stack, which does not tell the other side
    if call.point_to_point:
        side = "to" if "send" in call.op else "from"
        tag = f" with tag {call.tag}" if call.tag else ""
        return f"{call.op} {side} {'any rank' if call.peer is None else f'rank {call.peer}'}{tag}"
    group = name_group(call)
    number = f" #{call.ordinal}" if call.ordinal else ""  # none where it was read from a stack
    return f"{call.op}{number}{group}"


def name_group(call: Call) -> str:
    """Return `` of the group of ranks 0-1``; empty for the group of all ranks."""
    if call.default_group or not call.group:
        return ""
    return f" of the group of {name_set(call.members)}" if call.members else f" of group {call.group}"


def name_line(frame: Frame | None) -> str:
    """Return `` (train.py:88, train_step)``; empty where there is no line."""
    if frame is None:
        return ""
    inside = f", {frame.function}" if frame.function not in ("<module>", "") else ""
    return f" ({frame.file}:{frame.line}{inside})"


def lines_called(stand: Stand) -> set[tuple[str, int]]:
    """Return the user's lines from which a rank has made its recent calls."""
    return {
        (frame.file, frame.line) for call in stand.recent if (frame := user_line(call.frames)) is not None
    }


def ranks_of(places: Iterable[Place]) -> RankSet:
    """Return their numbers."""
    return RankSet(place.rank for place in places)
