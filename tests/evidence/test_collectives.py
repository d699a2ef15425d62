"""Calls of ranks: interned once, kept in columns, saved in short."""

from __future__ import annotations

import json
import sys

import pytest

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.bundle import renumber_node
from ddpdoctor.evidence.codec import decode, encode
from ddpdoctor.evidence.collectives import (
    COMPLETED,
    CallLog,
    CallTable,
    RankCalls,
    RecordedCall,
)
from ddpdoctor.evidence.columns import Numbers

SITE = (Frame("train.py", 7, "step"), Frame("train.py", 20, "<module>"))


def make_log(ranks: int, rows: int) -> CallLog:
    table = CallTable()
    group = table.group("0", "default_pg", RankSet.span(ranks))
    numbers = [
        table.call(
            RecordedCall(op, group, inputs=((4, 2),), input_types=("float32",), stack=table.stack(SITE[n:]))
        )
        for n, op in enumerate(("broadcast", "all_reduce"))
    ]
    table.world = ranks
    columns = [numbers[0], *[numbers[1]] * (rows - 1)]
    return table.log(
        [
            RankCalls(rank, calls=Numbers(columns), sequences=Numbers(range(1, rows + 1)), states=Numbers([3] * rows))
            for rank in range(ranks)
        ]
    )  # fmt: skip


def test_calls_that_are_alike_are_one_entry() -> None:
    log = make_log(64, 100)
    assert (len(log.calls), len(log.frames), len(log.stacks), len(log.groups)) == (2, 2, 2, 1)
    assert log.frames_of(log.calls[0]) == SITE
    assert log.frames_of(RecordedCall("barrier")) == ()


def test_a_log_survives_being_saved() -> None:
    log = make_log(2, 3)
    assert decode(CallLog, json.loads(json.dumps(encode(log)))) == log


def test_a_report_keeps_the_last_calls_of_each_rank_and_what_they_name() -> None:
    log = make_log(4, 1000).shorten(40)
    assert {len(rank.calls) for rank in log.ranks} == {10}
    assert {rank.overwritten for rank in log.ranks} == {990}
    assert [log.calls[number].op for number in log.ranks[0].calls] == ["all_reduce"] * 10
    assert [call.op for call in log.calls] == ["all_reduce"]
    assert log.frames_of(log.calls[0]) == SITE[1:]
    assert list(log.ranks[3].sequences) == list(range(991, 1001))


def test_evidence_is_saved_in_short() -> None:
    data = Evidence(calls=(make_log(8, 20_000),)).to_dict()
    assert len(json.dumps(data["calls"])) < 400_000
    saved = Evidence.from_dict(data).calls[0]
    assert saved.ranks[7].sequences[len(saved.ranks[7].sequences) - 1] == 20_000


def test_logs_of_two_nodes_share_what_is_alike() -> None:
    one, other = make_log(4, 5), make_log(2, 5)
    table = CallTable()
    table.call(RecordedCall("barrier"))  # so that numbers differ
    shifted = table.log(table.adopt(other))
    table = CallTable()
    whole = table.log([rank for log in (one, shifted) for rank in table.adopt(log)])
    assert [rank.rank for rank in whole.ranks] == [0, 0, 1, 1, 2, 3]
    assert [[whole.calls[n].op for n in rank.calls] for rank in whole.ranks] == [
        ["broadcast", *["all_reduce"] * 4]
    ] * 6
    assert whole.world == 4


def test_a_log_gets_the_number_of_its_node() -> None:
    moved = renumber_node(Evidence(calls=(make_log(2, 2),)), 3)
    assert {rank.node for rank in moved.calls[0].ranks} == {3}


def test_rows_of_many_ranks_are_small_in_memory() -> None:
    log = make_log(1, 2000)
    rank = log.ranks[0]
    size = sum(sys.getsizeof(column._items) for column in (rank.calls, rank.sequences, rank.states))
    assert size < 2000 * 3 * 9
    assert rank.states[0] == COMPLETED


@pytest.mark.parametrize("items", [[], [0], [5, -3, 2**62, -(2**62)]])
def test_numbers_travel_as_differences(items: list[int]) -> None:
    numbers = Numbers(items)
    assert Numbers.from_differences(numbers.differences()) == numbers
    assert list(numbers) == items
    assert Numbers(items).to_bytes() == numbers.to_bytes()


@pytest.mark.parametrize("data", [[2**70], [2**63 - 1, 1]])
def test_numbers_of_more_than_64_bits_are_refused(data: list[int]) -> None:
    with pytest.raises(ValueError, match="column of numbers"):
        Numbers.from_differences(data)


def test_what_is_no_list_of_numbers_is_refused() -> None:
    given: tuple[object, ...] = ("abc", ["a"], {})
    for data in given:
        with pytest.raises((ValueError, TypeError)):
            decode(RankCalls, {"rank": 0, "calls": data})
