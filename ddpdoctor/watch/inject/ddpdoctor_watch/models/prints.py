"""Fingerprints of tensors: what a rank holds, in a few numbers that other ranks' can be compared with.

A fingerprint has the sum of the tensor's bits, read as integers (exact, whatever the order of the sum, and row
after row, whatever the layout of the memory), and its Euclidean norm, which tells a difference in the last bits
from a real one. They are computed where the tensor lies, and come to the host in one piece for each device.
"""

from __future__ import annotations

import functools
import sys
from itertools import islice
from types import MemberDescriptorType

from ..core import budget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

_WORD = 0xFFFFFFFFFFFFFFFF
MOST_TENSORS = 64
"""Tensors of one batch that are looked at."""
_DEPTH = 5
_CHUNK = 1 << 22
"""Elements of a tensor that are copied at once, where it cannot be read as it lies."""
_WIDE = 8
_SPREAD = 0x9E3779B97F4A7C15
_PLAIN = ("Buffer", "FlatParameter")
"""Kinds of tensors that are read as plain ones: named buffers, and what FullyShardedDataParallel holds."""
_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
"""Bytes of an element -> the integers that its bits are read as."""


def find_local(tensor: Any) -> Any:
    """Return what this rank holds of a DTensor, and any other tensor as it is."""
    return getattr(tensor, "_local_tensor", tensor) if type(tensor).__name__ == "DTensor" else tensor


def explain_unreadable(tensor: Any) -> str | None:
    """Return why a tensor has no fingerprint; None where it has one, if only of what this rank holds of it."""
    torch: Any = sys.modules["torch"]
    tensor = find_local(tensor)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and type(tensor).__name__ not in _PLAIN:
        return f"it is a {type(tensor).__name__}"
    if tensor.layout is not torch.strided:
        return f"its layout is {tensor.layout}"
    if tensor.is_quantized:
        return "it is quantized"
    if tensor.device.type not in ("cpu", "cuda", "xpu", "hpu"):
        return f"it is on device {tensor.device.type}"
    if tensor.is_nested or torch._is_functional_tensor(tensor):
        return "it contains other tensors"
    if (
        tensor.is_conj()
        or tensor.is_neg()
        or tensor._is_zerotensor()
        or tensor.element_size() not in _INTEGERS
    ):
        return f"its dtype is {tensor.dtype}"
    return None


def explain_busy() -> str | None:
    """Return why nothing may be computed now: the program watches, records or compiles what is computed."""
    transforms, tracing, cuda_used, profiled, captures, compiles = _questions or _find_questions()
    if transforms():
        return "the step is transformed by torch.func"
    if tracing() is not None:
        return "torch.jit traces the step"
    if cuda_used():
        if profiled():  # before what follows, which a profiler of the device would see
            return "a profiler records the device's work"
        if captures():
            return "a CUDA graph is being recorded"
    if compiles():
        return "the step is compiled"
    return None


_questions: tuple[Any, ...] = ()
"""Functions of torch's that `explain_busy` asks, which it does in each step."""


def _find_questions() -> tuple[Any, ...]:
    """Find them, each by attribute; what this torch does not have is answered with None."""
    global _questions
    torch: Any = sys.modules["torch"]
    cuda = getattr(torch, "cuda", None)
    _questions = (
        _find_transforms(torch._C),
        torch._C._get_tracing_state,
        getattr(cuda, "is_initialized", _give_none),
        torch.autograd._profiler_enabled,
        getattr(cuda, "is_current_stream_capturing", _give_none),
        getattr(getattr(torch, "compiler", None), "is_compiling", _give_none),
    )
    return _questions


def _find_transforms(core: Any) -> Any:
    """Return what says whether torch.func transforms what runs.

    To ask for the transforms themselves (``peek_interpreter_stack``) gives the thread a state of its own, which each
    node of each later backward then copies. The key is there where there are any (functorch/DynamicLayer.cpp).
    """
    key = getattr(getattr(core, "DispatchKey", None), "FuncTorchDynamicLayerFrontMode", None)
    is_included = getattr(core, "_dispatch_tls_is_dispatch_key_included", None)
    if key is not None and is_included is not None:
        return functools.partial(is_included, key)
    return getattr(getattr(core, "_functorch", None), "peek_interpreter_stack", _give_none)


def _give_none() -> None:
    """Stand in for what this torch does not have."""


def is_settled(tensors: list[Any]) -> bool:
    """Whether nothing is to be waited for on the tensors' devices: a rank must not wait at its end."""
    torch: Any = sys.modules["torch"]
    devices = {tensor.device for tensor in tensors}
    return all(
        device.type == "cpu" or (device.type == "cuda" and torch.cuda.current_stream(device).query())
        for device in devices
    )


def measure(tensors: list[Any]) -> list[list[object] | None]:
    """Return a fingerprint of each tensor.

    Args:
        tensors: Any; one that has no fingerprint gives None. Of a DTensor what this rank holds.

    Returns:
        For each a number of 32 bits made of the sum of its bits (hexadecimal), and its norm, None where it is
        no floating-point tensor.
    """
    torch: Any = sys.modules["torch"]
    found: list[list[object] | None] = [None] * len(tensors)
    by_device: dict[Any, tuple[list[int], list[Any], list[Any]]] = {}
    readable = [
        (place, find_local(tensor))
        for place, tensor in enumerate(tensors)
        if tensor is not None and explain_unreadable(tensor) is None
    ]
    for device in {tensor.device for _, tensor in readable}:
        if device.type == "cuda":
            budget.wait_for(torch.cuda.current_stream(device))
    with torch.no_grad():
        for place, tensor in readable:
            plain = tensor.detach()
            if plain.is_complex():
                plain = torch.view_as_real(plain)
            plain = plain if plain.dim() else plain.reshape(1)
            places, sums, norms = by_device.setdefault(tensor.device, ([], [], []))
            places.append(place)
            sums.append(_sum(torch, plain))
            floating = plain.is_floating_point() and plain.element_size() > 1
            norms.append(torch.linalg.vector_norm(plain).double() if floating else None)
        for places, sums, norms in by_device.values():
            totals = torch.stack(sums).tolist()
            sized = [norm for norm in norms if norm is not None]
            values = iter(torch.stack(sized).tolist() if sized else ())
            for place, total, norm in zip(places, totals, norms):
                found[place] = [_shorten(total), None if norm is None else _round(next(values))]
    return found


def _sum(torch: Any, plain: Any) -> Any:
    """Return the sum of a tensor's memory, row after row, as 64-bit integers; what is not laid out so goes in parts."""
    count = plain.numel()
    if not plain.is_contiguous():
        rows = max(_WIDE, _CHUNK * plain.shape[0] // count // _WIDE * _WIDE)
        if count > _CHUNK and plain.shape[0] > rows:
            return sum(_sum(torch, piece) for piece in plain.split(rows))
        plain = plain.contiguous()
    flat = plain.reshape(-1)
    whole = count - count * flat.element_size() % _WIDE // flat.element_size()
    if (
        flat.data_ptr() % _WIDE or flat.storage_offset() * flat.element_size() % _WIDE
    ):  # cannot be read as wider numbers where it is
        total = sum(part.clone().view(torch.int64).sum() for part in flat[:whole].split(_CHUNK))
    else:
        total = flat[:whole].view(torch.int64).sum()
    if whole < count:
        rest = flat[whole:].view(getattr(torch, _INTEGERS[flat.element_size()]))
        total = total + rest.sum(dtype=torch.int64)
    return total


def _shorten(total: int) -> str:
    return f"{((total * _SPREAD) & _WORD) >> 32:x}"


def _round(norm: float) -> float:
    # Nine digits tell any two numbers of 32 bits apart: more would only be longer.
    return float(f"{norm:.9g}")


def fold(prints: list[list[object] | None], shapes: list[object] | None = None) -> str:
    """Return one number for many fingerprints, the same in every process that has the same."""
    import zlib

    told = repr([each[0] if each is not None else None for each in prints])
    return f"{zlib.crc32(f'{told}{shapes}'.encode()):08x}{len(prints):x}"


def find_tensors(value: Any) -> list[Any]:
    """Return the tensors in what a forward is given: alone, or in lists, tuples, dictionaries, dataclasses."""
    torch: Any = sys.modules["torch"]
    found: list[Any] = []
    _collect(value, torch.Tensor, found, 0)
    return found


def _collect(value: Any, kind: type, found: list[Any], depth: int) -> None:
    """Go through what is held, by the methods of the built-in types: nothing of the program's own is called."""
    if len(found) >= MOST_TENSORS or depth > _DEPTH:
        return
    if issubclass(type(value), kind):  # isinstance would ask for its __class__
        found.append(value)
        return
    for each in islice(_list_parts(value), MOST_TENSORS):
        _collect(each, kind, found, depth + 1)


def _list_parts(value: Any) -> Iterable[Any]:
    kind = type(value)
    if issubclass(kind, list):
        return list.__iter__(value)
    if issubclass(kind, tuple):
        return tuple.__iter__(value)
    if issubclass(kind, dict):
        return dict.values(value)
    try:
        held: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        held = {}
    fields = _find_static(kind, "__dataclass_fields__")
    if isinstance(fields, dict):
        return _list_fields(value, kind, held, fields)
    data = held.get("data")  # transformers.BatchEncoding and its like
    return dict.values(data) if isinstance(data, dict) else ()


def _list_fields(value: Any, kind: type, held: dict[str, Any], names: Iterable[str]) -> Iterator[Any]:
    for name in names:
        slot = _find_static(kind, name)
        if name in held:
            yield held[name]
        elif type(slot) is MemberDescriptorType:
            try:
                yield slot.__get__(value, kind)
            except AttributeError:
                continue  # it was never set


def _find_static(kind: type, name: str) -> Any:
    """Return what a class has under a name, as it stands there."""
    return next((base.__dict__[name] for base in kind.__mro__ if name in base.__dict__), None)
