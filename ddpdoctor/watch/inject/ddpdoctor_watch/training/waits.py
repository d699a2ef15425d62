"""How long a step waits for the communication of fully_shard's parameters, and for other stages of a pipeline.

DistributedDataParallel measures that of itself; what shards parameters and what runs a pipeline does not. In a few
steps the functions of torch in which a step waits are replaced by ours, and put back after it: other steps cost
nothing. On a GPU it is a stream that waits, not Python: what it waited is the time between two events around the
function, which is read when a later look begins. The program never waits for a device because of us.
"""

from __future__ import annotations

import sys

from ..core import budget, frames, journal, lifetime, stopwatch, unseen
from ..core.replacing import leave_uncompiled
from ..core.wrapping import skip_code
from ..models import ddp, pipelines, prints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from ddpdoctor.facts import training_events
    from ddpdoctor.facts.training_rows import WaitRow
else:
    from ..training_rows import WaitRow

GATHER, REDUCE, STAGE = range(3)
"""What is waited for: an all-gather of parameters, a reduce-scatter of gradients, tensors of another stage."""
EARLY, EACH = 12, 100
"""The steps up to this one are looked at, and one of each so many."""
LOOKS = 64
"""Steps of which what they waited is kept."""
MODULES = 256
"""Modules whose waiting is kept one by one."""
_PENDING = 4
"""Looks whose events the device has not reached."""
_FRAMES = 8

_SHARDED = (
    ("unshard", GATHER),
    ("wait_for_unshard", GATHER),
    ("post_backward", REDUCE),
    ("finalize_backward", REDUCE),
)
"""Methods of torch's group of parameters that wait; on the CPU it is `unshard` that does, and `post_backward`."""

_GATHERED = "wait_for_unshard"
"""The one that is called once for each all-gather."""

places: list[tuple[Any, str, int]] = []
"""Owner, name and kind of what is replaced in a look; empty in a program that neither shards nor has stages."""


class _Look:
    """One step that is looked at."""

    def __init__(self, step: int, cuda: Any) -> None:
        self.step = step
        self.cuda = cuda
        self.spent = [0, 0, 0]
        """Nanoseconds by kind."""
        self.bytes = 0
        """Of parameters that were gathered."""
        self.own: dict[tuple[str, int], int] = {}
        """Name of a module and kind -> nanoseconds."""
        self.calls: list[tuple[str, int, int, Any, Any]] = []
        """Name, kind, Python's nanoseconds that do not count, and the events around a call on a GPU."""
        self.began = stopwatch.monotonic()
        self.took = 0
        self.first = _mark(cuda)
        self.last: Any = None


class _State:
    """What this process knows of its waiting."""

    def __init__(self) -> None:
        self.look: _Look | None = None
        self.next = 0
        self.pending: list[_Look] = []
        self.rows: list[WaitRow] = []
        self.own: dict[tuple[str, int], int] = {}
        self.sizes: dict[int, int] = {}
        self.frames: list[list[object]] = []
        """Where the program lets a pipeline make a step."""
        self.replaced: list[tuple[Any, str, Any]] = []


_state = _State()


def patch_parameters(module: ModuleType) -> None:
    """Know the methods in which fully_shard's groups of parameters wait."""
    kind = getattr(module, "FSDPParamGroup", None)
    places.extend((kind, name, what) for name, what in _SHARDED if hasattr(kind, name))


def patch_schedules(module: ModuleType) -> None:
    """Know the function in which the schedules of pipelines wait; before torch 2.8 they have none."""
    if hasattr(module, "_wait_batch_p2p"):
        places.append((module, "_wait_batch_p2p", STAGE))


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    global _state
    _put_back(_state)
    _state = _State()


def turn(step: int, measured: bool) -> None:
    """Note that a step has ended, and look at the next one where it is time for that.

    Args:
        step: Number of the one that has ended; the first ones, which are not counted, have none above 0.
        measured: Whether times are taken in the next one.
    """
    try:
        _turn(_state, step, measured)
    except Exception as error:
        _give_up(error)


def _turn(state: _State, step: int, measured: bool) -> None:
    busy = prints.explain_busy() is not None
    if state.look is not None:
        _drop() if busy else _close(state, state.look)
    if step < 0 or not measured or (step >= EARLY and step + 1 < state.next):
        return
    if budget.level in (budget.OFF, budget.LIGHT) or ddp.is_compiling() or busy:
        return
    _settle(state)
    state.next = step + 1 + EACH
    _open(state, step + 1)


@unseen.behind
def _open(state: _State, step: int) -> None:
    torch: Any = sys.modules["torch"]
    cuda = getattr(torch, "cuda", None)
    for owner, name, kind in places:
        real = vars(owner).get(name)
        if real is not None:
            setattr(owner, name, _see(real, kind, name == _GATHERED))
            state.replaced.append((owner, name, real))
    state.look = _Look(step, cuda if cuda is not None and cuda.is_initialized() else None)


@unseen.behind
def _close(state: _State, look: _Look) -> None:
    _put_back(state)
    state.look = None
    look.took = stopwatch.monotonic() - look.began
    look.last = _mark(look.cuda)
    if look.cuda is None:
        _keep(state, look)
    else:
        state.pending = [*state.pending[1 - _PENDING :], look]


def _put_back(state: _State) -> None:
    for owner, name, real in state.replaced:
        setattr(owner, name, real)
    state.replaced = []


def _see(real: Any, kind: int, gathered: bool) -> Any:
    """Return a function that does the same and is timed; what it raises goes through it.

    Args:
        real: The function.
        kind: What it waits for.
        gathered: It is called once for each all-gather.
    """

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        began = _begin(kind, gathered, args)
        try:
            return real(*args, **kwargs)
        finally:
            if began is not None:
                _end(kind, args, began)

    leave_uncompiled(wrapper)
    skip_code(wrapper.__code__)
    return wrapper


def _begin(kind: int, gathered: bool, args: tuple[Any, ...]) -> tuple[int, Any] | None:
    look = _state.look
    if look is None:
        return None
    try:
        if _is_recorded(look.cuda):
            _drop()
            return None
        if kind == STAGE:
            if not args or not args[0]:
                return None
            if not _state.frames:
                _state.frames = frames.list_own(sys._getframe(2), _FRAMES)
        elif gathered and getattr(args[0], "_all_gather_result", None) is not None:
            look.bytes += _measure(args[0])
        return stopwatch.monotonic(), _mark(look.cuda)
    except Exception as error:
        _give_up(error)
        return None


def _end(kind: int, args: tuple[Any, ...], began: tuple[int, Any]) -> None:
    look = _state.look
    if look is None:
        return
    try:
        if _is_recorded(look.cuda):
            _drop()
            return
        name = str(getattr(args[0], "_module_fqn", None) or "") if kind != STAGE else ""
        since, first = began
        if first is None:
            _add(look, name, kind, stopwatch.monotonic() - since)
            return
        last = _mark(look.cuda)
        python = stopwatch.monotonic() - since
        # A device that has come here already waited for Python as well: not for communication.
        look.calls.append((name, kind, python if first.query() else 0, first, last))
    except Exception as error:
        _give_up(error)


def _give_up(error: Exception) -> None:
    """Look no more: what failed once would fail again."""
    journal.failed("waits", error)
    places.clear()
    _drop()


def _drop() -> None:
    """Look at this step no longer."""
    _state.look = None
    _put_back(_state)


def _is_recorded(cuda: Any) -> bool:
    """Whether the program records a CUDA graph: to ask for an event would break it."""
    asked = getattr(cuda, "is_current_stream_capturing", None)
    return asked is not None and bool(asked())


@unseen.behind
def _measure(group: Any) -> int:
    """Return the bytes of a group's parameters when they are gathered."""
    size = _state.sizes.get(id(group))
    if size is None:
        tensors = [each.sharded_param for each in group.fsdp_params]
        size = _state.sizes[id(group)] = sum(int(each.numel()) * int(each.element_size()) for each in tensors)
    return size


def _mark(cuda: Any) -> Any:
    """Return an event of the stream that computes; None where the CPU does."""
    if cuda is None:
        return None
    event = cuda.Event(enable_timing=True)
    event.record()
    return event


def _add(look: _Look, name: str, kind: int, took: int) -> None:
    look.spent[kind] += took
    key = name[:200], kind
    look.own[key] = look.own.get(key, 0) + took


def _settle(state: _State) -> None:
    """Read the looks whose end the device has reached."""
    while state.pending and state.pending[0].last.query():
        look = state.pending.pop(0)
        look.took = max(1, int(look.first.elapsed_time(look.last) * 1e6))
        for name, kind, python, first, last in look.calls:
            _add(look, name, kind, max(0, int(first.elapsed_time(last) * 1e6) - python))
        look.calls = []
        _keep(state, look)


def _keep(state: _State, look: _Look) -> None:
    if not any(look.spent):
        return
    gather, reduce, stage = (each // 1000 for each in look.spent)
    state.rows.append(WaitRow(look.step, look.took // 1000, gather, reduce, stage, look.bytes))
    if len(state.rows) > LOOKS:
        del state.rows[EARLY]
    for key, took in look.own.items():
        if key in state.own or len(state.own) < MODULES:
            state.own[key] = state.own.get(key, 0) + took


def describe() -> training_events.Times:
    """Return what is known by now, for the event that times are written in; empty where nothing was looked at."""
    state = _state
    try:
        if state.pending and prints.explain_busy() is None:
            _settle(state)
    except Exception as error:
        _give_up(error)
    if not state.rows:
        return {}
    most = sorted(state.own.items(), key=lambda item: -item[1])[:8]
    return {
        "waits": [list(row) for row in state.rows],
        "waited": [[name, kind, took // 1000] for (name, kind), took in most],
        "pipeline": pipelines.count_stages(),
        "waited_at": state.frames,
    }
