"""Faults of made-up dumps in every form in which torch writes them: pickled, by an older torch, and as JSON."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.dumps import TIMEOUT_MS, Entry, make_entry, pickle_dump
from ddpdoctor import Report, analyze

FORMS = ("2.13", "2.4", "json")
PLAN = (("all_reduce", 64, 20), ("all_reduce", 32, 20), ("all_gather", 8, 31), ("broadcast", 4, 40))
AT, WORLD, ODD = 9, 4, 2
"""Calls before the fault, ranks, and the one that is wrong."""
Groups = Mapping[str, Sequence[int]]


class Dumps:
    """Dumps of one job in the making."""

    def __init__(self, world: int, groups: Groups | None = None) -> None:
        self.groups: Groups = {"0": range(world), **(groups or {})}
        self.rows: dict[int, list[Entry]] = {rank: [] for rank in range(world)}

    def call(
        self, ranks: Sequence[int], op: str, size: int = 8, line: int = 20, *, group: str = "0",
        state: str = "completed", dtype: str = "Float",
    ) -> Dumps:  # fmt: skip
        """Let ranks issue one collective on a group."""
        name = (group, "default_pg" if group == "0" else "")
        for rank in ranks:
            rows = self.rows[rank]
            number = 1 + sum(row["process_group"][0] == group for row in rows)
            rows.append(
                make_entry(len(rows), number, op, (size,), line, state=state, group=name, dtype=dtype)
            )
        return self

    def analyze(self, folder: Path, form: str, without: Sequence[int] = ()) -> Report:
        """Write the dumps as a timeout does and analyze them; some ranks may have left none."""
        folder.mkdir()
        for rank, rows in self.rows.items():
            if rank in without:
                continue
            config = {
                name: {"name": name, "desc": "default_pg" if name == "0" else "", "ranks": str(list(members))}
                for name, members in self.groups.items()
                if rank in members
            }
            dump = {
                "version": "2.10",
                "pg_config": config,
                "comm_lib_version": "2.27.3",
                "pg_status": {},
                "entries": rows,
            }
            name = f"nccl_trace_rank_{rank}" + (".json" if form == "json" else "")
            (folder / name).write_bytes(write(dump, form))
        last = max(row["time_created_ns"] for rows in self.rows.values() for row in rows)
        for path in folder.iterdir():
            os.utime(path, ns=(last + (TIMEOUT_MS + 5_000) * 1_000_000,) * 2)
        return analyze(str(folder))


def write(dump: dict[str, Any], form: str) -> bytes:
    """Return a dump as torch writes it: JSON has no stacks; an older torch names neither library nor thread."""
    made = copy.deepcopy(dump)
    if form == "2.13":
        return pickle_dump(made)
    for entry in made["entries"]:
        for key in ("frames",) if form == "json" else ("thread_name", "thread_id"):
            del entry[key]
    if form == "json":
        return json.dumps(made).encode()
    made["version"] = "2.3"
    del made["comm_lib_version"]
    return pickle_dump(made)


def at_odds(change: Mapping[str, Any], behind: int) -> Dumps:
    """Return dumps in which one rank's call differs; behind it come as many calls that fit again."""
    dumps = Dumps(WORLD)
    for number in range(AT):
        dumps.call(range(WORLD), *PLAN[number % len(PLAN)])
    op, size, line = PLAN[AT % len(PLAN)]
    usual: dict[str, Any] = {"op": op, "size": size, "line": line, "state": "started"}
    dumps.call([rank for rank in range(WORLD) if rank != ODD], **usual).call([ODD], **{**usual, **change})
    for number in range(AT + 1, AT + 1 + behind):
        dumps.call(range(WORLD), *PLAN[number % len(PLAN)], state="scheduled")
    return dumps


CHANGES: Sequence[dict[str, Any]] = (
    {"op": "reduce_scatter", "line": 77},
    {"op": "all_gather", "size": 8, "line": 31},
    {"op": "barrier", "line": 55},
    {"size": 999},
    {"dtype": "Half"},
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("behind", [0, 1, 6])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: "-".join(map(str, change.values())))
def test_another_call_at_one_number_is_a_mismatch(
    change: dict[str, Any], behind: int, form: str, tmp_path: Path
) -> None:
    found = at_odds(change, behind).analyze(tmp_path / "dumps", form).findings[0]
    assert (found.code, str(found.ranks), found.details["sequence"]) == ("COL003", str(ODD), AT + 1)


HALVES: Groups = {"1": range(4), "2": range(4, 8)}


def steps(world: int, groups: Groups) -> Dumps:
    """Return dumps of ranks that issue the same collectives, which end."""
    dumps = Dumps(world, groups)
    for _ in range(3):
        dumps.call(range(world), "all_reduce")
        for name, members in groups.items():
            dumps.call(members, "all_reduce", line=30, group=name)
    return dumps


@pytest.mark.parametrize("form", FORMS)
def test_a_rank_without_a_dump_explains_ranks_that_wait_for_those_blocked_on_it(
    form: str, tmp_path: Path
) -> None:
    dumps = steps(8, HALVES).call([4, 6, 7], "all_reduce", line=30, group="2", state="started")
    dumps.call(range(4), "all_reduce", line=30, group="1").call(range(4), "all_reduce", state="started")
    found = dumps.analyze(tmp_path / "dumps", form, without=[5]).findings[0]
    assert (found.code, str(found.ranks)) == ("COL005", "5")
    assert "rank 5 left no dump" in found.message


@pytest.mark.parametrize("form", FORMS)
def test_a_rank_without_a_dump_is_named_where_all_calls_match(form: str, tmp_path: Path) -> None:
    report = steps(8, HALVES).analyze(tmp_path / "dumps", form, without=[5])
    reason = next(row.reason for row in report.checks if row.id == "recorder.calls")
    assert not report.findings
    assert reason == "rank 5 left no dump: look there first; the collectives of the other ranks match"


def test_dumps_of_one_host_among_several_name_no_rank(tmp_path: Path) -> None:
    report = steps(8, HALVES).analyze(tmp_path / "dumps", "2.13", without=[4, 5, 6, 7])
    assert next(row.status for row in report.checks if row.id == "recorder.calls") == "pass"


def test_a_rank_that_issues_one_more_in_its_pair_is_named_by_the_other_pair(tmp_path: Path) -> None:
    dumps = steps(4, {"1": (0, 1), "2": (2, 3)}).call([0, 2, 3], "all_reduce", state="started")
    dumps.call([1], "barrier", line=41, group="1", state="started")
    found = dumps.analyze(tmp_path / "dumps", "2.13").findings[0]
    assert (found.code, str(found.ranks), found.confidence) == ("COL002", "1", "medium")


def test_a_pair_without_another_like_it_leaves_it_open(tmp_path: Path) -> None:
    dumps = steps(4, {"1": (0, 1)}).call([0, 2, 3], "all_reduce", state="started")
    dumps.call([1], "barrier", line=41, group="1", state="started")
    found = dumps.analyze(tmp_path / "dumps", "2.13").findings[0]
    assert (found.code, str(found.ranks)) == ("COL002", "")
