"""How the calls of torch.distributed's public functions are seen: by torch's own decorators, replaced.

torch decorates its public collectives with ``torch.distributed.c10d_logger._exception_logger``. Its decorator is
replaced by one that does the same and calls us: where torch's wrapper stood in a traceback, ours stands, under the
same file, line and name, so that no printed traceback changes. What is not decorated (isend, irecv,
monitored_barrier) is seen from a function that it calls; when those end is not known.
"""

from __future__ import annotations

import sys

from ..core import journal, wrapping
from ..core.replacing import replace
from . import groups, ring, works
from .specs import Spec, read_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType
    from typing import Any

    from ddpdoctor.facts import versions
else:
    from .. import versions

_UNDECORATED = ("isend", "irecv", "monitored_barrier")


def install(module: ModuleType) -> None:
    """Replace the decorators of torch.distributed's public functions; called when c10d_logger has been executed."""
    tools = _make_tools()
    for name, sources in _FORMS.items():
        original = getattr(module, name, None)
        make = _make_decorator(module, original, sources, tools) if original is not None else None
        if make is None:
            journal.trouble(
                "calls",
                f"torch.distributed.c10d_logger.{name} has an unexpected form: its calls are not visible",
            )
            continue
        replace(module, name, make)


def _make_tools() -> dict[str, Any]:
    """Return what the texts below call: nothing of it raises, and what does within is taken out."""
    return {
        "begin": ring.begin,
        "end": ring.end,
        "failed": wrapping.guard(ring.failed, None, ring.give_up),
        "took": wrapping.guard(works.took),
        "Counting": _Counting,
        "C": _Seeing,
    }


def _make_decorator(
    module: ModuleType, original: Any, sources: tuple[str, ...], tools: dict[str, Any]
) -> Any:
    """Build a decorator whose inner function calls the decorated one at the very place where torch's does.

    Returns:
        None where torch's is of another form than those that are known.
    """
    inner = next((c for c in original.__code__.co_consts if getattr(c, "co_name", "") == "wrapper"), None)
    source = versions.choose_text(sources, module, inner) if inner is not None else None
    if inner is None or source is None or inner.co_freevars != ("func",):
        return None
    lines = source.splitlines()
    above = 1 + next(number for number, line in enumerate(lines) if _CALL in line)
    line = _find_call_line(inner)
    if line <= above:
        return None
    made: dict[str, Any] = {**tools, "module": module}
    made["wraps"] = vars(module)["functools"].wraps
    # One of the texts below and nothing else, under the name and at the line of torch's.
    exec(compile("\n" * (line - above) + source, original.__code__.co_filename, "exec"), made)
    build = made["make"]

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        spec: Spec | None = None
        try:
            if func.__name__ not in _PASSED_OVER:
                spec = read_spec(func)
        except Exception as error:
            journal.failed("calls", error)
        made_func: Callable[..., Any] = original(func) if spec is None else build(func, spec)
        return made_func

    return decorate


_PASSED_OVER = ("init_process_group", "_store_based_barrier")
"""What is decorated and no call on a group."""
_CALL = "func(*args, **kwargs)"
"""The call in the texts below; it stands in the columns of torch's (`value =func` for `return func`), for the marks
under it in tracebacks."""
_EXCEPTION_LOGGER = """def make(func, spec):
    @wraps(func)
    def wrapper(*args, **kwargs):
        token = begin(spec, args, kwargs)
        try:
            value =func(*args, **kwargs)
        except Exception as error:
            failed(token)
            msg_dict = module._get_msg_dict(func.__name__, *args, **kwargs)
            msg_dict["error"] = f"{error}"
            module._c10d_logger.debug(msg_dict)
            raise
        except BaseException:
            failed(token)
            raise
        else:
            if value is not None:
                took(token, value)
            return value
        finally:
            end(token)
    return wrapper
"""
_TIME_LOGGER = """def make(func, spec):
    @wraps(func)
    def wrapper(*args, **kwargs):
        token = begin(spec, args, kwargs)
        with Counting(module._WaitCounter, func.__name__, token):
            func_return = func(*args, **kwargs)
        return func_return
    return wrapper
"""
_TIME_LOGGER_UNCOUNTED = """def make(func, spec):
    @wraps(func)
    def wrapper(*args, **kwargs):
        t = begin(spec, args, kwargs)
        began = module.time.time_ns()
        with C(t): v =func(*args, **kwargs)
        spent = module.time.time_ns() - began
        msg_dict = module._get_msg_dict(func.__name__, *args, **kwargs)
        msg_dict["time_spent"] = f"{spent}ns"
        module._c10d_logger.debug(msg_dict)
        return v
    return wrapper
"""
_FORMS = {
    "_exception_logger": (_EXCEPTION_LOGGER,),
    "_time_logger": (_TIME_LOGGER, _TIME_LOGGER_UNCOUNTED),
}
"""torch/distributed/c10d_logger.py (2.4 to 2.15), with `begin`, `took` and `end`; up to 2.5 nothing is counted."""


def _note_end(token: int, raised: bool) -> None:
    try:
        if raised:
            ring.failed(token)
        ring.end(token)
    except Exception as error:
        ring.give_up()
        journal.failed("calls", error)


class _Seeing:
    """The end of a call, however it ends."""

    def __init__(self, token: int) -> None:
        self._token = token

    def __enter__(self) -> None:
        """Nothing: it has begun before."""

    def __exit__(self, *raised: Any) -> None:
        _note_end(self._token, raised[0] is not None)


class _Counting:
    """The wait counter of torch's decorator, and the end of the call."""

    def __init__(self, counter: Any, name: str, token: int) -> None:
        self._token = token
        self._guard = counter(f"pytorch.wait_counter.c10d.{name}").guard()

    def __enter__(self) -> None:
        self._guard.__enter__()

    def __exit__(self, *raised: Any) -> None:
        _note_end(self._token, raised[0] is not None)
        self._guard.__exit__(*raised)


def _find_call_line(code: CodeType) -> int:
    """Return the line on which a wrapper calls what it wraps; 0 where it does not."""
    import dis  # torch has imported it.

    line = 0
    for instruction in dis.get_instructions(code):
        starts: Any = instruction.starts_line
        if starts is True:  # 3.13
            starts = getattr(instruction, "line_number", None)
        line = starts or line
        if instruction.opname == "CALL_FUNCTION_EX":
            return int(line)
    return 0


def watch_undecorated(module: ModuleType) -> None:
    """See the calls that torch does not decorate, from a function that each of them asks at its beginning."""
    groups.take_module(module)
    real: Any = getattr(module, "_rank_not_in_group", None)
    specs: dict[CodeType, Spec] = {}
    for name in _UNDECORATED:
        func = getattr(module, name, None)
        if func is not None and hasattr(func, "__code__"):
            specs[func.__code__] = read_spec(func)
    if real is None or not specs:
        journal.trouble(
            "calls", "torch.distributed has no _rank_not_in_group: isend and irecv are not visible"
        )
        return
    frame_of = sys._getframe
    find = specs.get
    note = wrapping.guard(ring.note_beginning, None, ring.give_up)
    calling = ring.calling

    def _rank_not_in_group(group: Any) -> Any:
        if getattr(calling, "depth", 0):  # a part of a call that is written down already
            calling.token = 0
            return real(group)
        spec = find(frame_of(1).f_code)
        if spec is not None:
            note(spec, frame_of(1))
        return real(group)

    replace(module, "_rank_not_in_group", _rank_not_in_group)
