"""Events of a process's journal about its training; `events` has the others and says how they are used."""

from __future__ import annotations

from typing import Any, List, Literal, Mapping, Optional, TypedDict, Union

Frames = List[List[object]]
"""Innermost first: file, line, function."""
Print = Optional[List[object]]
"""Fingerprint of a tensor: a digest of its bits and its norm; None where it cannot be read."""


class Event(TypedDict, total=False):
    """What all events have."""

    wall_ns: int
    mono_ns: int


_Class = TypedDict("_Class", {"class": str}, total=False)


class Loader(Event, total=False):
    """A DataLoader begins to be iterated."""

    event: Literal["loader"]
    number: int
    place: int
    length: int | None
    batch_size: int | None
    drop_last: bool
    workers: int
    sampler: str | None
    frames: Frames
    sets_epoch: bool
    """What the sampler says of itself, up to ``total_size``."""
    shuffles: bool
    shuffle: bool
    epoch: int
    seed: int
    num_replicas: int
    shard: int
    total_size: int
    dataset: str
    """What is read of the data set: all (``whole``) or a part, as a sketch of its indices."""
    origin: str
    whole: int
    split_size: int
    split: list[int]
    split_reach: int | None


class Epoch(Event, total=False):
    """What a loader's sampler gave in one iteration."""

    event: Literal["epoch"]
    loader: int
    number: int
    batches: int
    samples: int
    compared: int
    print: str
    first: list[int]
    ascending: bool
    steps: int
    padded: int | None


class Batch(Event, total=False):
    """What a model was given."""

    event: Literal["batch"]
    model: int
    loader: int
    epoch: int
    index: int
    print: str | None
    shapes: list[Any]
    parts: list[str | None]
    """Fingerprints of its tensors, each for itself."""
    wholes: list[str | None]
    """Which piece of which tensor each of them is: begin, length, size of the whole, and its fingerprint."""
    draws: str | None
    joining: bool
    frames: Frames


class LayoutParts(TypedDict, total=False):
    """How a model is sharded."""

    axes: list[list[Any]]
    """Strategy or "group", name and ranks of each set of ranks that this one belongs to."""
    pieces: list[list[Any]]
    """Which piece of a tensor this rank holds, and the places of those tensors."""


class Tensors(Event, _Class, total=False):
    """What an optimizer steps, ``class`` is its own."""

    event: Literal["tensors"]
    optimizer: int
    table: int
    step: int
    models: dict[str, str]
    rows: list[Any]
    """Rows of `TensorRow`."""
    left_out: int
    wrappers: list[dict[str, Any]]
    layout: LayoutParts | None
    frames: Frames


class Step(Event, total=False):
    """What was seen of one step."""

    event: Literal["step"]
    optimizer: int
    table: int
    step: int
    final: bool
    count: int
    """Parameters; the tensors behind them in the table are others."""
    shadowed: int
    values: str
    others: str
    each: list[Print]
    states: list[list[str]]
    settings: list[list[str]]
    each_state: list[list[Print]]
    gradients: str
    each_gradient: list[Print]
    missing: Any
    """Places of parameters without a gradient; once read, whether there are any."""
    whole: bool
    """Only once read: whether it has the numbers of each tensor."""
    rates: list[float | None]
    rated: float
    lowered: list[int]
    """Steps after which ReduceLROnPlateau lowered the learning rate."""
    lowered_at: Frames
    wrappers: list[Any]
    """Rows of `WrapperRow`."""
    idle: list[int]
    sites: list[list[Any]]
    """How often each line stepped it, and the frames."""
    carried: float
    exchanged: float
    averagings: int
    """Times so far that collectives reduced as many elements between two steps as there are parameters, or more."""
    averagings_at: Frames
    """Frames of the largest collective of the last of them."""
    weights: list[list[float]]
    """For each cross-entropy loss of the step: how many tokens or samples it covers, and the weight of one of them."""
    weighed: list[Any]
    """Frames of the backward of the first of them."""
    averaged: list[list[int]]
    """Ranks of each group over which the program carried all gradients between the backward and this step."""
    scaled: float
    """Factor by which gradients of a sharded model were scaled between the backward and this step."""
    scaled_at: list[Any]
    """Frames of the line that did, as far as it can be told."""
    sharers: list[int]
    """Ranks that share these gradients out by a reduce-scatter of the program's own."""
    unreduced: list[float]
    """Elements of gradients as the backward left them, where the program reduces them itself."""
    reduced: list[float]
    """The same elements before the step."""
    reduced_at: Frames
    """Frames of the last collective in between."""
    all_to_all: bool
    """Whether the program has called an all_to_all by then."""
    unsynced: int
    """Modules of fully_shard that hold parameters of it and were told not to reduce gradients."""


class Compared(Event, _Class, total=False):
    """A step of one of two runs that are compared (``run --against``)."""

    event: Literal["compared"]
    rank: int
    world_size: int
    optimizer: int
    step: int
    rows: list[list[Any]]
    """Row of each parameter: name, shape of the whole, dtype, sizes and offsets of the piece that this rank holds (None
    where that is not known), and the sketches of the piece before the step and of its gradient."""
    losses: list[float]
    digests: list[str]
    """One of each sample that the model was given since the step before."""
    cut: bool
    """Whether there were more of them."""
    elements: int
    """Elements of the tensors that the model was given."""
    forwards: int
    drawn: bool | None
    """Random numbers were drawn between a forward and its backward pass; None where that was not seen."""
    precision: str
    rates: list[float | None]
    batch_norms: int


class Abstained(Event, total=False):
    """Why something was no longer looked at."""

    event: Literal["abstained"]
    what: str
    reason: str


class Watching(Event, total=False):
    """What looking took."""

    event: Literal["watching"]
    spent_ns: int
    elapsed_ns: int
    level: str


class Numbers(TypedDict, total=False):
    """Which numbers were looked at in each backward pass: losses, or a gradient of a parameter of a wrapper."""

    what: str
    model: int
    name: str


class Losses(Event, Numbers, total=False):
    """Counts of backward passes, of those in which a number was read, and of numbers that were not finite."""

    event: Literal["losses"]
    count: int
    checked: int
    bad: int
    since: int


class Place(TypedDict, total=False):
    """Where the program is."""

    step: int
    loader: int
    epoch: int
    index: int
    indices: list[Any]
    wrappers: list[int]


class NonFinite(Event, Numbers, Place, total=False):
    """A number is not finite from this backward pass on."""

    event: Literal["nonfinite"]
    number: int
    value: str
    frames: Frames


class Finite(Event, Numbers, total=False):
    """The number is finite again."""

    event: Literal["finite"]
    number: int


class Scale(Event, total=False):
    """The scale of a GradScaler."""

    event: Literal["scale"]
    number: int
    step: int
    value: float
    final: bool
    frames: Frames


class Times(Event, total=False):
    """Where the time of steps went, and when a rank reached the others; the last one counts."""

    event: Literal["times"]
    steps: int
    optimizer: int
    width: int
    bytes: int
    device: str
    members: list[int] | None
    loaders: list[list[int]]
    routings: int
    """Exchanges with sizes by rank, at the line with most rows."""
    routed: int
    """Rows sent and received in these."""
    frames: Frames
    """Where they are called."""
    columns: list[Any]
    """Rows of `Column`."""
    looks: list[Any]
    """Rows of `LookRow`."""
    waits: list[Any]
    """Rows of `WaitRow`."""
    waited: list[Any]
    """Name of a module, kind and microseconds, of those that were waited for most."""
    pipeline: list[int]
    """Stages, stages of this rank, micro-batches, and the first stage of this rank."""
    waited_at: Frames
    """Where the program lets a pipeline make a step."""


class Evaluation(Event, total=False):
    """Buffers where they are used outside of training."""

    event: Literal["evaluation"]
    number: int
    index: int
    step: int
    door: str
    broadcasts: bool
    names: list[str]
    each: list[Print]
    frames: Frames


class Companion(Event, _Class, total=False):
    """What a rank holds of a model that ran in a step, and that no optimizer and no wrapper has."""

    event: Literal["companion"]
    number: int
    optimizer: int
    step: int
    count: int
    digest: str
    norm: float
    frames: Frames


class Pace(Event, total=False):
    """Backward passes and reductions of the steps since the last look."""

    event: Literal["pace"]
    number: int
    step: int
    steps: int
    backwards: int
    kept: int
    synced: int
    alone: int


class Search(Event, total=False):
    """What a search for unused parameters found and took."""

    event: Literal["search"]
    number: int
    step: int
    iteration: int
    unused: int | None
    timed: int
    each_ns: int | None
    apart_ns: int | None


class Unenclosed(Event, total=False):
    """A backward pass that no_sync encloses, but not its forward pass."""

    event: Literal["unenclosed"]
    number: int
    count: int
    frames: Frames


class Unfollowed(Event, total=False):
    """A forward pass in training that no backward pass followed before the next one from the same line."""

    event: Literal["unfollowed"]
    number: int
    count: int
    frames: Frames


class DataParallel(Event, _Class, total=False):
    """A model was given to nn.DataParallel."""

    event: Literal["data-parallel"]
    count: int | None
    frames: Frames


class Load(Event, _Class, total=False):
    """A checkpoint of which nothing went into a model."""

    event: Literal["load"]
    number: int
    prefix: str
    extra: bool
    name: str
    count: int
    frames: Frames


class Loaded(Event, total=False):
    """Something went into that model afterwards."""

    event: Literal["loaded"]
    number: int


class Restored(Event, _Class, total=False):
    """A state dict went into an optimizer, or into a model that was wrapped before."""

    event: Literal["restored"]
    wrapper: int
    """Number of the wrapper; 0: an optimizer."""
    forwards: int
    """Forwards in training that the wrapper had made."""
    print: str
    frames: Frames


class Resume(Event, _Class, total=False):
    """An optimizer that begins without the state that the checkpoint of its model holds."""

    event: Literal["resume"]
    number: int
    names: list[str]
    counter: str
    frames: Frames
    step_frames: Frames


class Resumed(Event, total=False):
    """That state was loaded afterwards."""

    event: Literal["resumed"]
    number: int


class Seed(Event, total=False):
    """A line seeded torch's random number generators for the first time."""

    event: Literal["seed"]
    value: str
    trained: bool
    """Whether a backward had begun."""
    frames: Frames


class Gathered(Event, _Class, total=False):
    """What was gathered without a gradient and is used in a loss."""

    event: Literal["gathered"]
    shape: list[int]
    frames: Frames


StepEvent = Union[Tensors, Step]
LoaderEvent = Union[Loader, Epoch, Batch]
NumberEvent = Union[NonFinite, Finite, Losses, Scale, Evaluation, Companion]
SyncEvent = Union[Pace, Search, Unenclosed, Unfollowed, DataParallel, Gathered]
LoadEvent = Union[Load, Loaded, Restored]
ResumeEvent = Union[Resume, Resumed]
AnyEvent = Union[
    StepEvent,
    LoaderEvent,
    NumberEvent,
    SyncEvent,
    LoadEvent,
    ResumeEvent,
    Seed,
    Times,
    Abstained,
    Watching,
    Compared,
]

EVENTS: Mapping[str, type] = {
    "loader": Loader, "epoch": Epoch, "batch": Batch, "tensors": Tensors, "step": Step, "abstained": Abstained,
    "watching": Watching, "losses": Losses, "nonfinite": NonFinite, "finite": Finite, "scale": Scale, "times": Times,
    "evaluation": Evaluation, "pace": Pace, "search": Search, "unenclosed": Unenclosed,
    "unfollowed": Unfollowed, "data-parallel": DataParallel,
    "load": Load, "loaded": Loaded, "restored": Restored, "resume": Resume, "resumed": Resumed, "gathered": Gathered,
    "companion": Companion, "compared": Compared, "seed": Seed,
}  # fmt: skip
