"""What is replaced in the interpreter, and how: everything still does what it did."""

from __future__ import annotations

import _thread
import atexit
import os
import sys

from . import describe, faults, finder, journal, process, settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, TracebackType
    from typing import Any, NoReturn

    Hook = Callable[[type[BaseException], Any, TracebackType | None], object]

replaced: list[tuple[object, str, object, object]] = []
"""Owner, name, original and wrapper of everything that was replaced, so that its cost can be measured in one process
with it and without it (benchmarks/switching.py)."""

_hooks: dict[int, Hook] = {}
main_thread = 0
"""Its ident."""


def install() -> None:
    """Put the hooks in; each part on its own, so that one that fails costs no other."""
    global main_thread
    main_thread = _thread.get_ident()
    atexit.register(_note_end)
    for part in (_hook_forks, _hook_exits, _hook_waits, _hook_kills, _hook_settings, finder.install):
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


def leave_uncompiled(function: Any) -> None:
    """Mark a function as torch.compiler.disable does: else the compiler traces what is called below a compiled one."""
    function._torchdynamo_disable = True


def replace(owner: object, name: str, wrapper: Any) -> None:
    """Put a wrapper in the place of a function, looking like it as far as Python lets it.

    Args:
        owner: Module or class.
        name: The function's name in it.
        wrapper: What takes its place; pickles by reference as the original would.
    """
    original = getattr(owner, name)
    for attribute in ("__name__", "__qualname__", "__doc__"):
        value = getattr(original, attribute, None)
        if value is not None:
            setattr(wrapper, attribute, value)
    wrapper.__module__ = getattr(owner, "__name__", None) if not isinstance(owner, type) else owner.__module__
    if str(wrapper.__module__).partition(".")[0] == "torch":
        leave_uncompiled(wrapper)
    setattr(owner, name, wrapper)
    replaced.append((owner, name, original, wrapper))


def guard(function: Callable[..., Any], otherwise: Any = None, lost: Any = None) -> Any:
    """Return a function that does the same until it raises: that is said, and from then on it does nothing.

    Args:
        function: Of ours, called from a frame of torch's or the program's.
        otherwise: What it returns where it does nothing.
        lost: Called once, where it has raised.
    """
    held: Callable[..., Any] | None = function

    def guarded(*args: Any) -> Any:
        nonlocal held
        if held is None:
            return otherwise
        try:
            return held(*args)
        except Exception as error:
            journal.failed(function.__name__, error)
            held = None
            if lost is not None:
                lost()
            return otherwise

    leave_uncompiled(guarded)
    return guarded


def wrap(owner: Any, name: str, before: Any = None, after: Any = None, plain: bool = False) -> None:
    """Call functions of ours when one of torch's is called, best one that does not raise: ours is in its traceback.

    Args:
        owner: Its module or class.
        name: Of it.
        before: Called before it with None, the caller's frame and the arguments by position.
        after: Called after it, with its result instead of None.
        plain: They ask nothing of subclasses of tensors, and are called in each step.
    """
    real = getattr(owner, name, None)
    if real is None:
        journal.trouble("patch", f"{getattr(owner, '__name__', owner)} has no {name}")
        return

    from . import unseen

    hide = unseen.behind_plain if plain else unseen.behind
    see_before = hide(before) if before is not None else None
    see_after = hide(after) if after is not None else None

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal see_before, see_after
        if see_before is not None:
            try:
                see_before(None, sys._getframe(1), args)
            except Exception as error:
                see_before = None  # it is taken out: what failed once would fail at each call
                journal.failed(name, error)
        result = real(*args, **kwargs)
        if see_after is not None:
            try:
                see_after(result, sys._getframe(1), args)
            except Exception as error:
                see_after = None
                journal.failed(name, error)
        return result

    skip_code(wrapper.__code__)
    replace(owner, name, wrapper)


def skip_code(code: CodeType) -> None:
    """Tell torch's compiler to leave a function alone, and those defined in it."""
    torch = sys.modules.get("torch._C")
    compiler: Any = getattr(getattr(torch, "_dynamo", None), "eval_frame", None)
    if hasattr(compiler, "skip_code"):
        compiler.skip_code(code)
    elif hasattr(compiler, "set_code_exec_strategy"):  # 2.7 and later
        actions = compiler._FrameAction
        compiler.set_code_exec_strategy(code, compiler._FrameExecStrategy(actions.SKIP, actions.DEFAULT))
    else:
        return
    for constant in code.co_consts:
        if hasattr(constant, "co_consts"):
            skip_code(constant)


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
        return hook(kind, value, traceback)

    return excepthook


def _is_fatal(value: BaseException) -> bool:
    """Tell the interpreter's own call, which sets these first, from a program's that goes on living."""
    last = getattr(sys, "last_exc", None) is value or getattr(sys, "last_value", None) is value
    return last and _thread.get_ident() == main_thread


def _note_ends(*names: str) -> None:
    """Let parts say their last, those that are there."""
    for name in names:
        part = sys.modules.get(f"{__package__}.{name}")
        if part is not None:
            part.note_end()


def _note_end() -> None:
    try:
        faults.note_late()
        settings.note_end()
        _note_ends("steps", "works", "files")
    except Exception as error:
        journal.failed("atexit", error)
    finally:
        journal.write("end", {})
    try:
        recorder = sys.modules.get(f"{__package__}.recorder")
        if recorder is not None:
            recorder.close()
        journal.dispose("exit-call")
    except Exception as error:
        journal.failed("atexit", error)


def _hook_forks() -> None:
    os.register_at_fork(before=journal.count_fork, after_in_child=_note_fork)


def _note_fork() -> None:
    global main_thread
    main_thread = _thread.get_ident()
    try:
        journal.reopen_after_fork()
        process.note_fork()
        finder.after_fork()
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
            _note_ends("works")
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
            _note_kill("pid", pid, signal)
        real_kill(pid, signal)

    def killpg(pgid: int, signal: int, /) -> None:
        if signal:
            _note_kill("pgid", pgid, signal)
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


def _note_kill(what: str, number: int, signal: int) -> None:
    # Before the call: it may be our own end.
    try:
        fields: dict[str, object] = {what: number, "signal": int(signal)}
        if number == os.getpid():
            fields["frames"] = describe.list_stack(sys._getframe(2))
        journal.write("kill", fields)
    except Exception as error:
        journal.failed("kill", error)
