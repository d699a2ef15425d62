"""Which files are read, and their syntax trees: scripts, directories, notebooks and standard input."""

from __future__ import annotations

import ast
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ddpdoctor.evidence.sources import SourcePlace
from ddpdoctor.source.files.enclosing import MOST_BYTES
from ddpdoctor.source.files.patterns import translate_glob

STDIN = "-"
TOO_DEEP = "nested too deeply"
ENDINGS = (".py", ".pyw", ".ipynb")
PASSED_OVER = frozenset({"__pycache__", "node_modules", "site-packages"})
"""Directories that hold nobody's own scripts; those that begin with a dot and virtual environments are too."""
ABOUT = re.compile(
    rb"torch|accelerate|lightning|deepspeed|horovod|distributed|LOCAL_RANK|local_rank|WORLD_SIZE"
    rb"|world_size|ddpdoctor: *ignore"
)
"""What a file must mention to be worth parsing."""
NEWLINE = re.compile(r"\r\n|\r|\n")
"""Where Python ends a line; ``str.splitlines`` also does at form feeds, which would shift all lines after one."""


_PYTHON_MAGICS = frozenset("%%time %%timeit %%capture %%prun %%px %%autopx".split())
"""Cell magics below which Python of the notebook stands (ipython.readthedocs.io, Built-in magic commands)."""
_OTHER_LANGUAGES = frozenset(
    "%%bash %%sh %%script %%html %%HTML %%javascript %%js %%latex %%markdown %%perl %%ruby %%svg %%SVG %%sql %%R"
    " %%cython %%!".split()
)


@dataclass(slots=True)
class Script:
    """A file with its syntax tree, or with why there is none."""

    name: str
    tree: ast.Module | None = None
    text: str = ""
    """With newlines alone at the ends of its lines."""
    cells: list[tuple[int, int]] = field(default_factory=list)
    """Number of each cell of a notebook and the line before its first one."""
    problem: str | None = None
    skipped: list[str] = field(default_factory=list)
    """Cells of a notebook that were not read, with the reason."""
    unrelated: bool = False
    """Whether it mentions no distributed library: it was not parsed."""
    _lines: list[str] | None = field(default=None, repr=False, compare=False)

    @property
    def lines(self) -> list[str]:
        """Its lines, made when they are first asked for: of most files they never are."""
        if self._lines is None:
            self._lines = self.text.split("\n")
        return self._lines

    @property
    def size(self) -> int:
        """Number of its lines."""
        return self.text.count("\n") + 1 if self.text else 0

    def place(self, node: ast.AST, function: str | None = None) -> SourcePlace:
        """Return where a node of the tree stands."""
        line = getattr(node, "lineno", 1)
        raw = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        column = _count_characters(raw, getattr(node, "col_offset", 0))
        text = raw.expandtabs().rstrip()
        bare = text.lstrip()
        cell, before = self.cell_of(line)
        return SourcePlace(self.name, line - before, column + 1, bare, function, cell, len(text) - len(bare))

    def cell_of(self, line: int) -> tuple[int | None, int]:
        """Return the number of the cell in which a line of the tree lies, and the line before its first one."""
        cell, before = None, 0
        for number, start in self.cells:
            if start < line:
                cell, before = number, start
        return cell, before


def _count_characters(line: str, column: int) -> int:
    """Return the characters before a column of Python's, which counts bytes of UTF-8: editors count characters."""
    return (
        column
        if line.isascii()
        else len(line.encode("utf-8", "surrogatepass")[:column].decode("utf-8", "ignore"))
    )


def nothing(name: str) -> bool:
    """Exclude nothing."""
    return False


def find_files(
    path: Path, excluded: Callable[[str], bool] = nothing, endings: tuple[str, ...] = ENDINGS
) -> Iterator[Path]:
    """Yield the scripts of a directory in order of their names, without what .gitignore excludes.

    A file that was named is yielded whatever its name is.

    Args:
        path: a file or a directory.
        excluded: whether the user has excluded a path; this counts for a file that was named as well, since a hook
            names all that have changed.
        endings: of the names of files that a directory gives.
    """
    if excluded(str(path)):
        return
    if not os.path.isdir(path):
        yield path
        return
    rules = [rule for folder in _above(path) for rule in _read_rules(folder)]
    yield from _descend(path, rules, excluded, endings)


def _above(path: Path) -> list[Path]:
    """Return the directories above that belong to the same repository, the outermost first."""
    folders: list[Path] = []
    whole = path.resolve()
    if os.path.exists(whole / ".git"):
        return []
    for folder in whole.parents:
        folders.append(folder)
        if os.path.exists(folder / ".git"):
            return folders[::-1]
    return []


@dataclass(frozen=True, slots=True)
class _Rule:
    folder: Path
    pattern: re.Pattern[str]
    ignores: bool
    only_folders: bool


def _read_rules(folder: Path) -> list[_Rule]:
    try:
        text = (folder / ".gitignore").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    rules = []
    for line in text.splitlines():
        word = line.rstrip()
        if not word or word.startswith("#"):
            continue
        ignores = not word.startswith("!")
        word = word if ignores else word[1:]
        only_folders, word = word.endswith("/"), word.rstrip("/")
        anchored = "/" in word
        try:
            pattern = re.compile(("" if anchored else "(?:.*/)?") + translate_glob(word.lstrip("/")))
        except re.error:
            continue
        rules.append(_Rule(folder.resolve(), pattern, ignores, only_folders))
    return rules


def _ignored(name: str, folder: bool, rules: list[tuple[str, _Rule]]) -> bool:
    """The last rule that fits decides, as git has it.

    Args:
        name: of a file or directory, without the directory in which it lies.
        folder: whether it is a directory.
        rules: each with the way from its own directory to the one in which it lies.
    """
    for way, rule in reversed(rules):
        if (folder or not rule.only_folders) and rule.pattern.fullmatch(way + name):
            return rule.ignores
    return False


def _find_ways(folder: Path, rules: list[_Rule]) -> list[tuple[str, _Rule]]:
    whole = os.path.realpath(folder)
    ways = {
        each: os.path.relpath(whole, each).replace(os.sep, "/") for each in {rule.folder for rule in rules}
    }
    return [("" if ways[rule.folder] == "." else f"{ways[rule.folder]}/", rule) for rule in rules]


def _descend(
    folder: Path, rules: list[_Rule], excluded: Callable[[str], bool], endings: tuple[str, ...]
) -> Iterator[Path]:
    known = rules + _read_rules(folder)
    ways = _find_ways(folder, known)
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        path = folder / entry.name
        if excluded(str(path)):
            continue
        if entry.is_dir(follow_symlinks=False):
            hidden = entry.name.startswith(".") or entry.name in PASSED_OVER
            if (
                not hidden
                and not os.path.exists(path / "pyvenv.cfg")
                and not _ignored(entry.name, True, ways)
            ):
                yield from _descend(path, known, excluded, endings)
        elif (
            entry.name.endswith(endings)
            and not _ignored(entry.name, False, ways)
            and os.path.isfile(entry.path)
        ):
            yield path


def read_script(path: Path, name: str, *, whatever: bool = False) -> Script:
    """Read and parse one file; nothing of it is imported or run.

    Args:
        path: of the file.
        name: under which it is told.
        whatever: parse it also where it mentions no distributed library.
    """
    try:
        if not os.path.isfile(path):
            return Script(name, problem="not a regular file")
        size = path.stat().st_size
        if size > MOST_BYTES:
            return Script(name, problem=f"larger than {MOST_BYTES >> 20} MiB")
        data = path.read_bytes()
    except (OSError, ValueError) as problem:
        return Script(name, problem=getattr(problem, "strerror", None) or str(problem))
    return parse_script(data, name, notebook=path.suffix == ".ipynb", whatever=whatever)


def parse_script(data: bytes, name: str, *, notebook: bool = False, whatever: bool = False) -> Script:
    """Parse the text of one file. What mentions no distributed library has an empty tree unless ``whatever``."""
    if not whatever and not ABOUT.search(data):
        return Script(name, ast.Module([], []), unrelated=True)
    try:
        return _parse_notebook(data, name) if notebook else _parse(data, name)
    except SyntaxError as problem:
        line = f"line {problem.lineno}: " if problem.lineno else ""
        return Script(name, problem=f"{line}{problem.msg}")
    except (RecursionError, MemoryError):
        return Script(name, problem=TOO_DEEP)
    except ValueError as problem:
        return Script(name, problem=f"{type(problem).__name__}: {problem}")


def _parse(data: bytes | str, name: str) -> Script:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes and comparisons in other people's code
        tree = ast.parse(data)
    text = data if isinstance(data, str) else data.decode("utf-8-sig", errors="replace")
    return Script(name, tree, NEWLINE.sub("\n", text) if "\r" in text else text)


def _parse_notebook(data: bytes, name: str) -> Script:
    cells = json.loads(data)
    cells = cells.get("cells") if isinstance(cells, dict) else None
    if not isinstance(cells, list):
        raise ValueError("not a notebook of format 4")
    lines: list[str] = []
    starts: list[tuple[int, int]] = []
    skipped: list[str] = []
    for number, cell in enumerate(cells, 1):
        source = cell.get("source") if isinstance(cell, dict) and cell.get("cell_type") == "code" else None
        if isinstance(source, list):
            source = "".join(part for part in source if isinstance(part, str))
        if not isinstance(source, str) or (magic := _read_magic(source)) in _OTHER_LANGUAGES:
            continue
        if magic is not None and magic not in _PYTHON_MAGICS:
            skipped.append(f"cell {number}: the effect of {magic} on it is not known")
            continue
        own = list(_without_magics(source.splitlines()))
        try:
            _parse("\n".join(own), name)
        except (SyntaxError, ValueError) as problem:  # one cell that is no Python does not hide the others
            skipped.append(f"cell {number}: {getattr(problem, 'msg', None) or problem}")
            continue
        starts.append((number, len(lines)))
        lines += own
    script = _parse("\n".join(lines), name)
    script.cells, script.skipped = starts, skipped
    return script


def _read_magic(source: str) -> str | None:
    """Return the cell magic with which a cell begins: ``%%bash``."""
    first = source.lstrip().partition("\n")[0].split()
    return first[0] if first and first[0].startswith("%%") else None


def _without_magics(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        bare = line.lstrip()
        yield line[: len(line) - len(bare)] + "pass" if bare.startswith(("%", "!", "?")) else line
