"""What the model is given: fingerprints of the first batches of an epoch, taken at the door of its forward.

There, and not at the loader's, because whatever makes batches ends there: loaders of any kind, generators,
tensors made by hand.
"""

from __future__ import annotations

import sys

from ..core import budget, frames, lifetime, unseen
from ..models import prints
from . import loaders, reference

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from ddpdoctor.facts import training_events

FIRST = 3
"""Batches of an epoch that are looked at."""
EPOCHS = 3
"""Epochs that are looked at, and those whose number is a power of two."""
_FRAMES = 6
_PARTS, _ROWS = 8, 4
"""Tensors of a batch that are compared each for itself, and the fewest samples."""
_LARGEST = 1 << 22
"""Elements of a tensor of which a batch is a piece."""

_counts: dict[tuple[int, int, int], int] = {}
"""Model, place of the loader and epoch -> batches seen."""
seen_enough: dict[int, tuple[int, int]] = {}
"""Model -> `loaders.reading` of which enough of its batches were looked at."""
_MOST = 1000


def is_due(model: int) -> bool:
    """Whether it is time to look at what a wrapper's forward is given; counts it where it is.

    Args:
        model: The wrapper's number.
    """
    reading = loaders.reading
    if seen_enough.get(model) is reading:
        return False
    due = _is_due(model, *reading)
    if not due:
        seen_enough[model] = reading
    return due


def take_forward(model: int, frame: FrameType) -> None:
    """Look at what a wrapper's forward is given, once it is due.

    Args:
        model: The wrapper's number.
        frame: Of DistributedDataParallel._pre_forward.
    """
    place, epoch = loaders.reading
    seen = frame.f_locals
    joining = getattr(getattr(seen.get("self"), "_join_config", None), "enable", False) is True
    _take(model, place, epoch, (seen.get("inputs"), seen.get("kwargs")), frame, joining)


def take_call(model: int, frame: FrameType) -> None:
    """Look at what a model that is not wrapped is given, by position, in the frame of its call."""
    if reference.enabled:
        reference.note_forward(frame)
    place, epoch = loaders.reading
    if _is_due(model, place, epoch):
        _take(model, place, epoch, frame.f_locals.get("args", ()), frame, False)


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    _counts.clear()
    seen_enough.clear()


def _is_due(model: int, place: int, epoch: int) -> bool:
    if budget.level == budget.LIGHT:
        return False
    if epoch > EPOCHS and epoch & (epoch - 1):
        return False
    key = (model, place, epoch)
    count = _counts.get(key, 0)
    if count >= FIRST or (not count and len(_counts) >= _MOST):
        return False
    _counts[key] = count + 1
    return True


@unseen.behind
def _take(model: int, place: int, epoch: int, given: Any, frame: FrameType, joining: bool) -> None:
    if prints.explain_busy() is not None or not budget.affordable():
        return
    began = budget.clock()
    tensors = prints.find_tensors(given)
    shapes: list[object] = [[int(size) for size in each.shape] for each in tensors]
    measured = prints.measure(tensors)
    index = _counts[model, place, epoch]
    fields: training_events.Batch = {
        "model": model,
        "loader": place,
        "epoch": epoch,
        "index": index,
        "print": prints.fold(measured, shapes) if any(each is not None for each in measured) else None,
        "shapes": shapes[:4],
        "parts": _list_parts(tensors, measured),
        "wholes": [_describe_whole(each) for each in tensors[:_PARTS]],
        "draws": _read_draws() if all(each.device.type == "cpu" for each in tensors) else None,
        "joining": joining,
    }
    if index == 1:
        fields["frames"] = frames.list_own(frame, _FRAMES)
    budget.write("batch", fields)
    budget.spend(began)


def _list_parts(tensors: list[Any], measured: list[list[object] | None]) -> list[str | None]:
    """Return a digest of each tensor that has as many rows as the first one, where these are not alike.

    What is the same for all samples of a batch (a step, a learning rate, a mask of ones) is no draw. Of few samples
    equal labels may be chance.
    """
    rows = next((len(each) for each in tensors if each.dim()), 0)
    return [
        _digest(each, told) if told is not None and each.dim() and len(each) == rows >= _ROWS else None
        for each, told in zip(tensors[:_PARTS], measured)
    ]


def _describe_whole(tensor: Any) -> str | None:
    """Return which piece of which tensor one is, where it is a slice of one dimension behind the first.

    Returns:
        Begin, length and size of the whole along it, and the fingerprint of the whole: ``8 8 17 4b2f4f6e``.
    """
    whole = tensor._base
    if whole is None or whole.dim() != tensor.dim() or whole.numel() > _LARGEST:
        return None
    if any(prints.explain_unreadable(each) is not None for each in (tensor, whole)):
        return None
    cut = [place for place in range(tensor.dim()) if tensor.shape[place] != whole.shape[place]]
    if len(cut) != 1 or not cut[0] or tensor.stride() != whole.stride() or not tensor.numel():
        return None
    begin = (tensor.storage_offset() - whole.storage_offset()) // max(1, whole.stride(cut[0]))
    (told,) = prints.measure([whole])
    return f"{begin} {tensor.shape[cut[0]]} {whole.shape[cut[0]]} {told[0]}" if told is not None else None


def _digest(tensor: Any, told: list[object]) -> str | None:
    """Return the fingerprint of a tensor with one of the order of its rows; None where these begin alike."""
    column = tensor.detach()
    while column.dim() > 1:
        if not column.shape[1]:
            return None
        column = column.select(1, 0)
    torch: Any = sys.modules["torch"]
    if not bool((column != column[0]).any()):
        return None
    kind = getattr(torch, f"int{8 * column.element_size()}")
    bits = column.contiguous() if column.dtype == torch.bool else column.contiguous().view(kind)
    weights = torch.arange(1, len(bits) + 1, dtype=torch.int64, device=bits.device)
    order = int((bits.to(torch.int64) * weights * weights).sum())
    return f"{told[0]}-{order & (1 << 64) - 1:x}"


def _read_draws() -> str:
    """Return a digest of how far torch's own random numbers are: what dropout and augmentation here draw next."""
    torch = sys.modules["torch"]
    state = torch.random.default_generator.get_state().view(torch.int64)
    # By place: of two counters in it one goes up as the other goes down.
    weights = torch.arange(1, len(state) + 1, dtype=torch.int64, device="cpu")
    return f"{int((state * weights).sum()) & (1 << 64) - 1:x}"
