"""How many batches each rank's DataLoader will give: what makes one rank leave a loop before the others."""

from __future__ import annotations

import functools
import sys

from ..calls import ring
from ..core import budget, describe, frames, journal, lifetime, progress, wrapping
from . import clocks, evaluations, splits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any

    from ddpdoctor.facts import training_events

EACH = 50
"""Iterations of one loader that are written down; after these only those of another length."""
_FRAMES = 6

COMPARED = 8
"""Batches of an epoch whose indices are compared with those of the epoch before."""
_FUNCTIONS = 20
"""Most functions of a sampler whose code is searched."""
_SHUFFLING = ("epoch", "perm", "shuffl", "rand")
_CHOOSING = frozenset({"sample", "choice", "choices", "multinomial"})
"""Parts of names, and names, by which code that makes random orders is known."""
_LISTED = 32
"""Indices that are written down."""

_seen: dict[object, list[int]] = {}
"""Place -> how often a loader was iterated from there, its length the last time, and the number of the place."""
_epochs: dict[int, _Epoch] = {}
"""Number of a place -> the epoch that is being read there."""
_current: list[_Epoch] = []
"""The one that began last."""
reading: tuple[int, int] = (0, 0)
"""The place and the number of the epoch that began last, a new object for each; zeros where nothing was iterated."""


class _Epoch:
    """One iteration of a loader: which indices its sampler gives."""

    def __init__(self, place: int, number: int) -> None:
        self.place = place
        self.number = number
        self.batches = 0
        self.total = 0
        self.compared = 0
        self.print = 0
        self.first: list[int] = []
        self.last = -1
        self.ascending = True
        self.readable = True
        self.began = progress.steps
        self.written = 0
        self.latest: list[Any] = []
        self.ahead = True
        self.sorted = False
        self.top = -1
        self.padded = 0

    def take(self, indices: Any) -> Any:
        """Note a batch of indices, and give it back."""
        try:
            self.batches += 1
            many = indices if type(indices) is list else [indices]
            self.total += len(many)
            self.latest = many
            if self.sorted and many:
                self._find_padding(many)
            if self.batches <= COMPARED:
                self._compare(many)
        except Exception as error:
            journal.failed("indices", error)
        return indices

    def _find_padding(self, many: list[Any]) -> None:
        """Count the samples that a sampler which does not shuffle gives once more, to fill up the last batches."""
        if type(many[-1]) is not int:
            self.sorted = False
        elif many[-1] > self.top and many[-1] >= many[0]:
            self.top = many[-1]
        else:
            for index in many:
                self.padded += index <= self.top
                self.top = max(self.top, index)

    def _compare(self, many: list[Any]) -> None:
        if any(type(index) is not int for index in many):
            self.readable = False
            return
        self.compared += len(many)
        self.print = hash((self.print, *many)) & 0xFFFFFFFFFFFFFFFF
        self.first += many[: _LISTED - len(self.first)]
        for index in many:
            self.ascending = self.ascending and index > self.last
            self.last = index
        if self.batches == COMPARED:
            self.write()

    def write(self) -> None:
        """Write down what was seen, once more where there is more by now."""
        if self.batches == self.written:
            return
        self.written = self.batches
        budget.write(
            "epoch",
            {
                "loader": self.place,
                "number": self.number,
                "batches": self.batches,
                "samples": self.total,
                "compared": self.compared if self.readable else 0,
                "print": f"{self.print:x}",
                "first": self.first,
                "ascending": self.ascending,
                "steps": progress.steps - self.began,
                "padded": self.padded if self.sorted else None,
            },
        )


class _Indices:
    """Stands before a loader's sampler of indices: gives the same, each batch seen by an `_Epoch`.

    Its special methods are found by descriptors that give functions written in C, so that no frame of ours is
    on the stack while the program's sampler runs.
    """

    def __init__(self, real: Any, epoch: _Epoch) -> None:
        self._real = real
        self._epoch = epoch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    __iter__ = property(lambda self: functools.partial(map, self._epoch.take, self._real))
    __len__ = property(lambda self: functools.partial(len, self._real))


def patch_dataloader(module: ModuleType) -> None:
    """See iterations begin, from a function that each of them asks at its beginning and that does not raise."""
    wrapping.wrap(module, "_get_distributed_settings", before=_note)


def _note(_: Any, frame: FrameType, args: Any) -> None:
    """Write down that a loader begins to be iterated, unless it is as it was often before."""
    loader: Any = frame.f_locals.get("loader")
    if frame.f_code.co_name != "__init__" or loader is None or not ring.is_watching():
        return  # A process without a process group loads for itself.
    own = frames.find_own(frame)
    if own is None:
        return
    evaluations.note_loader()
    length = _measure(loader)
    place = (own.f_code, own.f_lineno)
    known = _seen.setdefault(place, [0, -2, len(_seen) + 1])
    known[0] += 1
    _begin(known[2], known[0], frame.f_locals.get("self"), loader, length)
    told = -1 if length is None else length
    if known[0] > EACH and known[1] == told:
        return
    known[1] = told
    sampler, batches = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    journal.write(
        "loader",
        {
            "number": known[0],
            "place": known[2],
            "length": length,
            "batch_size": getattr(loader, "batch_size", None),
            "drop_last": bool(getattr(loader, "drop_last", False)),
            "workers": int(getattr(loader, "num_workers", 0)),
            "sampler": describe.name_type(type(sampler)) if sampler is not None else None,
            **_describe_sampler(sampler, batches, getattr(batches, "sampler", None)),
            **_describe_split(loader, sampler, known[0]),
            "frames": describe.list_stack(own)[:_FRAMES],
        },
    )


def latest() -> tuple[int, list[int]]:
    """Return which batch the epoch that began last has given last, and its indices.

    Zero and none where that cannot be told: workers fetch ahead of the program, and streams have no indices.
    """
    epoch = _current[0] if _current else None
    if epoch is None or epoch.ahead or any(type(index) is not int for index in epoch.latest):
        return 0, []
    return epoch.batches, epoch.latest


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """The epochs of its parent are not a forked child's."""
    global reading
    _seen.clear()
    _epochs.clear()
    del _current[:]
    reading = (0, 0)


def note_end() -> None:
    """Write down what is left to be said of epochs."""
    for epoch in _epochs.values():
        epoch.write()


def _begin(place: int, number: int, iterator: Any, loader: Any, length: int | None) -> None:
    global reading
    if budget.level == budget.OFF:
        return
    before = _epochs.get(place)
    if before is not None:
        before.write()
    epoch = _epochs[place] = _Epoch(place, number)
    _current[:] = [epoch]
    reading = (place, number)
    clocks.time_batches(iterator, place, bool(getattr(loader, "num_workers", 0)), length)
    data = sys.modules.get("torch.utils.data")
    real = getattr(iterator, "_index_sampler", None)
    if data is None or real is None or isinstance(loader.dataset, data.IterableDataset) or number > EACH:
        return
    epoch.ahead = bool(getattr(loader, "num_workers", 0))
    told = getattr(getattr(loader, "sampler", None), "__dict__", {})
    epoch.sorted = told.get("shuffle") is False and "total_size" in told
    iterator._index_sampler = _Indices(real, epoch)


def _describe_sampler(*samplers: Any) -> training_events.Loader:
    """Return what a sampler says of itself, by the attributes that torch's DistributedSampler has."""
    told: Any = {"sets_epoch": False, "shuffles": False}
    for sampler in samplers:
        if sampler is None:
            continue
        told["sets_epoch"] = told["sets_epoch"] or callable(getattr(sampler, "set_epoch", None))
        told["shuffles"] = told["shuffles"] or _shuffles(type(sampler))
        held = getattr(sampler, "__dict__", {})
        for name in ("shuffle", "epoch", "seed", "num_replicas", "rank", "total_size"):
            value = held.get(name)
            if isinstance(value, (int, bool)):
                told.setdefault("shard" if name == "rank" else name, value)
    fields: training_events.Loader = told
    return fields


def _shuffles(kind: type) -> bool:
    """Whether the code of a sampler has to do with epochs or random orders, by the names in it."""

    def find(name: str) -> Any:
        return next((each.__dict__[name] for each in kind.__mro__ if name in each.__dict__), None)

    begun = find("__init__")
    own = begun is not None and not str(getattr(begun, "__module__", "")).startswith("torch.")
    waiting = [find("__iter__"), begun if own else None]
    done: set[int] = set()
    while waiting and len(done) < _FUNCTIONS:
        code = getattr(waiting.pop(), "__code__", None)
        if code is None or id(code) in done:
            continue
        done.add(id(code))
        names = {*code.co_names, *(name for each in code.co_consts for name in getattr(each, "co_names", ()))}
        if names & _CHOOSING or any(word in name for name in names for word in _SHUFFLING):
            return True
        if "super" in names:
            waiting += [each.__dict__.get("__iter__") for each in kind.__mro__[1:]]
        waiting += [find(name) for name in names if not name.startswith("__")]
    return False


def _describe_split(loader: Any, sampler: Any, number: int) -> training_events.Loader:
    try:
        return splits.describe_split(loader, sampler, number)
    except Exception as error:
        journal.failed("splits", error)
        return {}


def _measure(loader: Any) -> int | None:
    """Return the number of batches; None where only asking the program's own code would tell."""
    data = sys.modules.get("torch.utils.data")
    batches = getattr(loader, "batch_sampler", None)
    if data is None or isinstance(loader.dataset, data.IterableDataset):
        return None
    sampler = getattr(loader, "sampler", None)
    for each in (batches, sampler):
        if each is not None and not type(each).__module__.startswith("torch.utils.data."):
            return None
    measured: Any = batches if batches is not None else sampler
    return None if measured is None else len(measured)
