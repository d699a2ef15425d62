"""What samplers were told, and which part of a data set loaders read: one of the first iterations of each."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpdoctor.evidence.ranks import RankSet
from ddpdoctor.evidence.stages import Frame


@dataclass(frozen=True, slots=True)
class Sampling:
    """One iteration of a loader, on ranks whose sampler was told the same but for its own number."""

    loader: str
    """File and line where it was iterated."""
    number: int
    """How-manyth iteration from there, from 1."""
    ranks: RankSet
    frames: tuple[Frame, ...] = ()
    length: int | None = None
    """Batches."""
    sampler: str | None = None
    """Name of the sampler's class."""
    shuffle: bool | None = None
    seed: int | None = None
    epoch: int | None = None
    replicas: int | None = None
    total: int | None = None
    """Samples of all replicas, those included that are given once more to fill up."""
    shards: dict[str, int] = field(default_factory=dict)
    """Rank -> number that the sampler was told to be."""
    trained: bool = False
    """A model in training was given its batches."""
    joining: bool = False
    """Whether it did so within torch's Join, which lets ranks have different numbers of batches."""
    samples: int = 0
    """Indices that the sampler gave, all ranks together."""
    padded: int | None = None
    """Indices of `samples` that were given once more, where a sampler that does not shuffle was seen to give them."""
    dataset: str | None = None
    """Class of the data set of which it reads a part."""
    origin: str | None = None
    """Digest of what that data set holds: equal where ranks have the same one."""
    whole: int | None = None
    """Size of that data set, where the sampler draws each of its samples once, in random order."""
    split_size: int | None = None
    split: tuple[int, ...] = ()
    """The smallest hashes of the indices of that part."""
    split_reach: int | None = None
    """The largest of these indices and one, where torch's own samplers draw each of the part once."""
