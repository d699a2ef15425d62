"""A backtracking matcher like Python's ``re`` that counts its steps, and hostile texts made from a pattern itself.

``re`` has no counter, and time on a busy machine proves nothing. This one takes the tree that ``re`` parses, tries what
``re`` tries in the same order, and counts each attempt at one item. ``re`` skips some of them, so the count is a bound.
"""

from __future__ import annotations

import importlib
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

constants: Any = importlib.import_module("re._constants")
parser: Any = importlib.import_module("re._parser")

Continue = Callable[[int], bool]
Matcher = Callable[[int, Continue], bool]
SPACES = " \t\n\r\f\v"


class TooManyStepsError(Exception):
    """The limit was reached."""


def is_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


def _note(ends: list[int], end: int) -> bool:
    ends.append(end)
    return True


CATEGORIES: dict[str, Callable[[str], bool]] = {
    "CATEGORY_DIGIT": str.isdigit,
    "CATEGORY_NOT_DIGIT": lambda c: not c.isdigit(),
    "CATEGORY_SPACE": lambda c: c in SPACES,
    "CATEGORY_NOT_SPACE": lambda c: c not in SPACES,
    "CATEGORY_WORD": is_word,
    "CATEGORY_NOT_WORD": lambda c: not is_word(c),
}


class Stepper:
    """Matches one pattern against one text."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        raw = pattern.pattern
        source = raw.decode("latin-1") if isinstance(raw, bytes) else raw
        self._tree = parser.parse(
            source, pattern.flags & ~re.UNICODE if isinstance(raw, bytes) else pattern.flags
        )
        self._text = ""
        self._groups: dict[int, tuple[int, int]] = {}
        self._match = self._sequence(list(self._tree), self._tree.state.flags)
        self.steps = 0
        self._limit = 0

    def count(self, text: str, limit: int, *, anchored: bool = False, whole: bool = False) -> int:
        """Return the steps of finding all matches.

        Args:
            text: in which.
            limit: of steps.
            anchored: only where the text begins.
            whole: only what goes to its end.

        Raises:
            TooManyStepsError: there are more than the limit.
        """
        self._text, self._limit, self.steps = text, limit, 0
        depth = sys.getrecursionlimit()
        sys.setrecursionlimit(100_000)
        try:
            position = 0
            while position <= len(text):
                self._groups = {}
                ends: list[int] = []

                def accept(end: int, ends: list[int] = ends) -> bool:
                    ends.append(end)
                    return not whole or end == len(text)

                found = self._match(position, accept)
                if anchored:
                    break
                position = max(ends[0], position + 1) if found else position + 1
        finally:
            sys.setrecursionlimit(depth)
        return self.steps

    def find(self, text: str) -> list[tuple[int, int]]:
        """Return the places of all matches, as ``finditer`` does."""
        self._text, self._limit, self.steps = text, 10**9, 0
        found: list[tuple[int, int]] = []
        position = 0
        while position <= len(text):
            self._groups = {}
            ends: list[int] = []
            if self._match(position, partial(_note, ends)):
                found.append((position, ends[0]))
                position = max(ends[0], position + 1)
            else:
                position += 1
        return found

    def _step(self) -> None:
        self.steps += 1
        if self.steps > self._limit:
            raise TooManyStepsError

    def _sequence(self, items: list[Any], flags: int) -> Matcher:
        made = [self._item(kind, value, flags) for kind, value in items]

        def match(start: int, then: Continue) -> bool:
            def run(number: int, position: int) -> bool:
                if number == len(made):
                    return then(position)
                return made[number](position, lambda end: run(number + 1, end))

            return run(0, start)

        return match

    def _item(self, kind: Any, value: Any, flags: int) -> Matcher:
        name = str(kind)
        if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            fits = one_letter(name, value, flags)

            def letter(position: int, then: Continue) -> bool:
                self._step()
                return position < len(self._text) and fits(self._text[position]) and then(position + 1)

            return letter
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            low, high, body = value
            return self._repeat(list(body), low, int(high), name, flags)
        if name == "BRANCH":
            branches = [self._sequence(list(branch), flags) for branch in value[1]]
            return lambda position, then: any(branch(position, then) for branch in branches)
        if name == "SUBPATTERN":
            group, added, removed, body = value
            inner = self._sequence(list(body), (flags | added) & ~removed)
            return lambda position, then: inner(position, lambda end: self._keep(group, position, end, then))
        if name == "ATOMIC_GROUP":
            return self._atomic(self._sequence(list(value), flags))
        if name in ("ASSERT", "ASSERT_NOT"):
            return self._look(value[0], list(value[1]), flags, wanted=name == "ASSERT")
        if name == "AT":
            return lambda position, then: self._at(str(value), position, flags) and then(position)
        if name == "GROUPREF":
            return lambda position, then: self._refer(value, position, then)
        raise NotImplementedError(f"re has a part {name!r} that this matcher does not count: add it above")

    def _keep(self, group: int | None, start: int, end: int, then: Continue) -> bool:
        if group is None:
            return then(end)
        before = self._groups.get(group)
        self._groups[group] = (start, end)
        if then(end):
            return True
        if before is None:
            self._groups.pop(group, None)
        else:
            self._groups[group] = before
        return False

    def _refer(self, group: int, position: int, then: Continue) -> bool:
        self._step()
        if group not in self._groups:
            return False
        start, end = self._groups[group]
        said = self._text[start:end]
        return self._text.startswith(said, position) and then(position + len(said))

    def _repeat(self, body: list[Any], low: int, high: int, name: str, flags: int) -> Matcher:
        if len(body) == 1 and str(body[0][0]) in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return self._repeat_letter(one_letter(str(body[0][0]), body[0][1], flags), low, high, name)
        inner = self._sequence(body, flags)

        def more(position: int, done: int, then: Continue) -> bool:
            self._step()

            def again(end: int) -> bool:
                return (end > position or done < low) and more(end, done + 1, then)

            if done < low:
                return inner(position, again)
            if name == "MIN_REPEAT":
                return then(position) or (done < high and inner(position, again))
            return (done < high and inner(position, again)) or then(position)

        if name == "POSSESSIVE_REPEAT":
            return self._atomic(lambda position, then: more(position, 0, then))
        return lambda position, then: more(position, 0, then)

    def _repeat_letter(self, fits: Callable[[str], bool], low: int, high: int, name: str) -> Matcher:
        def match(position: int, then: Continue) -> bool:
            end, most = position, min(len(self._text), position + high)
            least = position + low
            if name == "MIN_REPEAT":
                while True:
                    if end >= least and then(end):
                        return True
                    self._step()
                    if end >= most or not fits(self._text[end]):
                        return False
                    end += 1
            while end < most and fits(self._text[end]):
                self._step()
                end += 1
            self._step()
            if name == "POSSESSIVE_REPEAT":
                return end >= least and then(end)
            while end >= least:
                if then(end):
                    return True
                self._step()
                end -= 1
            return False

        return match

    def _atomic(self, inner: Matcher) -> Matcher:
        def match(position: int, then: Continue) -> bool:
            ends: list[int] = []
            return inner(position, partial(_note, ends)) and then(ends[0])

        return match

    def _look(self, direction: int, body: list[Any], flags: int, *, wanted: bool) -> Matcher:
        inner = self._sequence(body, flags)
        width = parser.SubPattern(self._tree.state, body).getwidth()[0] if direction < 0 else 0

        def match(position: int, then: Continue) -> bool:
            self._step()
            start = position - width
            found = start >= 0 and inner(start, lambda end: direction > 0 or end == position)
            return found is wanted and then(position)

        return match

    def _at(self, where: str, position: int, flags: int) -> bool:
        self._step()
        text = self._text
        if where in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
            lines = flags & re.M and where == "AT_BEGINNING"
            return position == 0 or bool(lines and text[position - 1] == "\n")
        if where in ("AT_END", "AT_END_STRING"):
            last = position == len(text) or (where == "AT_END" and text[position:] == "\n")
            return last or bool(flags & re.M and text[position] == "\n")
        before = position > 0 and is_word(text[position - 1])
        after = position < len(text) and is_word(text[position])
        return (before != after) is (where == "AT_BOUNDARY")


def one_letter(name: str, value: Any, flags: int) -> Callable[[str], bool]:
    """Return whether a letter fits an item that takes one."""
    if name == "ANY":
        return (lambda letter: True) if flags & re.S else (lambda letter: letter != "\n")
    folded = bool(flags & re.I)
    if name in ("LITERAL", "NOT_LITERAL"):
        wanted = chr(value).lower() if folded else chr(value)
        same = name == "LITERAL"
        return lambda letter: ((letter.lower() if folded else letter) == wanted) is same
    known: dict[str, bool] = {}

    def fits(letter: str) -> bool:
        if letter not in known:
            cases = (letter, letter.lower(), letter.upper()) if folded else (letter,)
            known[letter] = any(in_class(each, value) for each in cases if len(each) == 1)
        return known[letter]

    return fits


def in_class(letter: str, items: Any) -> bool:
    negated = bool(items) and str(items[0][0]) == "NEGATE"
    for kind, value in items:
        name = str(kind)
        if (
            (name == "LITERAL" and ord(letter) == value)
            or (name == "RANGE" and value[0] <= ord(letter) <= value[1])
            or (name == "CATEGORY" and CATEGORIES[str(value)](letter))
        ):
            return not negated
    return negated


LETTERS = "aA0 -_/.:=@'\"<>[](){},;#%&+*\\\n\tzZ9é"


END = "\x01"
"""What no pattern wants: it breaks the match that a text seems to be."""


def make_texts(pattern: re.Pattern[Any], length: int) -> list[str]:
    """Return hostile texts: each beginning of what the pattern matches, again and again, and each repetition pumped."""
    raw = pattern.pattern
    source = raw.decode("latin-1") if isinstance(raw, bytes) else raw
    tree = parser.parse(source, pattern.flags & ~re.UNICODE if isinstance(raw, bytes) else pattern.flags)
    pieces: dict[str, None] = {}
    for few in (True, False):
        for head, pump in _heads(list(tree), few=few):
            pieces[head] = None
            if pump:
                pieces[f"\0{head}\0{pump}"] = None
    texts: dict[str, None] = {}
    for piece in pieces:
        if piece.startswith("\0"):
            _, head, pump = piece.split("\0")
            for text in (
                head + pump * length,
                (head + pump * 40) * length,
                head * (length // 2 // max(1, len(head))) + pump * length,
            ):
                texts[text[: length - 1] + END] = None
        elif piece:
            texts[(piece * length)[: length - 1] + END] = None
            texts[((piece + " ") * length)[: length - 1] + END] = None
    return list(texts)


def _heads(items: list[Any], *, few: bool) -> Iterator[tuple[str, str]]:
    """Yield what the first items match, for each number of them, and what the next one repeats."""
    before = ""
    for kind, value in items:
        name = str(kind)
        if name == "SUBPATTERN":
            for head, pump in _heads(list(value[3]), few=few):
                yield before + head, pump
        elif name == "BRANCH":
            for branch in itertools.islice(value[1], 12):
                for head, pump in _heads(list(branch), few=few):
                    yield before + head, pump
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            body = list(value[2])
            yield before, sample(body, few=few)
            for head, pump in _heads(body, few=few):
                yield before + head, pump
        before += sample([(kind, value)], few=few)
        yield before, ""


def sample(items: list[Any], *, few: bool) -> str:
    """Return a text that the items match, with as few repetitions as may be or with some more."""
    made = ""
    for kind, value in items:
        name = str(kind)
        if name == "LITERAL":
            made += chr(value)
        elif name == "NOT_LITERAL":
            made += next(each for each in LETTERS if ord(each) != value)
        elif name == "ANY":
            made += "x"
        elif name == "IN":
            made += next(
                (each for each in LETTERS if in_class(each, value)),
                chr(value[0][1]) if str(value[0][0]) == "LITERAL" else "",
            )
        elif name == "SUBPATTERN":
            made += sample(list(value[3]), few=few)
        elif name == "BRANCH":
            made += sample(list(value[1][0]), few=few)
        elif name == "ATOMIC_GROUP":
            made += sample(list(value), few=few)
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            low, high, body = value
            times = low if few else min(int(high), max(low, 12))
            made += sample(list(body), few=few) * min(times, 300)
    return made
