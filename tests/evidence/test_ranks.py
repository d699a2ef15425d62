from __future__ import annotations

import random

import pytest

from ddpdoctor.evidence import RankSet


def test_random_sets_behave_like_python_sets() -> None:
    draw = random.Random(1)
    for _ in range(300):
        one = {draw.randrange(40) for _ in range(draw.randrange(30))}
        other = {draw.randrange(40) for _ in range(draw.randrange(30))}
        first, second = RankSet(one), RankSet(other)
        assert list(first) == sorted(one)
        assert len(first) == len(one)
        assert set(first.union(second)) == one | other
        assert set(first.minus(second)) == one - other
        assert all((rank in first) == (rank in one) for rank in range(-1, 41))
        assert (first == second) == (one == other)
        assert RankSet.parse(str(first)) == first
        assert hash(RankSet(sorted(one, reverse=True))) == hash(first)


def test_ranges_are_as_few_as_can_be() -> None:
    draw = random.Random(2)
    for _ in range(100):
        ranks = RankSet(draw.randrange(30) for _ in range(draw.randrange(25)))
        joined = zip(ranks.ranges, ranks.ranges[1:], strict=False)
        assert all(high + 1 < low for (_, high), (low, _) in joined)


def test_union_of_sixteen_thousand_ranks_is_one_range() -> None:
    whole = RankSet().union(*(RankSet([rank]) for rank in range(16384)))
    assert whole == RankSet.span(16384)
    assert str(whole) == "0-16383"


@pytest.mark.parametrize(
    ("text", "ranks"), [("", []), ("3", [3]), ("0-2,4", [0, 1, 2, 4]), ("4,0-2,1-3", [0, 1, 2, 3, 4])]
)
def test_text_is_read_in_any_order(text: str, ranks: list[int]) -> None:
    assert list(RankSet.parse(text)) == ranks


@pytest.mark.parametrize("text", ["a", "1-x", "-3", "4-2", "1;2"])
def test_text_that_is_no_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        RankSet.parse(text)


def test_negative_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="not a range"):
        RankSet([-1, 0])


@pytest.mark.parametrize(
    ("ranks", "words"), [([], "no rank"), ([3], "rank 3"), ([0, 1, 2, 4], "ranks 0-2, 4")]
)
def test_phrase_fits_a_sentence(ranks: list[int], words: str) -> None:
    assert RankSet(ranks).phrase() == words


def test_empty_set_is_false_and_unlike_other_types() -> None:
    assert not RankSet()
    assert RankSet([1]) != {1}
    assert "1" not in RankSet([1])


def test_a_text_with_ranks_that_no_job_has_is_refused() -> None:
    with pytest.raises(ValueError, match="no job has a rank"):
        RankSet.parse("0-99999999999")
