"""What is replaced in the interpreter, and how: everything still does what it did."""

from __future__ import annotations

import _thread
import atexit
import os
import sys

from ..core import describe, journal, lifetime, process
from ..core.replacing import replace
from . import faults, settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, NoReturn

    Hook = Callable[[type[BaseException], Any, TracebackType | None], object]
    from ddpdoctor.facts import events, wire
else:
    from .. import wire

_hooks: dict[int, Hook] = {}
_SIGNALED = "torch.distributed.elastic.multiprocessing.api.SignalException"


def install() -> None:
    """Put the hooks in; each part on its own, so that one that fails costs no other."""
    process.main_thread = _thread.get_ident()
    atexit.register(_note_end)
    for part in (_hook_forks, _hook_exits, _hook_waits, _hook_kills, _hook_settings):
        try:
            part()
        except Exception as error:
            journal.failed(part.__name__, error)


def take_excepthooks() -> None:
    """Wrap ``sys.excepthook`` and ``sys.__excepthook__``.

    Both: the test ``sys.excepthook is sys.__excepthook__`` keeps its answer, and a hook that the program sets
    later reaches us when it calls the original one.
    """
    for name in ("excepthook", "__excepthook__"):
        hook = getattr(sys, name)
        if id(hook) not in _hooks:
            _hooks[id(hook)] = _wrap_excepthook(hook)
        replace(sys, name, _hooks[id(hook)])


def _wrap_excepthook(hook: Hook) -> Hook:
    def excepthook(
        kind: type[BaseException], value: BaseException | None, traceback: TracebackType | None, /
    ) -> object:
        try:
            if value is not None:  # A program may call a hook with anything.
                try:
                    faults.note_main(value, traceback, fatal=_is_fatal(value))
                except Exception:  # A signal handler's, for a loader worker that ends now: once more.
                    faults.note_main(value, traceback, fatal=_is_fatal(value))
        except (
            BaseException
        ) as error:  # The process is ending: nothing may keep the message from being printed.
            journal.write(
                "exception",
                {"kind": "uncaught", "type": getattr(kind, "__name__", ""), "message": "", "frames": []},
            )
            journal.trouble("excepthook", error)
        return None if _is_told(kind, value) else hook(kind, value, traceback)

    return excepthook


def _is_told(kind: type[BaseException], value: object) -> bool:
    """Print one line in place of the elastic agent's own stack, where the signal that it raises for is ddpdoctor's."""
    try:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name != _SIGNALED or not os.path.exists(
            os.path.join(os.environ["DDPDOCTOR_RUN"], *wire.ENDED.split("/"))
        ):
            return False
        sys.stderr.write(f"{name}: {value} (ddpdoctor stopped the hung job)\n")
    except Exception:
        return False
    return True


def _is_fatal(value: BaseException) -> bool:
    """Tell the interpreter's own call, which sets these first, from a program's that goes on living."""
    last = getattr(sys, "last_exc", None) is value or getattr(sys, "last_value", None) is value
    return last and _thread.get_ident() == process.main_thread


def _note_end() -> None:
    try:
        faults.note_late()
        settings.note_end()
        lifetime.reach(lifetime.ENDING)
    except Exception as error:
        journal.failed("atexit", error)
    finally:
        journal.write("end", {})
    lifetime.reach(lifetime.ENDED)
    try:
        journal.dispose("exit-call")
    except Exception as error:
        journal.failed("atexit", error)


def _hook_forks() -> None:
    os.register_at_fork(before=journal.count_fork, after_in_child=_note_fork)


def _note_fork() -> None:
    process.main_thread = _thread.get_ident()
    try:
        journal.reopen_after_fork()
        process.note_fork()
        lifetime.keep_all()
        lifetime.reach(lifetime.FORKED)
    except Exception as error:
        journal.failed("fork", error)


def _hook_exits() -> None:
    real_exit, real_leave = sys.exit, os._exit

    def exit_(status: Any = None, /) -> NoReturn:
        try:
            faults.note_exit("sys.exit", status, sys._getframe(1), sys.exc_info()[1])
        except Exception as error:
            journal.failed("sys.exit", error)
        real_exit(status)

    def leave(status: int) -> NoReturn:
        try:
            faults.note_late()
            faults.note_exit("os._exit", status, sys._getframe(1), sys.exc_info()[1])
            lifetime.reach(lifetime.LEAVING)
            if status == 0:
                journal.dispose()
        except BaseException as error:  # Nothing comes between a program and its end.
            journal.trouble("os._exit", error)
        real_leave(status)

    replace(sys, "exit", exit_)
    replace(os, "_exit", leave)
    _hook_quitters()


def _hook_quitters() -> None:
    """`exit()` and `quit()`, which `site` has put among the builtins."""
    import builtins

    quitter = type(getattr(builtins, "exit", None))
    if quitter.__name__ != "Quitter":
        return
    call = quitter.__call__

    def call_quitter(self: object, code: Any = None) -> object:
        try:
            faults.note_exit("sys.exit", code, sys._getframe(1), sys.exc_info()[1])
        except Exception as error:
            journal.failed("exit", error)
        return call(self, code)

    replace(quitter, "__call__", call_quitter)


def _hook_waits() -> None:
    real_waitpid, real_wait, real_wait3, real_wait4 = os.waitpid, os.wait, os.wait3, os.wait4

    def waitpid(pid: int, options: int, /) -> tuple[int, int]:
        found = real_waitpid(pid, options)
        if found[0]:
            _note_child(found[0], found[1])
        return found

    def wait() -> tuple[int, int]:
        found = real_wait()
        _note_child(found[0], found[1])
        return found

    def wait3(options: int) -> Any:
        found = real_wait3(options)
        if found[0]:
            _note_child(found[0], found[1])
        return found

    def wait4(pid: int, options: int) -> Any:
        found = real_wait4(pid, options)
        if found[0]:
            _note_child(found[0], found[1])
        return found

    for name, wrapper in (("waitpid", waitpid), ("wait", wait), ("wait3", wait3), ("wait4", wait4)):
        replace(os, name, wrapper)
    if hasattr(os, "waitid"):  # Not on every Unix.
        real_waitid = os.waitid

        def waitid(idtype: int, ident: int, options: int, /) -> Any:
            found = real_waitid(idtype, ident, options)
            if found is not None and found.si_pid and not options & os.WNOWAIT:
                _note_siginfo(found)
            return found

        replace(os, "waitid", waitid)


def _note_child(pid: int, status: int) -> None:
    try:
        if os.WIFSIGNALED(status):
            journal.write("child-exit", {"pid": pid, "signal": os.WTERMSIG(status)})
        elif os.WIFEXITED(status):
            journal.write("child-exit", {"pid": pid, "code": os.WEXITSTATUS(status)})
    except Exception as error:
        journal.failed("wait", error)


def _note_siginfo(found: Any) -> None:
    try:
        if found.si_code == os.CLD_EXITED:
            journal.write("child-exit", {"pid": found.si_pid, "code": found.si_status})
        elif found.si_code in (
            os.CLD_DUMPED,
            getattr(os, "CLD_KILLED", 2),
        ):  # 2: <signal.h>; named since 3.9.
            journal.write("child-exit", {"pid": found.si_pid, "signal": found.si_status})
    except Exception as error:
        journal.failed("waitid", error)


def _hook_kills() -> None:
    real_kill, real_killpg = os.kill, os.killpg

    def kill(pid: int, signal: int, /) -> None:
        if signal:  # 0 only asks whether the process exists.
            _note_kill(pid, signal, False)
        real_kill(pid, signal)

    def killpg(pgid: int, signal: int, /) -> None:
        if signal:
            _note_kill(pgid, signal, True)
        real_killpg(pgid, signal)

    replace(os, "kill", kill)
    replace(os, "killpg", killpg)


def _hook_settings() -> None:
    for name, wrap in (("putenv", settings.wrap_putenv), ("unsetenv", settings.wrap_unsetenv)):
        real = getattr(os, name)
        wrapper = wrap(real)
        replace(os, name, wrapper)
        if getattr(os.environ, name, None) is real:  # Python 3.8 keeps them there too.
            setattr(os.environ, name, wrapper)


def _note_kill(number: int, signal: int, group: bool) -> None:
    # Before the call: it may be our own end.
    try:
        fields: events.Kill = {"signal": int(signal)}
        if group:
            fields["pgid"] = number
        else:
            fields["pid"] = number
        if number == os.getpid():
            fields["frames"] = describe.list_stack(sys._getframe(2))
        journal.write("kill", fields)
    except Exception as error:
        journal.failed("kill", error)
