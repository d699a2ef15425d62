"""Patches of modules of the standard library: threads and children of multiprocessing that die of an exception."""

from __future__ import annotations

import sys

from ..core import journal
from ..core.replacing import replace
from . import faults

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from ddpdoctor.facts import events

_outer: BaseException | None = None
"""The exception in whose handler a child was forked: part of its stack, and not its own."""


def patch_threading(module: ModuleType) -> None:
    """See exceptions of threads where threading calls its hook, whoever has set that hook meanwhile."""
    make = getattr(module, "_make_invoke_excepthook", None)
    if make is None:
        return

    def make_invoke_excepthook() -> Any:
        invoke = make()

        def invoke_excepthook(thread: Any) -> None:
            try:
                faults.note_thread(str(getattr(thread, "name", "")), sys.exc_info()[1])
            except (
                BaseException
            ) as error:  # The thread is ending: nothing may keep the message from being printed.
                journal.trouble("thread", error)
            invoke(thread)

        return invoke_excepthook

    replace(module, "_make_invoke_excepthook", make_invoke_excepthook)


def patch_process(module: ModuleType) -> None:
    """See what a child of multiprocessing, however started, is for."""
    real_bootstrap = module.BaseProcess._bootstrap

    def bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _outer
        _outer = sys.exc_info()[1]
        try:
            _note_role(self)
        except Exception as error:
            journal.failed("role", error)
        return real_bootstrap(self, *args, **kwargs)

    replace(module.BaseProcess, "_bootstrap", bootstrap)


def patch_util(module: ModuleType) -> None:
    """See the exception that ends a child of multiprocessing.

    Its bootstrap catches and prints it. A frame of ours around the child's function would show in that
    traceback; this function is called, in a ``finally``, before.
    """
    real_exit_function = module._exit_function

    def exit_function(*args: Any, **kwargs: Any) -> Any:
        _note_end(sys._getframe(1).f_globals)
        return real_exit_function(*args, **kwargs)

    replace(module, "_exit_function", exit_function)


def patch_traceback(module: ModuleType) -> None:
    """See the same where Python 3.13 and later show it: they call no function before the one that prints.

    And see the exceptions of ranks that a program makes a text of, `faults.note_caught`.
    """
    real_print_exc, real_format = module.print_exc, module.format_exception

    def print_exc(*args: Any, **kwargs: Any) -> Any:
        _note_end(sys._getframe(1).f_globals)
        return real_print_exc(*args, **kwargs)

    def format_exception(*args: Any, **kwargs: Any) -> Any:
        if journal.joined():
            try:
                value = next((each for each in args[1::-1] if isinstance(each, BaseException)), None)
                faults.note_caught(value, sys._getframe(1))
            except Exception as error:
                journal.failed("format_exception", error)
        return real_format(*args, **kwargs)

    replace(module, "print_exc", print_exc)
    replace(module, "format_exception", format_exception)


def patch_ray(module: ModuleType) -> None:
    """See whether Ray's workers are ours to watch: those of a cluster that ran before were started by others."""
    real_init = getattr(module, "init", None)
    if real_init is None:
        return

    def init(*args: Any, **kwargs: Any) -> Any:
        made = real_init(*args, **kwargs)
        try:
            _note_cluster(module, made)
        except Exception as error:
            journal.failed("ray", error)
        return made

    replace(module, "init", init)


def _note_cluster(module: ModuleType, made: object) -> None:
    """Write the ``cluster`` event of a program that has connected to a cluster that it did not start."""
    node = getattr(module, "_global_node", None)
    is_head = getattr(node, "is_head", None)
    if type(made).__name__ == "ClientContext":  # ray://, the driver runs there too
        own = False
    elif callable(is_head):
        own = bool(is_head())
    else:
        return
    if not own:
        journal.write("cluster", {"engine": "Ray", "address": str(getattr(node, "gcs_address", ""))[:200]})


def _note_end(caller: dict[str, Any]) -> None:
    try:
        value = sys.exc_info()[1]
        if value is not None and value is not _outer and caller.get("__name__") == "multiprocessing.process":
            faults.note_process(value)
    except Exception as error:
        journal.failed("process", error)


def _note_role(process: Any) -> None:
    target: Any = getattr(process, "_target", None)
    arguments: tuple[Any, ...] = getattr(process, "_args", ())
    where = str(getattr(target, "__module__", ""))
    fields: events.Role = {
        "role": "child",
        "name": str(process.name),
        "target": f"{where}.{getattr(target, '__qualname__', '')}" if target is not None else None,
    }
    if where == "torch.utils.data._utils.worker":
        fields["role"] = "loader-worker"
        names = target.__code__.co_varnames if hasattr(target, "__code__") else ()
        if "worker_id" in names and names.index("worker_id") < len(arguments):
            fields["worker"] = int(arguments[names.index("worker_id")])
    elif where == "torch.multiprocessing.spawn" and len(arguments) > 1:
        # _wrap(fn, i, args, error_file)
        function, fields["index"] = arguments[0], int(arguments[1])
        fields["target"] = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    journal.write("role", fields)
