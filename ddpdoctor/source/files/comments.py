"""Comments by which a user says that a finding is not to count: ``# ddpdoctor: ignore[CODE] reason``."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from ddpdoctor.evidence.sources import IgnoreComment, SourcePlace
from ddpdoctor.source.files.budget import spend
from ddpdoctor.source.files.reading import Script

MARK = "ddpdoctor:"
IGNORE = re.compile(r"#\s{0,40}ddpdoctor:\s{0,40}ignore\b\s{0,40}(?:\[([^\]#]{0,1000})\])?([^#]*)")
"""Codes and reason; a further comment (``# noqa``) may stand before or behind it."""


def find_ignores(script: Script) -> tuple[IgnoreComment, ...]:
    """Return the comments of a file, in order of the lines; what only stands in a string is none.

    A comment is meant for the statement on whose lines it stands. On a line of its own between statements it is meant
    for the next one.
    """
    if script.tree is None or MARK not in script.text:
        return ()
    spans = _Spans(script)
    found = []
    for line, column, text in _comments(script.lines):
        match = IGNORE.search(text)
        if match is None:
            continue
        first, last = spans.choose(line)
        cell, before = script.cell_of(line)
        place = SourcePlace(
            script.name, line - before, column + match.start() + 1, script.lines[line - 1].strip(), None, cell
        )
        comment = read_ignore(text, place, first - before, last - before)
        found += [comment] if comment is not None else []
    return tuple(found)


def read_ignore(text: str, place: SourcePlace, first: int, last: int) -> IgnoreComment | None:
    """Return what a comment says; None where it suppresses nothing.

    Args:
        text: the comment.
        place: where it stands.
        first: the first line that it is meant for.
        last: the last one.
    """
    match = IGNORE.search(text)
    if match is None:
        return None
    codes = tuple(word for part in (match[1] or "").split(",") if (word := part.strip()))
    reason = match[2].strip().lstrip(":-–— ").strip()
    return IgnoreComment(place, codes, reason, first, last)


def _comments(lines: list[str]) -> Iterator[tuple[int, int, str]]:
    """Yield line, column and text of each comment; of what cannot be told into tokens, those before that."""
    try:
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.start[1], token.string
    except (tokenize.TokenError, SyntaxError):
        return


def _find_spans(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Yield first and last line of each statement; of one with a block, those of what stands before the block."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        first, last = node.lineno, node.end_lineno or node.lineno
        if hasattr(node, "body") or isinstance(node, ast.Match):
            head = [each for each in ast.iter_child_nodes(node) if isinstance(each, _HEADS)]
            inside = [each for part in head for each in ast.walk(part) if isinstance(each, ast.expr)]
            first = min([first, *(each.lineno for each in inside)])
            last = max([node.lineno, *(each.end_lineno or each.lineno for each in inside)])
        yield first, last


_HEADS = (ast.expr, ast.arguments, ast.keyword, ast.withitem)
"""What may stand before the block of a statement."""


class _Spans:
    """The innermost statement at each line of a file, worked out once."""

    def __init__(self, script: Script) -> None:
        self._lines = script.lines
        self._inner: dict[int, tuple[int, int]] = {}
        assert script.tree is not None
        for span in sorted(_find_spans(script.tree), key=lambda each: (each[0], -each[1])):
            spend(1 + span[1] - span[0])
            self._inner.update(dict.fromkeys(range(span[0], span[1] + 1), span))
        self._below = [0] * (len(self._lines) + 2)
        """Number of the next line of code behind each line."""
        for number in range(len(self._lines), 0, -1):
            is_code = _is_code(self._lines[number - 1])
            self._below[number - 1] = number if is_code else self._below[number]

    def choose(self, line: int) -> tuple[int, int]:
        """Return the lines of the innermost statement around a line, or of the next one below a line of its own."""
        span = self._inner.get(line)
        if span is None and self._lines[line - 1].lstrip().startswith("#"):
            span = self._inner.get(self._below[line])
        return span or (line, line)


def _is_code(text: str) -> bool:
    bare = text.strip()
    return bool(bare) and not bare.startswith("#")
