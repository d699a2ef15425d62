"""Logs of a run directory through the table of texts, in bounded memory."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from ddpdoctor.evidence.job import ExceptionRecord, ProcessRecord, TextMatch
from ddpdoctor.evidence.texts.matching import match_text, scan_chunk
from ddpdoctor.gather.regular import open_regular
from ddpdoctor.gather.scrub import scrub
from ddpdoctor.watch.readers.records import MESSAGE_LIMIT

CHUNK = 4 << 20
LONGEST_LINE = 8 << 20
"""Bytes after which a line without an end is cut: binary output, or a progress bar's."""
MATCHES_PER_LOG = 200
"""Different entries kept of one log; the same one again is only counted."""


def scan_log(
    path: Path, record: ProcessRecord | None, stream: str, most: int | None = None
) -> list[TextMatch]:
    """Return the texts that the table knows in one log, each entry once with how often it came.

    Args:
        path: the log.
        record: its process.
        stream: stdout or stderr.
        most: bytes that are read, half of them at each end; all when None.

    Raises:
        OSError: it cannot be read.
    """
    scan = _Scan(path.name, record, stream)
    with open_regular(path) as file:
        rest = b""
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            scan.read(file.read(most // 2))
            file.seek(size - most // 2)
        while chunk := file.read(CHUNK):
            data = rest + chunk
            cut = data.rfind(b"\n") + 1
            if not cut and len(data) > LONGEST_LINE:
                cut = len(data)
            scan.read(data[:cut])
            rest = data[cut:]
        scan.read(rest)
    return scan.matches()


class _Scan:
    """What was found in one log so far."""

    def __init__(self, file: str, record: ProcessRecord | None, stream: str) -> None:
        self._file, self._record, self._stream = file, record, stream
        self._first: dict[str, TextMatch] = {}
        self._counts: dict[str, int] = {}

    def read(self, data: bytes) -> None:
        """Look through whole lines."""
        for _, line, hits in scan_chunk(data):
            for entry, groups in hits:
                if entry in self._first:
                    self._counts[entry] += 1
                elif len(self._first) < MATCHES_PER_LOG:
                    self._counts[entry] = 1
                    self._first[entry] = _match(entry, line, groups, self._record, self._stream, self._file)

    def matches(self) -> list[TextMatch]:
        """Return the first of each entry."""
        return [dataclasses.replace(match, count=self._counts[entry]) for entry, match in self._first.items()]


def match_exception(exception: ExceptionRecord, record: ProcessRecord | None) -> list[TextMatch]:
    """Return what the table knows of an exception itself; what a log quotes of it is the same thing."""
    line = exception.message.splitlines()[0] if exception.message else exception.type
    return [
        dataclasses.replace(_match(entry, line, groups, record, "exception", None), at=exception.at)
        for entry, groups in match_text(f"{exception.type}: {exception.message}")
    ]


def _match(
    entry: str, line: str, groups: dict[str, str], record: ProcessRecord | None, stream: str, file: str | None
) -> TextMatch:
    return TextMatch(
        entry=entry,
        text=scrub(line)[:MESSAGE_LIMIT],
        groups={key: scrub(value) for key, value in groups.items()},
        node=record.node if record else 0,
        host=record.host if record else "",
        pid=record.pid if record else None,
        rank=record.rank if record else None,
        attempt=record.attempt if record else 0,
        stream=stream,
        file=file,
    )
