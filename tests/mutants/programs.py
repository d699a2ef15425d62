"""A repository's programs: each script of several ranks, with the files of the repository that it imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

DISTRIBUTED = re.compile(
    r"init_process_group|DistributedDataParallel|DistributedSampler|Accelerator\(|init_distributed_mode"
    r"|fully_shard|FullyShardedDataParallel"
)
MOST_FILES = 24
"""Of one program: the nearest by imports."""
MOST_BYTES = 300_000
"""Of one file: what is larger was generated."""
PASSED_OVER = {".git", "build", "node_modules", "third_party", "thirdparty"}


@dataclass(frozen=True, slots=True)
class Program:
    """A script and what it imports from its own repository."""

    root: Path
    script: str
    """Its path from the root."""
    files: tuple[str, ...]
    """Paths from the root, the script first."""


def find_programs(root: Path) -> list[Program]:
    """Return the programs of a repository, those with the most own files first.

    Args:
        root: of the repository.
    """
    texts = dict(_read_all(root))
    named = [name for name, text in texts.items() if DISTRIBUTED.search(text)]
    if not named:
        return []
    programs = []
    for name, text in texts.items():
        if "__main__" not in text and name not in named:
            continue
        files = _close(name, texts)
        if any(each in named for each in files) and ("__main__" in text or _is_flat(text)):
            programs.append(Program(root, name, files))
    if not programs:
        # A package without a script: what its files import stands for the programs that others write.
        programs = [Program(root, name, _close(name, texts)) for name in named]
    return sorted(programs, key=lambda program: (-len(program.files), program.script))


def own_files(programs: Iterable[Program]) -> Iterator[tuple[Program, tuple[str, ...]]]:
    """Yield each program with those of its files that no earlier one has."""
    seen: set[str] = set()
    for program in programs:
        own = tuple(name for name in program.files if name not in seen)
        seen.update(own)
        if own:
            yield program, own


def list_files(root: Path) -> tuple[str, ...]:
    """Return all files of a repository that can be read.

    Args:
        root: of the repository.
    """
    return tuple(name for name, _ in _read_all(root))


def _read_all(root: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if PASSED_OVER & set(name.parts) or path.is_symlink() or path.stat().st_size > MOST_BYTES:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            continue
        yield str(name), text


def _is_flat(text: str) -> bool:
    """Tell whether a module does its work when it is imported, as scripts without a main guard do."""
    return any(isinstance(node, ast.For | ast.While) for node in ast.parse(text).body)


def _close(script: str, texts: dict[str, str]) -> tuple[str, ...]:
    added: list[str] = []
    while True:
        found = _follow(script, texts, added)
        # also for what the script imports: ``import _init_paths`` comes first there
        more = [base for name in found for base in _list_added(name, texts) if base not in added]
        if not more:
            return found
        added += dict.fromkeys(more)


def _follow(script: str, texts: dict[str, str], added: Sequence[str]) -> tuple[str, ...]:
    found = [script]
    for name in found:
        for imported in _imports(name, texts[name]):
            for base in (*_bases(name), *added):
                path = str(Path(base, *imported.split(".")))
                hits = [each for each in (f"{path}.py", f"{path}/__init__.py") if each in texts]
                if hits:
                    found.extend(each for each in hits if each not in found)
                    break
        if len(found) >= MOST_FILES:
            break
    return tuple(found[:MOST_FILES])


def _bases(name: str) -> list[str]:
    """Return the directories that imports may start from: the file's own, and those above it."""
    return [*map(str, Path(name).parents), "src"]


def _list_added(name: str, texts: dict[str, str]) -> Iterator[str]:
    """Yield the directories of the repository that a file which changes ``sys.path`` names."""
    if "sys.path" not in texts[name]:
        return
    for node in ast.walk(ast.parse(texts[name])):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = [part for part in node.value.split("/") if part not in ("", ".", "..")]
            for base in Path(name).parents if named else ():
                folder = str(Path(base, *named))
                if any(each.startswith(f"{folder}/") for each in texts):
                    yield folder
                    break


def _imports(name: str, text: str) -> Iterator[str]:
    here = Path(name).parent.parts
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*here[: len(here) - node.level + 1], *([base] if base else [])])
            if base:
                yield base
            yield from (f"{base}.{alias.name}".strip(".") for alias in node.names)
