from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

import pytest

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import Finding, Registry, check, diagnosis
from ddpdoctor.judge.catalogue import PAGE_SECTIONS
from ddpdoctor.judge.registry import Function


def declare(
    code: str = "X-toy-001",
    id: str = "toy.one",
    name: str = "toy-broken",
    page: str = "A page.",
    commands: tuple[str, ...] = (),
) -> Function:
    def find_toy(evidence: Evidence) -> Iterable[Finding]:
        return []

    find_toy.__doc__ = page
    return check(
        code, name=name, title="Toy", severity="warning", family="toys", needs=(), since="1.0", id=id,
        commands=commands,
    )(find_toy)  # fmt: skip


def test_declared_function_is_still_the_function() -> None:
    function = declare()
    assert list(function(Evidence())) == []


def test_registered_check_carries_what_it_declared() -> None:
    registry = Registry()
    registry.source = "toy"
    registry.add(declare())
    (found,) = registry.checks
    assert (found.id, found.codes, found.family, found.source) == ("toy.one", ("X-toy-001",), "toys", "toy")
    assert registry.pages["X-toy-001"].source == "toy"
    assert registry.pages["X-toy-001"].text == "A page."


def test_variants_make_one_row_each_from_one_function() -> None:
    seen = []

    @check(
        "X-toy-002",
        name="toy-odd",
        title="Toy",
        severity="info",
        family="toys",
        needs=(),
        since="1.0",
        variants={"toy.a": "A", "toy.b": "B"},
    )
    def find_odd(evidence: Evidence, variant: str) -> Iterable[Finding]:
        """A page."""
        seen.append(variant)
        return []

    registry = Registry()
    registry.add(find_odd)
    for each in registry.checks:
        list(each.function(Evidence()))
    assert [each.id for each in registry.checks] == ["toy.a", "toy.b"]
    assert seen == ["A", "B"]


@pytest.mark.parametrize("extra", [{}, {"id": "toy.a", "variants": {"toy.b": 1}}])
def test_check_needs_either_id_or_variants(extra: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="either id or variants"):
        check(
            "X-toy-001",
            name="toy",
            title="Toy",
            severity="info",
            family="toys",
            needs=(),
            since="1.0",
            **extra,  # type: ignore[arg-type]  # wrong on purpose
        )


def test_severity_has_to_be_known() -> None:
    with pytest.raises(ValueError, match="unknown severity 'fatal'"):
        check("X-1", name="n", title="t", severity="fatal", family="f", needs=(), since="1", id="i")


def test_function_that_was_not_declared_is_refused() -> None:
    with pytest.raises(ValueError, match="not declared"):
        Registry().add(lambda evidence: [])


def test_id_belongs_to_who_came_first() -> None:
    registry = Registry()
    registry.add(declare())
    registry.source = "other"
    with pytest.raises(ValueError, match=r"toy\.one is already registered by ddpdoctor"):
        registry.add(declare("X-other-001"))


def test_code_belongs_to_who_came_first() -> None:
    registry = Registry()
    registry.add(declare())
    registry.source = "other"
    with pytest.raises(ValueError, match="code X-toy-001 belongs to ddpdoctor"):
        registry.add(declare(id="toy.two"))
    assert [each.id for each in registry.checks] == ["toy.one"]


def test_module_is_registered_in_order_of_definition() -> None:
    module = ModuleType("toys")
    module.number = 3  # type: ignore[attr-defined]  # a module holds other things too
    module.second = declare("X-toy-002", "toy.two")  # type: ignore[attr-defined]  # as a module defines it
    module.first = declare("X-toy-001", "toy.one")  # type: ignore[attr-defined]  # likewise
    registry = Registry()
    registry.add_module(module)
    assert [each.id for each in registry.checks] == ["toy.two", "toy.one"]


def test_page_of_two_checks_is_the_first_that_has_text() -> None:
    registry = Registry()
    registry.add(declare(page=""), declare(id="toy.two", page="Text."), declare(id="toy.three", page="Late."))
    assert registry.pages["X-toy-001"].text == "Text."


@pytest.mark.parametrize("word", ["X-toy-001", "x-TOY-001", "toy-broken", "Toy-Broken"])
def test_page_is_found_by_code_and_by_name(word: str) -> None:
    registry = Registry()
    registry.add(declare())
    page = registry.find_page(word)
    assert page is not None
    assert page.code == "X-toy-001"
    assert registry.find_page("toy") is None


def test_page_falls_into_its_sections() -> None:
    text = "Lead.\n\nSymptoms:\n    This.\n\n    And that.\n\nFix\n    Fix\n    Nothing."
    registry = Registry()
    registry.add(declare(page=text))
    sections = registry.pages["X-toy-001"].sections()
    assert sections == {"": "Lead.", "Symptoms": "This.\n\nAnd that.", "Fix": "Fix\nNothing."}
    assert set(sections) - {""} < set(PAGE_SECTIONS)


def test_check_of_some_commands_is_a_row_of_theirs_only() -> None:
    registry = Registry()
    registry.add(declare(), declare(id="toy.two", commands=("run", "analyze")))
    assert [each.id for each in registry.checks_of("check")] == ["toy.one"]
    assert [each.id for each in registry.checks_of("run")] == ["toy.one", "toy.two"]


def test_second_row_of_a_code_takes_its_page() -> None:
    @check("X-toy-001", id="toy.two", family="toys", needs=(), commands=("run",))
    def look(evidence: Evidence) -> list[Finding]:
        return [Finding("It is broken.")]

    registry = Registry()
    registry.add(declare(page="Text."), look)
    first, second = registry.checks
    assert second.pages == first.pages
    assert second.pages[0].text == "Text."
    assert second.belongs_to("run")
    assert not second.belongs_to("check")


def test_diagnosis_has_the_pages_of_all_its_codes() -> None:
    @diagnosis("toy.cause", codes=("X-toy-001", "X-toy-002"), family="toys", needs=())
    def judge(evidence: Evidence) -> list[Finding]:
        return []

    registry = Registry()
    registry.add(declare("X-toy-002", "toy.one"), declare("X-toy-001", "toy.two"), judge)
    row = registry.checks[-1]
    assert (row.id, row.codes) == ("toy.cause", ("X-toy-001", "X-toy-002"))
    assert tuple(page.code for page in row.pages) == row.codes


def test_code_without_a_page_is_refused() -> None:
    @check("X-toy-009", id="toy.nine", family="toys", needs=())
    def look(evidence: Evidence) -> list[Finding]:
        return []

    with pytest.raises(ValueError, match=r"X-toy-009 has no page: no catalogue/X-toy-009\.md in"):
        Registry().add(look)
