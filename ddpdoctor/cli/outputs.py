"""Writing outputs. Files never replace the text, and a file that cannot be written never loses it."""

from __future__ import annotations

import argparse
import errno
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ddpdoctor.api.rendering import clean_report, make_options
from ddpdoctor.api.rendering import render_report as render
from ddpdoctor.cli.arguments.options import STDOUT, Output
from ddpdoctor.cli.output.display import Display, complain, print_text
from ddpdoctor.errors import EXIT_FAILED, EXIT_OK, OutputError
from ddpdoctor.judge.catalogue import CodePage
from ddpdoctor.report.model import Report
from ddpdoctor.report.registry import RendererRegistry, RenderOptions

__all__ = [
    "clean_report",
    "deliver",
    "render",
    "render_options",
    "require_writable",
    "write_bytes",
    "write_file",
]


def render_options(
    display: Display, *, verbosity: int = 0, pages: dict[str, CodePage] | None = None
) -> RenderOptions:
    """Return what renderers are told about the display, and about where they run."""
    return make_options(
        color=display.color, ascii=display.ascii, width=display.width, verbosity=verbosity, pages=pages
    )


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
