"""DAT003: ranks that part because their loaders are of different lengths."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.evidence import Evidence, Frame, Launch, RankSet
from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.standstill import Call, LoaderStand, Stand, Standstill
from ddpdoctor.judge import Finding
from ddpdoctor_checks.job.hangs.progress import judge_look

LOOP = Frame("train.py", 10, "main", "for x in loader:")
WORLD = RankSet.span(3)


def waits(rank: int, op: str, ordinal: int, line: int, length: int | None, number: int = 1) -> Stand:
    call = Call(
        op=op,
        group="0",
        members=WORLD,
        ordinal=ordinal,
        returned=False,
        age_s=3.0,
        default_group=True,
        frames=(Frame("train.py", line, "main", f"dist.{op}()"),),
    )
    inside = (Frame("train.py", 12, "main", "dist.all_reduce()"),)
    done = replace(call, op="all_reduce", ordinal=1, returned=True, took_s=0.1, frames=inside)
    return Stand(
        rank,
        100 + rank,
        call=call,
        recent=(done, call),
        counts={call.series: ordinal},
        still_s=3.0,
        loaders=(LoaderStand(length, number, 4, frames=(LOOP,)),),
    )


def judge(*stands: Stand) -> Finding:
    look = Standstill(Moment(1, 1), 20.0, 3.0, stands, len(stands), 0.7, "proved")
    found = judge_look(Evidence(launch=Launch(command="run"), standstills=(look,)))
    assert found is not None
    return found


def test_the_rank_with_fewer_batches_is_named_with_the_loaders_line() -> None:
    found = judge(
        waits(0, "barrier", 2, 14, 9), waits(1, "all_reduce", 2, 12, 10), waits(2, "all_reduce", 2, 12, 10)
    )
    assert (found.code, list(found.ranks), list(found.victims)) == ("DAT003", [0], [1, 2])
    assert (found.where[0].role, found.where[0].line) == ("culprit", 10)
    assert found.details["batches"] == {"0": 9, "1": 10, "2": 10}
    assert "9 batches on rank 0 and 10 batches on ranks 1-2" in found.message


@pytest.mark.parametrize(
    ("lengths", "numbers"),
    [((10, 10, 10), (1, 1, 1)), ((9, 10, None), (1, 1, 1)), ((9, 10, 10), (2, 1, 1))],
    ids=["equal", "not all known", "a different epoch"],
)
def test_lengths_that_do_not_explain_it_are_not_blamed(
    lengths: tuple[int | None, ...], numbers: tuple[int, ...]
) -> None:
    found = judge(
        waits(0, "barrier", 2, 14, lengths[0], numbers[0]),
        waits(1, "all_reduce", 2, 12, lengths[1], numbers[1]),
        waits(2, "all_reduce", 2, 12, lengths[2], numbers[2]),
    )
    assert (found.code, list(found.ranks)) == ("COL002", [0])
