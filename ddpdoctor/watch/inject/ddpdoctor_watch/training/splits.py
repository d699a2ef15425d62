"""Which part of a data set a loader reads: all, or a sketch of a Subset's indices, to be met with other ranks'."""

from __future__ import annotations

import operator
import sys
import zlib

from ..core import budget, describe
from ..models import prints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ddpdoctor.facts import training_events

SKETCH = 128
"""Hashes of a sketch: the smallest ones. Two sets that share a tenth share about as much of them."""
LARGEST = 1_000_000
"""Indices of a subset that is looked at."""
EACH = 3
"""Iterations of one loader that are looked at."""
_LOOKED = 8
"""First indices that are checked to be whole numbers before all are read."""
_REPEATED = 8
"""How often an index may come again until a sketch has fewer hashes."""
_FIELDS, _ELEMENTS = 40, 16
"""Most attributes of a data set, and most elements of each of its tensors, that go into its digest."""
_FACTOR = -7046029254386353131
"""2**64 divided by the golden ratio, as a signed number: Fibonacci hashing."""


def describe_split(loader: Any, sampler: Any, number: int) -> training_events.Loader:
    """Describe what a loader reads of its data set: an explicit part, or all of it in random order.

    Args:
        loader: The loader.
        sampler: Its sampler.
        number: How-manyth iteration it is.

    Returns:
        Nothing where neither is known; else the fields of the event: class of the data set, size, and hashes.
    """
    data = sys.modules.get("torch.utils.data")
    if data is None or number > EACH or budget.level in (budget.OFF, budget.LIGHT):
        return {}
    dataset, indices = loader.dataset, None
    if type(dataset) is data.Subset:
        indices, dataset = dataset.indices, dataset.dataset
    elif type(sampler) is data.SubsetRandomSampler:
        indices = sampler.indices
    if type(dataset) is data.Subset or prints.explain_busy() is not None:
        return {}
    began = budget.clock()
    if indices is None:
        whole = _describe_whole(data, dataset, sampler)
        budget.spend(began)
        return whole
    found = _sketch(indices)
    if found is None:
        return {}
    own = indices is getattr(sampler, "indices", None)
    budget.spend(began)
    hashes, reach = found
    return {
        "dataset": describe.name_type(type(dataset)),
        "origin": _identify(dataset)[0],
        "split_size": len(indices),
        "split": hashes,
        "split_reach": reach if _draws_each_once(data, loader, sampler, own) else None,
    }


def _draws_each_once(data: Any, loader: Any, sampler: Any, own: bool) -> bool:
    """Whether torch's own samplers go through all of a part, and nothing takes a part of that.

    Args:
        data: torch.utils.data.
        loader: The loader.
        sampler: Its sampler.
        own: Whether the part is what the sampler has of a data set, and not the data set itself.
    """
    if type(getattr(loader, "batch_sampler", None)) is not data.BatchSampler:
        return False
    return own or type(sampler) is data.SequentialSampler or _permutes(data, sampler)


def _permutes(data: Any, sampler: Any) -> bool:
    held = getattr(sampler, "__dict__", {})
    plain = held.get("replacement") is False and held.get("_num_samples") is None
    return type(sampler) is data.RandomSampler and plain


def _describe_whole(data: Any, dataset: Any, sampler: Any) -> training_events.Loader:
    """Describe a data set each sample of which torch's own sampler draws once; nothing where it does not."""
    if not _permutes(data, sampler) or isinstance(dataset, data.IterableDataset):
        return {}
    origin, pieces = _identify(dataset)
    if not pieces:
        return {}  # two that hold nothing look the same, whatever they give
    return {"dataset": describe.name_type(type(dataset)), "origin": origin, "whole": len(sampler)}


def _identify(dataset: Any) -> tuple[str, int]:
    """Return a digest of what a data set holds by name, to tell one that all ranks have from files of their own.

    Returns:
        The digest, and how many texts and arrays are in it.
    """
    told: list[object] = []
    pieces = 0
    for name, value in list(getattr(dataset, "__dict__", {}).items())[:_FIELDS]:
        told.append(name)
        many = [*value[:2], *value[-2:]] if type(value) in (list, tuple) else [value]
        told.append(len(value) if type(value) in (list, tuple) else -1)
        for each in many:
            before = len(told)
            if type(each) in (int, float, bool):
                told.append(str(each)[:400])
                continue
            if type(each) is str or type(each).__module__.startswith("pathlib"):
                told.append(str(each)[:400])
            elif _is_plain(each):
                told.append(_peek(each))
            elif (
                type(each).__module__ == "numpy"
                and getattr(getattr(each, "dtype", None), "kind", "") in "iufbUS"
            ):
                told.append((tuple(each.shape), str(each.reshape(-1)[:_ELEMENTS].tolist())[:400]))
            elif type(each) is tuple:
                told += [_peek(one) for one in each[:4] if _is_plain(one)]  # TensorDataset
                told += [str(one)[:400] for one in each[:4] if type(one) in (str, int)]
            pieces += len(told) > before
    return f"{zlib.crc32(repr(told).encode('utf-8', 'replace')):x}", pieces


def _is_plain(value: Any) -> bool:
    torch = sys.modules["torch"]
    return type(value) is torch.Tensor and value.device.type == "cpu" and value.layout == torch.strided


def _peek(tensor: Any) -> object:
    """Return the shape and the first numbers of a tensor, without a copy of it however it lies."""
    part = tensor.detach()
    while part.dim() > 1 and len(part):
        part = part[0]
    return tuple(tensor.shape), part.reshape(-1)[:_ELEMENTS].tolist()


def _sketch(indices: Any) -> tuple[list[int], int] | None:
    """Return the smallest hashes of indices, and the largest index and one; None where they are no list of numbers."""
    torch = sys.modules["torch"]
    is_tensor = isinstance(indices, torch.Tensor)
    if type(indices) not in (list, tuple, range):
        row = is_tensor or type(indices).__module__ == "numpy"
        if not row or indices.ndim != 1 or (is_tensor and indices.device.type != "cpu"):
            return None
    if not 0 < len(indices) <= LARGEST:
        return None
    try:
        for each in indices[:_LOOKED]:
            operator.index(each)
        values = indices.detach() if is_tensor else torch.tensor(indices, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        return None  # no whole numbers, or too large ones, or an array that lies in another way
    if values.dtype not in (torch.int64, torch.int32, torch.int16):
        return None
    with torch.no_grad():
        mixed = ((values.to(torch.int64) * _FACTOR) >> 16) & ((1 << 47) - 1)
        found = torch.topk(mixed, min(_REPEATED * SKETCH, len(values)), largest=False).values.tolist()
    return sorted(set(found))[:SKETCH], int(values.max()) + 1
