"""Groups that ranks created in different order: one name, other members."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.standstill import Call, Stand
from ddpdoctor_checks.job.hangs.reading import INIT
from tests.checks.standing import GUARD, at, collective, judge, proved, stand

PAIRS = (RankSet([0, 1]), RankSet([2, 3]))
HEADS = RankSet([0, 2])


def create(
    ranks: RankSet, number: int | None, line: int, *, ordinal: int = 1, guard: Frame | None = None
) -> Call:
    """A `new_group` that came back; the number becomes the group's name."""
    return Call(
        "new_group", members=ranks, ordinal=ordinal, frames=(at(line, "build"),), returned=True,
        made=None if number is None else str(number), conditions=(guard,) if guard is not None else (),
    )  # fmt: skip


def of_pairs(first: int) -> list[Call]:
    return [create(ranks, first + place, 14) for place, ranks in enumerate(PAIRS)]


def hierarchy(rank: int, last: Call, *, still_s: float = 12.0) -> Stand:
    """Ranks 0 and 2 create the group of the heads before those of the pairs, the others do not."""
    head = [create(HEADS, 1, 11, guard=GUARD)] if rank in HEADS else []
    return stand(rank, *head, *of_pairs(2 if head else 1), last, still_s=still_s)


def blocked(group: str, members: RankSet, line: int = 22) -> Call:
    return collective("all_reduce", 1, line, members, group)


def test_ranks_that_skip_a_group_are_named_with_those_that_create_it() -> None:
    stands = [
        hierarchy(0, blocked("2", PAIRS[0])),
        hierarchy(1, blocked("1", PAIRS[0])),
        hierarchy(2, blocked("3", PAIRS[1])),
        hierarchy(3, blocked("2", PAIRS[1])),
    ]
    found = judge(stands, still=12.0, stage="suspected")
    assert found is not None
    assert (found.code, found.ranks, found.victims) == ("COL006", HEADS, RankSet([1, 3]))
    assert (found.where[0].line, found.where[0].role) == (11, "culprit")
    assert any(place.role == "condition" and place.line == GUARD.line for place in found.where)
    assert found.message.startswith(
        "Ranks 0, 2 create the group of ranks 0, 2 (train.py:11, build) and ranks 1, 3 create"
    )
    assert found.details["group"] == "1"
    assert "network" not in str(found.fix)


def test_without_a_test_on_the_rank_nobody_is_innocent() -> None:
    """A helper that creates what it is given: one line, other members."""
    stands = [
        stand(rank, create(PAIRS[rank // 2], 1, 7), blocked("1", PAIRS[rank // 2]), still_s=12.0)
        for rank in range(4)
    ]
    found = judge(stands, still=12.0, stage="suspected")
    assert found is not None
    assert (found.code, found.ranks, found.victims) == ("COL006", RankSet.span(4), RankSet())


@pytest.mark.parametrize(
    "calls",
    [
        [[create(HEADS, 1, 11), *of_pairs(2)], [create(HEADS, 1, 11), *of_pairs(2)]],
        [[create(HEADS, None, 11), *of_pairs(1)], of_pairs(1)],
        [[create(PAIRS[0], 1, 11)], []],
    ],
    ids=["all alike", "named by their ranks", "created by its members alone"],
)
def test_ranks_whose_groups_have_one_meaning_are_not_crossed(calls: list[list[Call]]) -> None:
    last = blocked("1", PAIRS[0])
    stands = [stand(rank, *made, last, still_s=12.0) for rank, made in enumerate(calls)]
    found = judge(stands, still=12.0, stage="suspected")
    assert found is None or found.code != "COL006"


def test_what_follows_from_something_else_is_not_laid_to_the_groups() -> None:
    """All but one wait in a barrier of the world, which the last one never comes to."""
    wait = collective("barrier", 3, 40)
    stands = [hierarchy(rank, wait) for rank in range(3)]
    stands.append(
        replace(hierarchy(3, replace(wait, ordinal=2)), call=None, frames=(at(50, source="sleep(9)"),))
    )
    stands[3] = replace(stands[3], frames_before=stands[3].frames)
    found = judge(stands, still=12.0, stage="suspected")
    assert found is not None
    assert (found.code, found.ranks) == ("COL009", RankSet([3]))


def test_names_begin_anew_with_a_new_world() -> None:
    begin = Call(INIT, members=RankSet.span(2), ordinal=2, frames=(at(3),), returned=True)
    early = [create(RankSet([0]), 1, 5), begin]
    both = RankSet([0, 1])
    stands = [
        stand(0, *early, create(both, 1, 9), blocked("1", both), still_s=12.0),
        stand(1, begin, create(both, 1, 9), blocked("1", both), still_s=12.0),
    ]
    found = judge(stands, still=12.0, stage="suspected")
    assert found is not None
    assert found.code == "COL005"


def test_a_job_of_which_every_rank_is_stuck_is_proved() -> None:
    stands = [
        hierarchy(0, blocked("1", HEADS)),
        hierarchy(1, replace(blocked("1", PAIRS[0]), ordinal=2)),
        hierarchy(2, blocked("3", PAIRS[1])),
        hierarchy(3, replace(blocked("2", PAIRS[1]), ordinal=3)),
    ]
    assert proved(stands, still=12.0).code == "COL006"


@pytest.mark.parametrize(("line", "blamed"), [(14, [3]), (15, [0, 1, 2, 3])], ids=["one line", "other lines"])
def test_a_rank_that_creates_other_groups_than_most_on_their_line_is_named(
    line: int, blamed: list[int]
) -> None:
    lists = [RankSet([0, 2])] * 3 + [RankSet([3])]
    stands = [
        stand(rank, create(own, 1, 14 if rank < 3 else line), blocked("1", own), still_s=12.0)
        for rank, own in enumerate(lists)
    ]
    found = judge(stands, still=12.0, stage="suspected")
    assert found is not None
    assert (found.code, found.ranks) == ("COL006", RankSet(blamed))
