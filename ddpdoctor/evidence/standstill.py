"""Evidence of a job that does not get on: where each rank stood, and what it had called."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.native import NativeFrame
from ddpdoctor.evidence.ranks import RankSet
from ddpdoctor.evidence.sockets import NodeNetwork, RasAnswer
from ddpdoctor.evidence.stages import Frame
from ddpdoctor.facts.collectives import GROUP_MAKERS
from ddpdoctor.facts.hangs import HANG_S


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a public function of torch.distributed, or of DistributedDataParallel, by one rank."""

    op: str
    """Name as torch spells it, e.g. ``all_reduce``; ``init_process_group``, ``DistributedDataParallel`` (the wrap) and
    ``DistributedDataParallel.forward`` beside the collectives."""
    group: str = ""
    """Name of the process group; empty where none belongs to it."""
    members: RankSet = field(default_factory=RankSet)
    """Global ranks of the group; empty where that is not known."""
    ordinal: int = 0
    """The how-manyth of its series it is, from 1."""
    index: int = 0
    """Which wrapper of its rank, from 1, where it is a call of one."""
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    device: str | None = None
    reduction: str | None = None
    peer: int | None = None
    """Root, or the other side: a global rank."""
    tag: int | None = None
    reduces: bool = True
    """Whether the backward of a forward reduces gradients over ranks, which it does not within no_sync."""
    asynchronous: bool = False
    point_to_point: bool = False
    default_group: bool = False
    returned: bool | None = None
    """Whether the call has come back; None where it cannot be seen (isend, irecv)."""
    raised: bool = False
    """Whether it came back with an exception."""
    over: bool | None = None
    """Whether it is over, as torch's Flight Recorder tells; None where that was not asked, or cannot tell."""
    age_s: float | None = None
    """Seconds from its beginning to the look."""
    took_s: float | None = None
    """Seconds from its beginning to its return."""
    frames: tuple[Frame, ...] = ()
    """Where it was called, innermost first, from the user's own line on."""
    made: str | None = None
    """Name of the group that a `new_group` creates: the number of groups that its rank created before. None where torch
    derives the name from the ranks (``use_local_synchronization``), or where it is not known."""
    conditions: tuple[Frame, ...] = ()
    """What decides whether the lines of a call run, as in `Stand.conditions`, where it creates a group or a device has
    to make it."""

    @property
    def collective(self) -> bool:
        """Whether all ranks of a group have to make it."""
        return bool(self.group) and not self.point_to_point

    @property
    def series(self) -> str:
        """The calls of a rank among which it has its number.

        Collectives of one group; sends to one rank, or receives from it, with one tag; groups made of the same
        ranks; what one wrapper does.
        """
        if self.point_to_point:
            return name_points("send" in self.op, self.peer, self.tag or 0, self.group)
        if self.group:
            return self.group
        return f"{self.op} {self.members}" if self.op in MAKERS else f"{self.op} {self.index} {self.members}"


MAKERS = GROUP_MAKERS
"""Called by the members of the group, or by all ranks."""


def name_points(sends: bool, peer: int | None, tag: int, group: str) -> str:
    """Return the series of sends to a rank, or of receives from it (None: from any)."""
    return f"{'send' if sends else 'recv'} {'any' if peer is None else peer} {tag} {group}"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A collective that torch's Flight Recorder of a rank holds, whoever called it."""

    op: str
    sequence: int
    """Its number in its group, those counted that C++ calls by itself: not the ordinal of a `Call`."""
    group: str = ""
    members: RankSet = field(default_factory=RankSet)
    """Global ranks of the group; empty where that is not known."""
    elements: int | None = None
    """Values of its inputs."""
    dtype: str | None = None
    state: str = "unknown"
    """unknown, scheduled, started or completed; gloo's never get further than scheduled."""
    own: bool | None = None
    """Whether the rank wrote it down as a call of its own; False: C++ called it, as the reducer does with its buckets.
    None: it cannot be told."""


@dataclass(frozen=True, slots=True)
class Recorder:
    """What torch's Flight Recorder of a rank told at a look."""

    problem: str | None = None
    """Why it told nothing."""
    open: tuple[Recorded, ...] = ()
    """The first of those that are not over, in order."""


@dataclass(frozen=True, slots=True)
class LoaderStand:
    """The last time that a rank began to iterate a DataLoader from one place."""

    length: int | None
    """Batches that it will give; None where only the program's own code could tell."""
    number: int = 1
    """How-manyth iteration from there it is, from 1."""
    batch_size: int | None = None
    drop_last: bool = False
    sampler: str | None = None
    frames: tuple[Frame, ...] = ()
    """Frames from the user's own line outwards."""


@dataclass(frozen=True, slots=True)
class ChildStand:
    """A process that a rank has started: a loader worker, a helper."""

    pid: int
    role: str = "other"
    frames: tuple[Frame, ...] = ()
    state: str | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True)
class FileLock:
    """A lock on a file that a rank holds or waits for, as the kernel shows it."""

    path: str | None
    """None where it is not known."""
    held: bool
    """The rank holds it; else it waits for it."""
    holders: tuple[int, ...] = ()
    """Processes that hold it, where the rank waits."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Where one rank stood."""

    rank: int
    pid: int = 0
    node: int = 0
    host: str = ""
    alive: bool = True
    exit_code: int | None = None
    signal: int | None = None
    exit_frames: tuple[Frame, ...] = ()
    """Where sys.exit or os._exit was called, innermost first."""
    call: Call | None = None
    """The call that it has not come back from."""
    recent: tuple[Call, ...] = ()
    """Its last calls, the newest last; that of ``call`` is among them."""
    counts: dict[str, int] = field(default_factory=dict)
    """Series (see `Call.series`) -> calls begun."""
    complete: bool = True
    """Whether nothing was overwritten: what is not counted was never called."""
    threads: int = 1
    """Threads that have made calls."""
    beside: tuple[Call, ...] = ()
    """Calls of its other threads that have not come back."""
    others: tuple[Frame, ...] = ()
    """Where further threads stand that run the program's own code or torch.distributed's: each may still make calls."""
    given_size: int | None = None
    """World size that its launcher gave it; None where none did."""
    port: int | None = None
    """Port at which its init_process_group looks for the first rank; None where that is not known."""
    raised: int = 0
    """How many of its calls that are known came back with an exception."""
    backend: str | None = None
    """Backend of its default group, as the script asked for it."""
    ended: bool = False
    """Whether its interpreter said that it ends, or it called sys.exit or os._exit."""
    still_s: float | None = None
    """Seconds since it last began or ended a call."""
    frames: tuple[Frame, ...] = ()
    """Its main thread, innermost first, at the last look; empty where it could not be read."""
    frames_before: tuple[Frame, ...] = ()
    """Its main thread one sample earlier, innermost first."""
    native: tuple[NativeFrame, ...] = ()
    """Where its main thread stood below its innermost Python line, innermost first: taken where somebody asked for it,
    or where the Python lines of a rank that stalls do not say what it does."""
    conditions: tuple[Frame, ...] = ()
    """What decides whether the lines run on which it stands (its call's, else its stack's), the innermost first, then
    those of the callers: the function of each is its kind (if, else, for, while, except, case, unless: an earlier test
    that leaves, until: a test behind which the loop that comes next ends)."""
    cpu_share: float | None = None
    """Share of one core that it used between the samples."""
    state: str | None = None
    """Process state of /proc at the last look."""
    wait_channel: str | None = None
    """Kernel function in which it sleeps, where the kernel tells."""
    children: tuple[ChildStand, ...] = ()
    locks: tuple[FileLock, ...] = ()
    loaders: tuple[LoaderStand, ...] = ()
    """Its loaders by place, those that were begun last at the end."""
    note: str | None = None
    """Why something of it could not be read."""
    watched: bool = True
    """It wrote its calls down itself; else ``call`` is read from its stack and has no number, group or arguments."""
    asleep_s: float | None = None
    """Seconds for which its main thread had not run, where the kernel tells."""
    recorder: Recorder | None = None
    """What torch's own recorder told; None where it was not to be asked."""


BUSY_SHARE = 0.1
"""Share of one core from which on a process gets on, as far as can be seen."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """One look at all ranks of a node at once; joined ones are of several nodes."""

    at: Moment
    after_s: float
    """Since the job began."""
    still_s: float
    """Seconds for which no rank had begun or ended a call."""
    stands: tuple[Stand, ...]
    world_size: int | None = None
    interval_s: float = 0.0
    """Seconds between the two samples."""
    stage: str = "look"
    """One of `STAGES`. ``moving``: something moved between the samples."""
    hang_timeout_s: float = HANG_S
    """After which a rank that computes on one line counts as stalled as well (--hang-timeout)."""
    stopped: bool = False
    """The job was ended because of it."""
    asked: bool = False
    """Whether it is a snapshot that was asked for."""
    node: int = 0
    joined: bool = False
    """Whether it covers several nodes: each position names its own."""
    given: bool = False
    """The stacks were read from files: that nothing moved is what those meant who took them."""
    network: tuple[NodeNetwork, ...] = ()
    """The connections of its ranks, for each node."""
    ras: tuple[RasAnswer, ...] = ()
    """What NCCL's own service said, where there is one."""


STAGES = ("withdrawn", "moving", "brief", "look", "waiting", "suspected", "reminded", "confirmed", "proved")
"""Stages from the one that says least to the one that says most. ``brief``: nothing moved, but for too short a time to
conclude anything. ``waiting``: ranks of other nodes are needed to say more."""


def join_nodes(looks: Sequence[Standstill]) -> Standstill:
    """Join looks of several nodes at ranks that stood still at the same time into one.

    Args:
        looks: at least one, at most one a node; the first gives times and stage.
    """
    first = looks[0]
    stands = [
        stand if look.joined else dataclasses.replace(stand, node=look.node)
        for look in looks
        for stand in look.stands
        if stand.rank >= 0
    ]
    # A node looks deeper at its own ranks only.
    by_rank = {stand.rank: stand for stand in sorted(reversed(stands), key=lambda stand: bool(stand.native))}
    network = {
        each.node if look.joined else look.node: each
        if look.joined
        else dataclasses.replace(each, node=look.node)
        for look in reversed(looks)
        for each in look.network
    }
    return dataclasses.replace(
        first,
        still_s=min(look.still_s for look in looks),
        interval_s=max(look.interval_s for look in looks),
        stands=tuple(by_rank[rank] for rank in sorted(by_rank)),
        world_size=max((look.world_size or 0 for look in looks), default=0) or None,
        stage=max((look.stage for look in looks), key=STAGES.index),
        joined=len(looks) > 1 or first.joined,
        network=tuple(network[node] for node in sorted(network)),
        ras=tuple(dict.fromkeys(each for look in looks for each in look.ras)),
    )


def last_looks(looks: Sequence[Standstill]) -> Standstill | None:
    """Return how a job stood at last: each node's last look, joined; None where none was kept.

    A node whose last look was withdrawn, or that moved, does not stand still: the others' alone count then, unless
    there are no others.
    """
    newest: dict[int, Standstill] = {}
    for look in looks:
        if look.stage == "look" and look.node in newest and newest[look.node].stage != "look":
            continue  # in passing; it says less than one that was kept for a reason
        if (
            look.node not in newest
            or look.after_s >= newest[look.node].after_s
            or newest[look.node].stage == "look"
        ):
            newest[look.node] = look
    if not newest:
        return None
    still = [look for look in newest.values() if look.stage not in ("withdrawn", "moving")]
    chosen = sorted(still or newest.values(), key=lambda look: -STAGES.index(look.stage))
    return join_nodes(chosen)
