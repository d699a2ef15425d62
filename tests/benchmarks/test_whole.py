"""That jobs that take turns are compared slice by slice, and by processor time where wall time says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import whole
from benchmarks.training import MEASURED_ALL

_FIRST, _STEADY = 500, MEASURED_ALL + 10


def _take(first: int, *steady: float, processor: float = 1.0) -> list[whole.Slice]:
    early = [whole.Slice(_FIRST, first, processor)] * 2
    return early + [whole.Slice(_STEADY, each, processor) for each in steady]


@pytest.mark.parametrize(("again", "judged"), [((2.0, 2.1, 2.15), "wall"), ((1.0, 3.0, 2.0), "processor")])
def test_the_bar_is_one_of_wall_time_unless_torchrun_differs_from_itself_by_more(
    again: tuple[float, ...], judged: str
) -> None:
    taken = {
        "torchrun": _take(5, 2.0, 2.1, 2.2),
        "torchrun again": _take(5, *again),
        "--watch-level off": _take(5, 2.0, 2.0, 2.0),
        "default": _take(6, 2.3, 2.3, 2.6, processor=1.25),
    }
    figures = {figure.what: figure for figure in whole.judge("job: ", taken, 0.1)}
    assert [what for what, figure in figures.items() if figure.bar is not None] == [
        f"job: default, more {judged} time from step 1,064 on"
    ]
    assert figures["job: default, more wall time from step 1,064 on"].value == pytest.approx(0.3)
    assert figures["job: default, more processor time from step 1,064 on"].value == pytest.approx(0.25)
    assert figures["job: default, more wall time of the first steps"].value == pytest.approx(1)


@pytest.mark.long("four jobs of two ranks each, started one after the other")
def test_all_ways_take_the_same_slices(tmp_path: Path) -> None:
    found = whole.run_jobs(tmp_path, 2, 3, (str(tmp_path), "1", "3", "4", "4", "ddp"))
    firsts = {way: [each.first for each in slices] for way, slices in found.items()}
    assert set(firsts) == set(whole.WAYS)
    assert len(set(map(tuple, firsts.values()))) == 1
    assert len(firsts["default"]) == 3
    assert all(0 < each.processor <= each.wall for slices in found.values() for each in slices)
