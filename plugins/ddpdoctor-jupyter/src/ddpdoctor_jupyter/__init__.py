"""``%ddpdoctor lint``, ``%ddpdoctor report PATH`` and ``%ddpdoctor analyze PATH`` in Jupyter."""

from __future__ import annotations

import html
import json
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError as MagicError

import ddpdoctor

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

USAGE = "%ddpdoctor lint [PATH…], %ddpdoctor report PATH, or %ddpdoctor analyze PATH…"
HEIGHT = 720
"""Pixels of the frame that a report is shown in."""
FRAME = (
    '<iframe sandbox="allow-scripts" referrerpolicy="no-referrer" srcdoc="{page}" '
    'style="width: 100%; height: {height}px; border: 1px solid #8886"></iframe>'
)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Add the magic (``%load_ext ddpdoctor_jupyter``)."""
    shell.register_magic_function(make_magic(shell), "line", "ddpdoctor")


def make_magic(shell: InteractiveShell) -> Callable[[str], Shown]:
    """Return the magic of one shell."""

    def magic(line: str) -> Shown:
        words = shlex.split(line)
        try:
            return _do(shell, words[:1], words[1:])
        except ddpdoctor.DoctorError as problem:
            raise MagicError(str(problem)) from None

    magic.__doc__ = USAGE
    return magic


class Shown:
    """A report as a notebook shows it; ``report`` is the report."""

    def __init__(self, report: ddpdoctor.Report) -> None:
        self.report = report

    def __repr__(self) -> str:
        return ddpdoctor.render(self.report)

    def _repr_html_(self) -> str:
        return FRAME.format(page=html.escape(ddpdoctor.render(self.report, "html")), height=HEIGHT)


class ShownText(Shown):
    """A report of lint, which is short, as text."""

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(ddpdoctor.render(self.report))}</pre>"


def _do(shell: InteractiveShell, verb: Sequence[str], paths: Sequence[str]) -> Shown:
    if [*verb] == ["lint"]:
        return ShownText(ddpdoctor.lint(*paths) if paths else _lint_cells(shell.user_ns.get("In", [])))
    if [*verb] == ["analyze"] and paths:
        return Shown(ddpdoctor.analyze(*paths))
    if [*verb] == ["report"] and len(paths) == 1:
        return Shown(ddpdoctor.load_report(paths[0]))
    raise MagicError(f"usage: {USAGE}")


def _lint_cells(cells: Sequence[str]) -> ddpdoctor.Report:
    """Lint the cells that were run, by the numbers that Jupyter shows."""
    made: list[dict[str, Any]] = [
        {"cell_type": "code", "source": text, "metadata": {}, "outputs": [], "execution_count": None}
        for text in cells[1:]  # the first one is empty, so that In[1] is the first cell
    ]
    with tempfile.TemporaryDirectory(prefix="ddpdoctor-") as folder:
        path = Path(folder, "notebook.ipynb")
        path.write_text(
            json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}), "utf-8"
        )
        report = ddpdoctor.lint(path)
    name = {place.file for each in report.findings for place in each.where}
    return _rename(report, {file: "notebook" for file in name})


def _rename(report: ddpdoctor.Report, names: dict[str, str]) -> ddpdoctor.Report:
    """Return the report of a temporary file under a name that means something."""

    def rename(text: str) -> str:
        for old, new in names.items():
            text = text.replace(old, new)
        return text

    findings = tuple(
        replace(
            each,
            message=rename(each.message),
            where=tuple(replace(place, file=rename(place.file)) for place in each.where),
        )
        for each in report.findings
    )
    return replace(report, findings=findings)
