"""Looking at the script before anything is launched: does it exist, can it be read, does it parse."""

from __future__ import annotations

import os
import tokenize
from dataclasses import dataclass
from pathlib import Path

from ddpdoctor.watch.commandline import Split


@dataclass(frozen=True, slots=True)
class ScriptProblem:
    """Why a script cannot start."""

    type: str
    """FileNotFoundError, PermissionError, IsADirectoryError, SyntaxError or UnicodeDecodeError."""
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
    if not path.exists():
        return ScriptProblem("FileNotFoundError", f"there is no file {name} in {Path.cwd().name}/", name)
    if path.is_dir():
        if (path / "__main__.py").exists():
            return None  # Python runs such a directory
        return ScriptProblem("IsADirectoryError", f"{name} is a directory without a __main__.py", name)
    if not os.access(path, os.R_OK):
        return ScriptProblem("PermissionError", f"{name} may not be read", name)
    return _compile(path, name)


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
        return ScriptProblem(type(problem).__name__, f"not Python: {problem}", name)
    except OSError as problem:
        return ScriptProblem(type(problem).__name__, problem.strerror or str(problem), name)
    return None
