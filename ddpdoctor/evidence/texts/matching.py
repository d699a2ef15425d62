"""Knowing texts again: which entries of the table match a line, a whole message, or a stretch of a log.

Pure: text in, matches out. A log is read in three steps, each cheap against the next: one search for gate words
over raw bytes, a literal of each entry in the lines that pass, and only then the entry's pattern. What NCCL prints
behind its prefix is looked up by its rarest word (`ddpdoctor.evidence.texts.templates`).
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from ddpdoctor.evidence.texts.entries import CAUSE, CONSEQUENCE, ENTRIES, NCCL_WARNS, NOISE, TextEntry
from ddpdoctor.evidence.texts.templates import TemplateIndex

__all__ = [
    "CAUSE",
    "CONSEQUENCE",
    "ENTRIES",
    "LINE_LIMIT",
    "NOISE",
    "TextEntry",
    "TextHit",
    "choose_entry",
    "find_entry",
    "holds_gate",
    "list_gates",
    "match_line",
    "match_text",
    "scan_chunk",
]

LINE_LIMIT = 4096
"""Characters of a line that are looked at: the longest text known, a mismatch with two fingerprints, has some
900, and a prefix of a launcher stands before it."""
TEXT_LINES = 400
"""Lines of one exception's text that are looked at: C++ stack traces in it have some 60."""

TextHit: TypeAlias = tuple[str, dict[str, str]]
"""Id of an entry, and the named groups that took part in the match."""

_RARE = "QZJXzqjKYWVHUOFBLxGNMDPCSRTAEI<"
"""Characters that are rare in training logs, the rarest first: a gate begins with one of them, so that the search
skips from one to the next. On two cores 170 MB/s; with gates that begin with any letter it was 29."""
_GATE_LENGTH = 4
"""Least characters of a gate: enough that hardly any ordinary word passes."""
_RARE_START = re.compile(rf"[{_RARE}].{{{_GATE_LENGTH - 1}}}")

_LAST_ERROR = "Last error:"
"""torch's words before what ncclGetLastError returns, which stands on the next line without NCCL's prefix
(torch/csrc/distributed/c10d/NCCLUtils.cpp, getNcclErrorDetailStr)."""
_FAILURE = "Cuda failure '"
"""NCCL's words before CUDA's name of an error, which some builds of RCCL print with HIP's name."""
_WARN_GATE = "L WARN"
"""Gate of `NCCL_WARNS`: "WARN" alone stands in half of all logs."""
_NEXT_PREFIX = re.compile(r"(?<![\w.-])[\w.-]{1,64}:\d{1,10}:\d{1,10} \[")
"""NCCL's prefix on a line of another process, where two wrote into one line."""

_QUOTED = re.compile(
    r"^\s{0,200}(?:\[[^\]]{1,40}\]:?\s{0,80})?(?:raise\b|assert\b|print\(|log(?:ger|ging)?\.\w{1,20}\("
    r"|warnings\.warn\(|#(?! Out of bounds values| Avg bus bandwidth|  Rank )|if\b|elif\b"
    r"|return\b|self\.|except\b|pytest\.|[\w.]{1,80} = )"
)
"""A line of Python, as a traceback shows it or a log quotes it, with a launcher's prefix or without: a text in it
was not said by anybody."""


def _choose_gate(literal: str) -> str:
    """Return the part of a literal that begins with its rarest character.

    Raises:
        ValueError: it has no rare character that is followed by enough others.
    """
    starts = [i for i in range(len(literal) - _GATE_LENGTH + 1) if literal[i] in _RARE]
    if not starts:
        raise ValueError(f"nothing rare in {literal!r}")
    return literal[min(starts, key=lambda i: (_RARE.index(literal[i]), i)) :]


@functools.cache
def _plain_gates() -> tuple[bytes, ...]:
    """Return the gates without a rare character, each of which costs a search of its own: there must be few."""
    literals = {text for entry in _patterned() for text in entry.gates or (entry.anchor,)}
    return tuple(sorted(text.encode() for text in literals if not _RARE_START.search(text)))


@functools.cache
def _gate_pattern() -> re.Pattern[bytes]:
    """Return the search for gates over raw bytes; gates that begin alike share a branch."""
    gates = sorted(gate.decode() for gate in list_gates() if gate not in _plain_gates())
    by_first: dict[str, list[str]] = {}
    for gate in gates:
        by_first.setdefault(gate[0], []).append(re.escape(gate[1:]))
    branches = (re.escape(first) + "(?:" + "|".join(rests) + ")" for first, rests in by_first.items())
    return re.compile("|".join(branches).encode())


def list_gates() -> list[bytes]:
    """Return literals of which each line that an entry knows holds one, or follows one that does."""
    literals = [text for entry in _patterned() for text in entry.gates or (entry.anchor,)]
    known = [_choose_gate(text) for text in literals if text.encode() not in _plain_gates()]
    gates = sorted({*known, _WARN_GATE, _choose_gate(_LAST_ERROR)})
    return [*(gate.encode() for gate in gates), *_plain_gates()]


def holds_gate(line: bytes) -> bool:
    """Whether one of `list_gates` stands in a line."""
    return _gate_pattern().search(line) is not None or any(gate in line for gate in _plain_gates())


@functools.cache
def _patterned() -> tuple[TextEntry, ...]:
    return tuple(entry for entry in ENTRIES if entry.pattern)


@functools.cache
def _index() -> TemplateIndex:
    return TemplateIndex({entry.id: entry.templates for entry in ENTRIES if entry.templates})


@functools.cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def find_entry(id: str) -> TextEntry:
    """Return the entry of this id.

    Raises:
        KeyError: there is none.
    """
    return _by_id()[id]


@functools.cache
def _by_id() -> dict[str, TextEntry]:
    return {entry.id: entry for entry in ENTRIES}


@functools.cache
def _order() -> dict[str, int]:
    return {entry.id: place for place, entry in enumerate(ENTRIES)}


def match_line(text: str) -> list[TextHit]:
    """Return the entries that know a line, in the table's order, each with its named groups.

    Args:
        text: one line; only the first `LINE_LIMIT` characters are looked at. A line of source code, as
            tracebacks quote it, matches nothing.
    """
    line = text[:LINE_LIMIT]
    near = [entry for entry in _patterned() if entry.anchor in line]
    warned = NCCL_WARNS in line
    if not (near or warned) or _QUOTED.match(line):
        return []
    found: list[TextHit] = []
    for entry in near:
        match = _compile(entry.pattern).search(line)
        if match is not None and not (entry.unless and _compile(entry.unless).search(line)):
            found.append((entry.id, {k: v for k, v in match.groupdict().items() if v is not None}))
    if warned:
        found += _match_warnings(line)
        found.sort(key=lambda hit: _order()[hit[0]])
    return found


def match_nccl(text: str, before: str = "") -> TextHit | None:
    """Return the entry of what NCCL said; None where it is not known.

    Args:
        text: without its prefix.
        before: the prefix, which names the source file.
    """
    line = text[:LINE_LIMIT].replace("HIP failure: '", _FAILURE).replace("HIP failure '", _FAILURE)
    elsewhere = {id for id, place in _placed().items() if place not in before}
    found = _index().find(line, elsewhere)
    if found is None:
        return None
    for id in _placed().keys() - elsewhere:
        # Of two templates that say as much, the one of this place says more.
        here = _index().find(line, _order().keys() - {id})
        if here is not None and here[1].weight >= found[1].weight:
            found = here
    return found[0], found[2]


@functools.cache
def _placed() -> dict[str, str]:
    return {entry.id: entry.place for entry in ENTRIES if entry.place}


def _match_warnings(line: str) -> list[TextHit]:
    """Return the entries of all that NCCL says in a line; two processes may have written into one."""
    found: dict[str, dict[str, str]] = {}
    parts = line.split(NCCL_WARNS)
    for before, part in itertools.pairwise(parts):
        other = _NEXT_PREFIX.search(part)
        hit = match_nccl(part[: other.start()] if other else part, before[-80:])
        if hit is not None:
            found.setdefault(*hit)
    return list(found.items())


def _match_after(line: str, before: str) -> list[TextHit]:
    """Return the entries of a line; behind "Last error:" NCCL's prefix is missing."""
    found = match_line(line)
    if before.rstrip().endswith(_LAST_ERROR) and NCCL_WARNS not in line:
        hit = match_nccl(line)
        if hit is not None and hit not in found:
            found = sorted([*found, hit], key=lambda each: _order()[each[0]])
    return found


@functools.lru_cache(maxsize=32768)
def _match_cached(text: str) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    found: dict[str, tuple[tuple[str, str], ...]] = {}
    before = ""
    for line in text.splitlines()[:TEXT_LINES]:
        for id, groups in _match_after(line, before):
            found.setdefault(id, tuple(groups.items()))
        before = line
    order = _order()
    return tuple(sorted(found.items(), key=lambda item: order[item[0]]))


def match_text(text: str) -> list[TextHit]:
    """Return the entries that know any line of a message, each once, in the table's order.

    Ranks say the same thing thousands of times, so answers are kept.
    """
    return [(id, dict(groups)) for id, groups in _match_cached(text)]


def choose_entry(matches: Sequence[TextHit]) -> TextEntry | None:
    """Return the entry that says most: the narrowest that is no noise; None where there is none."""
    order = _order()
    known = sorted((id for id, _ in matches), key=lambda id: order[id])
    return next((entry for id in known if (entry := find_entry(id)).role != NOISE), None)


class _GateSearch:
    """Finds the next gate of a stretch."""

    def __init__(self, chunk: bytes) -> None:
        self._chunk = chunk
        self._plain = {gate: -2 for gate in _plain_gates()}

    def next(self, position: int) -> tuple[int, int] | None:
        """Return where the next gate from a position on begins and ends; None where there is none."""
        found = _gate_pattern().search(self._chunk, position)
        best = found.span() if found else None
        for gate, known in self._plain.items():
            if known != -1 and known < position:
                known = self._plain[gate] = self._chunk.find(gate, position)
            if known >= 0 and (best is None or known < best[0]):
                best = (known, known + len(gate))
        return best


def scan_chunk(
    chunk: bytes, note: Callable[[int], None] = lambda size: None
) -> Iterator[tuple[int, str, list[TextHit]]]:
    """Yield the lines of a stretch of a log that an entry knows: offset in the chunk, line, matches.

    Args:
        chunk: the stretch.
        note: told the characters of each line that is compared with the table.

    The stretch should begin and end at a line's end; a line that is cut is looked at as it is. Bytes that are no
    UTF-8 are replaced. A carriage return ends a line too, as progress bars use it.
    """
    search = _GateSearch(chunk)
    position, size = 0, len(chunk)
    while position < size:
        hit = search.next(position)
        if hit is None:
            return
        first, last = hit
        floor = max(position, first - LINE_LIMIT)
        start = max(chunk.rfind(b"\n", floor, first), chunk.rfind(b"\r", floor, first)) + 1 or floor
        end = chunk.find(b"\n", last)
        end = size if end < 0 else end
        # A progress bar's carriage return, but not the one of a Windows line end.
        turn = chunk.find(b"\r", last, min(end - 1, start + LINE_LIMIT)) if end > last else -1
        end = turn if turn >= 0 else end
        line = chunk[start : min(end, start + 4 * LINE_LIMIT)].decode("utf-8", "replace").rstrip("\r")
        note(min(len(line), LINE_LIMIT))
        matches = match_line(line)
        if matches:
            yield start, line[:LINE_LIMIT], matches
        position = end + 1
        if line.rstrip().endswith(_LAST_ERROR):
            yield from _scan_last_error(chunk, position)


def _scan_last_error(chunk: bytes, start: int) -> Iterator[tuple[int, str, list[TextHit]]]:
    """Yield the line behind "Last error:", which may hold no gate; what has one is found anyway."""
    end = chunk.find(b"\n", start, start + LINE_LIMIT)
    line = chunk[start : end if end >= 0 else start + LINE_LIMIT].decode("utf-8", "replace").rstrip("\r")
    hit = match_nccl(line) if NCCL_WARNS not in line and not _QUOTED.match(line) else None
    if hit is not None and hit not in match_line(line):
        yield start, line, [hit]
