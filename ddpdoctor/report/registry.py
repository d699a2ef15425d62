"""Renderers: one per output format, registered by name; third parties add theirs by entry point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ddpdoctor.judge.catalogue import CodePage
from ddpdoctor.report.model import Report

ReadSource = Callable[[str], Sequence[str] | None]
"""Gives the lines of a file as findings name it, without secrets; None where it is not to be shown."""


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """How an output should look; a renderer takes what concerns it."""

    color: bool = False
    ascii: bool = False
    width: int = 80
    verbosity: int = 0
    """-1 quiet, 0 normal, 1 and 2 more."""
    pages: dict[str, CodePage] | None = None
    """Code -> page, for renderers that can show more on a code."""
    written: tuple[str, ...] = ()
    """Files that this report was already written to, for the text to name."""
    directory: str | None = None
    """Working directory, absolute; findings name files from there."""
    root: str | None = None
    """Top directory of the repository that a CI service has checked out: its services name files from there."""
    scrub: Callable[[str], str] | None = None
    """Takes secrets out of a text; for renderings that are meant to be published."""
    read_source: ReadSource | None = None
    """Reads source for renderers that show lines around those that a finding quotes."""


class Renderer(Protocol):
    """Makes one text from a report."""

    name: str
    """The word that ``--format`` takes."""
    description: str

    def render(self, report: Report, options: RenderOptions) -> str:
        """Return the whole output as text, ending in a newline."""
        ...


class RendererRegistry:
    """All renderers of this process, by name."""

    def __init__(self) -> None:
        self._renderers: dict[str, tuple[Renderer, str]] = {}
        self.source = "ddpdoctor"
        """Distribution that is registering now; set by the loader."""

    def add(self, renderer: Renderer) -> None:
        """Register a renderer.

        Raises:
            ValueError: its name is taken.
        """
        if renderer.name in self._renderers:
            raise ValueError(f"format {renderer.name} already comes from {self._renderers[renderer.name][1]}")
        self._renderers[renderer.name] = (renderer, self.source)

    def find(self, name: str) -> Renderer | None:
        """Return the renderer called ``name``, or None."""
        found = self._renderers.get(name)
        return found[0] if found else None

    def source_of(self, name: str) -> str:
        """Return the distribution that the format ``name`` comes from.

        Raises:
            KeyError: there is no such format.
        """
        return self._renderers[name][1]

    def describe(self) -> tuple[tuple[str, str, str], ...]:
        """Return name, description and distribution of all formats in order of registration."""
        return tuple((name, each.description, source) for name, (each, source) in self._renderers.items())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all formats in order of registration."""
        return tuple(self._renderers)
