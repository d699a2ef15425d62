"""Stalls that end because NCCL gives the collective up: no progress, though the ranks move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.evidence import Evidence, Frame, Launch, RankSet
from ddpdoctor.evidence.collectives import RING, CallTable, RankCalls, RecordedCall
from ddpdoctor.evidence.columns import Numbers
from ddpdoctor.evidence.job import JobEnd, Moment, TextMatch
from ddpdoctor.evidence.standstill import Standstill
from ddpdoctor_checks.job.hangs.progress import judge_look

from .test_hang_devices import FETCH, queued, stand

TIMED_OUT = TextMatch("nccl-timed-out", "Watchdog caught collective operation timeout", rank=0)
WITHDRAWN = "withdrawn"


def evidence(*last: int, texts: tuple[TextMatch, ...] = (TIMED_OUT,), code: int = 1) -> Evidence:
    """Two ranks queued different calls #2, moved, and ended; ``last`` is how many each had begun by then."""
    first = [queued("all_reduce", 1, 10), queued("all_reduce", 2, 11)]
    second = [queued("all_reduce", 1, 10), queued("broadcast", 2, 12)]
    stands = (stand(0, first, (FETCH,)), stand(1, second, (FETCH,)))
    look = Standstill(Moment(1, 1), 40.0, 12.0, stands, 2, 0.7, "suspected")
    table = CallTable()
    group = table.group("0", "default_pg", RankSet.span(2))
    stack = table.stack([Frame("train.py", 11, "train", "dist.all_reduce(x)")])
    call = table.call(RecordedCall("all_reduce", group, ((4,),), stack=stack, reduction="sum"))
    rows = [
        RankCalls(
            rank,
            source=RING,
            sequences=Numbers(range(1, count + 1)),
            calls=Numbers([call] * count),
            states=Numbers([3] * count),
        )
        for rank, count in enumerate(last)
    ]
    cleared = replace(look, stage=WITHDRAWN, after_s=60.0)
    return Evidence(
        launch=Launch(command="run"),
        standstills=(look, cleared),
        calls=(table.log(rows),),
        texts=texts,
        job=(JobEnd(code),),
    )


@pytest.mark.parametrize("last", [(2, 2), (2, 3), (3, 3)])
def test_ranks_that_were_only_released_did_not_get_on(last: tuple[int, int]) -> None:
    found = judge_look(evidence(*last))
    assert found is not None
    assert (found.code, found.state, found.severity) == ("COL003", "active", None)


@pytest.mark.parametrize(
    "made",
    [
        evidence(2, 9),
        evidence(2, 2, texts=()),
        evidence(2, 2, code=0),
        replace(evidence(2, 2), calls=()),
    ],
    ids=["trained on", "NCCL said nothing", "exited cleanly", "calls not known"],
)
def test_a_stall_that_may_have_cleared_stays_withdrawn(made: Evidence) -> None:
    found = judge_look(made)
    assert found is not None
    assert (found.state, found.severity) == ("withdrawn", "info")


def test_a_stall_beyond_its_time_is_confirmed_again() -> None:
    made = evidence(2, 2)
    looks = tuple(replace(look, still_s=500.0) for look in made.standstills)
    found = judge_look(replace(made, standstills=looks))
    assert found is not None
    assert found.state == "active"
