"""What ``ddpdoctor run --against`` compares of two runs: sketches of parameters and gradients, losses, samples.

Only where the variable asks for it. Then steps are looked at in a process of one rank too. The supervisor compares what
the ranks of both runs wrote down; nothing is asked of other ranks, and nothing of the program is changed.
"""

from __future__ import annotations

import os
import sys
import weakref

from ..core import budget, lifetime, unseen
from ..models import modules, prints, tree
from . import sketches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from ddpdoctor.facts import training_events

    from .optimizers import Optimizer

LAST = 8
"""Steps that are compared: those of them that are looked at anyway (`steps`)."""
OPTIMIZERS = 4
_LOSSES = 256
_PRECISIONS = ("float8", "float16", "bfloat16")

enabled = bool(os.environ.get("DDPDOCTOR_AGAINST"))
"""Whether this run is one of two that are compared."""


def _read_number(name: str, otherwise: int) -> int:
    told = os.environ.get(name, "")
    return int(told) if told.isdecimal() and len(told) < 8 else otherwise


widened = _read_number("DDPDOCTOR_AGAINST_BATCH", 1) if enabled else 1
"""Times its own batch size that each DataLoader of this run uses: a reference of fewer ranks, whose job has a batch
size for each rank. No other run has it."""


_wide: dict[int, Any] = {}
"""Ids of what gives larger batches already, and weak references to them."""


class _State:
    """What this process has seen of losses, samples and random numbers since the last step that was recorded."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.samples: list[str] = []
        self.elements = 0
        self.forwards = 0
        self.random: str | None = None
        """How far random numbers were when the last forward began."""
        self.drawn: bool | None = None
        """Random numbers were drawn between a forward and its backward."""
        self.precision = ""
        self.values: dict[int, list[Any]] = {}


_state = _State()


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    global _state
    _state = _State()


def widen(_: Any, frame: FrameType, args: tuple[Any, ...]) -> None:
    """Let a DataLoader that was just made give larger batches."""
    batches: Any = getattr(args[0], "batch_sampler", None) if args else None
    if type(batches).__name__ != "BatchSampler" or type(batches.batch_size) is not int:
        return
    known = _wide.get(id(batches))
    if (
        known is None or known() is not batches
    ):  # libraries make a second loader around what the first one has
        _wide[id(batches)] = weakref.ref(batches)
        batches.batch_size *= widened


def note_forward(frame: FrameType) -> None:
    """Look at what a model is given in a step that is looked at.

    Args:
        frame: Of a function of torch's that has it: DistributedDataParallel's, or that of a model's call.
    """
    if modules.is_open():
        seen = frame.f_locals
        if "inputs" not in seen and not tree.list_parameters(seen["self"]):
            return  # a loss
        _take_input((seen.get("inputs", seen.get("args")), seen.get("kwargs")))


def note_backward(loss: Any) -> None:
    """Look at a loss whose backward begins."""
    if modules.is_open() and len(_state.losses) < _LOSSES:
        _take_loss(loss)


def note_before(entry: Optimizer) -> None:
    """Look at the parameters before a step."""
    if entry.steps <= LAST and entry.number <= OPTIMIZERS:
        _state.values[entry.number] = [sketches.sketch(each) for each in entry.tensors[: entry.parameters]]


def note_after(entry: Optimizer, gradients: list[Any]) -> None:
    """Write down a step: parameters before it, gradients that it used, losses and samples."""
    values = _state.values.pop(entry.number, None)
    if values is None:
        return
    state = _state
    optimizer = entry.ref()
    fields: training_events.Compared = {
        "rank": _read_number("RANK", 0),
        "world_size": _read_number("WORLD_SIZE", 1),
        "optimizer": entry.number,
        "class": type(optimizer).__name__,
        "step": entry.steps,
        "rows": [
            _describe(entry, place, tensor, values[place], gradients[place])
            for place, tensor in enumerate(entry.tensors[: entry.parameters])
        ],
        "losses": state.losses,
        "digests": state.samples,
        "cut": len(state.samples) >= sketches.MOST_ROWS,
        "elements": state.elements,
        "forwards": state.forwards,
        "drawn": state.drawn,
        "precision": _find_precision(state.precision),
        "rates": [
            float(group["lr"]) if isinstance(group.get("lr"), (int, float)) else None
            for group in (optimizer.param_groups if optimizer is not None else ())
        ],
        "batch_norms": _count_batch_norms(),
    }
    _state.losses, _state.samples = [], []
    _state.elements = _state.forwards = 0
    _state.random = _state.drawn = None
    budget.write("compared", fields)


def _describe(entry: Optimizer, place: int, tensor: Any, value: Any, gradient: Any) -> list[object]:
    """Return name, shape, dtype, piece (sizes and offsets), and the sketches of one parameter."""
    told = entry.named.get(id(tensor))
    piece = sketches.find_piece(tensor)
    return [
        told[0][:200] if told is not None else f"parameter {place} of the optimizer",
        [int(size) for size in tensor.shape],
        str(tensor.dtype).rpartition(".")[2],
        [piece[0], piece[1]] if piece is not None else None,
        value,
        sketches.sketch(gradient),
    ]


@unseen.behind
def _take_input(given: Any) -> None:
    state = _state
    state.random = _read_random()
    state.forwards += 1
    torch: Any = sys.modules["torch"]
    for kind in ("cuda", "cpu"):
        if _is_autocast(torch, kind):
            state.precision = _name_autocast(torch, kind)
    for each in prints.find_tensors(given)[:1]:  # the others are masks and labels, mostly
        if each.requires_grad or not each.dim() or prints.explain_unreadable(each) is not None:
            continue  # what another model made, or no batch
        state.elements += each.numel()
        if len(state.samples) < sketches.MOST_ROWS:
            state.samples += sketches.digest_samples(each)


def _is_autocast(torch: Any, kind: str) -> bool:
    try:
        return bool(torch.is_autocast_enabled(kind))
    except TypeError:  # before torch 2.4
        return bool(torch.is_autocast_enabled()) if kind == "cuda" else bool(torch.is_autocast_cpu_enabled())


def _name_autocast(torch: Any, kind: str) -> str:
    read = getattr(torch, "get_autocast_dtype", None)
    return str(read(kind)).rpartition(".")[2] if read is not None else "bfloat16"


@unseen.behind
def _take_loss(loss: Any) -> None:
    state = _state
    if state.random is not None:
        drawn = state.random != _read_random()
        state.drawn = drawn or bool(state.drawn)
        state.random = None
    if prints.explain_unreadable(loss) is None and loss.numel() == 1 and loss.is_floating_point():
        value = float(loss.detach())
        if value - value == 0:
            state.losses.append(value)


def _read_random() -> str:
    """Return how far torch's own random numbers are, on the CPU and on the device in use."""
    torch: Any = sys.modules["torch"]
    states = [torch.random.default_generator.get_state()]
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        held = getattr(cuda, "default_generators", ())
        if held:
            states.append(held[cuda.current_device()].get_state())
    import zlib

    return " ".join(str(zlib.crc32(each.numpy().tobytes())) for each in states)


def _find_precision(autocast: str) -> str:
    """Return the dtype of least precision in which a step may be computed; empty where it is that of the tensors."""
    torch: Any = sys.modules["torch"]
    found = [autocast] if autocast else []
    from ..models import ddp, layouts

    models = [wrapper for _, wrapper in ddp.list_wrappers()] + modules.list_roots()
    for model in models:
        for _, module in tree.list_modules(model):
            held = vars(module)
            for policy in (held.get("mixed_precision"), *layouts.list_policies(module)):
                for name in ("param_dtype", "reduce_dtype"):
                    told = getattr(policy, name, None)
                    if told is not None:
                        found.append(str(told).rpartition(".")[2])
    for each in found:
        if each.startswith(_PRECISIONS):
            return each
    backends = getattr(torch, "backends", None)
    if prints.find_local(next(iter(_list_parameters(models)), torch.zeros(()))).is_cuda:
        matmul = getattr(getattr(backends, "cuda", None), "matmul", None)
        cudnn = getattr(backends, "cudnn", None)
        if getattr(matmul, "allow_tf32", False) or getattr(cudnn, "allow_tf32", False):
            return "tfloat32"
    return ""


def _list_parameters(models: list[Any]) -> list[Any]:
    return [each for model in models for _, each in tree.list_parameters(model)]


def _count_batch_norms() -> int:
    """Return how many modules normalize over the samples of one rank in training."""
    from ..models import ddp

    models = [wrapper for _, wrapper in ddp.list_wrappers()] + modules.list_roots()
    return sum(
        any(kind.__name__ == "_BatchNorm" for kind in type(module).__mro__)
        and type(module).__name__ != "SyncBatchNorm"
        and vars(module).get("training") is True
        for model in models
        for _, module in tree.list_modules(model)
    )
