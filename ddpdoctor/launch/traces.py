"""What is kept of the stacks and of the last words of ranks: paths as the user knows them, and nothing secret."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ddpdoctor.evidence import Frame, StackClass
from ddpdoctor.gather.log_tail import read_last_words
from ddpdoctor.gather.scrub import scrub, scrub_paths


def shorten_path(file: str, folder: str | None = None) -> str:
    """Return ``file`` relative to ``folder`` (None: the working directory) where it lies below it.

    Elsewhere home directories and user names are taken out of it.
    """
    if not os.path.isabs(file):
        return file
    relative = os.path.relpath(os.path.realpath(file), os.path.realpath(folder or os.getcwd()))
    return scrub_paths(file) if relative.startswith(os.pardir) else relative


def keep_stacks(stacks: Iterable[StackClass]) -> tuple[StackClass, ...]:
    """Return stacks with short paths, and the text of those lines that lie below the working directory."""
    return tuple(replace(each, frames=tuple(map(_keep_frame, each.frames))) for each in stacks)


def _keep_frame(frame: Frame) -> Frame:
    file = shorten_path(frame.file)
    if frame.source is not None or file == frame.file or os.path.isabs(file) or file.startswith("~"):
        return replace(frame, file=file)
    return replace(frame, file=file, source=linecache.getline(frame.file, frame.line).strip() or None)


def keep_last_words(path: Path) -> str | None:
    """Return the scrubbed end of a log file, or None when it is absent or empty."""
    words = read_last_words(path)
    return scrub(words) if words else None
