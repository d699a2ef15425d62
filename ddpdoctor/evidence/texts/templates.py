"""Templates of texts: a program's own format string with named fields, matched by its literals alone.

Pure. A template such as ``Connect to {peer} failed : {error}`` matches a text in which its literals follow each other;
what lies between is the fields' value. Each literal is searched once, from where the one before ended, so that no text
makes it slow. Of thousands of templates only those are tried of which a text has the rarest word.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

FIELD_LIMIT = 400
"""Characters of a field: the longest known, a list of the fields of a completion, has some 200."""
NUMBERS = frozenset({"rank", "other", "device", "size", "port", "errno", "status", "nranks", "count", "root"})
"""Fields that hold one number, decimal or hexadecimal, and nothing else."""
WORDS_READ = 120
"""Words of a text that are looked up; the longest template has some 60."""

_NUMBER = re.compile(r"-?(?:0x)?[\da-fA-F]{1,20}")
_WORD = re.compile(r"[A-Za-z_]\w{2,60}")


@dataclass(frozen=True, slots=True)
class Template:
    """One template, made ready to match."""

    text: str
    """Text of the template as it stands in the table."""
    literals: tuple[str, ...]
    """What stands before each field, and behind the last one; the first and the last may be empty."""
    fields: tuple[str, ...]
    """Names, empty where nobody needs the value."""
    versions: str = ""
    """First and last release in which it stands, e.g. ``2.19-2.27``; open at the end where it still does."""

    @property
    def weight(self) -> int:
        """Characters of its literals: of several templates that match, the one with most says most."""
        return sum(map(len, self.literals))

    def match(self, text: str) -> dict[str, str] | None:
        """Return the named fields of a text that has all literals in their order; None where it has not."""
        position = text.find(self.literals[0])
        if position < 0:
            return None
        position += len(self.literals[0])
        found: dict[str, str] = {}
        for name, literal in zip(self.fields, self.literals[1:], strict=True):
            end = text.find(literal, position) if literal else len(text)
            if end < 0 or end - position > FIELD_LIMIT:
                if literal or end < 0:
                    return None
                end = position + FIELD_LIMIT
            if name and not _take(name, text[position:end].strip(), found):
                return None
            position = end + len(literal)
        return found


def _take(name: str, value: str, found: dict[str, str]) -> bool:
    """Note a field's value; False where a number was expected and something else stands there."""
    if name in NUMBERS:
        number = _NUMBER.match(value)
        if number is None:
            return False
        value = number[0]
    if value:
        found[name] = value
    return True


def compile_template(text: str, versions: str = "") -> Template:
    """Return the template of a line of the table.

    Raises:
        ValueError: a brace is not closed, a field has a conversion, two fields touch, or no whole word is left.
    """
    literals = [""]
    fields: list[str] = []
    for literal, field, spec, conversion in string.Formatter().parse(text):
        literals[-1] += literal
        if field is None:
            continue
        if spec or conversion or (field and not field.isidentifier()):
            raise ValueError(f"fields have a name or none, and nothing else: {text!r}")
        if fields and not literals[-1]:
            raise ValueError(f"nothing stands between two fields: {text!r}")
        fields.append(field)
        literals.append("")
    made = Template(text, tuple(literals), tuple(fields), versions)
    if not list_words(made):
        raise ValueError(f"no whole word is left without the fields: {text!r}")
    return made


def list_words(template: Template) -> list[str]:
    """Return the words that every text of a template holds whole: those that touch no field."""
    words = []
    last = len(template.literals) - 1
    for place, literal in enumerate(template.literals):
        for found in _WORD.finditer(literal):
            open_start = found.start() == 0 and place > 0
            open_end = found.end() == len(literal) and place < last
            if not open_start and not open_end:
                words.append(found[0])
    return words


class TemplateIndex:
    """Finds the template of a text among thousands."""

    def __init__(self, templates: Mapping[str, Iterable[Template]]) -> None:
        rows = [(id, template) for id, each in templates.items() for template in each]
        counts = Counter(word for _, template in rows for word in set(list_words(template)))
        self._by_word: dict[str, list[tuple[str, Template]]] = {}
        for id, template in rows:
            rarest = min(list_words(template), key=lambda word: (counts[word], -len(word), word))
            self._by_word.setdefault(rarest, []).append((id, template))

    def find(self, text: str, refuse: Container[str] = ()) -> tuple[str, Template, dict[str, str]] | None:
        """Return id, template and fields of the template that says most of a text; None where none matches.

        Args:
            text: without its prefix.
            refuse: ids that do not count.
        """
        best: tuple[str, Template, dict[str, str]] | None = None
        seen: set[str] = set()
        for number, word in enumerate(_WORD.finditer(text)):
            if number >= WORDS_READ:
                break
            if word[0] in seen:
                continue
            seen.add(word[0])
            for id, template in self._by_word.get(word[0], ()):
                if id in refuse or (best is not None and template.weight <= best[1].weight):
                    continue
                fields = template.match(text)
                if fields is not None:
                    best = (id, template, fields)
        return best
