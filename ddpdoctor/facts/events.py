"""The events of a process's journal, the other half of the wire (`wire` has the ring of calls): names, fields, types.

The hook in a job's processes writes them, one JSON object per line; `ddpdoctor.watch.readers` read them. Both are
checked against these types by mypy, and every journal that a test makes against their keys (tests/watch/injecting.py).
What a reader is given is only as good as the file: a field may be missing (older hooks, other states of the process)
or hold anything, so readers ask with ``get`` and convert. Of several events of one kind the last one counts where its
description says so.

Modules that start with the interpreter import this for types alone: `typing` takes longer than all that they do.
"""

from __future__ import annotations

from typing import Any, Dict, Literal, Mapping, TypedDict, Union

from . import training_events as training
from .training_events import Event, Frames

Variables = Dict[str, str]


class Start(Event, total=False):
    """Which process this is; written again after a fork (``forked``) and after an exec: the last one counts."""

    event: Literal["start"]
    pid: int
    ppid: int
    start_ticks: int
    argv: list[str]
    executable: str
    python: str
    script: str | None
    module: str | None
    library: str
    cwd: str
    role: str
    rank: int | None
    rank_source: str | None
    local_rank: int | None
    world_size: int | None
    group_rank: int | None
    attempt: int
    run_id: str | None
    inherited: bool
    variables: Variables
    host: str
    isatty: list[bool]
    open_files: int
    forked: bool


class Role(Event, total=False):
    """What became known later: a loader worker, another child of multiprocessing, a launcher."""

    event: Literal["role"]
    role: str
    how: str
    children: list[int]
    name: str
    target: str | None
    worker: int
    index: int


class Torch(Event, total=False):
    """torch.distributed was imported."""

    event: Literal["torch"]
    version: str
    folder: str
    cuda: str | None
    hip: str | None
    distributed: bool


class Milestone(Event, total=False):
    """How far a process came: import, init-begin, init, wrap-begin, wrap, first-forward, destroy; phase."""

    event: Literal["milestone"]
    name: str
    detail: Any
    """A text; of ``init-begin`` the arguments by name, of ``phase`` the program's own name or None."""
    variables: Variables
    frames: Frames


class Init(Event, total=False):
    """The default process group was made."""

    event: Literal["init"]
    backend: str | None
    rank: int
    world_size: int
    init_method: str | None
    variables: Variables
    frames: Frames


class ExceptionParts(TypedDict, total=False):
    """An exception with what led to it."""

    type: str
    message: str
    frames: Frames
    chain: list[dict[str, Any]]
    """Exceptions before it, nearest first, with ``link``."""
    members: list[dict[str, Any]]
    """Exceptions in an exception group."""
    notes: list[str]
    syntax: bool
    where: str
    """What a loader worker or a pool wrote of the place; then ``worker`` and ``parent`` belong to it."""
    worker: int | None
    parent: dict[str, Any]
    lost: str


class ExceptionEvent(Event, ExceptionParts, total=False):
    """An exception that no code of the program handled, or that it printed."""

    event: Literal["exception"]
    kind: str
    """uncaught, printed, thread, worker."""
    thread: str
    late: bool
    main: str | None
    open_files: int


class CaughtEvent(Event, ExceptionParts, total=False):
    """An exception of a rank that the program, or a library, made a text of."""

    event: Literal["caught"]
    kind: str
    open_files: int
    caller: Frames
    """The frame that did."""


class ExitCall(Event, total=False):
    """sys.exit, os._exit or a raised SystemExit."""

    event: Literal["exit-call"]
    how: str
    frames: Frames
    status: int
    text: str
    exception: ExceptionParts
    """Exception whose handler makes the call."""


class End(Event, total=False):
    """The interpreter ends."""

    event: Literal["end"]
    status: int | None


class ChildExit(Event, total=False):
    """How a child of this process ended."""

    event: Literal["child-exit"]
    pid: int
    code: int
    signal: int


class Kill(Event, total=False):
    """A signal that this process is about to send."""

    event: Literal["kill"]
    pid: int
    pgid: int
    signal: int
    frames: Frames


class Cluster(Event, total=False):
    """The program gave its work to a cluster that it did not start."""

    event: Literal["cluster"]
    engine: str
    address: str


class Setting(Event, total=False):
    """A debug setting that the program made itself, or that torch goes by."""

    event: Literal["setting"]
    name: str
    value: str
    how: str
    count: int
    cuda: bool
    frames: Frames


class File(Event, total=False):
    """What a rank did with a file."""

    event: Literal["file"]
    op: str
    path: str
    phase: list[int]
    """How many synchronization points the rank has passed: public functions, groups and wrappers made, steps."""
    locked: bool
    via: str | None
    near: bool
    size: int | None
    frames: Frames


class Files(Event, total=False):
    """How large the files are in the end that a rank wrote: path, bytes, last write, device and inode."""

    event: Literal["files"]
    ends: list[list[Any]]


class Trouble(Event, total=False):
    """A failure of the hook itself."""

    event: Literal["trouble"]
    where: str
    text: str


class Signature(Event, total=False):
    """What a number in the ring means: a call with its arguments."""

    event: Literal["signature"]
    number: int
    op: str
    shape: list[int] | None
    dtype: str | None
    device: str | None
    reduction: str | None
    index: int
    """Which of several wrappers or initializations the call belongs to."""
    ranks: Any
    """Ranks of a group or a wrapper that the call makes."""
    syncs: bool
    reduces: bool


class Site(Event, total=False):
    """What a number in the ring means: lines of the user's that call; ``foreign`` in a library's thread."""

    event: Literal["site"]
    number: int
    frames: Frames
    foreign: bool


class Group(Event, total=False):
    """What a number in the ring means: a process group."""

    event: Literal["group"]
    number: int
    name: str
    description: str
    ranks: Any
    backend: str | None
    default: bool


class Work(Event, total=False):
    """Asynchronous work of one call site that nobody has waited for so far; the last one of a site counts."""

    event: Literal["work"]
    op: str
    device: Any
    group: Any
    begun: int
    dropped: int
    kept: int
    first: int
    last: int
    calls: int
    frames: Frames
    blind: bool


class Recorder(Event, total=False):
    """Where torch's Flight Recorder answers, or why it does not."""

    event: Literal["recorder"]
    socket: str
    problem: str


class WrapperParameter(TypedDict, total=False):
    """A parameter that an error of DistributedDataParallel is about."""

    index: int
    name: str | None
    module: str | None
    forward_ran: bool | None
    requires_grad: bool | None
    grad: bool | None
    shape: list[int] | None


class WrapperError(Event, total=False):
    """The parameters behind an error of DistributedDataParallel."""

    event: Literal["ddp"]
    wrapper: str
    parameters: list[dict[str, Any]]
    """The parameters as `WrapperParameter`, with ``class``."""
    count: int
    named_by_error: bool
    left_out: int
    forwards: int | None
    find_unused_parameters: bool
    static_graph: bool
    certain: bool
    broadcast_buffers: bool
    """These two of older hooks."""
    buffers: list[str]


class Node(Event, total=False):
    """Which node this is, told by its elastic agent."""

    event: Literal["node"]
    node: int
    nodes: int
    host: str
    ranks: list[int]
    head: bool


class Peer(Event, total=False):
    """What the head knows of another node; later events add to earlier ones."""

    event: Literal["peer"]
    node: int
    host: str
    ranks: list[int]
    offset_ns: int
    error_ns: int
    told: bool
    whole: bool
    state: str | None
    alive_ns: int | None
    moved: bool
    closed: bool | None


class Sent(Event, total=False):
    """How telling the head went."""

    event: Literal["sent"]
    arrived: bool
    head: dict[str, Any] | None
    connection: str | None


FileEvent = Union[File, Files]
AnyEvent = Union[
    Start, Role, Torch, Milestone, Init, ExceptionEvent, CaughtEvent, ExitCall, End, ChildExit, Kill, Cluster, Setting,
    File, Files, Trouble, Signature, Site, Group, Work, Recorder, WrapperError, Node, Peer, Sent, training.AnyEvent,
]  # fmt: skip
"""Told apart by ``event``."""

EVENTS: Mapping[str, type] = {
    "start": Start, "role": Role, "torch": Torch, "milestone": Milestone, "init": Init,
    "exception": ExceptionEvent, "caught": CaughtEvent, "exit-call": ExitCall, "end": End, "child-exit": ChildExit,
    "kill": Kill, "cluster": Cluster, "setting": Setting, "file": File, "files": Files, "trouble": Trouble,
    "signature": Signature, "site": Site, "group": Group, "work": Work, "recorder": Recorder, "ddp": WrapperError,
    "node": Node, "peer": Peer, "sent": Sent, **training.EVENTS,
}  # fmt: skip
"""Name -> type of each event."""
