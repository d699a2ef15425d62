"""Comparing the calls of live ranks: what is kept of them, and what is found."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.collectives import CallLog
from ddpdoctor.evidence.job import JobEnd
from ddpdoctor.facts.wire import COUNT_AT, HEADER, MAGIC
from ddpdoctor.judge import CannotLook, Finding, NotApplicable
from ddpdoctor.watch.live import comparing
from ddpdoctor.watch.live.comparing import CallComparer
from ddpdoctor.watch.readers.rings import HEAD, RECORD
from ddpdoctor_checks.job.calls.last import find_last_mismatch
from ddpdoctor_checks.job.silent.group_names import find_names_shared
from ddpdoctor_checks.job.silent.order import find_order_in_job

CAPACITY = 512
LINES = {"a": 10, "b": 20, "c": 30, "d": 40}
"""Letter of a call -> the line that it comes from; all are the same all_reduce."""


class Job:
    """Rings of made-up ranks that go on calling."""

    def __init__(self, folder: Path, world: int, created: Sequence[list[int] | None] = ()) -> None:
        self.folder = folder
        self.counts = [0] * world
        self.data = []
        self.source = folder / "train.py"
        for rank in range(world):
            events: list[dict[str, object]] = [
                {"event": "start", "role": "rank", "rank": rank, "host": "a"},
                {"event": "init", "rank": rank, "world_size": world, "backend": "gloo"},
                {"event": "signature", "number": 1, "op": "all_reduce", "shape": [2], "dtype": "float32"},
                {"event": "group", "number": 1, "name": "0", "ranks": list(range(world)), "default": True},
            ]
            if created:
                events.append({"event": "signature", "number": 2, "op": "new_group", "ranks": created[rank]})
            # Numbers of lines are a process's own: each rank counts them in another order.
            order = sorted(LINES, reverse=bool(rank % 2))
            events += [
                {"event": "site", "number": n, "frames": [[str(self.source), LINES[name], "step"]]}
                for n, name in enumerate(order, 1)
            ]
            self.data.append((order, bytearray(HEADER + CAPACITY * RECORD.size)))
            text = "\n".join(json.dumps({"wall_ns": 1, "mono_ns": 1, **event}) for event in events)
            (folder / f"{100 + rank}-{rank + 1}.jsonl").write_text(f"{text}\n")

    def call(self, rank: int, letters: str) -> None:
        """Write calls down; ``G`` creates a group."""
        order, data = self.data[rank]
        HEAD.pack_into(data, 0, MAGIC, CAPACITY, RECORD.size, 100 + rank, rank + 1, 7)
        for letter in letters:
            self.counts[rank] += 1
            number = self.counts[rank]
            site = 1 if letter == "G" else order.index(letter) + 1
            what = (2, site, 0, -1, 2) if letter == "G" else (1, site, 1, -1, 0)
            row = (number, number, number + 1, number, *what, 0, 7)
            RECORD.pack_into(data, HEADER + (number - 1) % CAPACITY * RECORD.size, *row)
        data[COUNT_AT : COUNT_AT + 8] = self.counts[rank].to_bytes(8, "little")
        (self.folder / f"{100 + rank}-{rank + 1}.ring").write_bytes(data)


@pytest.mark.parametrize(
    ("created", "told"),
    [
        ([[0, 1], [0, 1], [2, 3], [2, 3]], {"0-1": "0-1", "2-3": "2-3"}),
        ([[0, 1], [0, 1], [0, 1], [0, 2]], {"0-1": "0-2", "0,2": "3"}),
        ([[0, 1]] * 4, {}),
        ([None, [0, 1, 2, 3], None, None], {}),
    ],
    ids=["each its own", "another order", "all the same", "all ranks in two ways"],
)
def test_groups_of_one_name_and_of_other_members(
    tmp_path: Path, created: list[list[int] | None], told: dict[str, str]
) -> None:
    job = Job(tmp_path, 4, created)
    comparer = CallComparer(tmp_path, tmp_path, lambda log: False)
    for rank in range(4):
        job.call(rank, "Ga")
    comparer.read()
    log = comparer.log()
    assert log is not None
    assert {str(each.members): str(each.ranks) for each in log.created} == told
    assert all(
        (each.name, each.frames[0].line) == ("1", LINES[min(LINES)]) for each in log.created[:1]
    )  # of rank 0
    evidence = Evidence(calls=(log,), job=(JobEnd(exit_code=0),))
    found = list(find_names_shared(evidence))
    assert [(each.severity, str(each.ranks)) for each in found] == ([("warning", "0-3")] if told else [])
    with pytest.raises(NotApplicable):
        list(find_names_shared(Evidence(calls=(log,), job=(JobEnd(exit_code=1),))))


def judge(log: CallLog) -> list[Finding]:
    return list(find_order_in_job(Evidence(calls=(log,))))


def compare(folder: Path, *rounds: Sequence[str], source: str = "") -> tuple[CallComparer, list[int]]:
    """Let ranks make calls, letters of `LINES`, in rounds; return the comparer and the sizes of what was judged."""
    job = Job(folder, len(rounds[0]))
    if source:
        job.source.write_text(source)
    judged: list[int] = []

    def look(log: CallLog) -> bool:
        judged.append(len(log.ranks[0].calls))
        return bool(judge(log))

    comparer = CallComparer(folder, folder, look)
    for calls in rounds:
        for rank, letters in enumerate(calls):
            job.call(rank, letters)
        comparer.read()
    comparer.read(last=True)
    return comparer, judged


def test_the_last_call_is_kept_where_ranks_gave_it_other_arguments(tmp_path: Path) -> None:
    """Nothing is found wrong by it alone; it says what failed where gloo then complains of a size."""
    job = Job(tmp_path, 3)
    event = {"event": "signature", "number": 2, "op": "all_reduce", "shape": [64], "dtype": "float32"}
    with (tmp_path / "101-2.jsonl").open("a") as file:
        file.write(json.dumps({"wall_ns": 1, "mono_ns": 1, **event}) + "\n")
    for rank in range(3):
        job.call(rank, "aaaa")
    order, data = job.data[1]
    last = (4, 4, 5, 4, 2, order.index("a") + 1, 1, -1, 0, 0, 7)
    RECORD.pack_into(data, HEADER + 3 * RECORD.size, *last)
    (tmp_path / "101-2.ring").write_bytes(data)
    comparer = CallComparer(tmp_path, tmp_path, lambda log: bool(judge(log)))
    comparer.read(last=True)
    log = comparer.log()
    assert comparer.found is None
    assert log is not None
    found = find_last_mismatch(Evidence(calls=(log,)))
    assert found is not None
    assert (found.number, [str(side.ranks) for side in found.sides]) == (4, ["0,2", "1"])
    assert [side.call.inputs for side in found.odd] == [((64,),)]


def test_equal_calls_are_counted_and_not_kept(tmp_path: Path) -> None:
    comparer, judged = compare(tmp_path, *itertools.repeat(["abcd" * 50] * 3, 4))
    log = comparer.log()
    assert log is not None
    assert not judged
    assert [(row.overwritten, len(row.calls)) for row in log.ranks] == [(800, 0)] * 3
    assert not log.lost
    assert not judge(log)


def test_two_calls_that_change_places_are_found_with_their_lines(tmp_path: Path) -> None:
    comparer, _ = compare(tmp_path, *itertools.repeat(["abc" * 40, "bac" * 40, "abc" * 40], 4))
    assert comparer.found is not None
    (found,) = judge(comparer.found)
    assert list(found.ranks) == [1]
    assert {(place.line, str(place.ranks), place.role) for place in found.where} == {
        (20, "1", "culprit"), (10, "0,2", "victim"),
    }  # fmt: skip


def test_of_two_ranks_nobody_is_named(tmp_path: Path) -> None:
    comparer, _ = compare(tmp_path, ["ab", "ba"])
    assert comparer.found is not None
    (found,) = judge(comparer.found)
    assert (list(found.ranks), found.confidence) == ([], "medium")


def test_a_swap_across_a_cut_is_found(tmp_path: Path) -> None:
    before = comparing.PIECE - 1
    first = ["c" * before + "a", "d" * before + "b", "c" * before + "a"]
    comparer, judged = compare(tmp_path, first, ["b" + "c" * 300, "a" + "c" * 300, "b" + "c" * 300])
    assert len(judged) > 1
    assert comparer.found is not None


@pytest.mark.parametrize("calls", [["ac", "bc", "bc"], ["aab", "abb", "abb"], ["abcd", "abdd", "abcd"]])
def test_other_lines_alone_are_no_fault(tmp_path: Path, calls: list[str]) -> None:
    comparer, judged = compare(tmp_path, *itertools.repeat([each * 40 for each in calls], 5))
    assert judged
    assert comparer.found is None


TURNS = "\n" * 8 + "if turn:\n    reduce(a)\n" + "\n" * 8 + "else:\n    reduce(b)\n"
"""Line 10 and line 20 are the two sides of one test."""


def test_ranks_that_take_turns_in_a_branch_are_no_fault(tmp_path: Path) -> None:
    lines = TURNS.splitlines()
    assert (lines[9].strip(), lines[19].strip()) == ("reduce(a)", "reduce(b)")
    comparer, judged = compare(tmp_path, ["ab" * 100, "ba" * 100], source=TURNS)
    assert judged
    assert comparer.found is None


def test_what_was_overwritten_is_said(tmp_path: Path) -> None:
    comparer, _ = compare(tmp_path, ["abcd" * 200, "abcd" * 200], ["ab", "ab"])
    log = comparer.log()
    assert log is not None
    assert log.lost
    with pytest.raises(CannotLook):
        judge(log)


def test_a_rank_that_is_far_behind_costs_no_memory(tmp_path: Path) -> None:
    comparer, _ = compare(tmp_path, *itertools.repeat(["a" * 400, ""], 30), ["", "a"])
    assert (
        sum(len(line.numbers) for group in comparer._groups.values() for line in group.lines.values()) <= 4097
    )


def test_one_rank_alone_is_not_compared(tmp_path: Path) -> None:
    comparer, _ = compare(tmp_path, ["abab"])
    assert comparer.log() is None
    with pytest.raises(NotApplicable):
        list(find_order_in_job(Evidence()))


def test_ranks_of_other_nodes_are_said_not_to_be_compared(tmp_path: Path) -> None:
    comparer, _ = compare(tmp_path, ["ab", "ab"])
    log = comparer.log()
    assert log is not None
    with pytest.raises(CannotLook, match="across nodes"):
        judge(dataclasses.replace(log, world=4))
