"""What a look at the ranks says: what each waits in, whom it needs, and who can never go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.standstill import Call, Stand, Standstill
from ddpdoctor.judge import NotApplicable
from ddpdoctor_checks.crash.frames import user_line

INIT, WRAP, FORWARD, BACKWARD = (
    "init_process_group",
    "DistributedDataParallel",
    "DistributedDataParallel.forward",
    "backward",
)
MAKERS = ("new_group", "split_group")
IDLE_SHARE = 0.1
"""Of one core between two samples: a process that uses more is computing and may get on."""
LIMIT_OF_WORDS = 80


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank stands."""

    stand: Stand
    kind: str
    """gone, collective, point (send or receive), wrapper (initialisation, wrap, forward, backward), work (waits for
    something asked for earlier) or outside."""
    call: Call | None = None
    moved: bool = False
    """Outside: its stack changed between the samples, or it computes."""

    @property
    def rank(self) -> int:
        """Its number."""
        return self.stand.rank

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks."""
        return self.kind not in ("gone", "outside")

    @property
    def line(self) -> Frame | None:
        """The user's own line."""
        frames = self.call.frames if self.call is not None and self.call.frames else self.stand.frames
        if self.kind == "gone":
            frames = self.stand.exit_frames
        return user_line(frames)

    @property
    def key(self) -> tuple[object, ...]:
        """What ranks that wait in the same call have in common."""
        call = self.call
        if self.kind == "collective" and call is not None:
            return (call.group, call.ordinal, call.op, call.shape, call.dtype, call.reduction, call.peer)
        if self.kind == "wrapper" and call is not None:
            return (call.op, call.ordinal)
        return (self.kind, self.rank)


@dataclass(frozen=True, slots=True)
class Reading:
    """All ranks of a look, and who of them can never go on."""

    look: Standstill
    places: tuple[Place, ...]
    stuck: RankSet
    """Ranks that wait for one that is gone or stuck itself."""

    def get(self, rank: int) -> Place | None:
        """Return where a rank stands; None where it was not seen."""
        return next((place for place in self.places if place.rank == rank), None)

    @property
    def unseen(self) -> RankSet:
        """Ranks of the world of which nothing was seen: on other nodes, or never begun."""
        seen = {place.rank for place in self.places}
        return RankSet(rank for rank in range(self.look.world_size or 0) if rank not in seen)

    def main_wait(self) -> list[Place]:
        """Return the ranks that wait in the call in which most wait; the latest of several."""
        waiting = [place for place in self.places if place.kind in ("collective", "wrapper")]
        if not waiting:
            return []
        sizes = Counter(place.key for place in waiting)
        best = max(sizes, key=lambda key: (sizes[key], -min(p.rank for p in waiting if p.key == key)))
        return [place for place in waiting if place.key == best]


def last_look(evidence: Evidence) -> Standstill:
    """Return the look that counts: the last one.

    Raises:
        NotApplicable: the job was never seen to stand still.
    """
    looks = [look for look in evidence.standstills if not look.asked]
    if not looks:
        raise NotApplicable("the job was not seen to stand still")
    return max(looks, key=lambda look: (look.stage != "look", look.after_s))


def read_look(look: Standstill) -> Reading:
    """Return what a look says."""
    places = tuple(_place(stand) for stand in look.stands)
    return Reading(look, places, _find_stuck(places))


def _place(stand: Stand) -> Place:
    if not stand.alive:
        return Place(stand, "gone", stand.recent[-1] if stand.recent else None)
    call = stand.call
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
        if wraps:
            frames = stand.frames
            made = Call(BACKWARD, members=wraps[-1].members, ordinal=wraps[-1].ordinal, frames=frames)
            return Place(stand, "wrapper", made)
    asked = _asked_for(stand)
    if asked is not None and _still(stand):
        return Place(stand, "work", asked)
    return Place(stand, "outside", None, not _still(stand))


def _still(stand: Stand) -> bool:
    """Whether a rank did not move between the samples, as far as can be seen."""
    if stand.cpu_share is not None and stand.cpu_share >= IDLE_SHARE:
        return False
    if not stand.frames or not stand.frames_before:
        return not stand.frames and not stand.frames_before
    return _lines(stand.frames) == _lines(stand.frames_before)


def _lines(frames: Sequence[Frame]) -> list[tuple[str, int, str]]:
    return [(frame.file, frame.line, frame.function) for frame in frames]


def _in_torch(stand: Stand, function: str) -> bool:
    return any(frame.function == function and "torch/" in frame.file for frame in stand.frames[:12])


def _in_backward(stand: Stand) -> bool:
    """Whether the innermost frame is the autograd engine, which waits there for the reducer's all-reduces."""
    return bool(stand.frames) and stand.frames[0].function == "_engine_run_backward"


def _asked_for(stand: Stand) -> Call | None:
    """Return the call that a rank waits for that it asked for earlier: ``work.wait()`` on its own line."""
    own = stand.frames[0] if stand.frames else None
    if (
        own is None
        or own.source is None
        or not any(f"{word}(" in own.source for word in ("wait", "synchronize"))
    ):
        return None
    return next((call for call in reversed(stand.recent) if call.asynchronous or call.returned is None), None)


def _needed(place: Place, by_rank: Mapping[int, Place]) -> tuple[frozenset[int], bool]:
    """Return the ranks that a waiting one needs, and whether it needs all of them (else any)."""
    call = place.call
    if call is None:
        return frozenset(), True
    if call.point_to_point:
        if call.peer is None:
            return frozenset(by_rank) - {place.rank}, False
        other = by_rank.get(call.peer)
        if other is not None and _answers(call, place.rank, other):
            return frozenset(), True
        return frozenset((call.peer,)), True
    members = frozenset(call.members) or frozenset(by_rank)
    return frozenset(r for r in members if r in by_rank and by_rank[r].key != place.key), True


def _answers(call: Call, rank: int, other: Place) -> bool:
    """Whether the other side stands in the very call that this send or receive waits for."""
    theirs = other.call
    if theirs is None or not theirs.point_to_point or theirs.peer != rank:
        return False
    return ("send" in call.op) != ("send" in theirs.op)


def _find_stuck(places: Sequence[Place]) -> RankSet:
    """Return the ranks that wait for one that is gone, or for one that is stuck itself: no time will help them."""
    by_rank = {place.rank: place for place in places}
    hopeless = {place.rank for place in places if place.kind == "gone" or place.waits}
    classes: dict[tuple[object, ...], list[Place]] = {}
    for place in places:
        if place.waits:
            classes.setdefault(place.key, []).append(place)
    needed = {key: _needed(members[0], by_rank) for key, members in classes.items()}
    while True:
        free = [
            key
            for key, (ranks, every) in needed.items()
            if not ranks or not (any if every else all)(rank in hopeless for rank in ranks)
        ]
        if not free:
            return RankSet(place.rank for key in needed for place in classes[key])
        for key in free:
            hopeless -= {place.rank for place in classes[key]}
            del needed[key]


def name_call(call: Call | None) -> str:
    """Return a call as a sentence names it: ``all_reduce #128``."""
    if call is None:
        return "a call"
    if call.op == BACKWARD:
        return "the backward of DistributedDataParallel"
    if call.op == FORWARD:
        number = f" #{call.ordinal}" if call.ordinal else ""
        return f"the forward{number} of DistributedDataParallel, which broadcasts buffers"
    if call.op == WRAP:
        return "DistributedDataParallel(…)"
    if call.op == INIT:
        return "init_process_group"
    if call.point_to_point:
        side = "to" if "send" in call.op else "from"
        return f"{call.op} {side} rank {call.peer}" if call.peer is not None else call.op
    group = "" if call.default_group or not call.group else f" of group {call.group}"
    number = f" #{call.ordinal}" if call.ordinal else ""  # none where it was read from a stack
    return f"{call.op}{number}{group}"


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
