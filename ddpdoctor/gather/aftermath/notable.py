"""Lines of a log that are most worth reading where no entry of the table of texts settles what happened."""

from __future__ import annotations

import re

from ddpdoctor.evidence.job import NotableLine
from ddpdoctor.evidence.texts import NOISE, find_entry, match_line
from ddpdoctor.gather.aftermath.lines import plain, read_prefix
from ddpdoctor.gather.scrub import scrub

WORDS = (
    b"oom_kill",
    b"oom-kill",
    b"Out Of Memory",
    b"exceeded memory",
    b"core dumped",
    b"Segmentation fault",
    b"Fatal Python error",
    b"terminate called",
    b"Killed",
    b"Hangup",
    b"Aborted",
    b"CANCELLED",
    b"NCCL WARN",
    b"srun: error",
    b"slurmstepd",
    b"CUDA error",
    b"panic",
    b"FATAL",
    b"rror: ",
    b"ERROR",
    b"CRITICAL",
    b"exit code",
    b"Exception",
)
"""What people search a log for, the most telling first."""
MOST = 5
"""Lines that are kept of one log."""
_EACH = 3
"""Lines that one word gives of one stretch, the last ones."""
_LENGTH = 300
_HARMLESS = re.compile(
    r"rror: {0,4}[-+]?\d*\.?\d|\b0 (?:errors?|ERRORS?)\b|exit code:? 0\b|^\s*(?:raise|except|#|from \S+ import) "
)
"""Measured errors, counts of none, and source lines of a traceback."""


class NotableReader:
    """Collects such lines; memory and time are bounded by the words, not by how often they stand there."""

    def __init__(self, name: str, *, labelled: bool = False) -> None:
        self._name, self._labelled = name, labelled
        self._found: list[tuple[int, int, str]] = []
        """Place of the word, negative number of the line, text."""
        self._last = (0, "")

    def take(self, data: bytes, first: int) -> None:
        """Take a stretch of the log that begins with line ``first``."""
        for place, word in enumerate(WORDS):
            end = len(data)
            for _ in range(_EACH):
                hit = data.rfind(word, 0, end)
                if hit < 0:
                    break
                start = max(data.rfind(b"\n", 0, hit), data.rfind(b"\r", 0, hit)) + 1
                self._keep(place, first + data.count(b"\n", 0, start), data, start)
                end = start
        tail = data[-8 * _LENGTH :]
        stripped = tail.rstrip()
        if stripped:
            line = stripped[max(stripped.rfind(b"\n"), stripped.rfind(b"\r")) + 1 :]
            behind = tail.count(b"\n", len(stripped))
            self._last = (first + data.count(b"\n") - behind, self._read(line))

    def _keep(self, place: int, number: int, data: bytes, start: int) -> None:
        text = self._read(data[start : start + 4 * _LENGTH].partition(b"\n")[0])
        if not text or _HARMLESS.search(text):
            return
        known = match_line(text)
        if known and all(find_entry(entry).role == NOISE for entry, _ in known):
            return
        self._found.append((place, -number, text))
        self._found = sorted(set(self._found))[: 4 * MOST]

    def _read(self, raw: bytes) -> str:
        line = read_prefix(plain(raw.decode("utf-8", "replace")), labelled=self._labelled)
        return scrub(line.text.strip())[:_LENGTH]

    def finish(self) -> tuple[NotableLine, ...]:
        """Return the lines in their order; where none reports trouble, the last line of the log."""
        lines: dict[int, str] = {}
        for _, number, text in self._found:
            if len(lines) < MOST and text not in lines.values():
                lines.setdefault(-number, text)
        if lines:
            return tuple(NotableLine(self._name, number, lines[number]) for number in sorted(lines))
        number, text = self._last
        return (NotableLine(self._name, number, text, trouble=False),) if text else ()
