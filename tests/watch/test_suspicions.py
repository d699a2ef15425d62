"""When a suspicion is withdrawn, and when it stands although something moved."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.standstill import Stand, Standstill
from ddpdoctor.watch.live.monitor import Monitor
from ddpdoctor.watch.live.pace import Glance
from ddpdoctor.watch.live.policy import Policy, Ruling
from ddpdoctor.watch.live.suspicion import Suspicion

LOOK = Standstill(Moment(0), 20.0, 12.0, tuple(Stand(rank) for rank in range(3)), 3)


def glance(rank: int, changed: int = 5, *, alive: bool = True) -> Glance:
    return Glance(rank, alive, True, 7, changed)


def suspect(folder: Path, *ranks: int) -> Suspicion:
    """Let a monitor suspect ranks; all of them wait."""
    made = Monitor(
        folder, folder, lambda look: Ruling(stalled=True, ranks=ranks), Policy(), lambda text: None
    )
    made._rule(LOOK, 10.0, [glance(rank) for rank in range(3)])
    assert made._suspicion is not None
    return made._suspicion


@pytest.fixture
def suspicion(tmp_path: Path) -> Suspicion:
    """Of rank 1, for which ranks 0 and 2 wait."""
    return suspect(tmp_path, 1)


def test_it_is_withdrawn_when_the_rank_moves(suspicion: Suspicion) -> None:
    assert suspicion.has_moved([glance(0), glance(1, changed=6), glance(2)])


def test_it_stands_while_nothing_moves(suspicion: Suspicion) -> None:
    assert not suspicion.has_moved([glance(rank) for rank in range(3)])


def test_it_stands_where_those_that_waited_give_up(suspicion: Suspicion) -> None:
    """At the time limit of their group: their calls raise, then they end, then the launcher ends the rest."""
    assert not suspicion.has_moved([glance(0, changed=6), glance(1), glance(2)])
    assert not suspicion.has_moved([glance(0, alive=False), glance(1), glance(2)])
    assert not suspicion.has_moved([glance(0, changed=6, alive=False), glance(1, alive=False), glance(2)])


def test_it_is_withdrawn_where_the_rank_leaves_while_others_wait(suspicion: Suspicion) -> None:
    assert suspicion.has_moved([glance(0), glance(1, alive=False), glance(2)])


def test_a_suspicion_of_nobody_is_withdrawn_when_anything_moves(tmp_path: Path) -> None:
    made = suspect(tmp_path)
    assert not made.has_moved([glance(rank) for rank in range(3)])
    assert made.has_moved([glance(0, changed=6), glance(1), glance(2)])


def test_a_suspicion_of_nobody_stands_where_all_that_moved_gave_up(tmp_path: Path) -> None:
    """At the time limit of their group: it then says why."""
    made = suspect(tmp_path)
    failed = replace(glance(0, changed=6), gave_up=True)
    assert not made.has_moved([failed, glance(1), glance(2)])
    assert made.has_moved([failed, glance(1, changed=6), glance(2)])


def kept(folder: Path) -> list[tuple[str, float]]:
    """Return stage of each look that was kept, and for how long nothing had moved."""
    files = sorted((folder / "snapshots").glob("*.json"))
    return [(look["stage"], look["still_s"]) for look in (json.loads(file.read_text()) for file in files)]


def watch(folder: Path, ruling: Ruling, still_s: float = 12.0) -> Monitor:
    """Let a monitor judge a look that was taken three seconds ago."""
    made = Monitor(folder, folder, lambda look: ruling, Policy(), lambda text: None)
    taken = Moment(time.time_ns(), time.monotonic_ns() - 3_000_000_000)
    made._rule(replace(LOOK, at=taken, still_s=still_s), 10.0, [glance(rank) for rank in range(3)])
    return made


@pytest.mark.parametrize("ranks", [(1,), ()], ids=["of a rank", "of nobody"])
def test_what_was_known_holds_where_the_job_is_asked_to_end(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    """Ctrl-C: ranks raise and leave, which is no progress, in whatever order they do."""
    made = watch(tmp_path, Ruling(stalled=True, ranks=ranks))
    made.hold()
    made._tick()
    made.close()
    (first, _), (last, still_s) = kept(tmp_path)
    assert (first, last) == ("suspected", "suspected")
    assert 14.9 < still_s < 60.0


def test_without_a_request_to_end_a_rank_that_leaves_clears_the_stall(tmp_path: Path) -> None:
    made = watch(tmp_path, Ruling(stalled=True, ranks=(1,)))
    made.close()
    assert [stage for stage, _ in kept(tmp_path)] == ["suspected", "withdrawn"]


def test_a_job_that_hung_of_which_nobody_could_be_named_is_kept_as_well(tmp_path: Path) -> None:
    made = watch(tmp_path, Ruling())
    assert kept(tmp_path) == []
    made.hold()
    made.close()
    ((stage, still_s),) = kept(tmp_path)
    assert stage == "look"
    assert still_s > 14.9


def test_a_job_that_goes_on_after_the_request_is_watched_again(tmp_path: Path) -> None:
    made = watch(tmp_path, Ruling())
    made.hold()
    assert made._is_held()
    made._held_until = time.monotonic() - 1.0
    assert not made._is_held()
