from __future__ import annotations

from collections.abc import Iterable

import pytest

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.gatherers import GathererRegistry
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import CannotLook, Finding, Fix, check, lint_rule, reach_verdict, run_checks
from ddpdoctor.plugins import load_plugins
from ddpdoctor.testing import (
    assert_finds,
    assert_page,
    assert_passes,
    assert_status,
    collect_checks,
    gather,
    judge_one,
    make_node,
    make_report,
    make_world,
    read_source,
)


@check(
    "X-a-001",
    name="rank-odd",
    title="A rank is odd",
    severity="warning",
    family="f",
    needs=("ranks",),
    since="1",
    variants={"a.odd": 1, "a.third": 2},
)
def find_odd(evidence: Evidence, *, variant: int) -> Iterable[Finding]:
    """A rank is odd.

    Symptoms:
        Rank numbers.

    What it means:
        It does not.

    How it decides:
        By its number.

    Known false alarms:
        All.

    Fix:
        None.

    References:
        None.
    """
    if not evidence.ranks:
        raise CannotLook("no ranks")
    odd = RankSet(rank.rank for rank in evidence.ranks if rank.rank == variant)
    if odd:
        yield Finding(f"{odd.phrase()} is odd.", ranks=odd, fix=(Fix("none"),))


@check("X-a-002", name="n", title="t", severity="error", family="f", needs=(), since="1", id="a.bare")
def find_bare(evidence: Evidence) -> Iterable[Finding]:
    """No sections."""
    yield Finding("found", fix=())


@pytest.mark.parametrize(("nodes", "nproc"), [(1, 1), (1, 4), (3, 2), (70, 1)])
def test_made_up_world_is_healthy_in_the_eyes_of_all_built_in_checks(nodes: int, nproc: int) -> None:
    checks = [each for each in load_plugins().checks.checks if each.source == "ddpdoctor"]
    rows, findings = run_checks(checks, make_world(nodes, nproc))
    assert [finding.message for finding in findings if finding.severity != "info"] == []
    assert [(row.id, row.reason) for row in rows if row.status in ("unknown", "error") and row.required] == []
    assert reach_verdict(rows, findings, scope="").status == "healthy"


def test_made_up_world_has_the_shape_asked_for() -> None:
    world = make_world([make_node(0, host="a"), make_node(1, host="b")], nproc=3, exits=())
    assert (world.launch.nnodes, world.launch.world_size) == (2, 6)
    assert [rank.host for rank in world.ranks] == ["a", "a", "a", "b", "b", "b"]
    assert world.launch.rdzv_endpoint == "a:29500"
    assert {(link.source, link.target) for link in world.links} == {(0, 1), (1, 0)}
    assert Evidence.from_dict(world.to_dict()) == world


def test_assert_finds_returns_the_finding_as_the_program_completes_it() -> None:
    finding = assert_finds(find_odd, make_world(1, 2), id="a.odd", code="X-a-001", severity="warning")
    assert (finding.name, str(finding.ranks)) == ("rank-odd", "1")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"id": "a.third"}, "found 0 things"),
        ({"id": "a.odd", "code": "X-a-009"}, "found X-a-001, not X-a-009"),
        ({"id": "a.odd", "severity": "error"}, "severity is warning"),
        ({"id": "a.nothing"}, "no check with id"),
    ],
)
def test_assert_finds_says_what_is_different(settings: dict[str, str], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_finds(find_odd, make_world(1, 2), **settings)


def test_finding_without_a_fix_is_not_accepted() -> None:
    with pytest.raises(AssertionError, match="does not say what to do"):
        assert_finds(find_bare, make_world())


def test_status_and_reason_are_asserted() -> None:
    assert assert_status(find_odd, make_world(ranks=()), "unknown") == "no ranks"
    assert_passes(find_odd, make_world(1, 1))
    with pytest.raises(AssertionError, match=r"did not pass: .*a\.odd fail"):
        assert_passes(find_odd, make_world(1, 2))
    with pytest.raises(AssertionError, match=r"not skipped: a\.odd unknown"):
        assert_status(find_odd, make_world(ranks=()), "skipped")


def test_page_must_be_complete() -> None:
    assert_page(find_odd)
    with pytest.raises(AssertionError, match="X-a-002 lacks Symptoms, Fix"):
        assert_page(find_bare)


def test_checks_are_run_with_isolation() -> None:
    @check("X-a-003", name="n", title="t", severity="error", family="f", needs=(), since="1", id="a.raises")
    def fail(evidence: Evidence) -> Iterable[Finding]:
        """Fail."""
        raise KeyError("x")

    rows, _ = judge_one(fail, make_world())
    assert (rows[0].status, rows[0].reason) == ("error", "ddpdoctor: KeyError: 'x'")
    assert [each.source for each in collect_checks(fail, source="d")] == ["d"]


def test_gather_returns_what_lands_in_the_evidence() -> None:
    def register(registry: GathererRegistry) -> None:
        registry.add("g", lambda facts: {"host": facts.host})

    assert gather(register, source="d", node=2) == {"d/g": {"2": {"host": "node-2"}}}
    with pytest.raises(AssertionError, match="bad: TypeError"):
        gather(lambda registry: registry.add("bad", lambda facts: None), source="d")  # type: ignore[arg-type,return-value]  # the mistake that is tested


def test_report_for_trying_renderers() -> None:
    report = make_report(make_world(1, 2), find_odd, invocation=("ddpdoctor", "check", "--nproc", "2"))
    assert report.verdict.code == "X-a-001"
    assert report.invocation[-1] == "2"


def test_script_in_which_a_rule_fails_is_no_evidence() -> None:
    @lint_rule("anything", reads="files")
    def fail(files: object) -> tuple[SourceFact, ...]:
        raise KeyError("a mistake of the rule")

    with pytest.raises(AssertionError, match="a mistake of the rule"):
        read_source("import torch.distributed\n", fail)
    with pytest.raises(AssertionError, match="syntax"):
        read_source("import torch.distributed\nif\n")
