"""The user's ``--model``: finding the factory, calling it, and wording errors that are the user's own."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from ddpdoctor.evidence import RankSet, UserError
from ddpdoctor.facts.ownership import USER, Roots, find_owner
from ddpdoctor.gather.scrub import scrub
from ddpdoctor.launch.probes.base import MAX_TEXT
from ddpdoctor.launch.traces import shorten_path

_ROOTS = Roots(
    python=[os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")],
    torch=[os.path.dirname(os.path.realpath(torch.__file__))],
    ours=[str(Path(__file__).resolve().parents[2])],
)


class FactoryError(Exception):
    """The user's model cannot be examined; carries the evidence.

    Args:
        kind: missing, raised, wrong-type, wrong-output, not-trainable, wrapped, lazy, differs or group-destroyed.
        step: import, factory, wrap, forward or backward.
        message: what to say where no exception says it better.
        problem: what the user's code raised.
    """

    def __init__(self, kind: str, step: str, message: str, problem: BaseException | None = None) -> None:
        super().__init__(message)
        self.kind, self.step, self.message, self.problem = kind, step, message, problem


@dataclass(frozen=True, slots=True)
class Product:
    """What a factory gave."""

    module: nn.Module
    inputs: Any
    """A tensor, a tuple or list of arguments, a mapping of keyword arguments, or a callable that gives one of
    them for each step."""

    def call(self, model: nn.Module, device: str) -> Any:
        """Run ``model`` (the module itself, or its wrapper) on the inputs and return its output.

        Raises:
            FactoryError: the inputs are of another kind.
        """
        inputs = self.inputs() if callable(self.inputs) else self.inputs
        inputs = move(inputs, device)
        if isinstance(inputs, torch.Tensor):
            return model(inputs)
        if isinstance(inputs, Mapping):
            return model(**inputs)
        if isinstance(inputs, (tuple, list)):
            return model(*inputs)
        raise FactoryError(
            "wrong-type",
            "factory",
            f"the inputs are a {type(inputs).__name__}, expected a tensor, tuple, dict or a callable",
        )


def move(value: Any, device: str) -> Any:
    """Return nested tuples, lists and dicts with their tensors on ``device``."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: move(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(move(item, device) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(move(item, device) for item in value)
    return value


def load_factory(reference: str) -> Callable[[], Any]:
    """Return the factory that ``pkg.mod:factory`` or ``path/to/file.py:factory`` names.

    The working directory (and the directory of a file) comes first on ``sys.path``, as under ``python -m``.

    Raises:
        FactoryError: there is none, or importing it raised.
    """
    place, separator, name = reference.rpartition(":")
    if not separator or not place or not name:
        raise FactoryError("missing", "import", f"{reference!r} is not of the form pkg.mod:factory")
    with raising_as("import"):
        module = _import_file(place) if place.endswith(".py") else _import_module(place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise FactoryError("missing", "import", f"{place} has no {name!r}{_suggest(part, found)}")
        found = getattr(found, part)
    if not callable(found):
        kind = type(found).__name__
        raise FactoryError("wrong-type", "import", f"{name} in {place} is a {kind}, expected a function")
    factory: Callable[[], Any] = found
    return factory


def call_factory(factory: Callable[[], Any]) -> Product:
    """Return what the factory gives.

    Raises:
        FactoryError: it raised, or gave something other than a module and inputs.
    """
    with raising_as("factory"):
        made = factory()
    if not isinstance(made, (tuple, list)) or len(made) != 2 or not isinstance(made[0], nn.Module):
        raise FactoryError(
            "wrong-type", "factory", f"it returned {_describe(made)}, expected (module, example inputs)"
        )
    _require_bare(made[0])
    return Product(made[0], made[1])


def _require_bare(module: nn.Module) -> None:
    """Refuse a module that DistributedDataParallel cannot wrap, before it hangs or misleads.

    Raises:
        FactoryError: it is wrapped already, or has parameters without a shape.
    """
    if isinstance(module, nn.parallel.DistributedDataParallel):
        raise FactoryError(
            "wrapped", "factory", "it returned a DistributedDataParallel, expected the bare module"
        )
    lazy = [name for name, each in module.named_parameters() if isinstance(each, UninitializedParameter)]
    if lazy:
        more = f" and {len(lazy) - 1} more" if len(lazy) > 1 else ""
        raise FactoryError("lazy", "wrap", f"{lazy[0]}{more} of a lazy module")


@contextmanager
def raising_as(step: str) -> Iterator[None]:
    """Turn what the user's code raises in ``step`` into `FactoryError`; SystemExit too, it is not ours to end."""
    try:
        yield
    except FactoryError:
        raise
    except (Exception, SystemExit) as problem:
        raise FactoryError("raised", step, str(problem), problem) from problem


def _import_module(name: str) -> ModuleType:
    with _first_on_path(os.getcwd()):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as problem:
            # A module that is missing inside of the user's module is an error in it, with a line.
            if problem.name is not None and (name == problem.name or name.startswith(problem.name + ".")):
                text = f"there is no module {problem.name!r} in {os.getcwd()} or on sys.path"
                raise FactoryError("missing", "import", text) from problem
            raise


def _import_file(path: str) -> ModuleType:
    file = Path(path)
    if not os.path.isfile(file):
        raise FactoryError("missing", "import", f"there is no file {path}")
    root, name = _locate_package(file.resolve())
    if name != file.stem:  # in a package: relative imports work only under its whole name
        with _first_on_path(root, os.getcwd(), str(file.resolve().parent)):
            return importlib.import_module(name)
    specification = importlib.util.spec_from_file_location(file.stem, file.resolve())
    if specification is None or specification.loader is None:
        raise FactoryError("missing", "import", f"{path} is not a Python file")
    module = importlib.util.module_from_spec(specification)
    with _first_on_path(os.getcwd(), str(file.resolve().parent)):
        sys.modules[file.stem] = module  # dataclasses and pickling look their module up
        specification.loader.exec_module(module)
    return module


def _locate_package(file: Path) -> tuple[str, str]:
    """Return the directory above the outermost package that holds ``file``, and its module name in it."""
    parts, folder = [] if file.stem == "__init__" else [file.stem], file.parent
    while os.path.isfile(folder / "__init__.py") and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    return str(folder), ".".join(parts)


@contextmanager
def _first_on_path(*directories: str) -> Iterator[None]:
    """Put directories before all others, for good: later imports of the model need them. Leave no bytecode."""
    for directory in directories:
        if directory not in sys.path:
            sys.path.insert(0, directory)
    kept = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = kept


def _suggest(name: str, owner: object) -> str:
    close = difflib.get_close_matches(name, [each for each in dir(owner) if not each.startswith("_")], n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _describe(made: object) -> str:
    if isinstance(made, (tuple, list)):
        return (
            f"a {type(made).__name__} of {len(made)}: {', '.join(type(each).__name__ for each in made[:4])}"
        )
    return "None" if made is None else f"a {type(made).__name__}"


def describe_error(error: FactoryError, rank: int, factory: Callable[[], Any] | None) -> UserError:
    """Return the evidence of an error, with the innermost line that is the user's own.

    Where all frames are a library's (a module of torch given wrong inputs), the factory's own first line
    stands for it.
    """
    file, line, function = _find_line(error.problem) or _locate(factory)
    message = scrub(error.message)
    message = message if len(message) <= MAX_TEXT else message[:MAX_TEXT] + " …"
    return UserError(
        kind=error.kind,
        step=error.step,
        message=message or type(error.problem).__name__,
        type=None if error.problem is None else type(error.problem).__name__,
        file=None if file is None else scrub(shorten_path(file)),
        line=line,
        function=function,
        source=(linecache.getline(file, line).strip() or None) if file and line else None,
        ranks=RankSet([rank]),
    )


def _find_line(problem: BaseException | None) -> tuple[str, int | None, str | None] | None:
    if problem is None:
        return None
    if isinstance(problem, SyntaxError) and problem.filename:
        return problem.filename, problem.lineno, None
    frames = traceback.extract_tb(problem.__traceback__)
    own = [frame for frame in frames if is_own(frame.filename)]
    return (own[-1].filename, own[-1].lineno, own[-1].name) if own else None


def is_own(file: str) -> bool:
    """Whether a frame of ``file`` is the user's: not Python's, not installed, not torch's, not ours."""
    return all(
        find_owner(name, _ROOTS) == USER
        for name in (file, file if file.startswith("<") else os.path.realpath(file))
    )


def _locate(factory: Callable[[], Any] | None) -> tuple[str | None, int | None, str | None]:
    code = getattr(factory, "__code__", None)
    if code is None or not is_own(code.co_filename):
        return None, None, None
    return code.co_filename, code.co_firstlineno, code.co_name
