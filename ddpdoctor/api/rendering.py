"""From a report to a text in one format, without secrets."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING

from ddpdoctor.errors import OutputError
from ddpdoctor.judge.registry import OURS
from ddpdoctor.report.registry import RendererRegistry, RenderOptions

if TYPE_CHECKING:
    from ddpdoctor.judge.catalogue import CodePage
    from ddpdoctor.report.cleaning import Cleaner
    from ddpdoctor.report.model import Report

RENDER_LIMIT_S = 60.0
"""The page of 16,384 ranks takes a few seconds; a renderer of anyone that takes a minute hangs."""


def make_options(
    *,
    color: bool = False,
    ascii: bool = False,
    width: int = 80,
    verbosity: int = 0,
    pages: dict[str, CodePage] | None = None,
) -> RenderOptions:
    """Return what renderers are told, with where they run."""
    from ddpdoctor.gather.excerpts import SourceReader
    from ddpdoctor.gather.scrub import scrub

    directory = _find_directory()
    return RenderOptions(
        color=color,
        ascii=ascii,
        width=width,
        verbosity=verbosity,
        pages=pages,
        directory=directory,
        root=_find_root(directory),
        scrub=scrub,
        read_source=None if directory is None else SourceReader(directory),
    )


def _find_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return None


def _find_root(directory: str | None) -> str | None:
    """Return where GitHub or GitLab has checked out the repository, if this is in it."""
    for name in ("GITHUB_WORKSPACE", "CI_PROJECT_DIR"):
        root = os.environ.get(name, "")
        if directory is not None and os.path.isabs(root):
            top = os.path.realpath(root)
            if directory == top or directory.startswith(top.rstrip("/") + "/"):
                return top
    return None


def render_report(report: Report, name: str, renderers: RendererRegistry, options: RenderOptions) -> str:
    """Return the report in one format without secrets, in a thread, with a limit where the renderer is a third party's.

    Raises:
        OutputError: the renderer raised, hung, or returned something other than text.
    """
    renderer = renderers.find(name)
    if renderer is None:
        raise OutputError(f"there is no format {name!r}", context=f"formats: {', '.join(renderers.names)}")
    report = clean_report(report)
    source = renderers.source_of(name)
    outcome: list[str] = []
    failure: list[BaseException] = []

    def call() -> None:
        try:
            text = renderer.render(report, options)
            if not isinstance(text, str):
                raise TypeError(f"returned {type(text).__name__} instead of text")
            outcome.append(text)
        except BaseException as problem:
            failure.append(problem)

    thread = threading.Thread(target=call, name=f"rendering {name}", daemon=True)
    with contextlib.redirect_stdout(sys.stderr):  # stdout is the report's, and may be JSON
        thread.start()
        thread.join(None if source == OURS else RENDER_LIMIT_S)
    if failure:
        what = f"{type(failure[0]).__name__}: {failure[0]}"
        raise OutputError(f"format {name} (from {source}) failed: {what}") from failure[0]
    if not outcome:
        raise OutputError(f"format {name} (from {source}) did not finish within {RENDER_LIMIT_S:g} s")
    return outcome[0]


_cleaned: list[tuple[Report, Report]] = []
"""The report that was cleaned last and what came of it: one is rendered in several formats."""


def clean_report(report: Report) -> Report:
    """Return the report without secrets."""
    for known, cleaned in _cleaned:
        if report is known or report is cleaned:
            return cleaned
    _cleaned[:] = [(report, make_cleaner().clean(report))]
    return _cleaned[0][1]


def make_cleaner() -> Cleaner:
    """Return what takes secrets out of anything that is shown or kept."""
    from ddpdoctor.gather.scrub import scrub, scrub_source
    from ddpdoctor.report.cleaning import Cleaner

    return Cleaner(scrub, scrub_source)
