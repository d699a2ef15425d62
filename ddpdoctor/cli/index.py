"""What `explain` and `list` need of all installed checks, kept in a file, so that they answer at once.

Importing the evidence, the engine and all check modules takes some 120 ms here; the bar is 100 ms for the
whole command. The file lies in the user's cache directory, holds nothing but what `list` prints, and is made
anew when a distribution was installed or a module with checks has changed. Without a writable cache all is
only slower.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

from ddpdoctor import __version__
from ddpdoctor.text.sections import split_sections

FORMAT = 5
"""Changes when the fields below do."""
JUDGING = ("check", "run", "attach", "analyze", "lint")
"""Commands whose reports have rows of checks."""


@dataclass(frozen=True)
class Page:
    """One finding that some check can raise."""

    code: str
    name: str
    title: str
    severity: str
    since: str
    source: str
    text: str
    """Markdown, without the facts above."""

    def sections(self, *, indented: bool = True) -> dict[str, str]:
        """Return heading -> text, in order (see `split_sections`)."""
        return split_sections(self.text, indented=indented)


@dataclass(frozen=True)
class Row:
    """One check."""

    id: str
    codes: list[str]
    family: str
    needs: list[str]
    source: str
    commands: list[str]
    """Commands of whose reports it is a row."""


@dataclass(frozen=True)
class Index:
    """All that is installed."""

    pages: list[Page]
    rows: list[Row]
    formats: list[tuple[str, str, str]]
    """Name, description and distribution."""
    gatherers: list[str]
    problems: list[tuple[str, str, str]]
    """Distribution, entry point group and what went wrong."""

    @property
    def names(self) -> dict[str, str]:
        """Code -> name."""
        return {page.code: page.name for page in self.pages}


def load_index() -> Index:
    """Return the index: from the cache where that is fresh, else from the installed distributions.

    Raises:
        DoctorError: nothing is installed that could check anything.
    """
    path = _cache_path()
    cached = _read_cache(path)
    if cached is not None:
        return cached
    index, files = build_index()
    if not index.problems:  # a plugin that failed is asked again the next time
        _write_cache(path, index, files)
    return index


def build_index() -> tuple[Index, set[str]]:
    """Import everything and return the index with the source files that it came from."""
    from ddpdoctor.plugins import load_plugins

    plugins = load_plugins()
    pages = [
        Page(p.code, p.name, p.title, p.severity, p.since, p.source, p.text)
        for p in plugins.checks.pages.values()
    ]
    rows = [
        Row(c.id, list(c.codes), c.family, list(c.needs), c.source, [w for w in JUDGING if c.belongs_to(w)])
        for c in plugins.checks.checks
    ]
    index = Index(
        pages=pages,
        rows=rows,
        formats=list(plugins.renderers.describe()),
        gatherers=[each.key for each in plugins.gatherers.gatherers],
        problems=[(each.distribution, each.group, each.text) for each in plugins.problems],
    )
    origins: list[object] = [each.function for each in plugins.checks.checks]
    origins += [each.look for each in plugins.gatherers.gatherers]
    packages = {
        getattr(getattr(origin, "func", origin), "__module__", "").split(".")[0] for origin in origins
    }
    files = {
        getattr(m, "__file__", None)
        for name, m in list(sys.modules.items())
        if name.split(".")[0] in packages
    }
    return index, {file for file in (*files, *(p.file for p in plugins.checks.pages.values())) if file}


def _cache_path() -> str | None:
    """Return where the index of this environment is kept, or None where there is no place."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(folder):
        return None
    name = hashlib.sha256("\0".join([sys.prefix, sys.version, *sys.path]).encode()).hexdigest()[:16]
    return os.path.join(folder, "ddpdoctor", f"index-{name}.json")


def _stamp(path: str) -> list[int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_mtime_ns, 0 if os.path.isdir(path) else status.st_size]


def _folders() -> dict[str, list[int] | None]:
    """Installing or removing a distribution changes the time of its directory on the import path."""
    return {folder: _stamp(folder) for folder in sys.path if folder}


def _read_cache(path: str | None) -> Index | None:
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        fresh = data["format"] == [FORMAT, __version__] and data["folders"] == _folders()
        if not fresh or any(_stamp(name) != stamp for name, stamp in data["files"].items()):
            return None
        return _from_dict(data["index"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _from_dict(data: dict[str, Any]) -> Index:
    return Index(
        pages=[Page(**page) for page in data["pages"]],
        rows=[Row(**row) for row in data["rows"]],
        formats=[(name, words, source) for name, words, source in data["formats"]],
        gatherers=data["gatherers"],
        problems=[],
    )


def _write_cache(path: str | None, index: Index, files: set[str]) -> None:
    """Keep the index; not being able to is no problem of the user's."""
    if path is None:
        return
    data = {
        "format": [FORMAT, __version__],
        "folders": _folders(),
        "files": {name: _stamp(name) for name in sorted(files)},
        "index": dataclasses.asdict(index),
    }
    temporary = f"{path}.{os.getpid()}"
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(data, file)
        os.replace(temporary, path)
