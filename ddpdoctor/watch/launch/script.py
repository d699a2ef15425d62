"""Looking at what is to be launched: can the script be found, read and parsed, and why a command cannot be started."""

from __future__ import annotations

import errno
import os
import shlex
import tokenize
from dataclasses import dataclass
from pathlib import Path

from ddpdoctor.errors import DoctorError, UsageError
from ddpdoctor.watch.commandline import Split


@dataclass(frozen=True, slots=True)
class ScriptProblem:
    """Why a script cannot start."""

    type: str
    """FileNotFoundError, PermissionError, IsADirectoryError, or SyntaxError and its kinds."""
    message: str
    file: str
    line: int = 0
    source: str | None = None


def check_script(split: Split) -> ScriptProblem | None:
    """Read and compile the script, without running anything of it; None where it is fine or no script.

    A module (``-m``), a program (``--no-python``) and a command are left to whoever starts them.
    """
    name = split.script
    if name is None:
        return None
    path = Path(name)
    try:
        os.stat(path)
    except PermissionError:  # of a directory on the way
        return ScriptProblem("PermissionError", f"{name} is not readable", name)
    except (OSError, ValueError):
        return ScriptProblem("FileNotFoundError", f"there is no file {name} in {Path.cwd().name}/", name)
    if os.path.isdir(path):
        if os.path.exists(path / "__main__.py"):
            return None  # Python runs such a directory
        return ScriptProblem("IsADirectoryError", f"{name} is a directory without a __main__.py", name)
    if not os.access(path, os.R_OK):
        return ScriptProblem("PermissionError", f"{name} is not readable", name)
    if not os.path.isfile(path):
        return None  # a pipe, such as <(…) of a shell: what is read here the script would lack
    return _compile(path, name)


def refuse_notebook(split: Split) -> None:
    """Return only where what is launched is no notebook.

    To Python a notebook is one large expression: it runs, trains nothing and ends with exit code 0.

    Raises:
        UsageError: it is one.
    """
    name = split.script
    if split.is_command and split.target[0].rpartition("/")[2].startswith("python"):
        name = next((word for word in split.target[1:] if not word.startswith("-")), None)
    if name is None or not name.endswith(".ipynb") or not os.path.isfile(name):
        return
    raise UsageError(
        f"{name} is a notebook, which Python cannot run as a script",
        hint=(
            f"jupyter nbconvert --to script {shlex.quote(name)}, then run the script; or lint it: ddpdoctor "
            f"lint {shlex.quote(name)}"
        ),
    )


def _compile(path: Path, name: str) -> ScriptProblem | None:
    if path.read_bytes()[:2] == b"PK":
        return None  # a zip application
    try:
        with tokenize.open(path) as file:
            source = file.read()
        compile(source, name, "exec", dont_inherit=True)
    except SyntaxError as problem:
        line = problem.text.rstrip() if problem.text else None
        return ScriptProblem(type(problem).__name__, problem.msg, name, problem.lineno or 0, line)
    except (UnicodeDecodeError, ValueError) as problem:
        return ScriptProblem("SyntaxError", f"not Python: {problem}", name)  # as later versions of Python say
    except OSError as problem:
        return ScriptProblem(type(problem).__name__, problem.strerror or str(problem), name)
    return None


def describe_start_failure(split: Split, failure: OSError) -> DoctorError:
    """Return the error for a command that cannot be started, with the exit code that a shell would give.

    127 where it was not found, 126 where it may not be executed (POSIX, 2.8.2); 3 where the fault is not its own.
    """
    name = split.target[0]
    path = Path(name)
    if not split.is_command or failure.filename not in (name, None) or failure.errno is None:
        return DoctorError(f"{name} could not be started: {failure.strerror or failure}")
    if failure.errno == errno.ENOENT and ("/" not in name or not os.path.isfile(path)):
        text = f"there is no command {name!r}" + ("" if "/" in name else " in PATH")
        return CommandError(text, 127, hint=_what_instead(split))
    if failure.errno == errno.ENOENT:
        return CommandError(f"the interpreter that the first line of {name} names does not exist", 126)
    if failure.errno == errno.ENOEXEC:
        return CommandError(
            (f"{name} is not an executable and its first line names no interpreter"),
            126,
            hint=_what_instead(split),
        )
    if failure.errno in (errno.EACCES, errno.ENOTDIR):
        why = "is a directory" if os.path.isdir(path) else "is not executable"
        return CommandError(f"{name} {why}", 126, hint=_what_instead(split))
    return DoctorError(f"{name} could not be started: {failure.strerror or failure}")


def _what_instead(split: Split) -> str | None:
    name, rest = split.target[0], split.target[1:]
    path = Path(name)
    if name.endswith(".py"):
        return shlex.join(["ddpdoctor", "run", "--", "python", name, *rest])
    if os.path.isfile(path) and "/" not in name and os.access(path, os.X_OK):
        return shlex.join(["ddpdoctor", "run", "--", f"./{name}", *rest])
    if os.path.isfile(path):
        return f"chmod +x {shlex.quote(name)}"
    return None


class CommandError(DoctorError):
    """A command that cannot be started, with an exit code of its own.

    Args:
        message: what happened.
        code: the exit code.
        hint: what to type instead.
    """

    def __init__(self, message: str, code: int, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = code
