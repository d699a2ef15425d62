from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from ddpdoctor.evidence import (
    Absent,
    BackendResult,
    CollectiveCase,
    Evidence,
    Experiment,
    Launch,
    ModelResult,
    RankMessage,
    RankSet,
    UnusedParameter,
    merge_evidence,
)
from ddpdoctor.evidence.bundle import KINDS, fold_messages, renumber_node
from ddpdoctor.testing import make_world


def of_rank(rank: int, **kinds: Any) -> Evidence:
    return dataclasses.replace(Evidence(launch=Launch(node_rank=rank)), **kinds)


def case(rank: int, failed: bool = False) -> CollectiveCase:
    who = RankSet([rank])
    if failed:
        return CollectiveCase(
            "all_reduce", "gloo", "float32", 7, "sum", failures=(RankMessage(who, "got 3"),)
        )
    return CollectiveCase("all_reduce", "gloo", "float32", 7, "sum", passed=who)


def test_equal_cases_of_many_ranks_become_one_row() -> None:
    whole = merge_evidence([of_rank(rank, collectives=(case(rank),)) for rank in range(500)])
    assert whole.collectives == (dataclasses.replace(case(0), passed=RankSet.span(500)),)


def test_failures_of_equal_text_are_joined_beside_what_passed() -> None:
    parts = [of_rank(rank, collectives=(case(rank, failed=rank > 1),)) for rank in range(4)]
    (row,) = merge_evidence(parts).collectives
    assert row.passed == RankSet([0, 1])
    assert row.failures == (RankMessage(RankSet([2, 3]), "got 3"),)


def test_rows_of_other_types_stay_apart() -> None:
    other = dataclasses.replace(case(1), dtype="int64")
    assert len(merge_evidence([of_rank(0, collectives=(case(0), other))]).collectives) == 2


def test_one_row_alone_stays_as_it_is() -> None:
    world = make_world(2, 2)
    assert merge_evidence([world]) == world


def test_launch_is_that_of_the_first_part() -> None:
    assert merge_evidence([of_rank(3), of_rank(1)]).launch.node_rank == 3


def test_nothing_cannot_be_merged() -> None:
    with pytest.raises(ValueError, match="nothing"):
        merge_evidence([])


def test_backend_is_built_only_where_it_is_built_everywhere() -> None:
    here = BackendResult("mpi", True, asked=True, group=RankSet([0]))
    there = BackendResult("mpi", False, device_present=False, reason="not built")
    for parts in ((here, there), (there, here)):
        (row,) = merge_evidence([of_rank(i, backends=(b,)) for i, b in enumerate(parts)]).backends
        assert (row.built, row.device_present, row.asked, row.reason) == (False, False, True, "not built")


def test_largest_difference_is_the_worst_of_all_ranks() -> None:
    def fold(*values: float | None) -> float | None:
        rows = [Experiment("gradient-mean", largest_difference=value) for value in values]
        return (
            merge_evidence([of_rank(i, experiments=(row,)) for i, row in enumerate(rows)])
            .experiments[0]
            .largest_difference
        )

    assert fold(0.1, None, 0.3) == 0.3
    assert fold(None, None) is None
    worst = fold(0.1, math.nan, 0.3)
    assert worst is not None
    assert math.isnan(worst)


def test_model_results_keep_what_each_rank_told() -> None:
    def result(rank: int, name: str, needed: bool | None) -> Evidence:
        unused = UnusedParameter(name, "head", "Linear", False, RankSet([rank]), 8)
        row = ModelResult(
            "m:f", RankSet([rank]), unused=(unused,), find_unused_needed=needed, static_graph_ok=rank != 1
        )
        return of_rank(rank, model=(row,))

    (row,) = merge_evidence([result(0, "a", None), result(1, "a", True), result(2, "b", False)]).model
    assert row.ranks == RankSet.span(3)
    assert {(each.name, str(each.ranks)) for each in row.unused} == {("a", "0-1"), ("b", "2")}
    assert row.find_unused_needed is True
    assert row.static_graph_ok is False


def test_kind_is_absent_only_where_nobody_saw_anything() -> None:
    seen = of_rank(0, collectives=(case(0),))
    blind = of_rank(1, absent={"collectives": Absent("stage was cut"), "links": Absent("no tool")})
    whole = merge_evidence([seen, blind])
    assert "collectives" not in whole.absent
    assert whole.absent["links"].reason == "no tool"


def test_unknown_counts_more_than_not_applicable() -> None:
    calm = of_rank(0, absent={"links": Absent("single node", applicable=False)})
    blind = of_rank(1, absent={"links": Absent("stage was cut")})
    for parts in ([calm, blind], [blind, calm]):
        assert merge_evidence(parts).absent["links"] == Absent("stage was cut")


def test_extra_evidence_is_joined_by_node() -> None:
    parts = [of_rank(node, extra={"dist/disk": {str(node): {"free": node}}}) for node in range(2)]
    assert merge_evidence(parts).extra == {"dist/disk": {"0": {"free": 0}, "1": {"free": 1}}}
    assert parts[0].extra == {"dist/disk": {"0": {"free": 0}}}


def test_messages_keep_the_order_of_their_first_rank() -> None:
    said = [RankMessage(RankSet([rank]), text) for rank, text in enumerate("baab")]
    assert fold_messages(said) == (
        RankMessage(RankSet([0, 3]), "b"),
        RankMessage(RankSet([1, 2]), "a"),
    )


def test_evidence_of_one_node_can_be_renumbered() -> None:
    world = make_world(1, 2)
    moved = renumber_node(world, 5)
    numbered = [row for kind in KINDS for row in getattr(moved, kind) if hasattr(row, "node")]
    assert numbered
    assert {row.node for row in numbered} == {5}
    assert moved.collectives == world.collectives
