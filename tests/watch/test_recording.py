"""What torch's recorder told, joined with the calls that a rank wrote down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.collectives import CallLog, CallTable
from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.standstill import Call, Recorded, Stand
from ddpdoctor.gather.recorder.read import take_entries
from ddpdoctor.gather.recorder.rows import Rows
from ddpdoctor.watch.readers.recording import OPEN, join_recorder

AT = Moment(1_795_307_430_000_000_000, 99)
BOTH = RankSet.span(2)


def entry(
    sequence: int,
    age_s: float,
    op: str = "all_reduce",
    size: tuple[int, ...] = (3,),
    *,
    over: bool = True,
    **more: Any,
) -> dict[str, Any]:
    """An entry as gloo's recorder writes it, as JSON."""
    return {
        "collective_seq_id": sequence,
        "input_dtypes": ["Float"],
        "input_sizes": [list(size)],
        "is_p2p": False,
        "output_dtypes": ["Float"],
        "output_sizes": [list(size)],
        "p2p_seq_id": 0,
        "process_group": ["0", "default_pg"],
        "profiling_name": f"gloo:{op}",
        "record_id": sequence - 1,
        "retired": over,
        "state": "scheduled",
        "time_created_ns": AT.wall_ns - int(age_s * 1e9),
        **more,
    }


def read(*entries: dict[str, Any], groups: object = None) -> CallLog:
    rows = Rows(CallTable())
    pg_config = groups or {"": {"desc": "", "name": "", "ranks": "[]"}}
    take_entries({"version": "2.10", "pg_config": pg_config, "entries": list(entries)}, rows)
    return rows.table.log([rows.finish(0)])


def call(ordinal: int, age_s: float, op: str = "all_reduce", **more: Any) -> Call:
    shape = more.pop("shape", (3,))
    given: dict[str, Any] = {
        "group": "0", "members": BOTH, "dtype": "float32", "device": "cpu", "default_group": True, "returned": True,
    }  # fmt: skip
    return Call(op, ordinal=ordinal, shape=shape, age_s=age_s, **{**given, **more})


def stand(*calls: Call) -> Stand:
    return Stand(0, 100, recent=calls)


def join(standing: Stand, *entries: dict[str, Any]) -> Stand:
    return join_recorder(standing, read(*entries), AT)


def test_buckets_are_told_from_calls_of_the_rank() -> None:
    standing = stand(
        call(1, 9.0), call(2, 6.0), Call("DistributedDataParallel.forward", ordinal=3, index=1, age_s=5.0)
    )
    joined = join(
        standing,
        entry(4, 9.5, size=(1000, 2)),
        entry(5, 9.0),
        entry(6, 6.5, size=(1000, 2)),
        entry(7, 6.0),
        entry(8, 4.9, size=(1000, 2), over=False),
        entry(9, 4.8, size=(500,), over=False),
    )
    assert joined.recorder is not None
    assert joined.recorder.problem is None
    assert joined.recorder.open == (
        Recorded("all_reduce", 8, "0", BOTH, 2000, "float32", "scheduled", own=False),
        Recorded("all_reduce", 9, "0", BOTH, 500, "float32", "scheduled", own=False),
    )
    assert [each.over for each in joined.recent] == [True, True, None]


def test_an_asynchronous_call_is_known_to_be_over_or_not() -> None:
    standing = stand(
        call(1, 8.0, asynchronous=True), call(2, 7.0, shape=(5,), asynchronous=True, returned=False)
    )
    joined = join(
        replace(standing, call=standing.recent[-1]), entry(1, 8.0), entry(2, 7.0, size=(5,), over=False)
    )
    assert [each.over for each in joined.recent] == [True, False]
    assert joined.call is not None
    assert joined.call.over is False
    assert joined.recorder is not None
    assert [each.own for each in joined.recorder.open] == [True]


@pytest.mark.parametrize(("state", "retired", "over"), [
    ("completed", False, True), ("started", False, False), ("scheduled", False, False), ("started", True, True),
    ("nonsense", False, False),
])  # fmt: skip
def test_nccl_says_how_far_a_call_is(state: str, retired: bool, over: bool) -> None:
    told = entry(1, 8.0, state=state, retired=retired, profiling_name="nccl:all_reduce")
    joined = join(stand(call(1, 8.0, device="cuda")), told)
    assert [each.over for each in joined.recent] == [over]


def test_calls_that_do_not_fit_in_time_are_not_taken_for_one_another() -> None:
    """A clock that was set meanwhile, or another call of the same kind."""
    joined = join(stand(call(1, 8.0)), entry(1, 3600.0, over=False))
    assert [each.over for each in joined.recent] == [None]
    assert joined.recorder is not None
    assert [each.own for each in joined.recorder.open] == [None]


def test_a_bucket_of_the_size_of_a_call_makes_both_doubtful() -> None:
    """A loop of milliseconds: times alone would not tell them apart."""
    calls = [call(number, (10 - number) / 1000) for number in range(1, 5)]
    entries = [
        each
        for number in range(1, 5)
        for each in (
            entry(2 * number, (10 - number) / 1000),
            entry(2 * number + 1, (9.5 - number) / 1000, over=number < 4),
        )
    ]
    older = Call("DistributedDataParallel.forward", ordinal=1, index=1, age_s=0.05)
    joined = join(stand(older, *calls), *entries)
    assert {each.over for each in joined.recent} == {None}
    assert joined.recorder is not None
    assert [each.own for each in joined.recorder.open] == [None]


def test_what_was_called_before_the_known_calls_is_nobodys() -> None:
    joined = join(stand(call(70, 8.0)), entry(1, 500.0, size=(9,), over=False), entry(70, 8.0))
    assert joined.recorder is not None
    assert [(each.sequence, each.own) for each in joined.recorder.open] == [(1, None)]
    assert [each.over for each in joined.recent] == [True]


def test_functions_that_gloo_records_as_others_are_known() -> None:
    joined = join(
        stand(call(1, 8.0, "all_gather_into_tensor"), call(2, 7.0, "barrier", shape=None, dtype=None)),
        entry(1, 8.0, "all_gather"),
        entry(2, 7.0, "barrier", input_sizes=[], input_dtypes=[], over=False),
    )
    assert [each.over for each in joined.recent] == [True, False]


def test_why_nothing_was_told_is_kept() -> None:
    told = join_recorder(stand(), "it does not listen", AT).recorder
    assert told is not None
    assert (told.problem, told.open) == ("it does not listen", ())
    empty = join(stand()).recorder
    assert empty is not None
    assert empty.problem is not None


def test_sends_are_left_out_and_the_list_is_bounded() -> None:
    entries = [entry(n, 5.0, size=(n,), over=False) for n in range(1, 3 * OPEN)]
    sends = [entry(9, 5.0, "send 0->1", over=False, is_p2p=True)]
    joined = join(stand(call(1, 6.0, shape=(7000,))), *sends, *entries)
    assert joined.recorder is not None
    assert len(joined.recorder.open) == OPEN
    assert joined.recorder.open[0].sequence == 1
