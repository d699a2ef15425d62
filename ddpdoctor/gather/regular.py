"""Opening what ought to be an ordinary file, where anybody may have put something else."""

from __future__ import annotations

import errno
import io
import os
import stat


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file for reading.

    Raises:
        OSError: it cannot be opened, or is no ordinary file: a pipe would block, a device never end.
    """
    # O_NONBLOCK: else opening a pipe waits for who writes into it.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
    return os.fdopen(handle, "rb")
