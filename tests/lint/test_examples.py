"""The programs that the pages show: the wrong one has its finding, the right one none of any code."""

from __future__ import annotations

import pytest

from ddpdoctor_checks.lint.examples import EXAMPLES
from tests.lint.judging import REGISTRY, lint


def test_every_code_that_is_found_in_the_source_has_examples() -> None:
    codes = {code for each in REGISTRY.checks_of("lint") for code in each.codes}
    assert codes - EXAMPLES.keys() == set()


@pytest.mark.wrong
@pytest.mark.parametrize("code", EXAMPLES)
def test_wrong_example_has_its_finding(code: str) -> None:
    assert code in {each.code for each in lint(EXAMPLES[code][0], head="")}


@pytest.mark.right
@pytest.mark.parametrize("code", EXAMPLES)
def test_right_example_has_none(code: str) -> None:
    assert [(each.code, each.message) for each in lint(EXAMPLES[code][1], head="")] == []


@pytest.mark.parametrize("code", EXAMPLES)
def test_page_shows_the_examples(code: str) -> None:
    sections = REGISTRY.pages[code].sections()
    for heading, text in zip(("Wrong", "Right"), EXAMPLES[code], strict=True):
        assert sections[heading] == "\n".join(f"    {line}".rstrip() for line in text.splitlines())
        assert max(map(len, text.splitlines())) <= 92
