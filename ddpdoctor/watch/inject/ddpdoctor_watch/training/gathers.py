"""Gathered tensors without a gradient in a loss: what all_gather was given has one, and what comes of it has none.

Gathered values are right in a metric. So the call is only remembered, and when the next backward begins, what autograd
has saved for it is looked through: a saved tensor that requires no gradient and has the bits of what was gathered is a
constant of the loss. Only the first such calls of a program are looked at.
"""

from __future__ import annotations

import sys

from ..calls import ring
from ..core import budget, frames, lifetime, unseen
from ..models import joins, prints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

CALLS = 8
"""Calls with gradients at stake that are looked at."""
PENDING = 4
"""Most gathering calls that are kept between two backwards."""
ELEMENTS = 1 << 24
"""Most elements gathered by one call that is kept until the backward."""
NODES = 400
"""Most nodes of a backward's graph that are searched, from the loss on."""
UNSAID = "gathered tensors: this torch does not expose which saved tensors a hook of the program has packed"
_FRAMES = 8
_RAW, _SAVED = "_raw_saved_", "_saved_"


class _State:
    """Gathering calls of this process that wait for a backward."""

    def __init__(self) -> None:
        self.calls = 0
        self.pending: list[tuple[str, Any, list[Any], list[list[object]]]] = []
        """Operation, input, outputs and frames."""
        self.packed = False
        """The program has used hooks of saved tensors, and this torch does not say of which."""


state = _State()


def install() -> None:
    """See collectives that gather, from before they are made."""
    ring.gathers = note_call
    torch: Any = sys.modules["torch"]
    saved = getattr(getattr(torch._C, "_autograd", None), "SavedTensor", None)
    if not hasattr(saved, "unpack_hook"):  # torch up to 2.9
        hooks_of = getattr(sys.modules.get("torch.autograd.graph"), "saved_tensors_hooks", None)
        for kind, name in ((hooks_of, "__enter__"), (saved, "register_hooks")):
            real = vars(kind).get(name) if kind is not None else None
            if real is None:
                state.packed = True  # nobody would know
            elif not isinstance(real, joins.Told):
                setattr(kind, name, joins.Told(real, _note_packing))


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    global state
    state = _State()


def _note_packing(_: Any) -> None:
    state.packed = True


@unseen.behind
def note_call(name: str, given: Any, outputs: Any, frame: FrameType | None) -> None:
    """Remember a call whose input requires a gradient, while gradients are recorded.

    Args:
        name: Of the operation.
        given: What this rank gives.
        outputs: What it will be given: a tensor, or a list of them.
        frame: Of the caller.
    """
    torch: Any = sys.modules["torch"]
    if not getattr(given, "requires_grad", False) or state.calls >= CALLS:
        return
    listed = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    tensors = [given, *listed]
    if (
        given.numel() < 2
        or any(type(each) not in (torch.Tensor, torch.nn.Parameter) for each in tensors)
        or any(each.requires_grad or prints.explain_unreadable(each) is not None for each in listed)
        or sum(each.numel() for each in listed) > ELEMENTS
        or len(state.pending) >= PENDING
    ):
        return
    state.calls += 1
    # Detached: what has made it is not to be kept.
    state.pending.append((name, given.detach(), listed, frames.list_own(frame, _FRAMES)))


@unseen.behind
def look_through(loss: Any) -> None:
    """Look for the gathering calls that wait among what the backward of a loss needs, as it begins."""
    pending, state.pending = state.pending, []
    if type(loss) is not sys.modules["torch"].Tensor or loss.grad_fn is None:
        return
    if state.packed:
        budget.abstain(UNSAID)
        return
    began = budget.clock()
    wanted: dict[tuple[int, int], int] = {}
    for place, (_, given, outputs, _) in enumerate(pending):
        for key in _list_keys(given, outputs):
            wanted.setdefault(key, place)
    sizes = {count for count, _ in wanted}
    found: set[int] = set()
    for saved in _list_saved(loss.grad_fn):
        if not saved.requires_grad and saved.numel() in sizes and saved.is_floating_point():
            key = saved.numel(), _sum(saved)
            if key in wanted:
                found.add(wanted[key])
    for place in sorted(found):
        op, given, _, own = pending[place]
        budget.write("gathered", {"class": op, "shape": [int(size) for size in given.shape], "frames": own})
    budget.spend(began)


def _list_keys(given: Any, outputs: list[Any]) -> list[tuple[int, int]]:
    """Return sizes and sums of the bits of what was gathered: all of it, without this rank's part, each other part."""
    own = given.numel(), _sum(given)
    parts = [(each.numel(), _sum(each)) for each in outputs]
    whole = sum(count for count, _ in parts), sum(total for _, total in parts)
    keys = [whole, *parts]
    if own[0] < whole[0]:
        keys.append((whole[0] - own[0], whole[1] - own[1]))
    return [key for key in keys if key[1] and key != own]


def _sum(tensor: Any) -> int:
    """Return the sum of the bits of each element, in whatever order these lie."""
    torch: Any = sys.modules["torch"]
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    plain = tensor.detach()
    return int(plain.contiguous().view(kinds[plain.element_size()]).sum(dtype=torch.int64).item())


def _list_saved(node: Any) -> list[Any]:
    """Return tensors that functions have saved as they are, the nearest to the loss first.

    What hooks have packed (checkpointing, offloading) is left alone: to unpack it is to compute it.
    """
    torch: Any = sys.modules["torch"]
    saved: list[Any] = []
    seen = {node}
    queue = [node]
    for each in queue:  # it grows meanwhile
        for name in dir(each):
            tensor = read_saved(each, name) if name.startswith(_RAW) else None
            if type(tensor) is torch.Tensor and prints.explain_unreadable(tensor) is None:
                saved.append(tensor)
        for following, _ in each.next_functions:
            if following is not None and following not in seen and len(seen) < NODES:
                seen.add(following)
                queue.append(following)
    return saved


def read_saved(node: Any, name: str) -> Any:
    """Return what a function has saved; None where a hook may have packed it, or where it was used and is gone."""
    if state.packed:
        return None
    try:
        raw = getattr(node, name)
        if hasattr(raw, "unpack_hook"):
            return raw.data if raw.unpack_hook is None else None
        # No hook of the program's is there to be called: it would be `packed`.
        return getattr(node, _SAVED + name[len(_RAW) :]) if hasattr(type(raw), "register_hooks") else None
    except RuntimeError:
        return None
