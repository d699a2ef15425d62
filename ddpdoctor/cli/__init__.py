"""The command line: a lazy table of commands, and one place where errors become messages and exit codes."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from ddpdoctor import __version__
from ddpdoctor.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, DoctorError, UsageError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: arguments after the program's name; None takes those of the process.
    """
    from ddpdoctor.cli.output.display import silence  # before anything that cannot be taken back has begun

    code = _main(list(sys.argv[1:] if argv is None else argv))
    _settle_stderr(silence)
    if argv is None:
        gc.freeze()  # the process ends: to take apart what was read, node by node, takes as long as to read it
    return code


def _main(arguments: list[str]) -> int:
    _hold_standard_descriptors()
    _tolerate_any_encoding()
    try:
        return _dispatch(arguments)
    except DoctorError as problem:
        _complain(problem.render(), arguments)
        return problem.exit_code
    except KeyboardInterrupt:
        _complain("ddpdoctor: interrupted", arguments, traceback=False)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _leave_closed_pipe()
    except Exception as problem:  # one message, the traceback only with -vv
        _complain(_word_defect(problem), arguments)
        return EXIT_FAILED


def _word_defect(problem: Exception) -> str:
    """Return what to say of an exception that nobody expected: a module of the user's that hides one, or a defect."""
    name, path = (problem.name, problem.path) if isinstance(problem, ImportError) else (None, None)
    if path and name in sys.stdlib_module_names and not path.startswith(os.path.dirname(os.__file__)):
        text, hint = (
            f"{path} shadows Python's own module {name}",
            "rename it, or start from another directory",
        )
    else:
        text = f"internal error: {type(problem).__name__}: {problem}"
        hint = "rerun the same command with -vv and report what it prints"
    return f"ddpdoctor: {text}\n  try: {hint}"


def _dispatch(arguments: list[str]) -> int:
    from ddpdoctor.cli.commands import COMMANDS, render_help
    from ddpdoctor.cli.output.display import print_text
    from ddpdoctor.text.suggest import closest

    if not arguments or arguments[0] in ("-h", "--help", "help"):
        if len(arguments) > 1 and arguments[1] in COMMANDS:
            return _run(arguments[1], ["--help"])
        print_text(render_help())
        return EXIT_OK
    if arguments[0] in ("-V", "--version"):
        print_text(_describe_version(arguments[1:]))
        return EXIT_OK
    name, rest = arguments[0], arguments[1:]
    if name in COMMANDS:
        return _run(name, rest)
    near = closest(name, COMMANDS)
    if name.startswith("-"):
        hint = f"ddpdoctor check {' '.join(arguments)}"
        raise UsageError(f"{name} must come after the command", hint=hint)
    raise UsageError(
        f"there is no command {name!r}",
        context=f"commands: {', '.join(COMMANDS)}",
        hint=f"ddpdoctor {near}" if near else "ddpdoctor --help",
    )


def _describe_version(rest: list[str]) -> str:
    if not {"-v", "--verbose"} & set(rest):
        return f"ddpdoctor {__version__}\n"
    from ddpdoctor.cli.about import describe

    return describe()


def _run(name: str, rest: list[str]) -> int:
    from ddpdoctor.cli.arguments.invocation import parse_command
    from ddpdoctor.cli.commands import load_command

    command = load_command(name)
    try:
        return command.run(parse_command(name, command, rest))
    except SystemExit as leaving:  # argparse's own --help
        return leaving.code if isinstance(leaving.code, int) else EXIT_OK


def _hold_standard_descriptors() -> None:
    """Open what the caller has closed (``2>&-``) to nowhere, or the next file of ours would become our stderr."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gives the lowest free number


def _tolerate_any_encoding() -> None:
    """Text that the terminal cannot show is escaped instead of raising, whatever the renderer did."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _complain(text: str, arguments: list[str], traceback: bool = True) -> None:
    """Print a message on stderr; a traceback before it with -vv."""
    from ddpdoctor.cli.output.display import complain

    if traceback and _very_verbose(arguments):
        import traceback as tracebacks

        complain(tracebacks.format_exc())
    complain(text)


def _very_verbose(arguments: list[str]) -> bool:
    return "-vv" in arguments or arguments.count("-v") + arguments.count("--verbose") > 1


def _settle_stderr(silence: Callable[[TextIO], object]) -> None:
    """Let the interpreter's own flush at exit not fail, which would make the exit code 120."""
    if sys.stderr is not None:
        try:
            sys.stderr.flush()
        except Exception:
            silence(sys.stderr)


def _leave_closed_pipe() -> int:
    """The reader of stdout went away (``| head``): end quietly, also when Python flushes at its exit."""
    from ddpdoctor.cli.output.display import silence

    silence(sys.stdout)
    return EXIT_OK
