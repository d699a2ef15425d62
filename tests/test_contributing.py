"""The examples of CONTRIBUTING.md are real: declared, judged and tested here as they are printed there."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ddpdoctor.judge import Registry, run_checks
from ddpdoctor.judge.catalogue import PAGE_SECTIONS

ROOT = Path(__file__).parents[1]
TESTS = (
    "test_small_memory_names_node_and_ranks",
    "test_enough_memory_is_fine",
    "test_unknown_memory_is_not_shown_as_fine",
    "test_number_of_a_rank_in_the_script_is_told_with_its_line",
)
RIGHT = "test_rank_from_elsewhere_or_of_one_process_is_right"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Names that the Python blocks of the document define in a package whose catalogue has the page that it prints."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    package = ModuleType("example")
    package.__path__ = [str(tmp_path_factory.mktemp("example"))]
    catalogue = Path(package.__path__[0], "catalogue")
    catalogue.mkdir()
    (page,) = re.findall(r"^```markdown\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (catalogue / "ENV900.md").write_text(page)
    names: dict[str, Any] = {"__name__": "example.memory"}
    sys.modules["example"] = package
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(compile(block, "CONTRIBUTING.md", "exec"), names)
    yield names
    del sys.modules["example"]


@pytest.mark.parametrize("name", TESTS)
def test_printed_test_passes(example: dict[str, Any], name: str) -> None:
    test: Callable[[], None] = example[name]
    test()


@pytest.mark.parametrize(("rank", "size"), [("rank", 2), (0, 1), (-1, -1)])
def test_printed_rule_is_silent_on_what_is_right(example: dict[str, Any], rank: object, size: int) -> None:
    example[RIGHT](rank, size)


def test_all_printed_tests_are_run(example: dict[str, Any]) -> None:
    assert {name for name in example if name.startswith("test_")} == {*TESTS, RIGHT}


def test_printed_page_is_complete(example: dict[str, Any]) -> None:
    registry = Registry()
    registry.add(example["find_small_memory"])
    sections = registry.pages["ENV900"].sections()
    assert [name for name in PAGE_SECTIONS if not sections.get(name)] == []


def test_printed_check_is_judged_like_any_other(example: dict[str, Any]) -> None:
    registry = Registry()
    registry.add(example["find_small_memory"])
    rows, findings = run_checks(registry.checks, example["world"](memory=1 << 30, ranks=2))
    assert [row.status for row in rows] == ["fail"]
    assert [(finding.code, finding.severity) for finding in findings] == [("ENV900", "warning")]


def test_printed_rule_is_applied_like_any_other(example: dict[str, Any]) -> None:
    registry = Registry()
    registry.add_lint_rules(example["find_rank_literals"])
    registry.add(example["tell_rank_literals"])
    evidence = example["read_source"](example["JOIN"].format(3, 8), *registry.lint_rules)
    rows, findings = run_checks(registry.checks_of("lint"), evidence)
    assert [(row.id, row.status) for row in rows] == [("lint.rank_literal", "fail")]
    assert [(each.code, each.severity, each.where[0].line) for each in findings] == [("ENV901", "error", 2)]


def test_names_that_the_table_of_lint_leads_to_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    names = re.findall(r"`((?:resolve|sameness|training)\.\w+\.\w+)`", text)
    assert len(names) >= 9
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(f"ddpdoctor.source.{module}"), attribute), name


def test_files_that_it_leads_to_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tail = text[text.index("## A new collective") : text.index("## Style")]
    for name in re.findall(r"`([\w/]+\.py)`", tail):
        assert any((ROOT / base / name).is_file() for base in ("", "ddpdoctor")), name
    for name, file in re.findall(r"`([A-Z_]{5,})`[^`]*in `([\w/]+\.py)`", tail):
        path = next(ROOT / base / file for base in ("", "ddpdoctor") if (ROOT / base / file).is_file())
        assert name in path.read_text(encoding="utf-8"), name
