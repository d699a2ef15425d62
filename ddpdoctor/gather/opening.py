"""Opening files that somebody else wrote: compressed or not, damaged, or no files at all."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddpdoctor.gather.regular import open_regular

UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError)
"""What reading a damaged or vanished file raises."""
_GZIP, _BZIP, _XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"
"""How compressed files begin (RFC 1952, bzip2(1), xz(1))."""


@contextmanager
def open_log(path: Path) -> Iterator[io.BufferedIOBase]:
    """Open a file for reading, decompressed where it begins like a compressed one.

    Raises:
        OSError: it cannot be opened.
    """
    with open_regular(path) as raw:
        head = raw.read(8)
        raw.seek(0)
        if head.startswith(_GZIP):
            with gzip.GzipFile(fileobj=raw, mode="rb") as unzipped:
                yield unzipped
        elif head.startswith(_BZIP):
            with bz2.BZ2File(raw, "rb") as unzipped2:
                yield unzipped2
        elif head.startswith(_XZ):
            with lzma.LZMAFile(raw, "rb") as unzipped3:
                yield unzipped3
        else:
            yield raw


def read_some(stream: io.BufferedIOBase, size: int) -> bytes:
    """Read up to ``size`` bytes; before a place that cannot be read, what comes before it.

    Raises:
        OSError, EOFError, zlib.error, lzma.LZMAError: not one byte can be read.
    """
    parts: list[bytes] = []
    seen = 0
    try:
        while seen < size and (part := stream.read1(min(size - seen, 1 << 20))):
            parts.append(part)
            seen += len(part)
    except UNREADABLE:
        if not parts:
            raise
    return b"".join(parts)
