"""The programs that the pages show: the wrong one has its finding or question, the right one none of any code."""

from __future__ import annotations

import pytest

from ddpdoctor.judge import Finding
from tests.lint.judging import EXAMPLES, REGISTRY, judge, lint, read
from tests.lint.launches import lint_launch


def lint_example(text: str) -> list[Finding]:
    """Return the findings of an example: a script, or a launch file that begins as one."""
    return lint_launch(text) if text.startswith("#!") else lint(text, head="")


def test_every_code_that_is_found_in_the_source_has_examples() -> None:
    codes = {code for each in REGISTRY.checks_of("lint") for code in each.codes}
    assert codes - EXAMPLES.keys() == set()


@pytest.mark.wrong
@pytest.mark.parametrize("code", EXAMPLES)
def test_wrong_example_has_its_finding(code: str) -> None:
    text = EXAMPLES[code][0]
    found = lint_example(text) or judge(read({"train.py": text}), questions=True)
    assert code in {each.code for each in found}


@pytest.mark.right
@pytest.mark.parametrize("code", EXAMPLES)
def test_right_example_has_none(code: str) -> None:
    assert [(each.code, each.message) for each in lint_example(EXAMPLES[code][1])] == []


@pytest.mark.parametrize("code", EXAMPLES)
def test_examples_fit_beside_a_margin(code: str) -> None:
    assert max(len(line) for text in EXAMPLES[code] for line in text.splitlines()) <= 92
