"""Evidence of a live job or of what a dead one left: its processes, their ends, their last words.

Times are nanoseconds: ``wall_ns`` since the epoch, for people and across nodes; ``mono_ns`` of CLOCK_MONOTONIC,
for order on one node.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpdoctor.evidence.stages import Frame
from ddpdoctor.evidence.timeline import TimedEvent

REQUESTS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
"""Signals by which people and schedulers ask a job to end; scripts use others for checkpoints and the like."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time."""

    wall_ns: int
    mono_ns: int | None = None
    """None where only a wall clock was written down (logs)."""

    @property
    def is_coarse(self) -> bool:
        """Whether it was read from a log that has whole seconds only."""
        return self.mono_ns is None and self.wall_ns % 1_000_000_000 == 0


PHASE = "phase"
"""Name of the milestone that `ddpdoctor.mark_phase` writes."""


@dataclass(frozen=True, slots=True)
class Milestone:
    """Something that a rank reached."""

    name: str
    """start, import, init, wrap, first-forward, collective, destroy or end; told-to-end, when its launcher sent it a
    signal; phase, of which the last one is kept."""
    at: Moment
    detail: str | None = None
    """For the milestone phase, the name that the program gave to it; None where the phase has ended."""
    frames: tuple[Frame, ...] = ()
    """Where, innermost first; of destroy only."""


@dataclass(frozen=True, slots=True)
class UnwaitedWork:
    """Asynchronous work that one line of a process began, and that nobody has asked anything."""

    op: str
    """Name of the operation as torch spells it: ``all_reduce``, ``isend``."""
    begun: int = 1
    """How often the line began work, waited for or not."""
    dropped: int = 0
    """How often work of that line was dropped before any wait() on it."""
    kept: int = 0
    """How often the process still held work of that line at its end, and had not waited for it."""
    first: int = 0
    """Number of the first such call among all calls of the process, from 1."""
    last: int = 0
    calls: int = 0
    """Calls that the process had made when this was written."""
    group: str | None = None
    """torch's name of the process group."""
    device: str | None = None
    """Type of the device that the tensor is on."""
    frames: tuple[Frame, ...] = ()
    """Where, innermost first."""
    blind: bool = False
    """The program waits in a way that cannot be seen: nothing may be concluded."""


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A debug setting that a program made itself while it ran, or that was found on in it."""

    name: str
    """A variable of the table, or ``anomaly mode``."""
    value: str = ""
    """Scrubbed; of the variable, or what torch went by."""
    how: str = "set"
    """set (by the program), first-forward or end (what torch went by then)."""
    at: Moment | None = None
    frames: tuple[Frame, ...] = ()
    """Where it was set, innermost first."""
    count: int = 1
    """How often so far."""
    cuda: bool = False
    """CUDA was in use already."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One process of the job."""

    pid: int
    node: int = 0
    host: str = ""
    parent: int | None = None
    role: str = "rank"
    """launcher, rank, loader-worker or other."""
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    attempt: int = 0
    """Restart of the elastic agent, from 0."""
    command: tuple[str, ...] = ()
    """Scrubbed."""
    script: str | None = None
    """The user's main file, relative to the working directory where it lies below it."""
    started: Moment | None = None
    ended: Moment | None = None
    exit_code: int | None = None
    signal: int | None = None
    signal_sender: str | None = None
    """Who sent the signal, where it can be known: ``agent (pid 5)`` of torchrun, ``its parent (pid 5)``, ``itself``,
    ``rank 0 (pid 7)``, ``kernel (out of memory)``, ``pid 17 (bash)``, or that nobody did who was watched."""
    clean_end: bool = False
    """Whether its interpreter ran to its end: an exit after that is the shutdown's."""
    exit_call: tuple[Frame, ...] = ()
    """Where sys.exit or os._exit was called, innermost first."""
    exit_how: str | None = None
    """sys.exit, os._exit, exception or None for the end of the script."""
    exit_text: str | None = None
    """What ``sys.exit("…")`` was given to print, bounded and scrubbed."""
    running: bool = False
    """Whether it had not ended when this was written: that it shows no end says nothing."""
    watched: bool = True
    unwatched_reason: str | None = None
    milestones: tuple[Milestone, ...] = ()
    rss_bytes: int | None = None
    """Resident memory when it was last looked at."""
    rss_peak_bytes: int | None = None
    open_files_limit: int | None = None
    """RLIMIT_NOFILE, soft: at the start, or where the process ran into it then."""
    variables: dict[str, str] = field(default_factory=dict)
    """Allow-listed environment."""
    torch: str | None = None
    python: str | None = None
    backend: str | None = None
    init_method: str | None = None
    """What init_process_group was given, e.g. ``env://`` or ``file:///tmp/x``."""
    cluster: str | None = None
    """The cluster that it gave its work to and did not start, e.g. ``Ray cluster at 10.0.0.1:6379``: what runs there is
    not watched."""
    settings: tuple[SettingChange, ...] = ()
    unwaited: tuple[UnwaitedWork, ...] = ()
    last_words: str | None = None
    """The end of its stderr, scrubbed."""

    @property
    def is_rank(self) -> bool:
        """Whether it was a rank: started as one, or another process (a child of mp.spawn) that joined a group."""
        if self.role == "rank":
            return True
        return (
            self.rank is not None
            and self.backend is not None
            and self.role not in ("launcher", "loader-worker")
        )


@dataclass(frozen=True, slots=True)
class ExceptionRecord:
    """An exception that nobody caught, or that ended a thread or a worker."""

    pid: int
    type: str
    """Qualified name, e.g. ``KeyError`` or ``torch.distributed.DistBackendError``."""
    message: str
    """Bounded and scrubbed."""
    frames: tuple[Frame, ...] = ()
    """Innermost first."""
    node: int = 0
    host: str = ""
    rank: int | None = None
    attempt: int = 0
    kind: str = "uncaught"
    """uncaught (main thread), thread, worker (of a DataLoader), handled (in whose handler sys.exit or os._exit was
    called), caught (by a library, and reported by another process that ended with it), printed (given to a hook by a
    program that went on), error-file (written by torch's record) or log (parsed from text)."""
    thread: str | None = None
    worker: int | None = None
    at: Moment | None = None
    link: str | None = None
    """How it belongs to the next one: cause (``raise … from``), context (while handling), member (of a group)."""
    chain: tuple[ExceptionRecord, ...] = ()
    """The exceptions before it, nearest first; their own chains are empty."""
    parent_frames: tuple[Frame, ...] = ()
    """Frames of the rank that asked the worker, innermost first, where a worker's error came out of it."""
    source: tuple[str, int] | None = None
    """File and line that it was read from, for analyze."""


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """A fatal signal, as faulthandler wrote it down inside the process."""

    pid: int
    title: str
    """e.g. ``Fatal Python error: Segmentation fault``."""
    frames: tuple[Frame, ...] = ()
    """Frames of the thread that crashed, innermost first; of the main thread where that one runs no Python."""
    node: int = 0
    host: str = ""
    rank: int | None = None
    attempt: int = 0
    modules: tuple[str, ...] = ()
    """Extension modules that were loaded, as faulthandler lists them."""
    native: str | None = None
    """Native library in which it crashed, where Python (3.14 and later) or the kernel log says so."""
    at: Moment | None = None
    """When it was written."""


@dataclass(frozen=True, slots=True)
class WrappedParameter:
    """One parameter of a model in DistributedDataParallel."""

    index: int
    """Its number in DDP's texts: its place among the wrapper's parameters that require a gradient."""
    name: str
    """Qualified, e.g. ``encoder.fc.weight``."""
    module: str = ""
    """Qualified name of the module that owns it; empty for the model itself."""
    module_class: str = ""
    forward_ran: bool | None = None
    """Whether the owner's forward was called since the wrapper's last forward began; None where it is not
    known."""
    requires_grad: bool = True
    got_grad: bool | None = None
    """Whether it had a gradient when this was written; None where it is not known."""


@dataclass(frozen=True, slots=True)
class WrapperFacts:
    """A DistributedDataParallel object, written down when its process raised something that speaks of it."""

    pid: int
    model: str = ""
    """Class of the wrapped module."""
    parameters: tuple[WrappedParameter, ...] = ()
    """Those that the exception names by index; all of them where it names none."""
    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
    broadcast_buffers: bool | None = None
    buffers: tuple[str, ...] = ()
    """Names of the module's buffers, e.g. ``bn.running_mean``; the first few hundred."""
    forwards: int | None = None
    """Forwards of the wrapper so far."""
    freezes: tuple[Frame, ...] = ()
    """Statements of the program that freeze parameters, where some of these are frozen."""
    node: int = 0
    host: str = ""
    rank: int | None = None
    attempt: int = 0
    at: Moment | None = None


@dataclass(frozen=True, slots=True)
class TextMatch:
    """A line of output, or an exception's text, that an entry of the table of texts knows."""

    entry: str
    """Id of the entry in `ddpdoctor.evidence.texts`."""
    text: str
    """The line, bounded and scrubbed."""
    groups: dict[str, str] = field(default_factory=dict)
    """Named parts of the pattern."""
    node: int = 0
    host: str = ""
    pid: int | None = None
    rank: int | None = None
    attempt: int = 0
    stream: str = "stderr"
    """stdout, stderr, exception, error-file or log."""
    file: str | None = None
    line: int | None = None
    at: Moment | None = None
    count: int = 1
    """How often the same entry matched in the same place; the first is kept."""


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """What a node's memory and kernel say about the time of the job."""

    node: int
    host: str = ""
    limit_bytes: int | None = None
    """Memory limit of the cgroup, in bytes."""
    peak_bytes: int | None = None
    oom_kills: int | None = None
    """Killed by the cgroup's out-of-memory killer during the job; None where it cannot be read."""
    kernel_lines: tuple[str, ...] = ()
    """Lines of the kernel log that name a process of the job."""
    kernel_note: str | None = None
    """Why the kernel log could not be read."""
    shm_free_bytes: int | None = None
    shm_total_bytes: int | None = None
    """/dev/shm when the first process died."""


@dataclass(frozen=True, slots=True)
class NotableLine:
    """A line of a log that is worth reading where nothing else says how its job ended."""

    file: str
    line: int
    text: str
    """Scrubbed and bounded."""
    trouble: bool = True
    """Whether it reports something that went wrong; else it is only the last one."""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How the launched command ended, and what could not be seen."""

    exit_code: int | None
    signal: int | None = None
    launcher: str = "torchrun"
    restarts: int = 0
    duration_s: float = 0.0
    lost: tuple[str, ...] = ()
    """What the watcher lost: disk full, output cut, processes not watched; one sentence each."""
    interrupted: str | None = None
    ended_by: str | None = None
    """Why the scheduler told it to end, where that could be asked."""
    toggles: dict[str, str] = field(default_factory=dict)
    """Debug variables that ddpdoctor put into the job's environment because it was asked to."""
    stopped: bool = False
    """ddpdoctor ended it because it stood still: its exit code and the signals of its ranks say nothing."""
    stopped_elsewhere: str | None = None
    """What was found on another node, where that was seen; scrubbed there."""
    notable: tuple[NotableLine, ...] = ()
    """Lines of logs that are most worth reading."""
    timeline: tuple[TimedEvent, ...] = ()
    """What logs and recorders date, in order."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """The same command once more, with variables that bring hidden errors up, and what was seen of it."""

    toggle: str
    """blocking or detail."""
    state: str = "ended"
    """ended, timed-out (stopped at its limit), stopped (it stood still), interrupted (by the user) or skipped."""
    reason: str | None = None
    """Why it was skipped."""
    variables: dict[str, str] = field(default_factory=dict)
    """What was added to the environment of the first run."""
    limit_s: float | None = None
    directory: str | None = None
    """Its run directory, seen from that of the first run."""
    node: int = 0
    processes: tuple[ProcessRecord, ...] = ()
    exceptions: tuple[ExceptionRecord, ...] = ()
    crashes: tuple[CrashRecord, ...] = ()
    wrappers: tuple[WrapperFacts, ...] = ()
    texts: tuple[TextMatch, ...] = ()
    memory: tuple[MemoryRecord, ...] = ()
    job: tuple[JobEnd, ...] = ()
