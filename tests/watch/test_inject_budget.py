"""What looks are charged: their own work, not what the program had queued on a device before them."""

from __future__ import annotations

import importlib
import time
from typing import Any

import pytest

from ddpdoctor.watch.inject.ddpdoctor_watch.core import budget as module


class Stream:
    """A device's queue that takes some time to run empty."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def synchronize(self) -> None:
        time.sleep(self.seconds)


@pytest.fixture
def budget() -> Any:
    return importlib.reload(module)


def test_waiting_for_the_programs_own_work_costs_a_look_nothing(budget: Any) -> None:
    began = budget.clock()
    budget.wait_for(Stream(0.5))
    assert budget.spend(began) < 250_000_000
    assert budget.spent_ns < 250_000_000


def test_a_device_gives_time_to_load_its_kernels(budget: Any) -> None:
    budget.began_ns = time.monotonic_ns()
    budget.spent_ns = 500_000_000
    assert not budget.affordable()
    budget.wait_for(Stream(0))
    assert budget.affordable()
    budget.spent_ns = 10_000_000_000
    assert not budget.affordable()


@pytest.mark.parametrize(
    ("took", "before", "charged"), [(5, 0, 5), (5, 6, 5 * 64), (500, 5, 500 + 63 * 5), (5, 500, 5 * 64)]
)
def test_one_timed_look_of_many_that_stands_out_counts_once(
    budget: Any, monkeypatch: pytest.MonkeyPatch, took: int, before: int, charged: int
) -> None:
    monkeypatch.setattr(budget, "clock", lambda: 1000 + took)
    assert budget.spend_for(64, 1000, before) == took
    assert budget.spent_ns == charged
