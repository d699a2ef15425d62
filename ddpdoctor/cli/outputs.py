"""Writing outputs. Files never replace the text, and a file that cannot be written never loses it."""

from __future__ import annotations

import argparse
import errno
import os
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.cli.arguments.options import STDOUT, Output
from ddpdoctor.cli.output.display import Display, complain, print_text, reserved_stdout
from ddpdoctor.errors import EXIT_FAILED, EXIT_OK, OutputError
from ddpdoctor.judge.catalogue import CodePage
from ddpdoctor.judge.registry import OURS
from ddpdoctor.report.model import Report
from ddpdoctor.report.registry import RendererRegistry, RenderOptions

if TYPE_CHECKING:
    from ddpdoctor.report.cleaning import Cleaner

RENDER_LIMIT_S = 60.0
"""The page of 16,384 ranks takes a few seconds; a renderer of anyone that takes a minute hangs."""


def render_options(
    display: Display, *, verbosity: int = 0, pages: dict[str, CodePage] | None = None
) -> RenderOptions:
    """Return what renderers are told about the display, and about where they run."""
    from ddpdoctor.gather.excerpts import SourceReader
    from ddpdoctor.gather.scrub import scrub

    directory = _find_directory()
    return RenderOptions(
        color=display.color,
        ascii=display.ascii,
        width=display.width,
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


def deliver(
    report: Report, outputs: Sequence[Output], renderers: RendererRegistry, options: RenderOptions
) -> int:
    """Write all outputs, then the text unless another format was asked for on stdout.

    Returns:
        `EXIT_OK`, or `EXIT_FAILED` when something could not be written; messages went to stderr.
    """
    written: list[str] = []
    problems: list[OutputError] = []
    for output in outputs:
        if output.path is None:
            continue
        try:
            write_file(Path(output.path), render(report, output.format, renderers, _for_file(options)))
            written.append(output.path)
        except OutputError as problem:
            problems.append(problem)
    stdout = next((output.format for output in outputs if output.path is None), "text")
    shown = replace(options, written=tuple(written))
    try:
        text = _render_or_text(report, stdout, renderers, shown, problems)
        print_text(text)
    except OutputError as problem:
        problems.append(problem)
    for each in problems:
        complain(each.render())
    return EXIT_FAILED if problems else EXIT_OK


def _render_or_text(
    report: Report,
    name: str,
    renderers: RendererRegistry,
    options: RenderOptions,
    problems: list[OutputError],
) -> str:
    """Where a format cannot be rendered for stdout, give the text, so that the verdict is not lost."""
    try:
        return render(report, name, renderers, options)
    except OutputError as problem:
        if name == "text":
            raise
        problems.append(problem)
        return render(report, "text", renderers, options)


def _for_file(options: RenderOptions) -> RenderOptions:
    """A file is UTF-8 and has no colours."""
    return replace(options, color=False, ascii=False)


def render(report: Report, name: str, renderers: RendererRegistry, options: RenderOptions) -> str:
    """Return the report in one format without secrets, in a thread, with a limit where the renderer is a third party's.

    Raises:
        OutputError: the renderer raised, hung, or returned something other than text.
    """
    renderer = renderers.find(name)
    if renderer is None:
        raise OutputError(f"there is no format {name!r}")
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
    with reserved_stdout():
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


def write_file(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8: a temporary file beside it, then renamed, so that nobody sees a half.

    What is no ordinary file (``/dev/full``, a pipe) is written directly; a step summary of GitHub is added to, for
    other commands of the step write there too.

    Raises:
        OutputError: it cannot be written.
    """
    write_bytes(path, text.encode("utf-8", errors="backslashreplace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` as `write_file` does.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        if _is_summary(path):
            with open(path, "ab") as summary:
                summary.write(data)
        elif os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as special:
                special.write(data)
        else:
            _replace_file(path, data)
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise OutputError(f"{path} could not be written: {reason}", hint=_hint(path)) from problem
    except ValueError as problem:  # an embedded null byte
        raise OutputError(f"{str(path)!r} could not be written: {problem}") from problem


def require_writable(options: argparse.Namespace) -> None:
    """Try the directories of all files that were asked for, before anything is launched whose result would be lost.

    Raises:
        OutputError: one cannot be written to.
    """
    paths = [*getattr(options, "outputs", ()), *(path for _, path in getattr(options, "formats", ()) if path)]
    for path in (Path(each) for each in paths if each not in ("", STDOUT)):
        try:
            if os.path.isdir(path):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not os.path.exists(path) or os.path.isfile(path):
                tempfile.TemporaryFile(dir=path.resolve().parent).close()
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise OutputError(f"{path} cannot be written: {reason}", hint=_hint(path)) from problem
        except ValueError as problem:  # an embedded null byte
            raise OutputError(f"{str(path)!r} cannot be written: {problem}") from problem


def _is_summary(path: Path) -> bool:
    name = os.environ.get("GITHUB_STEP_SUMMARY")
    return bool(name) and os.path.abspath(path) == os.path.abspath(name or "")


def _replace_file(path: Path, data: bytes) -> None:
    target = path.resolve()  # a symbolic link stays one
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _mode(target: Path) -> int:
    """The mode of the file that is replaced, or what the umask leaves of 0666."""
    try:
        return target.stat().st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def _hint(path: Path) -> str | None:
    if os.path.isdir(path):
        return f"{path / 'report.html'}"
    if not os.path.exists(path.parent):
        return f"mkdir -p {path.parent}"
    return None
