"""Sketches of tensors: a few sums by which two runs of one program can be compared, without what they hold.

A sketch has `WIDTH` sums. Each element of a tensor goes into one of them, with a sign; which one, and which sign,
follows from the place of the element in the whole tensor. So sketches add up: those of the pieces of a sharded tensor
are that of the whole, and the difference of two sketches is the sketch of the difference, whose norm is that of the
difference within some tenths (Charikar, Chen and Farach-Colton: Finding frequent items in data streams, 2002).
"""

from __future__ import annotations

import sys

from ..models import prints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WIDTH = 32
"""Sums of a sketch: the norm that they give has a standard error of an eighth."""
_CHUNK = 1 << 20
"""Elements that are read at once."""
_FIRST, _SECOND = 0x9E3779B97F4A7C15 - (1 << 64), 0x3F58476D1CE4E5B9
"""Odd factors of a mixing function (splitmix64), as signed numbers."""
MOST_ROWS = 1 << 14
"""Samples of a step that are told apart."""


def find_piece(tensor: Any) -> tuple[list[int], list[int]] | None:
    """Return sizes and offsets of the piece of a tensor that this rank holds; None where that is not known.

    Of one that is not a DTensor it is the whole.
    """
    if type(tensor).__name__ != "DTensor":
        return [int(size) for size in tensor.shape], [0] * tensor.dim()
    placed = tensor.placements
    if any(type(each).__name__ not in ("Shard", "Replicate") for each in placed):
        return None
    sizes, offsets = [int(size) for size in tensor.shape], [0] * tensor.dim()
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    for dimension, each in enumerate(placed):
        if type(each).__name__ == "Shard":
            count, axis = int(tensor.device_mesh.size(dimension)), int(each.dim)
            step = -(-sizes[axis] // count)  # as torch.chunk does
            begin = min(step * coordinate[dimension], sizes[axis])
            offsets[axis] += begin
            sizes[axis] = min(step, sizes[axis] - begin)
    if list(prints.find_local(tensor).shape) != sizes:
        return None
    return sizes, offsets


def sketch(tensor: Any) -> list[float] | None:
    """Return the sketch of what this rank holds of a tensor; None where it cannot be read."""
    if tensor is None or prints.explain_unreadable(tensor) is not None:
        return None
    piece = find_piece(tensor)
    local = prints.find_local(tensor).detach()
    if piece is None or not local.is_floating_point():
        return None
    torch: Any = sys.modules["torch"]
    sizes, offsets = piece
    sums = torch.zeros(WIDTH, dtype=torch.float64, device=local.device)
    if local.numel():
        whole = [int(size) for size in tensor.shape]
        rows = local.reshape(1, 1) if not sizes else local.reshape(sizes[0], -1)
        inner = _number_inner(torch, whole[1:], sizes[1:], offsets[1:], local.device)
        apart = 1
        for size in whole[1:]:
            apart *= size
        first = offsets[0] if offsets else 0
        many = max(1, _CHUNK // max(1, rows.shape[1]))
        for begin in range(0, rows.shape[0], many):
            part = rows[begin : begin + many]
            outer = torch.arange(
                first + begin, first + begin + part.shape[0], dtype=torch.int64, device=local.device
            )
            _add(torch, sums, part, outer[:, None] * apart + inner[None, :])
    return [float(each) for each in sums.tolist()]


def _number_inner(torch: Any, whole: list[int], sizes: list[int], offsets: list[int], device: Any) -> Any:
    """Return the numbers that the elements of one row have in the whole row, in order."""
    found = torch.zeros(1, dtype=torch.int64, device=device)
    for full, size, offset in zip(whole, sizes, offsets):
        places = torch.arange(offset, offset + size, dtype=torch.int64, device=device)
        found = (found[:, None] * full + places[None, :]).reshape(-1)
    return found


def _add(torch: Any, sums: Any, values: Any, numbers: Any) -> None:
    mixed = _mix(numbers.reshape(-1))
    signs = 1 - 2 * ((mixed >> 40) & 1)
    sums.index_add_(0, (mixed >> 20) & (WIDTH - 1), values.reshape(-1).to(torch.float64) * signs)


def _mix(numbers: Any) -> Any:
    mixed = numbers * _FIRST
    mixed = (mixed ^ (mixed >> 29)) * _SECOND
    return mixed ^ (mixed >> 32)


def digest_samples(tensor: Any) -> list[str]:
    """Return a digest of each sample of a batch; zeros at the end of a sample count for nothing.

    So a sample is the same whatever it was padded to. A tensor of one dimension is one sample.
    """
    torch: Any = sys.modules["torch"]
    plain = tensor.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    plain = plain.reshape(1, -1) if plain.dim() < 2 else plain[:MOST_ROWS].reshape(plain.shape[0], -1)
    width = getattr(torch, f"int{8 * plain.element_size()}")
    bits = plain.contiguous() if plain.dtype == torch.bool else plain.contiguous().view(width)
    places = torch.arange(1, bits.shape[1] + 1, dtype=torch.int64, device=bits.device)
    weights = _mix(places) | 1
    return [
        f"{total & 0xFFFFFFFFFF:x}"
        for begin in range(0, bits.shape[0], 64)
        for total in ((bits[begin : begin + 64].to(torch.int64) * weights).sum(1) >> 8).tolist()
    ]
