"""Whether a rank's own gradients are finite, before DistributedDataParallel reduces them.

What turns in a backward goes on to most gradients that come after it. So a few gradients of each wrapped model are
looked at, of small parameters, spread over the order in which they come. They are seen where autograd hands them to the
node that accumulates them: a hook of that node is on no object of the program's, and is neither pickled nor copied with
the model.
"""

from __future__ import annotations

import sys
import weakref

from ..core import budget, journal, lifetime, progress, unseen
from ..models import ddp, prints, tree
from . import finite, places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SMALL = 1 << 14
"""Elements of a parameter up to which its gradient is looked at in each backward."""
PROBES = 4
"""Gradients of a model that are looked at: some 5 µs each on the CPU, 15 µs on a device to start the work. Two are too
few for a model of four layers: an activation before the layer that turned lets nothing of it through."""
WRAPPERS, MOST_WRAPPERS = 4, 16
"""Models that are looked at, at a time and one after the other (folds, trials)."""
TRIES = 10
"""Backwards after which the order of the gradients is asked for no more: it is logged of the first ten iterations
(torch/csrc/distributed/c10d/logger.cpp)."""
_EACH = 64
"""One of so many reads of a gradient is timed, and its cost counts for all of them."""
_EXACT = 4
"""Bytes of an element from which on a sum of finite numbers is taken as it is; of smaller ones it overflows."""


class _Probe:
    """One gradient that is looked at.

    Args:
        number: Of the wrapper.
        name: Of the parameter in it.
    """

    def __init__(self, number: int, name: str) -> None:
        self.numbers = finite.Finite({"what": "gradient", "model": number, "name": name})
        self.handle: Any = None
        self.exact = False
        """A sum of finite gradients is taken as it is: autograd gives them the type of the parameter."""
        self.took = 0
        """What the look that was timed last has cost."""

    def put(self, parameter: Any) -> bool:
        """Look at the gradient of a parameter from now on; False where that cannot be."""
        torch: Any = sys.modules["torch"]
        with torch.enable_grad():
            node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
        register = getattr(node, "register_prehook", None)
        if register is not None:
            self.exact = parameter.element_size() >= _EXACT
            self.handle = register(self._look)
        return register is not None

    def remove(self) -> None:
        """Look at it no more."""
        if self.handle is not None:
            self.handle.remove()
            self.handle = None

    def _look(self, gradients: Any) -> None:
        try:
            gradient = gradients[0]
            if _busy or type(gradient) is not _tensor:
                return
            record = _record
            if record is None:
                self._take_unseen(gradient)
                return
            record(False)
            try:
                self._take(gradient)
            finally:
                record(True)
        except Exception as error:
            journal.failed("gradients", error)

    def _take(self, gradient: Any) -> None:
        if gradient.layout is not _strided:
            return
        numbers = self.numbers
        # Not the first one, which starts what later ones find there.
        began = budget.clock() if numbers.checked % _EACH == _EACH - 1 else 0
        if gradient.requires_grad:  # a graph of the backward is being made
            gradient = gradient.detach()
        if gradient.is_cpu:
            value = (gradient.sum() if self.exact else gradient.sum(dtype=_wide)).item()
            if numbers.since or value - value != 0:
                numbers.judge(progress.backwards, value, places.describe(), sys._getframe())
            else:
                numbers.checked += 1
        elif gradient.is_cuda:
            if numbers.under_way:
                numbers.read()
            total = gradient.sum() if self.exact else gradient.sum(dtype=_wide)
            numbers.send(progress.backwards, total, places.describe(), sys.modules["torch"])
        if began:
            self.took = budget.spend_for(_EACH, began, self.took)

    _take_unseen = unseen.behind(_take)


class _Watched:
    """A wrapped model of which gradients are looked at."""

    def __init__(self, wrapper: Any, number: int) -> None:
        self.wrapper = weakref.ref(wrapper)
        self.number = number
        self.tries = 0
        self.probes: dict[int, _Probe] = {}
        """Place of a parameter among those that the wrapper reduces -> its probe."""

    @unseen.behind
    def choose(self, order: list[int]) -> None:
        """Look at gradients that are spread over the order in which they come, the last one among them."""
        entry = next((each for each in ddp.remembered if each.number == self.number), None)
        wrapper = self.wrapper()
        if entry is None or wrapper is None:
            return
        known = {place: entry.parameters[place]() for place in order if place < len(entry.parameters)}
        parameters = {place: each for place, each in known.items() if each is not None and _is_small(each)}
        small = _list_telling(parameters)
        chosen = {small[len(small) - 1 - len(small) * part // PROBES] for part in range(PROBES) if small}
        for place in set(self.probes) - chosen:
            self.probes.pop(place).remove()
        names = {id(each): name for name, each in tree.list_parameters(tree.find_model(wrapper))}
        for place in chosen - set(self.probes):
            probe = _Probe(self.number, names.get(id(parameters[place]), "")[:200])
            if probe.put(parameters[place]):
                self.probes[place] = probe


_watched: list[_Watched] = []
_pending: list[_Watched] = []
"""Those of which the order of the gradients is not known yet."""
_busy = False
"""Whether nothing may be computed in this backward."""
_record: Any = None
"""What turns recording off, which is enough in this backward; None where more is to be hidden from."""
_tensor: Any = None
_strided: Any = None
_wide: Any = None
"""Torch's class of plain tensors, their layout, and the dtype in which what may overflow is summed."""


def watch(wrapper: Any) -> None:
    """Look at gradients of a wrapped model from its first forward on, unless torch.compile is in use."""
    entry = next((each for each in ddp.remembered if each.wrapper() is wrapper), None)
    living = sum(each.wrapper() is not None for each in _watched)
    if budget.level == budget.OFF or living >= WRAPPERS or len(_watched) >= MOST_WRAPPERS:
        return
    if entry is None or ddp.is_compiling():
        return
    global _tensor, _strided, _wide
    torch: Any = sys.modules["torch"]
    _tensor, _strided, _wide = torch.Tensor, torch.strided, torch.float32
    watched = _Watched(wrapper, entry.number)
    watched.choose(list(range(len(entry.parameters)))[::-1])  # those of the first layer come last, mostly
    _watched.append(watched)
    _pending.append(watched)


def note_backward(busy: bool) -> None:
    """Choose by the order of the iteration before, once it is known; called as each backward begins.

    Args:
        busy: Nothing may be computed in it, or it is one of those of which nothing is measured.
    """
    global _busy, _record
    _busy = busy
    _record = None if _busy else unseen.find_record()
    if not _pending:
        return
    for watched in tuple(_pending):
        watched.tries += 1
        wrapper = watched.wrapper()
        order = _read_order(wrapper)
        if order:
            watched.choose(order)
        if order or wrapper is None or watched.tries >= TRIES:
            _pending.remove(watched)


def note_end(count: int) -> None:
    """Write down of how many backwards gradients were looked at, and whether the last ones were finite."""
    for watched in _watched:
        for probe in watched.probes.values():
            if probe.numbers.checked:
                probe.numbers.note_end(count)


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew; what hooks it has inherited see nothing there."""
    for watched in _watched:
        for probe in watched.probes.values():
            probe.remove()
    _watched.clear()
    _pending.clear()


def _is_small(parameter: Any) -> bool:
    return (
        parameter.requires_grad
        and 0 < parameter.numel() <= SMALL
        and parameter.is_floating_point()
        and prints.explain_unreadable(parameter) is None
    )


def _list_telling(parameters: dict[int, Any]) -> list[int]:
    """Return the places of parameters whose gradients tell of all: the vectors, where most layers have one.

    What comes back to a layer goes into the gradient of its bias as it does into that of its weight.
    """
    vectors = [place for place, each in parameters.items() if each.dim() == 1]
    return vectors if 2 * len(vectors) >= len(parameters) else list(parameters)


def _read_order(wrapper: Any) -> list[int]:
    """Return the places of the wrapper's parameters in the order in which their gradients came."""
    logged = getattr(getattr(wrapper, "logger", None), "_get_ddp_logging_data", None)
    if logged is None:
        return []
    told = logged().strs_map.get("prev_iteration_grad_ready_order_indices", "")
    return [int(word) for word in told.split(",") if word.strip().isdigit()]
