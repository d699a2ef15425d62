"""A log of any size in stretches that end with a line."""

from __future__ import annotations

import io
from collections.abc import Iterator

from ddpdoctor.gather.opening import read_some

CHUNK = 4 << 20
LONGEST_LINE = 8 << 20
"""Bytes after which a line without an end is cut: a progress bar's, or no log's."""


def read_stretches(stream: io.BufferedIOBase, first: bytes, limit: int) -> Iterator[bytes]:
    """Yield a file in stretches that end with a line.

    Args:
        stream: positioned behind ``first``.
        first: what was read of it already.
        limit: bytes after which it is cut.
    """
    rest, seen = first, len(first)
    while seen < limit and (chunk := read_some(stream, CHUNK)):
        seen += len(chunk)
        data = rest + chunk
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) > LONGEST_LINE:
            cut = data.rfind(b"\r") + 1 or len(data)
        if cut:
            yield data[:cut]
        rest = data[cut:]
    if rest:
        yield rest
