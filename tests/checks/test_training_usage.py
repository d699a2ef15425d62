"""How DistributedDataParallel is used: reductions that are wasted, no_sync, needless searches, DataParallel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.fingerprints import OptimizerSetup, StepLook, Training, WrapperSetup
from ddpdoctor.evidence.training.syncs import (
    Gathered,
    PaceLook,
    Replicated,
    SearchLook,
    Syncs,
    Unenclosed,
    Unfollowed,
)
from ddpdoctor.judge import NotApplicable
from ddpdoctor.watch.readers.records import Shortener
from ddpdoctor.watch.readers.syncs import fold_syncs
from ddpdoctor_checks.training import (
    find_data_parallel,
    find_gathered,
    find_redundant,
    find_search,
    find_unenclosed,
)

LINE = (Frame("train.py", 7, "main", "optimizer.step()"),)
BOTH = RankSet([0, 1])


def training(*syncs: Syncs) -> Evidence:
    wrapper = WrapperSetup(1, "__main__.Net", BOTH, find_unused_parameters=True, frames=LINE)
    setup = OptimizerSetup(1, "torch.optim.SGD", BOTH, frames=LINE, wrappers=(wrapper,))
    return Evidence(
        training=tuple(
            Training(node, BOTH, optimizers=(setup,), steps=(StepLook(1, 1),), syncs=each)
            for node, each in enumerate(syncs)
        )
    )


def paces(*rows: tuple[int, int, int, int, int, int]) -> Evidence:
    """Rows of step, steps, backwards, kept, synced, alone."""
    return training(Syncs(paces=tuple(PaceLook(1, BOTH, *row) for row in rows)))


def accumulating(each: int) -> list[tuple[int, int, int, int, int, int]]:
    return [
        (step, steps, each * steps, (each - 1) * steps, each * steps, 0)
        for step, steps in ((1, 1), (2, 1), (4, 2), (8, 4))
    ]


def test_micro_batches_that_are_all_reduced_are_named() -> None:
    (found,) = list(find_redundant(paces(*accumulating(4))))
    assert found.details["reductions"] == 4
    assert "3 of 4 reductions are wasted" in found.message
    assert found.where[0].line == 7


def test_micro_batches_of_fully_shard_that_are_all_reduced() -> None:
    rows = tuple(PaceLook(0, BOTH, *row) for row in accumulating(3))
    (found,) = list(find_redundant(training(Syncs(paces=rows))))
    assert (found.confidence, found.role) == ("medium", "advice")
    assert "set_requires_gradient_sync" in str(found.fix[0].code)


def test_reductions_of_fully_shard_that_were_off_at_a_step_are_not_called_wasted() -> None:
    rows = tuple(PaceLook(0, BOTH, *row) for row in accumulating(3))
    (node,) = training(Syncs(paces=rows)).training
    off = replace(node, steps=(StepLook(1, 1, unsynced=BOTH),))
    assert list(find_redundant(Evidence(training=(off,)))) == []


@pytest.mark.parametrize(
    "rows",
    [
        accumulating(1),
        accumulating(4)[:2],
        [(step, steps, 4 * steps, 3 * steps, steps, 3 * steps) for step, steps, *_ in accumulating(4)],
        [(step, steps, 2 * steps, 0, 2 * steps, 0) for step, steps, *_ in accumulating(2)],
        [(step, steps, 2 * steps, 2 * steps, 2 * steps, 0) for step, steps, *_ in accumulating(2)],
        [(step, steps, steps, steps, 2 * steps, 0) for step, steps, *_ in accumulating(2)],
        [*accumulating(2), (16, 8, 9, 1, 9, 0)],
    ],
    ids=["one", "few looks", "no_sync", "set to none between", "set to zero", "two forwards", "sometimes"],
)
def test_paces_that_waste_nothing_as_far_as_is_known(rows: list[tuple[int, int, int, int, int, int]]) -> None:
    assert list(find_redundant(paces(*rows))) == []


def test_ranks_that_differ_are_not_told_to_waste() -> None:
    rows = accumulating(2)
    other = tuple(PaceLook(1, RankSet([1]), step, steps, steps, 0, steps, 0) for step, steps, *_ in rows)
    own = tuple(PaceLook(1, RankSet([0]), *row) for row in rows)
    assert list(find_redundant(training(Syncs(paces=own + other)))) == []


def test_a_backward_alone_under_no_sync_is_named_once_for_its_line() -> None:
    row = Unenclosed(1, RankSet([0]), 4, LINE)
    (found,) = list(
        find_unenclosed(
            training(Syncs(unenclosed=(row,)), Syncs(unenclosed=(Unenclosed(1, RankSet([1]), 8, LINE),)))
        )
    )
    assert found.ranks == BOTH
    assert found.details["count"] == 8
    assert list(find_unenclosed(training(Syncs()))) == []


@pytest.mark.parametrize(("looks", "found", "count"), [(4, 0, 1), (3, 0, 0), (6, 1, 0)])
def test_a_search_that_finds_nothing(looks: int, found: int, count: int) -> None:
    told = list(find_search(training(Syncs(searches=(SearchLook(1, BOTH, looks, found, 9),)))))
    assert len(told) == count
    assert all((each.severity, each.role) == ("info", "advice") for each in told)


def timed(looks: int, found: int, share: float, *, steady: bool = True, timed: int = 20) -> SearchLook:
    return SearchLook(1, BOTH, looks, found, 10, steady, timed, 0.01 * share, 0.01)


def test_what_a_search_costs_is_told() -> None:
    (found,) = list(find_search(training(Syncs(searches=(timed(6, 0, 0.034),)))))
    assert "A search takes 0.34 ms of the 10 ms from one to the next (3.4%)" in found.message
    (found,) = list(find_search(training(Syncs(searches=(timed(6, 0, 0.034, timed=3),)))))
    assert "takes" not in found.message


def test_a_search_that_finds_as_much_each_time_could_be_made_once() -> None:
    (found,) = list(find_search(training(Syncs(searches=(timed(6, 6, 0.05),)))))
    assert (found.severity, found.confidence, found.role) == ("info", "low", "advice")
    assert "static_graph=True" in str(found.fix[0].code)


@pytest.mark.parametrize(
    "look",
    [timed(6, 6, 0.05, steady=False), timed(6, 5, 0.05), timed(4, 4, 0.05), timed(6, 6, 0.005)],
    ids=["varies", "not always", "few", "cheap"],
)
def test_a_search_that_is_needed_or_cheap_is_no_matter(look: SearchLook) -> None:
    assert list(find_search(training(Syncs(searches=(look,))))) == []


def test_searches_of_ranks_are_folded_with_the_slowest_rank() -> None:
    event = {
        "event": "search",
        "number": 1,
        "step": 8,
        "iteration": 8,
        "unused": 68,
        "timed": 20,
        "apart_ns": 9_000_000,
    }
    events: Any = {rank: [{**event, "each_ns": 1000 * (rank + 1)}] for rank in range(2)}
    (look,) = fold_syncs(events, Shortener(Path.cwd())).searches
    assert look == SearchLook(1, BOTH, 1, 1, 8, True, 20, 2e-6, 9e-3)


def test_a_search_that_finds_something_on_another_node_is_needed() -> None:
    one, other = SearchLook(1, RankSet([0]), 6, 0, 9), SearchLook(1, RankSet([1]), 6, 2, 9)
    assert list(find_search(training(Syncs(searches=(one,)), Syncs(searches=(other,))))) == []


@pytest.mark.parametrize(("devices", "severity"), [(8, None), (None, None), (1, "info"), (0, "info")])
def test_data_parallel_in_a_rank(devices: int | None, severity: str | None) -> None:
    (found,) = list(find_data_parallel(training(Syncs(replicated=(Replicated(BOTH, "Net", devices, LINE),)))))
    assert found.severity == severity
    assert found.where[0].line == 7


def test_data_parallel_in_a_job_of_one_rank_is_not_applicable() -> None:
    alone = Training(0, RankSet([0]), syncs=Syncs(replicated=(Replicated(RankSet([0]), "Net", 8, LINE),)))
    with pytest.raises(NotApplicable):
        list(find_data_parallel(Evidence(training=(alone,))))


def test_gathered_constants_of_a_loss_are_named_once_for_a_line() -> None:
    one, other = (Syncs(gathered=(Gathered(RankSet([rank]), "all_gather", (8, 4), LINE),)) for rank in (0, 1))
    (found,) = find_gathered(training(one, other))
    assert (found.ranks, found.where[0].line) == (BOTH, 7)
    assert "what all_gather at train.py:7 gathered" in found.message
    assert found.severity is None
    assert list(find_gathered(training(Syncs()))) == []
    with pytest.raises(NotApplicable):
        list(find_gathered(Evidence(training=(Training(0, BOTH),))))


def test_gathers_of_ranks_are_folded_by_line(tmp_path: Path) -> None:
    event: Any = {"event": "gathered", "class": "all_gather", "shape": [8, 4], "frames": []}
    other: Any = {**event, "class": "other"}
    folded = fold_syncs({0: [event], 1: [event, other]}, Shortener(tmp_path))
    assert folded.gathered == (
        Gathered(BOTH, "all_gather", (8, 4)),
        Gathered(RankSet([1]), "other", (8, 4)),
    )


def test_events_of_ranks_are_folded() -> None:
    pace = {
        "event": "pace",
        "number": 1,
        "step": 2,
        "steps": 1,
        "backwards": 2,
        "kept": 1,
        "synced": 2,
        "alone": 0,
    }
    search = {"event": "search", "number": 1, "step": 2, "iteration": 1, "unused": 0}
    events: Any = {
        0: [pace, search, {**search, "iteration": 4}],
        1: [
            pace,
            search,
            {**search, "iteration": 4, "unused": 68},
            {"event": "unenclosed", "number": 1, "count": 2},
            {"event": "unfollowed", "number": 1, "count": 1},
            {"event": "unfollowed", "number": 1, "count": 2},
        ],
        2: [{"event": "data-parallel", "class": "Net", "count": None}],
    }
    folded = fold_syncs(events, Shortener(Path.cwd()))
    assert folded.paces == (PaceLook(1, BOTH, 2, 1, 2, 1, 2, 0),)
    assert folded.searches == (SearchLook(1, BOTH, 2, 1, 4),)
    assert folded.unenclosed == (Unenclosed(1, RankSet([1]), 2),)
    assert folded.unfollowed == (Unfollowed(1, RankSet([1]), 2),)
    assert folded.replicated == (Replicated(RankSet([2]), "Net", None),)
