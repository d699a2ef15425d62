"""Writing below a directory that the job may change: nothing of ours ever lands outside of it.

Each step of a path is opened by descriptor and never through a symbolic link, so that a run directory, or a folder in
it, that the job has replaced by a link does not send what we write elsewhere. Files are 0600 and folders 0700.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def open_folder(path: Path) -> int:
    """Return a descriptor of a directory.

    Raises:
        OSError: there is none.
    """
    return os.open(path, _FOLDER)


def anchor(descriptor: int) -> Path:
    """Return a path that leads to an open directory wherever that is, for this process alone (proc(5), fd)."""
    return Path("/proc/self/fd") / str(descriptor)


def create_below(root: Path, name: str) -> BinaryIO:
    """Open a file for writing from its beginning, unbuffered; folders on the way are made.

    Args:
        root: the directory, e.g. an `anchor`.
        name: of the file, relative to it.

    Raises:
        OSError: it cannot be opened, or a step of the way is a link.
    """
    with _parent(root, name) as (folder, last):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        return open(os.open(last, flags, 0o600, dir_fd=folder), "wb", buffering=0)


def write_below(root: Path, name: str, data: bytes) -> None:
    """Write a file whole or not at all: beside it first, then renamed over what is there.

    Args:
        root: the directory, e.g. an `anchor`.
        name: of the file, relative to it.
        data: what it will hold.

    Raises:
        OSError: it cannot be written, or a step of the way is a link.
    """
    with _parent(root, name) as (folder, last):
        beside = f".{last}.{os.urandom(4).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        handle = os.open(beside, flags, 0o600, dir_fd=folder)
        try:
            with open(handle, "wb") as file:
                file.write(data)
            os.rename(beside, last, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(beside, dir_fd=folder)
            raise


def make_folder(root: Path, name: str) -> Path:
    """Make a folder below a directory, if it is not there, and return its path; a link is none.

    Raises:
        OSError: it cannot be made.
    """
    with _parent(root, f"{name}/x"):
        return root / name


@contextlib.contextmanager
def _parent(root: Path, name: str) -> Iterator[tuple[int, str]]:
    """Open the folder of a file, and give it with the last part of the name."""
    *folders, last = name.split("/")
    current = open_folder(root)
    try:
        for part in folders:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=current)
            below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=current)
            os.close(current)
            current = below
        yield current, last
    finally:
        os.close(current)
