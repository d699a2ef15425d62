"""No pattern takes long, whatever it is shown: a budget of steps for each character."""

from __future__ import annotations

import re

import pytest

from tests.marks import sampled
from tests.patterns.collecting import Use, collect
from tests.patterns.stepping import Stepper, TooManyStepsError, make_texts

BUDGET = 300
"""Steps for each character: ``re`` takes some 5 ns for one, so that a log of 1 MB of the worst lines takes 1.5 s."""
LENGTH = 400
"""Characters of a text: enough for what grows with it to spend its budget."""
SHORT = 60
SLOWEST = 2
"""Texts that are counted in full for each pattern: those whose first `SHORT` characters take most."""
USES = collect()


def count_worst(use: Use, budget: int, length: int) -> tuple[float, str]:
    """Return the most steps for a character that hostile texts take, and the text; infinite where it is spent."""
    stepper = Stepper(use.pattern)

    def count(text: str) -> float:
        try:
            return stepper.count(text, budget * len(text), anchored=use.anchored, whole=use.whole) / len(text)
        except TooManyStepsError:
            return float("inf")

    rated = []
    for text in make_texts(use.pattern, length):
        steps = count(text[:SHORT] + text[-1])
        if steps > budget:
            return steps, text[:SHORT] + text[-1]
        rated.append((steps, text))
    rated.sort(reverse=True)
    return max(((count(text), text) for _, text in rated[:SLOWEST]), default=(0.0, ""))


@pytest.mark.unmeasured
@pytest.mark.parametrize("name", sampled(USES, 3))
def test_pattern_stays_within_its_budget(name: str) -> None:
    steps, text = count_worst(USES[name], BUDGET, LENGTH)
    assert steps <= BUDGET, f"more than {BUDGET} steps for each character of {text[:200]!r}"


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?:NCCL WARN|ncclSocket\w{1,40}).{0,160}?(?:closed by peer|refused)",
        r"(a+)+b",
        r"^(?:\w+\s?)*$",
        r"x.*y.*z",
        r"\s+$",
        r"\[[^\]]+\]",
        r"(?:.*/)?(?:.*/)?(?:.*/)?a",
    ],
)
def test_what_is_slow_is_found(pattern: str) -> None:
    assert count_worst(Use(re.compile(pattern), False, False), BUDGET, LENGTH)[0] > BUDGET


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"a+b", "aaab"), (r"(?i)Ab|cd", "xaBcD"), (r"(\w)\1", "xyyz"), (r"(?<=a)b(?!c)", "abab"), (r"^x$", "x\n"), (r"(?m)^b$", "a\nb\nc"),
        (r"a{2,3}?", "aaaa"), (r"\bfoo\b", "a foo."), (r"[^\W\d_]+", "ab1"), (r"(?s).x", "\nx"), (r"(?:a|ab)(?:c|bcd)", "abcd"),
    ],
)  # fmt: skip
def test_the_counter_finds_what_re_finds(pattern: str, text: str) -> None:
    compiled = re.compile(pattern)
    found = Stepper(compiled).find(text)
    assert found == [match.span() for match in compiled.finditer(text)]
