"""Findings that the user has told not to count: by a comment in the source, a setting, or a baseline.

They stay in the report with the state ``suppressed`` and who said so. What is written to hide something and hides
nothing is remarked on: nobody takes such things out otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ddpdoctor.evidence.sources import IgnoreComment, SourceFile
from ddpdoctor.judge.finding import Finding, Suppression
from ddpdoctor.judge.fingerprint import fingerprint
from ddpdoctor.text.suggest import closest


@dataclass(frozen=True, slots=True)
class Remark:
    """Something on what the user has told not to count."""

    text: str
    file: str
    line: int | None = None
    cell: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the report form; what does not apply is absent."""
        return {k: v for k in ("text", "file", "line", "cell") if (v := getattr(self, k)) is not None}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Remark:
        """Read the report form; keys that are not known are ignored."""
        return cls(data["text"], data["file"], data.get("line"), data.get("cell"))


@dataclass(frozen=True, slots=True)
class BaselineEntry:
    """Findings that were there when a baseline was written."""

    fingerprint: str
    code: str
    file: str
    source: str
    count: int
    """How many are alike."""


def _ignores_nothing(file: str) -> frozenset[str]:
    return frozenset()


class Suppressor:
    """Marks findings that are not to count, and notes which comments were of use.

    Args:
        sources: files that were read, with their comments.
        names: code -> name of all codes that there are.
        ignored_in: from the name of a file to the codes that the configuration leaves out there.
        baseline: findings that were there before.
    """

    def __init__(
        self,
        sources: Iterable[SourceFile],
        names: Mapping[str, str],
        *,
        ignored_in: Callable[[str], frozenset[str]] = _ignores_nothing,
        baseline: Iterable[BaselineEntry] = (),
    ) -> None:
        files = tuple(sources)
        self._names = names
        self._ignored_in = ignored_in
        self._comments = {file.name: file.ignores for file in files if file.ignores}
        self._read = {file.name for file in files if file.problem is None}
        self._baseline = tuple(baseline)
        self._left = Counter({each.fingerprint: each.count for each in self._baseline})
        self._used: set[tuple[IgnoreComment, str]] = set()

    def review(self, finding: Finding) -> Finding:
        """Return the finding, in the state ``suppressed`` where somebody has said that it is not to count."""
        if finding.state != "active" or not finding.where:
            return finding
        why = self._find_comment(finding) or self._find_setting(finding) or self._find_before(finding)
        return finding if why is None else replace(finding, state="suppressed", suppression=why)

    def remarks(self, looked: Collection[str]) -> tuple[Remark, ...]:
        """Return what to say after all findings were reviewed.

        Args:
            looked: codes that a check has looked for: only of these an unused comment can be told.
        """
        said = [
            Remark(text, comment.place.file, comment.place.line, comment.place.cell)
            for comments in self._comments.values()
            for comment in comments
            for text in self._describe(comment, looked)
        ]
        stale = [
            Remark(f"the baseline lists {entry.code}, which is no longer found: {entry.source}", entry.file)
            for entry in self._baseline
            if self._left[entry.fingerprint] > 0 and entry.file in self._read and entry.code in looked
        ]
        return (*said, *stale)

    def _find_comment(self, finding: Finding) -> Suppression | None:
        place = finding.where[0]
        for comment in self._comments.get(place.file, ()):
            if comment.place.cell != place.cell or not comment.first <= place.line <= comment.last:
                continue
            codes = [code for code in comment.codes if self._means(code) == finding.code]
            if codes and comment.reason:
                self._used.update((comment, code) for code in codes)
                return Suppression("comment", comment.reason, comment.place.line)
        return None

    def _find_setting(self, finding: Finding) -> Suppression | None:
        if finding.code in self._ignored_in(finding.where[0].file):
            return Suppression("configuration")
        return None

    def _find_before(self, finding: Finding) -> Suppression | None:
        mark = fingerprint(finding) if self._baseline else ""
        if self._left[mark] <= 0:
            return None
        self._left[mark] -= 1
        return Suppression("baseline")

    def _means(self, word: str) -> str | None:
        """Return the code that a word of a comment means: a code or a name, in any case."""
        wanted = word.lower()
        return next((c for c, name in self._names.items() if wanted in (c.lower(), name.lower())), None)

    def _describe(self, comment: IgnoreComment, looked: Collection[str]) -> Iterable[str]:
        if not comment.codes:
            yield "bare `ignore` is not allowed; write ignore[CODE] reason"
        for word in comment.codes:
            code = self._means(word)
            if code is None:
                near = closest(word, [each for pair in self._names.items() for each in pair])
                yield f"ignore[{word}]: there is no such code{f', is it {near}?' if near else ''}"
            elif not comment.reason:
                yield f"ignore[{word}] has no reason and is not applied until it has one"
            elif code in looked and (comment, word) not in self._used:
                yield f"ignore[{word}] suppresses nothing; remove it"
