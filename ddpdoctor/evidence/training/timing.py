"""Where the time of steps goes on each rank, and how much later than the others a rank comes to where they meet.

Made by the watcher of a job from what each rank wrote down; see ``ddpdoctor_watch/training/clocks.py`` for what a step,
a column and a meeting are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from ddpdoctor.evidence.stages import Frame

N = TypeVar("N", int, float)

OTHER, DATA, STARTING, FORWARD, BACKWARD, OPTIMIZER, CALLS = PHASES = (
    "other", "data", "starting", "forward", "backward", "optimizer", "collectives",
)  # fmt: skip
"""Phases of a step: the program's own Python, waiting for a batch, waiting for the first batch of an epoch from workers
that start, a wrapper's forward, a backward with all that follows it up to the next phase, a step of the optimizer, and
collectives of the program's own among all ranks."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Where the time of one rank's steps went."""

    rank: int
    seconds: tuple[float, ...]
    """Seconds of a usual step by phase, in the order of `PHASES`: medians over the columns."""
    lags: tuple[float | None, ...] = ()
    """Seconds that it came to a meeting later than the median of the other ranks of its node, for one step of each
    column, at the meeting where that is most; 0 where it never came later, None where it cannot be told."""
    computing_s: float | None = None
    """Seconds of a backward until the rank's own last gradient was ready; this and what follows are medians over
    iterations that DistributedDataParallel measures by itself."""
    exposed_s: float | None = None
    """Seconds from then on until all gradients were reduced: communication, and waiting for ranks that are late."""
    after_s: float | None = None
    """Seconds from there to the next phase: the program's own Python again."""
    slower_s: float | None = None
    """Seconds that it needs to its first bucket of gradients beyond the median of the others, in three of four
    iterations at least."""
    rows: float | None = None
    """Rows that it sends and receives in an all-to-all with split sizes, on average, at the line where these are most;
    None where it calls none."""
    routed_at: tuple[Frame, ...] = ()
    """That line, innermost first."""

    def spend(self, *phases: str) -> float:
        """Return the seconds of a usual step in these phases."""
        return sum(self.seconds[PHASES.index(phase)] for phase in phases)

    @property
    def step_s(self) -> float:
        """Length of a usual step."""
        return sum(self.seconds)


@dataclass(frozen=True, slots=True)
class ShardTimes:
    """How long a step waits for the parameters and gradients that fully_shard shards, on the rank that waits least.

    Medians over the steps that were looked at on all ranks of a node; the last rank to arrive waits for no other.
    """

    steps: int
    step_s: float
    gather_s: float
    """Waiting for all-gathers of parameters, with copying them out."""
    reduce_s: float
    """Waiting for reduce-scatters of gradients, with copying them in."""
    gathered_bytes: int
    """Of parameters that are gathered in a step; those of a module count each time."""
    modules: tuple[tuple[str, float], ...] = ()
    """Modules that are waited for most, and seconds of a step, all-gathers and reduce-scatters together; the model
    itself has no name."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """How long a rank waits for other stages of its pipeline; medians over the steps that were looked at."""

    rank: int
    stage: int
    """The first of its stages, from 0."""
    step_s: float
    waiting_s: float

    @property
    def busy_s(self) -> float:
        """Seconds of a step that it does not wait."""
        return max(0.0, self.step_s - self.waiting_s)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How a node's ranks wait for each other in a pipeline of torch.distributed.pipelining."""

    stages: int
    held: int
    """Stages of each rank; 1 in a schedule that is not interleaved."""
    micro_batches: int
    """Of a step; 0 where it is not known."""
    steps: int
    """That were looked at, on the rank with the fewest."""
    ranks: tuple[StageTimes, ...]
    frames: tuple[Frame, ...] = ()
    """Where the program lets it make a step, innermost first."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What was seen on one node."""

    steps: int = 0
    """That were counted, on the rank with the most; the first few are not."""
    width: int = 1
    """Steps in a column."""
    columns: tuple[int, ...] = ()
    """Number of the first step of each."""
    ranks: tuple[RankTimes, ...] = ()
    arrivals_ns: tuple[int | None, ...] = ()
    """When the median rank came to the last meeting of one step of each column; wall clock of the node."""
    iterations: int = 0
    """That DistributedDataParallel measured by itself."""
    exposed_s: float | None = None
    """Exposed communication of a reduction on the rank where it is least, which waits for nobody; median over
    these."""
    reduction_s: float | None = None
    """How long a reduction takes there in all, from the first bucket on."""
    reductions: float = 0.0
    """Number of reductions in each step."""
    gradient_bytes: int = 0
    """Bytes of gradients that a reduction carries."""
    device: str = ""
    """Type of the one that the model is on."""
    loader: tuple[Frame, ...] = ()
    """Where the loader that was waited for most is iterated, innermost first."""
    shards: ShardTimes | None = None
    """None where nothing is sharded by fully_shard, or no step was looked at."""
    pipeline: Pipeline | None = None


def compare(values: Sequence[N]) -> list[N]:
    """Return each of two values or more, less the lower median of the others."""
    ordered = sorted(values)
    middle = (len(ordered) - 2) // 2
    low, high = ordered[middle], ordered[middle + 1]
    return [each - (high if each <= low else low) for each in values]
