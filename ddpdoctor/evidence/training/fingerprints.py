"""What ranks held and were given while they trained: fingerprints, folded to who agrees with whom.

Made by the watcher of a job from what each rank wrote down; see ``ddpdoctor_watch/training/steps.py`` for when it does.
A digest means nothing by itself: equal digests are equal bits. Looks at one step, batch or epoch on several
nodes are several entries, whose shares belong together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.layout import Layout
from ddpdoctor.evidence.ranks import RankSet
from ddpdoctor.evidence.stages import Frame
from ddpdoctor.evidence.training.loads import EmptyLoad, FreshOptimizer, LateLoad
from ddpdoctor.evidence.training.numerics import Numerics
from ddpdoctor.evidence.training.sampling import Sampling
from ddpdoctor.evidence.training.seedings import Seeding
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.evidence.training.syncs import Syncs
from ddpdoctor.evidence.training.timing import Timing


@dataclass(frozen=True, slots=True)
class TensorLook:
    """One tensor at one step, where ranks differ in it or some have no gradient of it."""

    name: str
    """Qualified, e.g. ``encoder.fc.weight``; ``parameter 3 of the optimizer`` where no model is known that has it."""
    model: int = 0
    """Number of the wrapper whose model has it; below 0 a model that is not wrapped, 0 none that is known."""
    kind: str = "parameter"
    """parameter (of the optimizer) or other (parameters that it has not, and buffers)."""
    shape: tuple[int, ...] = ()
    trainable: RankSet = field(default_factory=RankSet)
    values: tuple[Share, ...] = ()
    """Fingerprints of the values before the step."""
    gradients: tuple[Share, ...] = ()
    """Fingerprints of the gradients that the step used."""
    missing: RankSet = field(default_factory=RankSet)
    """Ranks on which it had no gradient."""
    reduced: RankSet = field(default_factory=RankSet)
    """Ranks on which DistributedDataParallel reduces its gradient."""
    ignored: RankSet = field(default_factory=RankSet)
    """Ranks on which DistributedDataParallel was told to leave it alone."""
    idle: RankSet = field(default_factory=RankSet)
    """Ranks on which no forward of the module that has it was made; empty also where that was not looked at."""
    peers: tuple[RankSet, ...] = ()
    """Sets of ranks that hold the same piece of a sharded one; empty where each rank holds the whole."""


@dataclass(frozen=True, slots=True)
class StateLook:
    """One part of an optimizer's state at one step, where ranks differ in it."""

    item: str
    """Name of the part as the optimizer calls it: exp_avg, momentum_buffer, step; or a setting: weight_decay, betas."""
    values: tuple[Share, ...] = ()
    """Before the step. The digest of ranks that have no such part is empty."""
    parameter: str = ""
    """The first whose state differs; empty for the state of all, where that is not known."""
    model: int = 0
    """Number of the wrapper whose model has the parameter, as in `TensorLook.model`."""
    setting: bool = False
    """Whether there is one: digests are its values in all groups of parameters."""


@dataclass(frozen=True, slots=True)
class WrapperLook:
    """What the ranks did with a DistributedDataParallel since the last look."""

    number: int
    ranks: RankSet
    synced: int
    """Forwards in training whose backward reduces; -1 where they are not counted."""
    alone: int
    """Forwards under no_sync."""
    last_synced: bool | None = None
    """Whether the last forward in training was one whose backward reduces; None where there was none."""
    bypassed: str | None = None
    """Class of a part of the model that ran in training, and not within the wrapper's forward."""
    bypass: tuple[Frame, ...] = ()
    """Where that was called, innermost first."""


@dataclass(frozen=True, slots=True)
class LossWeights:
    """What one token or sample counts for in the losses of a step, on one rank."""

    rank: int
    counts: tuple[float, ...]
    """Tokens or samples of each loss, in order: one for each backward."""
    weights: tuple[float, ...]
    """Factor by which one of them enters the gradient."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """Factor by which one rank scaled the gradients of a sharded model between the backward and the step."""

    rank: int
    factor: float
    group: RankSet = field(default_factory=RankSet)
    """Ranks that share the gradients out by a reduce-scatter of the program's own; empty where a library shards."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """Elements of the gradients of one rank, in a program that reduces them by collectives of its own."""

    rank: int
    group: RankSet
    """Over which ranks."""
    before: tuple[float, ...]
    """As the backward left them."""
    after: tuple[float, ...]
    """As they were stepped with."""


@dataclass(frozen=True, slots=True)
class StepLook:
    """One step of one optimizer."""

    optimizer: int
    step: int
    """Number of the step, from 1. At the last look, at the end, one more than were made."""
    final: bool = False
    values: tuple[Share, ...] = ()
    """Who holds the same values of all parameters of the optimizer."""
    gradients: tuple[Share, ...] = ()
    rates: tuple[Share, ...] = ()
    """Learning rates; the digest is their text."""
    rated: tuple[Share, ...] = ()
    """Sum of the learning rates of all steps so far, which tells whether they differed between two looks."""
    wrappers: tuple[WrapperLook, ...] = ()
    others: tuple[Share, ...] = ()
    """Who holds the same values of all that its models have and the optimizer has not: buffers, frozen parameters."""
    tensors: tuple[TensorLook, ...] = ()
    """The first of those that tell something, and only of some steps."""
    buffers: tuple[TensorLook, ...] = ()
    """Those of the others that differ; of the first step at which some do and of the last one only."""
    differing: int = 0
    """How many tensors differ, those that are not listed included."""
    states: tuple[StateLook, ...] = ()
    """Parts of the optimizer's state; on several nodes those too in which this node's ranks agree."""
    carried: float = 0.0
    """How many times as many elements as the optimizer's parameters have the program's own collectives were given
    since the last look, on the rank where it is most."""
    exchanged: float = 0.0
    """How many times as many elements as the optimizer's parameters were sent and received by the program since the
    last look, on the rank where it is most."""
    joined: bool = False
    """A rank had run out of batches under Join before it, and had shadowed others since: what its optimizer remembers
    is its own, and replicas are only sure to be equal where a Join has ended."""
    weights: tuple[LossWeights, ...] = ()
    scaled: tuple[Scaled, ...] = ()
    reduced: tuple[Reduced, ...] = ()
    unsynced: RankSet = field(default_factory=RankSet)
    """Ranks on which modules of fully_shard that hold its parameters were told not to reduce gradients."""


@dataclass(frozen=True, slots=True)
class WrapperSetup:
    """How a DistributedDataParallel was made."""

    number: int
    model: str
    """Class of the wrapped module."""
    group: RankSet = field(default_factory=RankSet)
    """Ranks among which it reduces; empty where that is not known."""
    find_unused_parameters: bool = False
    static_graph: bool = False
    hooks: tuple[str, ...] = ()
    """Communication hooks."""
    frames: tuple[Frame, ...] = ()
    """Frames of the wrap, innermost first."""
    batch_norms: int = 0
    """Modules that normalise, in training, over the samples of one rank."""
    broadcasts: bool = True
    """It broadcasts buffers before its forwards."""


@dataclass(frozen=True, slots=True)
class Born:
    """A parameter of a model as it was before DistributedDataParallel copied it from the first rank of its group."""

    wrapper: int
    """Number of the wrapper."""
    name: str
    values: tuple[Share, ...]
    """Who held the same."""


@dataclass(frozen=True, slots=True)
class StepSite:
    """A line that steps an optimizer."""

    frames: tuple[Frame, ...]
    """Innermost first."""
    counts: tuple[Share, ...]
    """How many steps ranks made there; the digest is the number. Ranks that made none there are not among them."""


@dataclass(frozen=True, slots=True)
class OptimizerSetup:
    """An optimizer and what it steps."""

    number: int
    """Number of the optimizer, in order of the first step, those of wrapped models first."""
    kind: str
    """Name of the optimizer's class."""
    ranks: RankSet
    parameters: int = 0
    frames: tuple[Frame, ...] = ()
    """Frames of the call of its step, innermost first."""
    models: dict[str, str] = field(default_factory=dict)
    """Number of a model, as in `TensorLook.model` -> its class."""
    wrappers: tuple[WrapperSetup, ...] = ()
    uniform: bool = True
    """Whether its tensors have the same names and shapes on all ranks."""
    unfrozen: tuple[str, ...] = ()
    """Parameters that required no gradient at the first step and do later."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Name of a tensor of which there are no fingerprints -> why; the first few."""
    steps: tuple[Share, ...] = ()
    """How many steps were made; the digest is the number. Empty for ranks that did not come to the end."""
    sites: tuple[StepSite, ...] = ()
    """Where, of the same ranks; the first lines."""
    alongside: tuple[int, ...] = ()
    """Other optimizers that made steps between the first and the last one of this."""
    peers: tuple[RankSet, ...] = ()
    """Sets of ranks that hold the same pieces of all tensors, where some are sharded; empty where none is."""
    weighed: tuple[Frame, ...] = ()
    """Where the backward of `StepLook.weights` was called, innermost first; before that the line that gave the loss its
    value, where its source shows that."""
    lowered: tuple[Share, ...] = ()
    """Steps after which ReduceLROnPlateau lowered the learning rate; the digest is their text."""
    lowered_at: tuple[Frame, ...] = ()
    """Where its step was called, innermost first."""
    reduced: tuple[Frame, ...] = ()
    """Where the program reduced gradients by collectives of its own, innermost first."""
    all_to_all: bool = False
    """Whether ranks that do so call all_to_all as well, as those of a mixture of experts."""
    scaled: tuple[Frame, ...] = ()
    """Where gradients were scaled (`StepLook.scaled`), innermost first; else where the step was made."""
    averagings: int = 0
    """Times that collectives of the program's own reduced as many elements between two steps as there are parameters,
    or twice or three times as many; on the rank with the fewest."""
    averaging: tuple[Frame, ...] = ()
    """Where the last of them was, innermost first."""
    replaced: tuple[Frame, ...] = ()
    """Statements of the program that put modules into a model under the names of parameters that neither
    DistributedDataParallel nor fully_shard has."""
    rounds: tuple[Frame, ...] = ()
    """Tests by a number of steps (``step % 8``) behind which the program carries parameters over ranks, as its source
    has it; only read where nothing wraps the model."""
    born: tuple[Born, ...] = ()
    """Of wrapped models in a job with groups smaller than theirs; the first parameters, none that has one value."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor of a batch that is a slice of a larger one, along a dimension behind the first."""

    rank: int
    tensor: int
    """How-manyth of the batch, from 0."""
    begin: int
    length: int
    size: int
    """Of the larger one along that dimension."""
    digest: str
    """Of the larger one."""


@dataclass(frozen=True, slots=True)
class BatchLook:
    """One of the first batches of an epoch, as the model was given it."""

    model: int
    """Number of the model that was given the batch, as in `TensorLook.model`."""
    loader: str
    """File and line where its loader was iterated; empty where there was none."""
    epoch: int
    """How-manyth iteration from there, from 1."""
    index: int
    """Number of the batch in that iteration, from 1."""
    batches: tuple[Share, ...]
    shape: tuple[int, ...] = ()
    frames: tuple[Frame, ...] = ()
    """Where the model was called; of the first one only."""
    draws: tuple[Share, ...] = ()
    """How far the random numbers of the CPU were, on ranks whose batches are there too."""
    parts: tuple[tuple[Share, ...], ...] = ()
    """Who was given the same as each tensor, in order; empty for those without a value for each sample."""
    pieces: tuple[Piece, ...] = ()
    """Of the tensors that are pieces of larger ones."""


@dataclass(frozen=True, slots=True)
class EpochLook:
    """The indices that a sampler gave on one rank, or on several that were given the same."""

    loader: str
    number: int
    ranks: RankSet
    digest: str
    """Digest of the first indices."""
    compared: int
    """How many those are; 0 where they are no integers."""
    batches: int = 0
    samples: int = 0
    first: tuple[int, ...] = ()
    ascending: bool = False
    steps: int = 0
    """Steps of optimizers that were made meanwhile."""


@dataclass(frozen=True, slots=True)
class LoaderSetup:
    """A loader that was iterated."""

    loader: str
    ranks: RankSet
    frames: tuple[Frame, ...] = ()
    length: int | None = None
    batch_size: int | None = None
    sampler: str | None = None
    """Name of the sampler's class."""
    sets_epoch: bool = False
    """The sampler has a method set_epoch."""
    shuffle: bool | None = None
    epochs: tuple[int, ...] = ()
    """Values of the sampler's attribute ``epoch``, at the beginning of the first iterations; empty where it has
    none."""
    replicas: int | None = None
    """What the sampler was told of the size of the world."""
    shuffles: bool = True
    """The code of the sampler reads an epoch or makes a random order, as far as the names in it tell."""
    workers: int = 0


@dataclass(frozen=True, slots=True)
class FileUse:
    """What one rank did with a file or a directory."""

    rank: int
    operation: str
    """write (over what was there), replace (rename another file to it), read, remove (a directory, whole), make (a
    directory, a link, or a file that must be new), or delete (a file, or an empty directory)."""
    at: Moment
    phase: tuple[int, ...] = ()
    """How often the rank had met others by then: public collectives called, groups and wrappers made, steps. Uses on
    two ranks with equal phases are in no order."""
    size: int | None = None
    """Bytes of the file that was renamed; of a directory 1 where it was there, 0 where not."""
    locked: bool = False
    """The rank held a lock of some file."""
    via: str | None = None
    """What wrote it: torch.save, safetensors, numpy.save, zipfile, tarfile, urllib and the like."""
    near: bool = True
    """The user's own code did, through nothing but the standard library, torch and what `via` names."""
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file or a directory that several ranks of a node used, one of which at least wrote it or removed it."""

    path: str
    uses: tuple[FileUse, ...]
    size: int | None = None
    """Bytes at the end, on the ranks that wrote it; None where it is gone, or where nobody came to his end."""
    written_ns: int | None = None
    """When it was written to last, by the wall clock."""


@dataclass(frozen=True, slots=True)
class Training:
    """What was seen of the training on one node."""

    node: int = 0
    ranks: RankSet = field(default_factory=RankSet)
    optimizers: tuple[OptimizerSetup, ...] = ()
    steps: tuple[StepLook, ...] = ()
    batches: tuple[BatchLook, ...] = ()
    epochs: tuple[EpochLook, ...] = ()
    loaders: tuple[LoaderSetup, ...] = ()
    numerics: Numerics = field(default_factory=Numerics)
    samplings: tuple[Sampling, ...] = ()
    syncs: Syncs = field(default_factory=Syncs)
    timing: Timing = field(default_factory=Timing)
    files: tuple[SharedFile, ...] = ()
    loads: tuple[EmptyLoad, ...] = ()
    resumes: tuple[FreshOptimizer, ...] = ()
    late_loads: tuple[LateLoad, ...] = ()
    seedings: tuple[Seeding, ...] = ()
    """Lines that seeded torch, in the order in which the first rank came to them."""
    layout: Layout = field(default_factory=Layout)
    abstained: dict[str, RankSet] = field(default_factory=dict)
    """Why something was not looked at -> by which ranks."""
    share: float | None = None
    """Share of the time since the process group was made that looking took, on the rank where it took most."""
