"""Which part of a data set a loader reads: a sketch of the indices of a Subset, to be met with those of other ranks."""

from __future__ import annotations

import sys
import time
import zlib

from . import budget, describe, prints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SKETCH = 128
"""Hashes of a sketch: the smallest ones. Two sets that share a tenth share about as much of them."""
LARGEST = 1_000_000
"""Indices of a subset that is looked at."""
EACH = 3
"""Iterations of one loader that are looked at."""
_FIELDS, _ELEMENTS = 40, 16
"""Of a data set that are told, and of each of its tensors."""
_FACTOR = -7046029254386353131
"""2**64 divided by the golden ratio, as a signed number: Fibonacci hashing."""


def describe_split(loader: Any, sampler: Any, number: int) -> dict[str, object]:
    """Describe the part of its data set that a loader reads.

    Args:
        loader: The loader.
        sampler: Its sampler.
        number: How-manyth iteration it is.

    Returns:
        Nothing where it reads no explicit part; else the fields of the event: class of the data set, size, and hashes.
    """
    data = sys.modules.get("torch.utils.data")
    if data is None or number > EACH or budget.level in (budget.OFF, budget.LIGHT):
        return {}
    dataset, indices = loader.dataset, None
    if type(dataset) is data.Subset:
        indices, dataset = dataset.indices, dataset.dataset
    elif type(sampler) is data.SubsetRandomSampler:
        indices = sampler.indices
    if indices is None or type(dataset) is data.Subset or prints.explain_busy() is not None:
        return {}
    began = time.monotonic_ns()
    hashes = _sketch(indices)
    if hashes is None:
        return {}
    budget.spend(began)
    return {
        "dataset": describe.name_type(type(dataset)),
        "origin": _identify(dataset),
        "split_size": len(indices),
        "split": hashes,
    }


def _identify(dataset: Any) -> str:
    """Return a digest of what a data set holds by name, to tell one that all ranks have from files of their own."""
    torch = sys.modules["torch"]
    told: list[object] = []
    for name, value in list(getattr(dataset, "__dict__", {}).items())[:_FIELDS]:
        told.append(name)
        many = [*value[:2], *value[-2:]] if type(value) in (list, tuple) else [value]
        told.append(len(value) if type(value) in (list, tuple) else -1)
        for each in many:
            if type(each) in (str, int, float, bool) or type(each).__module__.startswith("pathlib"):
                told.append(str(each)[:400])
            elif type(each) is torch.Tensor and each.device.type == "cpu" and each.layout == torch.strided:
                told.append((tuple(each.shape), each.detach().reshape(-1)[:_ELEMENTS].tolist()))
            elif (
                type(each).__module__ == "numpy"
                and getattr(getattr(each, "dtype", None), "kind", "") in "iufbUS"
            ):
                told.append((tuple(each.shape), str(each.reshape(-1)[:_ELEMENTS].tolist())[:400]))
            elif type(each) is tuple:
                told += [str(one)[:400] for one in each[:4] if type(one) in (str, int)]
    return f"{zlib.crc32(repr(told).encode('utf-8', 'replace')):x}"


def _sketch(indices: Any) -> list[int] | None:
    """Return the smallest hashes of indices; None where they are no list of numbers."""
    torch = sys.modules["torch"]
    if isinstance(indices, torch.Tensor):
        if indices.device.type != "cpu" or indices.dim() != 1:
            return None
        values = indices.detach()
    elif type(indices) in (list, tuple, range):
        if not indices or len(indices) > LARGEST or any(type(each) is not int for each in indices[:8]):
            return None
        values = torch.tensor(indices, dtype=torch.int64, device="cpu")
    elif type(indices).__module__ == "numpy" and getattr(indices, "ndim", 0) == 1:
        values = torch.tensor(indices, device="cpu")
    else:
        return None
    if not 0 < len(values) <= LARGEST or values.dtype not in (torch.int64, torch.int32):
        return None
    with torch.no_grad():
        mixed = ((values.to(torch.int64) * _FACTOR) >> 16) & ((1 << 47) - 1)
        found: list[int] = torch.topk(mixed, min(SKETCH, len(values)), largest=False).values.tolist()
    return found
