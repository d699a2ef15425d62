"""Ranks outside of every call that hold the others: what they do, by their state, their frames and their line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.native import NativeFrame
from ddpdoctor.evidence.standstill import ChildStand, Recorded, Recorder, Stand
from tests.checks.standing import GUARD, TORCH, at, backward, collective, forward, judge, stand

PYTHON = "/usr/lib/python3.11/"


def waiting(*ranks: int, world: int = 3) -> list[Stand]:
    return [stand(rank, collective("all_reduce", 8, 88, world), still_s=43.0) for rank in ranks]


def holding(rank: int, *frames: Frame, **more: Any) -> Stand:
    """A rank that made its last call 43 s ago and stands there since."""
    done = collective("all_reduce", 7, 88, 3)
    made = stand(rank, done, frames=frames, still_s=43.0)
    return replace(made, call=None, **more)


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        ([at(61, "read_shard", "time.sleep(3600)")], "sleep"),
        ([at(61, "log", "with lock:")], "lock"),
        ([at(61, "log", "done.wait()")], "lock"),
        ([at(61, "cache", "fcntl.flock(f, fcntl.LOCK_EX)")], "filelock"),
        ([at(61, "load", "store.get('plan')")], "store"),
        ([at(61, "load", "for line in open(path):")], "read"),
        ([at(61, "decode", "native.decode(batch)")], "native"),
        ([Frame(f"{PYTHON}subprocess.py", 1, "_try_wait"), at(61, "unpack", "run(['tar'])")], "subprocess"),
        (
            [
                Frame(f"{PYTHON}threading.py", 1, "wait"),
                Frame(f"{PYTHON}queue.py", 2, "get"),
                at(61, "x", "q()"),
            ],
            "lock",
        ),
        ([Frame(f"{PYTHON}ssl.py", 1, "read"), at(61, "fetch", "session.get(url)")], "network"),
        (
            [Frame("/venv/torch/utils/data/dataloader.py", 1, "_try_get_data"), at(61, "x", "for b in l:")],
            "loader",
        ),
        (  # without workers: the data set's own line counts
            [
                at(61, "__getitem__", "time.sleep(5)"),
                Frame("/venv/torch/utils/data/_utils/fetch.py", 1, "fetch"),
                Frame("/venv/torch/utils/data/dataloader.py", 1, "_next_data"),
                at(61, "x", "for b in l:"),
            ],
            "sleep",
        ),
        (  # what a compiled function calls is no compiling
            [
                at(61, "layer", "native.decode(x)"),
                Frame("/venv/torch/_dynamo/eval_frame.py", 1, "_fn"),
                at(61, "x"),
            ],
            "native",
        ),
        (
            [
                Frame("/venv/torch/_inductor/codecache.py", 1, "load"),
                Frame("/venv/torch/_dynamo/convert_frame.py", 1, "compile_inner"),
                at(61, "x"),
            ],
            "compile",
        ),
        (
            [Frame("/venv/torch/serialization.py", 1, "_save"), at(61, "save", "torch.save(state, path)")],
            "checkpoint",
        ),
    ],
)
def test_what_a_rank_does_is_told_by_its_frames(frames: list[Frame], kind: str) -> None:
    found = judge([*waiting(0, 2), holding(1, *frames)], still=43.0, stage="suspected")
    assert found is not None
    assert (found.code, found.ranks, found.victims) == ("COL009", RankSet([1]), RankSet([0, 2]))
    assert (found.details["doing"], found.details["proof"]) == (kind, False)
    assert "rank 1 never issued it: for 43 s it has been in" in found.message
    assert found.where[0].line == 61


def test_a_stopped_rank_is_said_to_be_stopped_with_high_confidence() -> None:
    found = judge([*waiting(0, 2), holding(1, at(61, source="step()"), state="T")], still=43.0)
    assert found is not None
    assert (found.details["doing"], found.confidence) == ("stopped", "high")
    assert found.fix[0].command == "kill -CONT 1001"


def test_a_rank_that_is_stopped_inside_of_the_call_holds_the_others() -> None:
    held = replace(stand(1, collective("all_reduce", 8, 88, 3), still_s=43.0), state="T")
    found = judge([*waiting(0, 2), held], still=43.0)
    assert found is not None
    assert (found.code, found.ranks, found.where[0].line) == ("COL009", RankSet([1]), 88)
    assert (
        "rank 1 blocks them: for 43 s it has been in train (train.py:88), where it is stopped"
        in found.message
    )


def test_a_rank_in_an_uninterruptible_wait_is_not_asked_for_its_line() -> None:
    found = judge([*waiting(0, 2), holding(1, state="D")], still=43.0)
    assert found is not None
    assert found.details["doing"] == "uninterruptible"


def test_a_worker_that_a_loader_waits_for_is_the_place() -> None:
    loader = Frame("/venv/torch/utils/data/dataloader.py", 1, "_try_get_data")
    worker = ChildStand(
        77, "loader-worker", (Frame("data.py", 24, "__getitem__", "self.wait_for_mount()"),), "S"
    )
    held = holding(1, loader, at(61, source="for batch in loader:"), children=(worker,))
    found = judge([*waiting(0, 2), held], still=43.0)
    assert found is not None
    assert (found.where[0].file, found.where[0].line) == ("data.py", 24)
    assert "its DataLoader's workers, one of which is in __getitem__ (data.py:24)" in found.message


def test_a_rank_that_moves_is_not_suspected() -> None:
    busy = holding(1, at(61), cpu_share=0.8)
    assert judge([*waiting(0, 2), busy], still=43.0) is None
    stepping = holding(1, at(61), frames_before=(at(62),))
    assert judge([*waiting(0, 2), stepping], still=43.0) is None


def test_a_rank_that_computes_on_one_line_past_the_time_out_is_stalled() -> None:
    busy = holding(1, at(61, "clean", "pattern.sub('', text)"), cpu_share=0.99)
    found = judge([*waiting(0, 2), busy], still=43.0, hang_timeout_s=30.0)
    assert found is not None
    assert (found.code, found.details["doing"]) == ("COL009", "compute")
    assert judge([*waiting(0, 2), busy], still=43.0, hang_timeout_s=300.0) is None


def test_nobody_is_suspected_while_another_one_that_is_needed_computes() -> None:
    assert (
        judge([*waiting(0, world=3), holding(1, at(61)), holding(2, at(70), cpu_share=1.0)], still=43.0)
        is None
    )


def test_ranks_that_all_wait_for_what_was_called_are_not_blamed_but_reported() -> None:
    """The number of rank 1's forwards says that it is through; something else keeps rank 0."""
    stands = [backward(0, 8, 40, world=2), stand(1, forward(9, 38, 2), collective("barrier", 1, 50, world=2))]
    assert judge(stands, still=3.0) is None
    found = judge(stands, still=30.0, stage="suspected")
    assert found is not None
    assert (found.code, found.ranks, found.confidence) == ("COL005", RankSet(), "low")
    assert "rank 1 waits in barrier #1 (train.py:50" in found.message


def test_a_rank_for_which_nobody_waits_is_not_blamed() -> None:
    """Rank 3 sleeps for itself; the pair waits for rank 1."""
    pair = RankSet([0, 1])
    idle = replace(stand(3, frames=(at(99, "idle", "time.sleep(60)"),), still_s=90.0), call=None)
    held = replace(stand(1, frames=(at(61, "load", "time.sleep(60)"),), still_s=43.0), call=None)
    found = judge([stand(0, collective("all_reduce", 8, 88, pair, "tp")), held, idle], still=43.0)
    assert found is not None
    assert found.ranks == RankSet([1])


def test_ranks_that_stand_on_several_lines_are_each_named() -> None:
    found = judge([
        *waiting(0, world=3), holding(1, at(61, "load", "time.sleep(9)")), holding(2, at(70, "save", "file.read()"))
    ], still=43.0)  # fmt: skip
    assert found is not None
    assert found.ranks == RankSet([1, 2])
    assert "rank 1 has been in load (train.py:61), where it sleeps" in found.message
    assert (
        "rank 2 has been in save (train.py:70), where it is blocked in a read without data" in found.message
    )


def test_a_suspicion_that_was_withdrawn_is_no_problem() -> None:
    stands = [*waiting(0, 2), holding(1, at(61, "load", "time.sleep(9)"))]
    found = judge(stands, still=43.0, stage="withdrawn")
    assert found is not None
    assert (found.state, found.severity, found.decisive) == ("withdrawn", "info", False)


def test_a_stall_that_is_confirmed_is_sure() -> None:
    found = judge(
        [*waiting(0, 2), holding(1, at(61, "load", "time.sleep(9)"))], still=310.0, stage="confirmed"
    )
    assert found is not None
    assert found.confidence == "high"


def test_a_rank_that_was_never_heard_holds_those_in_init() -> None:
    late = replace(stand(2, frames=(at(12, "download", "time.sleep(60)"),), still_s=50.0), call=None)
    init = [
        replace(stand(rank, replace(forward(1, 4, 3), op="init_process_group", returned=False)), still_s=43.0)
        for rank in (0, 1)
    ]
    found = judge([*init, late], still=43.0)
    assert found is not None
    assert (found.code, found.ranks) == ("COL009", RankSet([2]))


@pytest.mark.unmeasured
def test_many_ranks_are_judged_at_once() -> None:
    world = 16384
    stands = [stand(rank, collective("all_reduce", 8, 88, world)) for rank in range(1, world)]
    held = replace(stand(0, frames=(at(61, "load", "time.sleep(9)"),), still_s=43.0), call=None)
    found = judge([held, *stands], still=43.0)
    assert found is not None
    assert (found.ranks, len(found.victims)) == (RankSet([0]), world - 1)


FFI = NativeFrame("ffi_call", "libffi.so.8.1.2")
INSIDE = (NativeFrame("pause", "libc.so.6"), NativeFrame("do_work", "libfoo.so"), FFI)


def test_of_a_rank_whose_lines_say_nothing_it_is_said_that_native_frames_would() -> None:
    decode = at(61, "decode", "native.decode(batch)")
    found = judge([*waiting(0, 2), holding(1, decode)], still=43.0)
    assert found is not None
    assert found.details["unclear"] == [1]
    assert found.fix[0].command == "ddpdoctor attach --native 1001"
    sleeps = judge([*waiting(0, 2), holding(1, at(61, "load", "time.sleep(9)"))], still=43.0)
    assert sleeps is not None
    assert "unclear" not in sleeps.details


def test_native_frames_say_in_which_function_of_which_library_a_rank_stands() -> None:
    decode = at(61, "decode", "native.decode(batch)")
    found = judge([*waiting(0, 2), holding(1, decode, native=INSIDE)], still=43.0)
    assert found is not None
    assert found.message.endswith("where it is blocked in do_work() of libfoo.so.")
    (item,) = [each for each in found.evidence if each.kind == "native"]
    assert (item.text, item.ranks) == (
        "native frames, innermost first: pause (libc.so.6), do_work (libfoo.so)",
        RankSet([1]),
    )
    assert "do_work() of libfoo.so" in found.fix[0].text
    assert found.fix[0].command is None


def test_native_frames_are_all_there_is_of_a_rank_that_has_left_python() -> None:
    found = judge([*waiting(0, 2), holding(1, native=INSIDE)], still=43.0)
    assert found is not None
    assert found.ranks == RankSet([1])
    assert (
        "it has been outside of any collective, where it is blocked in do_work() of libfoo.so"
        in found.message
    )


def test_a_rank_that_computes_past_the_time_out_is_said_to_compute_in_its_native_function() -> None:
    busy = holding(1, at(61, "clean", "f(text)"), cpu_share=0.99, native=INSIDE)
    found = judge([*waiting(0, 2), busy], still=43.0, hang_timeout_s=30.0)
    assert found is not None
    assert "where it computes on one line, in do_work() of libfoo.so, and does not return" in found.message


FUNCTIONAL = Frame(f"{TORCH}distributed/_functional_collectives.py", 132, "wait_tensor")


def in_functional(rank: int, op: str | None = None) -> Stand:
    """A rank that waits for a functional collective on line 30."""
    told = None if op is None else Recorder(open=(Recorded(op, 4, "0", own=False),))
    return holding(rank, FUNCTIONAL, at(30, source="funcol.wait_tensor(y)"), recorder=told)


def in_barrier(rank: int, told: bool = False) -> Stand:
    made = Recorder(open=(Recorded("barrier", 4, "0", RankSet.span(3), own=True),)) if told else None
    return replace(stand(rank, collective("barrier", 1, 50, 3), still_s=43.0), recorder=made)


def test_a_rank_in_a_functional_collective_waits_and_is_not_blamed() -> None:
    found = judge([in_functional(0), in_barrier(1), in_functional(2)], still=43.0, stage="confirmed")
    assert found is not None
    assert (found.code, found.ranks, found.confidence) == ("COL005", RankSet(), "low")
    assert (
        "functional collectives carry no sequence numbers that would show which rank skipped one"
        in found.message
    )


def test_the_recorder_tells_who_passed_a_functional_collective_by() -> None:
    stands = [in_functional(0, "all_reduce"), in_barrier(1, told=True), in_functional(2, "all_reduce")]
    found = judge(stands, still=43.0, stage="confirmed")
    assert found is not None
    assert (found.code, found.ranks, found.victims, found.confidence) == (
        "COL002",
        RankSet([1]),
        RankSet([0, 2]),
        "high",
    )
    assert found.details["proof"]
    assert found.message == (
        "Ranks 0, 2 wait in all_reduce #4 (train.py:30, train) and rank 1 waits in barrier #4 (train.py:50, "
        "train): torch pairs these as one collective."
    )
    assert [(place.role, place.line) for place in found.where] == [("culprit", 50), ("victim", 30)]


def test_what_a_thread_may_issue_yet_or_comes_after_another_open_call_is_no_proof() -> None:
    inside = in_functional(0, "all_reduce")
    barrier = in_barrier(1, told=True)
    assert barrier.recorder is not None
    further = replace(barrier.recorder.open[0], sequence=5)
    busy = replace(barrier, recorder=Recorder(open=(*barrier.recorder.open, further)))
    also = replace(inside, recorder=Recorder(open=(Recorded("all_reduce", 4, "0", own=False), further)))
    for one, other, proven in (
        (inside, barrier, True),
        (inside, busy, True),
        (also, busy, False),
        (replace(inside, threads=2), barrier, False),
        (inside, replace(barrier, others=(at(70),)), False),
    ):
        found = judge([one, other], still=43.0, stage="confirmed")
        assert found is not None
        assert found.details["proof"] is proven


def test_of_two_ranks_that_passed_each_other_by_neither_is_named() -> None:
    found = judge([in_functional(0, "all_reduce"), in_barrier(1, told=True)], still=43.0, stage="confirmed")
    assert found is not None
    assert (found.code, found.ranks) == ("COL002", RankSet())


def test_of_two_ranks_the_one_under_a_test_of_the_rank_is_named() -> None:
    tested = replace(in_functional(0, "all_gather"), conditions=(GUARD,))
    found = judge([tested, in_barrier(1, told=True)], still=43.0, stage="confirmed")
    assert found is not None
    assert (found.code, found.ranks, found.victims) == ("COL002", RankSet([0]), RankSet([1]))
    assert [(place.role, place.line) for place in found.where] == [
        ("culprit", 30),
        ("victim", 50),
        ("condition", GUARD.line),
    ]
    both = replace(in_barrier(1, told=True), conditions=(GUARD,))
    found = judge([tested, both], still=43.0, stage="confirmed")
    assert found is not None
    assert found.ranks == RankSet()


def test_all_ranks_in_one_functional_collective_are_said_to_have_no_numbers() -> None:
    found = judge([in_functional(rank, "all_reduce") for rank in range(3)], still=43.0, stage="confirmed")
    assert found is not None
    assert (found.code, found.ranks, found.confidence, found.details["symmetric"]) == (
        "COL005",
        RankSet(),
        "low",
        False,
    )
