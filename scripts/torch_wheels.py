"""What a wheel of torch has: names, and which arguments they take, read from its own Python source.

Nothing is installed: of a wheel, which has hundreds of megabytes, its list of files and single ones are fetched
(HTTP ranges). Names that C++ makes are read from the stubs beside them.
"""

from __future__ import annotations

import ast
import io
import json
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

INDEX = "https://pypi.org/simple/torch/"
SIMPLE = "application/vnd.pypi.simple.v1+json"
TAG = "-cp311-cp311-manylinux"
"""Of the builds that are read; the Python source is that of all."""
BLOCK = 1 << 20
FROM_C = {"torch": ("torch._C", "torch._C._VariableFunctions")}
"""Modules that copy names of others in a loop."""

STUBS = "torch._C."
LIBRARY = "torch/lib/libtorch_python.so"

MISSING, UNKNOWN = "missing", "unknown"


class RangeFile(io.RawIOBase):
    """A file behind a URL, of which only what is asked for is fetched."""

    def __init__(self, url: str, size: int) -> None:
        self.url, self.size, self.position = url, size, 0
        self.blocks: dict[int, bytes] = {}

    def seekable(self) -> bool:
        """Yes."""
        return True

    def readable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Return where the next byte is read."""
        return self.position

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go elsewhere."""
        self.position = offset + (0, self.position, self.size)[whence]
        return self.position

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]  # the base takes any buffer
        """Read up to the end of a block."""
        number, offset = divmod(self.position, BLOCK)
        if number not in self.blocks:
            last = min(self.size, (number + 1) * BLOCK) - 1
            request = urllib.request.Request(
                self.url, headers={"Range": f"bytes={number * BLOCK}-{max(number * BLOCK, last)}"}
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                self.blocks[number] = answer.read()
        data = self.blocks[number][offset : offset + len(buffer)]
        buffer[: len(data)] = data
        self.position += len(data)
        return len(data)


def open_wheels(versions: tuple[str, ...]) -> Iterator[tuple[str, Surface]]:
    """Yield the surface of each version.

    Raises:
        LookupError: the index has no such wheel.
    """
    request = urllib.request.Request(INDEX, headers={"Accept": SIMPLE})
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = json.load(answer)["files"]
    for version in versions:
        found = [
            each
            for each in files
            if each["filename"].startswith(f"torch-{version}{TAG}") and "x86_64" in each["filename"]
        ]
        if not found:
            raise LookupError(f"no wheel of torch {version}")
        ranges: Any = RangeFile(found[0]["url"], found[0]["size"])
        archive = zipfile.ZipFile(io.BufferedReader(ranges, 1 << 16))
        yield version, Surface(Source(archive))


class Source:
    """The Python files of a wheel, by module."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._library: bytes | None = None
        self._files = {name for name in archive.namelist() if name.endswith((".py", ".pyi"))}
        self._folders = {name.rpartition("/")[0] for name in self._files}

    def find(self, module: str) -> str | None:
        """Return the file of a module; a stub only where there is no other."""
        path = module.replace(".", "/")
        names = (f"{path}.py", f"{path}/__init__.py", f"{path}.pyi", f"{path}/__init__.pyi")
        return next((name for name in names if name in self._files), None)

    def has_folder(self, module: str) -> bool:
        """Whether it is a folder without a file of its own."""
        return module.replace(".", "/") in self._folders

    def has_word(self, word: str) -> bool:
        """Whether the library that makes names for Python has such a string."""
        if self._library is None:
            self._library = self._archive.read(LIBRARY)
        return word.encode() + b"\0" in self._library  # linkers let texts share their ends

    def read(self, file: str) -> str:
        """Return its text."""
        return self._archive.read(file).decode()


@dataclass
class Module:
    """Names of a module, and where they come from."""

    name: str
    names: dict[str, list[ast.AST | tuple[str, str | None]]] = field(default_factory=dict)
    """Statements, or module and name that are imported (no name: the module itself)."""
    stars: list[str] = field(default_factory=list)
    listed: frozenset[str] | None = None
    """``__all__``, where it can be read."""

    def add(self, name: str, entry: ast.AST | tuple[str, str | None]) -> None:
        """Take a statement that makes a name."""
        self.names.setdefault(name, []).append(entry)


@dataclass(frozen=True)
class Found:
    """What a name stands for."""

    kind: str
    """module, class, function, value, missing or unknown."""
    module: str = ""
    nodes: tuple[ast.AST, ...] = ()


@dataclass(frozen=True)
class Taken:
    """What a callable takes: names of arguments, whether any other too, and how many by position."""

    names: frozenset[str]
    open: bool
    most: int | None = None
    """How many by position, ``self`` not counted; None: any number."""


class Surface:
    """The names of one version of torch."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._modules: dict[str, Module | None] = {}

    def find(self, name: str) -> Found:
        """Return what a dotted name stands for; it begins with ``torch``."""
        parts = name.split(".")
        found = Found("module", parts[0])
        for number, part in enumerate(parts[1:], 1):
            module = ".".join(parts[:number])
            if found.kind == "function" and self._source.find(module):
                found = Found("module", module)  # of the same name as a function in it
            found = self._step(found, part)
        if found.kind == MISSING and name.startswith(STUBS):
            # Stubs are written by hand; what C++ makes has its name in the library.
            return Found(UNKNOWN if self._source.has_word(parts[-1]) else MISSING)
        return found

    def takes(self, name: str) -> Taken | None:
        """Return what a callable takes; None where that is not known."""
        return self._takes(self.find(name))

    def _takes(self, found: Found) -> Taken | None:
        if found.kind == "function":
            taken = [_read_arguments(node) for node in found.nodes if isinstance(node, ast.FunctionDef)]
            most = [t.most for t in taken]
            return Taken(
                frozenset().union(*(t.names for t in taken)),
                any(t.open for t in taken),
                None if None in most else max(each for each in most if each is not None),
            )
        if found.kind != "class":
            return None
        fields: set[str] = set()
        for each in self._list_bases(found):
            if each.kind != "class":
                return None
            for node in each.nodes:
                if isinstance(node, ast.ClassDef) and _is_record(node):
                    fields |= {
                        s.target.id
                        for s in node.body
                        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
                    }
            for maker in ("__init__", "__new__"):
                made = self._member(each, maker)
                given = self._takes(made) if made is not None and made.kind == "function" else None
                if given is None:
                    continue
                fields |= given.names
                if not given.open or len(self._list_bases(each)) == 1:
                    return Taken(frozenset(fields), given.open, given.most)
                # Else it may hand on what the base takes.
        return Taken(frozenset(fields), False) if fields else None

    def _step(self, found: Found, part: str) -> Found:
        if found.kind == "module":
            return self._name_of(found.module, part, frozenset())
        if found.kind == "class":
            for each in self._list_bases(found):
                if each.kind != "class":
                    return Found(UNKNOWN)
                member = self._member(each, part)
                if member is not None:
                    return member
            return Found(MISSING)
        return found if found.kind == MISSING else Found(UNKNOWN)

    def _name_of(self, name: str, part: str, asked: frozenset[tuple[str, str]]) -> Found:
        """Return what a name of a module stands for."""
        if (name, part) in asked:
            return Found(MISSING)
        asked |= {(name, part)}
        module = self._read(name)
        if module is None and not self._source.has_folder(name):
            return Found(UNKNOWN)
        entries = module.names.get(part, []) if module is not None else []
        nodes = tuple(each for each in entries if isinstance(each, ast.AST))
        if nodes:
            kinds = {ast.ClassDef: "class", ast.FunctionDef: "function"}
            kind = kinds.get(type(nodes[-1]), "value")
            return Found(kind, name, tuple(node for node in nodes if isinstance(node, type(nodes[-1]))))
        results = [
            Found("module", where) if what is None else self._name_of(where, what, asked)
            for where, what in (each for each in entries if not isinstance(each, ast.AST))
            if where.startswith("torch") or where == name
        ]
        results = [each for each in results if each.kind != MISSING]
        if results:
            return results[0]
        if self._source.find(f"{name}.{part}") or self._source.has_folder(f"{name}.{part}"):
            return Found("module", f"{name}.{part}")
        if any(isinstance(each, tuple) and not each[0].startswith("torch") for each in entries):
            return Found(UNKNOWN)  # of another package
        if any(isinstance(each, tuple) and each != (name, part) for each in entries):
            return Found("value", name)  # torch itself imports it, so it is there, made by C++
        for star in (*(module.stars if module is not None else ()), *FROM_C.get(name, ())):
            other = self._read(star)
            shown = other is not None and (
                part in other.listed if other.listed is not None else not part.startswith("_")
            )
            if shown or other is None:
                given = self._name_of(star, part, asked)
                if given.kind not in (MISSING, UNKNOWN):
                    return given
        if module is not None and "__getattr__" in module.names:
            return Found(UNKNOWN)
        return Found(MISSING)

    def _member(self, owner: Found, part: str) -> Found | None:
        nodes: list[ast.AST] = []
        for body in (node.body for node in owner.nodes if isinstance(node, ast.ClassDef)):
            for statement in _walk_statements(body):
                named = isinstance(statement, (ast.FunctionDef, ast.ClassDef)) and statement.name == part
                if named or part in _list_targets(statement):
                    nodes.append(statement)
                elif isinstance(statement, ast.FunctionDef) and part in _list_own(statement):
                    nodes.append(ast.Pass())
        if not nodes:
            return None
        kinds = {ast.ClassDef: "class", ast.FunctionDef: "function"}
        last = nodes[-1]
        plain = isinstance(last, ast.FunctionDef) and not any(
            any(word in ast.unparse(each) for word in ("property", ".setter")) for each in last.decorator_list
        )
        kind = kinds.get(type(last), "value") if plain or isinstance(last, ast.ClassDef) else "value"
        return Found(kind, owner.module, tuple(node for node in nodes if isinstance(node, type(last))))

    def _list_bases(self, found: Found) -> list[Found]:
        """Return a class, what it is made of, and its metaclass."""
        listed = [found]
        for node in found.nodes:
            if not isinstance(node, ast.ClassDef):
                continue
            metas = [each.value for each in node.keywords if each.arg == "metaclass"]
            for base in (*node.bases, *metas):
                text = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
                if text in (
                    "object",
                    "ABC",
                    "abc.ABC",
                    "Protocol",
                    "Generic",
                    "type",
                    "NamedTuple",
                    "Enum",
                    "ABCMeta",
                ):
                    continue
                given = Found("module", found.module)
                for part in text.split("."):
                    given = self._step(given, part) if part.isidentifier() else Found(UNKNOWN)
                if given.kind == "class" and given.nodes == found.nodes:
                    continue
                listed += self._list_bases(given) if given.kind == "class" else [Found(UNKNOWN)]
        return listed

    def _read(self, name: str) -> Module | None:
        if name not in self._modules:
            file = self._source.find(name)
            self._modules[name] = None if file is None else _read_module(name, file, self._source.read(file))
        return self._modules[name]


def _read_module(name: str, file: str, text: str) -> Module:
    module = Module(name)
    package = name if "/__init__.py" in file else name.rpartition(".")[0]
    for statement in _walk_statements(ast.parse(text).body):
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            module.add(statement.name, statement)
            for inner in ast.walk(statement):
                if isinstance(inner, ast.Global):
                    for each in inner.names:
                        module.add(each, ast.Pass())
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                module.add(
                    alias.asname or alias.name.split(".")[0],
                    (alias.name if alias.asname else alias.name.split(".")[0], None),
                )
        elif isinstance(statement, ast.ImportFrom):
            where = statement.module or ""
            if statement.level:
                up = package.split(".")[: len(package.split(".")) - statement.level + 1]
                where = ".".join([*up, where] if where else up)
            for alias in statement.names:
                if alias.name == "*":
                    module.stars.append(where)
                else:
                    module.add(alias.asname or alias.name, (where, alias.name))
        for target in _list_targets(statement):
            module.add(target, statement)
            value = getattr(statement, "value", None)
            if target == "__all__" and isinstance(value, (ast.List, ast.Tuple)) and module.listed is None:
                module.listed = frozenset(
                    str(each.value) for each in value.elts if isinstance(each, ast.Constant)
                )
    return module


def _walk_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, also those in the branches of others, but not those of functions and classes."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from _walk_statements(getattr(statement, name, []))
        for handler in getattr(statement, "handlers", []):
            yield from _walk_statements(handler.body)


def _list_targets(statement: ast.AST) -> list[str]:
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, (ast.AnnAssign, ast.For)):
        targets = [statement.target]
    names = [each for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    return [each.id for each in names if isinstance(each.ctx, ast.Store)]


def _list_own(function: ast.FunctionDef) -> set[str]:
    """Return what a method sets on ``self``."""
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def _is_record(node: ast.ClassDef) -> bool:
    marks = [ast.unparse(each) for each in (*node.decorator_list, *node.bases)]
    return any("dataclass" in mark or "NamedTuple" in mark for mark in marks)


def _read_arguments(node: ast.FunctionDef) -> Taken:
    given = node.args
    places = [*given.posonlyargs, *given.args]
    bound = sum(each.arg in ("self", "cls") for each in places[:1])
    most = None if given.vararg is not None else len(places) - bound
    names = frozenset(each.arg for each in (*given.args, *given.kwonlyargs))
    return Taken(names, given.kwarg is not None, most)
