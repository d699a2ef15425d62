"""Lines of a log that are most worth reading where no entry of the table of texts settles what happened.

The decisive line of a failure is one that others do not repeat: only one rank or host says it, it comes before the
rest, and its wording is rare. So lines that hold a word of trouble are folded by their wording, and counted by who
says them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ddpdoctor.aftermath.lines import plain, read_prefix
from ddpdoctor.evidence.job import NotableLine
from ddpdoctor.evidence.texts.matching import CAUSE, CONSEQUENCE, NOISE, find_entry, match_line
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
    b"NVRM: ",
    b"srun: error",
    b"slurmstepd",
    b"CUDA error",
    b"HIP error",
    b"panic",
    b"FATAL",
    b"rror: ",
    b"ERROR",
    b"CRITICAL",
    b"exit code",
    b"Exception",
)
"""What people search a log for, the most telling first."""
SEARCHED = (
    b"oom",
    *(word for word in WORDS if not word.endswith((b"error", b"_kill", b"-kill")) and word != b"slurmstepd"),
)
"""Words that are searched for; the others stand in lines that hold one of these too."""
MOST = 10
"""Lines that are kept of one log."""
_FIRST = 4000
"""Lines that one word gives of one stretch, the first ones."""
_LAST = 3
"""Lines that one word gives of one stretch, the last ones: what ended a job comes late."""
_BUDGET = 30_000
"""Lines that are read of one log, without the last ones of each stretch."""
_LENGTH = 300
_HARMLESS = re.compile(
    r"rror: {0,4}[-+]?\d*\.?\d|\b0 (?:errors?|ERRORS?)\b|exit code:? 0\b|^\s*(?:raise|except|#|from \S+ import) "
)
"""Measured errors, counts of none, and source lines of a traceback."""
_VARYING = re.compile(r"0x[\da-fA-F]{1,16}|\d{1,20}")
_TRAIL = re.compile(rb"[^\n]{0,160}NCCL INFO \S{1,120}:\d{1,5} -> [1-9]")
"""NCCL's way back out of a call that failed: what was printed before it was not harmless this time."""
_SPEAKER = re.compile(
    r"(?<![\w.-])[\w.-]{1,64}:\d{1,10}:\d{1,10} \[\d{1,5}\]|\[[Rr]ank ?\d{1,7}\]| Rank \d{1,7}\]"
)


@dataclass(slots=True)
class _Wording:
    """Lines that differ in numbers only."""

    place: int
    """Place of the word in `WORDS`."""
    role: int
    """0 it names a cause or is not known, 1 it follows from another failure."""
    line: int
    """The first one's number."""
    text: str
    lines: set[int] = field(default_factory=set)
    speakers: set[str] = field(default_factory=set)
    harmless: bool = False
    """The table knows it as noise."""

    def key(self, speakers: int) -> tuple[int, bool, int, bool, int]:
        """Return what sorts the decisive before the rest."""
        alone = len(self.speakers) < max(2, speakers)
        return (self.role, not alone, self.place, len(self.lines) > _LAST, self.line)


def mask_numbers(text: str) -> str:
    """Return the wording of a line: without who says it, and with its numbers blanked out."""
    return _VARYING.sub("#", _SPEAKER.sub("", text))


def _find_start(data: bytes, hit: int) -> int:
    """Return where the line of a place begins, or what a progress bar's carriage return left of it."""
    start = data.rfind(b"\n", 0, hit) + 1
    return max(data.rfind(b"\r", start, hit) + 1, start)


class NotableReader:
    """Collects such lines; memory and time are bounded by the words and a budget, not by how often they stand there."""

    def __init__(self, name: str, *, labelled: bool = False) -> None:
        self._name, self._labelled = name, labelled
        self._found: dict[str, _Wording] = {}
        self._left = _BUDGET
        self._last = (0, "")

    def take(self, data: bytes, first: int, lines: int) -> None:
        """Take a stretch of the log that begins with line ``first`` and has so many lines' ends."""
        for word in SEARCHED:
            for number, start in self._find(data, word, first):
                self._keep(number, data, start)
        if len(self._found) > 40 * MOST:
            kept = sorted(self._found.items(), key=lambda item: item[1].key(0))[: 20 * MOST]
            self._found = dict(kept)
        self.pass_over(data, first, lines)

    def pass_over(self, data: bytes, first: int, lines: int) -> None:
        """Note the last line of a stretch in which nothing is searched."""
        tail = data[-8 * _LENGTH :]
        stripped = tail.rstrip()
        if stripped:
            line = stripped[max(stripped.rfind(b"\n"), stripped.rfind(b"\r")) + 1 :]
            behind = tail.count(b"\n", len(stripped))
            self._last = (first + lines - behind, self._read(line)[0])

    def _find(self, data: bytes, word: bytes, first: int) -> Iterator[tuple[int, int]]:
        """Yield number and start of the first and of the last lines of a stretch that hold a word."""
        position, number, counted = 0, first, 0
        for _ in range(_FIRST):
            hit = data.find(word, position) if self._left > 0 else -1
            if hit < 0:
                if self._left > 0:
                    return
                break
            self._left -= 1
            start = _find_start(data, hit)
            number += data.count(b"\n", counted, start)
            counted = start
            yield number, start
            end = data.find(b"\n", hit)
            if end < 0:
                return
            position = end
        end = len(data)
        for _ in range(_LAST):
            hit = data.rfind(word, position, end)
            if hit < 0:
                break
            start = _find_start(data, hit)
            yield first + data.count(b"\n", 0, start), start
            end = start

    def _keep(self, number: int, data: bytes, start: int) -> None:
        raw, _, following = data[start : start + 4 * _LENGTH].partition(b"\n")
        place = next((place for place, word in enumerate(WORDS) if word in raw), None)
        if place is None:
            return
        text, speaker = self._read(raw)
        if not text or _HARMLESS.search(text):
            return
        wording = mask_numbers(text)
        found = self._found.get(wording)
        if found is None:
            roles = {find_entry(entry).role for entry, _ in match_line(text)}
            role = int(CONSEQUENCE in roles and CAUSE not in roles)
            harmless = roles == {NOISE} and not _TRAIL.match(following.partition(b"\n")[0])
            found = self._found[wording] = _Wording(place, role, number, text, harmless=harmless)
        if number < found.line:
            found.line, found.text = number, text
        found.place = min(found.place, place)
        if len(found.lines) <= _LAST:
            found.lines.add(number)
        if len(found.speakers) < 64:
            found.speakers.add(speaker)

    def _read(self, raw: bytes) -> tuple[str, str]:
        """Return a line without its prefix, and who says it as far as the line tells."""
        line = read_prefix(plain(raw.decode("utf-8", "replace")), labelled=self._labelled)
        said = _SPEAKER.search(line.text)
        return scrub(line.text.strip())[:_LENGTH], line.key or (said[0] if said else "")

    def finish(self) -> tuple[NotableLine, ...]:
        """Return the lines in their order; where none reports trouble, the last line of the log."""
        found = [each for each in self._found.values() if not each.harmless]
        speakers = len(set().union(*(each.speakers for each in found)))
        ordered = sorted(found, key=lambda each: each.key(speakers))[:MOST]
        if ordered:
            return tuple(
                NotableLine(self._name, each.line, each.text)
                for each in sorted(ordered, key=lambda e: e.line)
            )
        number, text = self._last
        return (NotableLine(self._name, number, text, trouble=False),) if text else ()
