"""The supervisor's bookkeeping over the events of ranks."""

from __future__ import annotations

from typing import Any

from ddpdoctor.evidence import RankSet
from ddpdoctor.launch.world.rank_states import RankState, ranks_in


def play(*events: dict[str, Any]) -> RankState:
    state = RankState(0)
    for event in events:
        state.apply(event)
    return state


def test_a_rank_in_a_stage_is_there_since_its_begin() -> None:
    state = play({"event": "hello", "t": 1.0, "pid": 7}, {"event": "begin", "t": 2.0, "stage": "ddp"})
    assert (state.pid, state.stage, state.since) == (7, "ddp", 2.0)
    assert not state.completed("ddp")
    assert state.began("ddp")
    assert not state.settled


def test_a_stage_in_two_parts_adds_up() -> None:
    state = play(
        {"event": "begin", "t": 1.0, "stage": "collectives"},
        {"event": "end", "t": 2.0, "stage": "collectives"},
        {"event": "begin", "t": 5.0, "stage": "collectives"},
        {"event": "end", "t": 5.5, "stage": "collectives"},
    )
    assert state.spent("collectives") == 1.5
    assert state.completed("collectives")
    assert state.stage is None


def test_an_open_second_part_is_not_complete() -> None:
    state = play(
        {"event": "begin", "t": 1.0, "stage": "collectives"},
        {"event": "end", "t": 2.0, "stage": "collectives"},
        {"event": "begin", "t": 5.0, "stage": "collectives"},
    )
    assert not state.completed("collectives")


def test_a_failed_stage_is_not_complete_and_settles_the_rank() -> None:
    state = play({"event": "begin", "t": 1.0, "stage": "ddp"}, {"event": "failed", "t": 2.0, "stage": "ddp"})
    assert state.failed == "ddp"
    assert state.settled
    assert not state.completed("ddp")


def test_a_stage_never_begun_has_no_duration() -> None:
    state = RankState(0)
    assert state.spent("ddp") is None
    assert not state.completed("ddp")


def test_ranks_that_are_gone_are_in_no_stage() -> None:
    here = play({"event": "begin", "t": 1.0, "stage": "ddp"})
    gone = play({"event": "begin", "t": 1.0, "stage": "ddp"})
    gone.gone_at = 3.0
    assert ranks_in({0: here, 1: gone}, "ddp") == RankSet([0])


def test_the_step_of_the_users_model_is_known_while_it_runs() -> None:
    entered = {"event": "user", "t": 2.0, "step": "factory"}
    assert play(entered).user_step == "factory"
    assert play(entered, {"event": "user", "t": 3.0, "step": None}).user_step is None
