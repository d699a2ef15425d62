"""Evidence from the tiny world: backends, collectives, DDP and bandwidth."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpdoctor.evidence.ranks import RankSet


@dataclass(frozen=True, slots=True)
class RankMessage:
    """One text that some ranks gave."""

    ranks: RankSet
    text: str


@dataclass(frozen=True, slots=True)
class BackendResult:
    """One backend tried by some ranks."""

    backend: str
    built: bool
    device: str | None = None
    """Device type that its tensors lived on; None when it was not tried."""
    device_present: bool = True
    asked: bool = False
    """Whether it is the backend of the default group."""
    group: RankSet = field(default_factory=RankSet)
    """Ranks on which a process group formed."""
    collective: RankSet = field(default_factory=RankSet)
    """Ranks on which an all_reduce then gave the right sum."""
    failures: tuple[RankMessage, ...] = ()
    reason: str | None = None
    """Why it was not tried."""
    version: str | None = None
    peer_to_peer_off: RankSet = field(default_factory=RankSet)
    """Ranks on which the failed all_reduce passed when it was repeated in new processes with
    NCCL_P2P_DISABLE=1; empty where that was not tried."""


@dataclass(frozen=True, slots=True)
class CollectiveCase:
    """One operation with one type and size; results compared exactly."""

    op: str
    backend: str
    dtype: str
    count: int
    """Elements per rank."""
    reduction: str | None = None
    group: str = "world"
    """world or sub-group."""
    passed: RankSet = field(default_factory=RankSet)
    failures: tuple[RankMessage, ...] = ()
    """Wrong values or exceptions, worded by the rank."""
    unsupported: str | None = None
    """The backend itself says that it does not have this; not a failure."""


@dataclass(frozen=True, slots=True)
class InitResult:
    """One way to initialise the default process group."""

    method: str
    """env, tcp or file."""
    passed: RankSet = field(default_factory=RankSet)
    failures: tuple[RankMessage, ...] = ()
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment with DistributedDataParallel or with another strategy, whose outcome is known beforehand."""

    name: str
    """gradient-mean, replicas-equal, autocast, grad-scaler, no-sync, unused-named or checkpoint; or one of
    `STRATEGIES`."""
    passed: RankSet = field(default_factory=RankSet)
    failures: tuple[RankMessage, ...] = ()
    skipped: str | None = None
    tensor: str | None = None
    """First tensor that was wrong."""
    largest_difference: float | None = None
    facts: dict[str, float | int | str | bool | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnusedParameter:
    """A parameter of the user's model that got no gradient."""

    name: str
    module: str
    """Qualified name of the owning module; empty for the root."""
    module_class: str
    forward_ran: bool
    """Whether the owning module's forward was called in the step."""
    ranks: RankSet = field(default_factory=RankSet)
    count: int = 0
    """Elements."""


@dataclass(frozen=True, slots=True)
class UserError:
    """An error in the user's own factory or model, with the line that is theirs."""

    kind: str
    """missing, raised, hung, wrong-type, wrong-output, not-trainable, wrapped, lazy, differs or group-destroyed."""
    step: str
    """import, factory, wrap, forward, backward."""
    message: str
    type: str | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None
    source: str | None = None
    ranks: RankSet = field(default_factory=RankSet)


@dataclass(frozen=True, slots=True)
class ModelResult:
    """What became of the user's model from ``--model``."""

    factory: str
    ranks: RankSet = field(default_factory=RankSet)
    parameters: int = 0
    parameter_bytes: int = 0
    trainable: int = 0
    buckets: int | None = None
    unused: tuple[UnusedParameter, ...] = ()
    find_unused_needed: bool | None = None
    static_graph_ok: bool | None = None
    """Whether the same parameters were used in every step that was run."""
    steps: int = 0
    step_s: float | None = None
    step_s_with_search: float | None = None
    """Median step time with find_unused_parameters=True, in seconds."""
    errors: tuple[UserError, ...] = ()
    facts: dict[str, float | int | str | bool | None] = field(default_factory=dict)
    """Facts from DDP's own _get_ddp_logging_data."""


@dataclass(frozen=True, slots=True)
class BandwidthRow:
    """One size of one collective, as nccl-tests defines the figures. GB = 1e9 bytes."""

    op: str
    backend: str
    dtype: str
    bytes: int
    """Total buffer S of nccl-tests."""
    ranks: int
    iterations: int
    seconds: float
    """Median over iterations of the slowest rank's time."""
    seconds_min: float
    seconds_max: float
    algbw: float
    busbw: float
    busbw_min: float
    busbw_max: float
    correct: bool
    """Contents were checked outside the timed region."""


@dataclass(frozen=True, slots=True)
class PairRow:
    """Bytes sent between two ranks or nodes."""

    source: int
    target: int
    level: str
    """rank or node."""
    bytes: int
    seconds: float
    bandwidth: float
    """GB/s, GB = 1e9 bytes."""
    round: int = 0


@dataclass(frozen=True, slots=True)
class Baseline:
    """A speed measured beside the collectives, to expect from."""

    node: int
    name: str
    """memory-copy, loopback-copy."""
    bandwidth: float
    """GB/s."""
    detail: str | None = None
