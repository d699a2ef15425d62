"""Which pages answer the words that a user types after ``ddpdoctor explain``, such as a pasted error message."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpdoctor.cli.index import Page

WEIGHTS: Mapping[str, float] = {
    "name": 6.0,
    "title": 5.0,
    "": 4.0,
    "Symptoms": 5.0,
    "Fix": 1.5,
    "What it means": 1.0,
    "How it decides": 0.5,
    "Known false alarms": 0.3,
}
"""Part of a page -> what a word that stands there counts for: people search for symptoms."""
RUN = 3.0
"""What each word of a pasted message counts for that follows the one before it in a symptom as well."""
RUN_WORDS = 3
"""Shortest such run: two words in a row ("the process") are in many messages."""
LATER = 0.1
"""What a message loses for each one that stands before it on its page: the usual one stands first."""
SEVERE = 1.2
"""How much more an error is looked for than a warning."""
WORTH = 0.3
"""Share of the best score from which a page is worth a line."""
CLEAR = 1.6
"""How many times the second score makes the first one clear."""
SHOWN = 8
STOP = frozenset(
    "a an and are as at be by for from has have if in into is it no not of on or rank ranks s that the this to was "
    "with why my me i what how do does error runtimeerror".split()
)
"""Words that are on nearly every page, or in every question."""
SAME = (
    frozenset(
        "hang hangs hanging hung stuck deadlock deadlocks freeze freezes frozen stall stalls stalled".split()
    ),
    frozenset("diverge diverges diverged divergence diverging".split()),
    frozenset("straggler stragglers straggling".split()),
    frozenset("crash crashes crashed segfault".split()),
)
"""Words of the field that ask the same."""
_WORD = re.compile(r"[a-z_][a-z0-9_]+|[a-z]|-?\b\d{1,3}\b")


@dataclass(frozen=True, slots=True)
class Hit:
    """One page that fits the words."""

    page: Page
    score: float


def search_pages(query: str, pages: Sequence[Page]) -> list[Hit]:
    """Return the pages that have words of the query, the best first; none where no page has any."""
    typed = _words(query)
    words = [word for word in dict.fromkeys(typed) if word not in STOP] or list(dict.fromkeys(typed))
    parts = [_parts(page) for page in pages]
    counts = {word: sum(any(_has(word, part) for part in each.values()) for each in parts) for word in words}
    hits = []
    for page, each in zip(pages, parts, strict=True):
        score = sum(
            math.log(1 + len(pages) / counts[word]) * max(WEIGHTS[at] for at in found)
            for word in words
            if (found := [at for at, part in each.items() if _has(word, part)])
        )
        if score:
            runs = [_longest_run(typed, symptom) for symptom in _symptoms(page)]
            later = (1.0 - LATER * min(at, 5) for at in range(len(runs)))
            best = max(
                (run * part for run, part in zip(runs, later, strict=True) if run >= RUN_WORDS), default=0.0
            )
            severity = SEVERE if page.severity == "error" else 1.0
            hits.append(Hit(page, (score + RUN * best) * severity))
    ordered = sorted(hits, key=lambda hit: (-hit.score, hit.page.code))
    return [hit for hit in ordered if hit.score >= WORTH * ordered[0].score]


def is_clear(hits: Sequence[Hit]) -> bool:
    """Return whether the first hit is the answer: far better than the second."""
    return len(hits) == 1 or (len(hits) > 1 and hits[0].score >= CLEAR * hits[1].score)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _parts(page: Page) -> dict[str, frozenset[str]]:
    sections = page.sections()
    texts = {"name": f"{page.code} {page.name}", "title": page.title, **sections}
    return {at: frozenset(_words(text)) for at, text in texts.items() if at in WEIGHTS}


def _has(word: str, part: frozenset[str]) -> bool:
    """Whether a part has a word, or one that begins or ends with it: ``nccl`` is in ``WorkNCCL``."""
    same = next((each for each in SAME if word in each), None)
    if same is not None:
        return not same.isdisjoint(part)
    long = len(word) >= 4
    return word in part or (long and any(other.startswith(word) or other.endswith(word) for other in part))


def _symptoms(page: Page) -> list[list[str]]:
    """Return the words of each item under "Symptoms"; what differs from job to job is an ellipsis there."""
    items = re.split(r"^\* ", page.sections().get("Symptoms", ""), flags=re.MULTILINE)
    return [_words(item.replace("…", " … ")) for item in items if item.strip()]


def _longest_run(typed: Sequence[str], symptom: Sequence[str]) -> int:
    """Return how many words follow one another in both."""
    longest = 0
    before = [0] * (len(symptom) + 1)
    for word in typed:
        row = [0] * (len(symptom) + 1)
        for at, other in enumerate(symptom, 1):
            if word == other:
                row[at] = before[at - 1] + 1
                longest = max(longest, row[at])
        before = row
    return longest
