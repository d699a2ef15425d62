"""Where ranks stand, as text: groups of ranks, and stacks as one tree, also of a thousand ranks."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.native import NativeFrame
from ddpdoctor.evidence.standstill import Call, Stand, Standstill
from ddpdoctor.report.stacktree import build_tree, list_frames, walk
from ddpdoctor.report.standing import describe_movement, put_stands
from ddpdoctor.text.paper import Paper

C10D = Frame("/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3000, "all_reduce")
LOGGER = Frame("/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", 83, "wrapper")
STEP, MAIN = Frame("train.py", 88, "step", "dist.all_reduce(t)"), Frame("train.py", 99, "<module>", "main()")
READ = Frame("data.py", 61, "read", "time.sleep(1000)")
CALL = Call("all_reduce", frames=(C10D, LOGGER, STEP, MAIN))


def waits(rank: int) -> Stand:
    frames = (C10D, LOGGER, STEP, MAIN)
    return Stand(
        rank, 1000 + rank, frames=frames, call=CALL, state="S", cpu_share=0.0, asleep_s=43.0, watched=False
    )


def reads(rank: int, line: int = 61) -> Stand:
    frames = (replace(READ, line=line), MAIN)
    return Stand(rank, 1000 + rank, frames=frames, state="S", cpu_share=0.002, asleep_s=42.0, watched=False)


def look(*stands: Stand) -> Standstill:
    return Standstill(Moment(1, 1), 60.0, 0.0, stands, len(stands))


def show(seen: Standstill, width: int = 100, *, verbose: bool = False) -> str:
    paper = Paper(width=width)
    put_stands(paper, seen, verbose=verbose)
    return paper.text()


def test_a_stack_is_the_users_lines_and_what_the_innermost_of_them_called() -> None:
    assert [frame.function for frame in list_frames(waits(0))] == ["<module>", "step", "all_reduce"]
    assert [frame.function for frame in list_frames(reads(0))] == ["<module>", "read"]


def test_common_callers_stand_once_and_forks_say_who_is_not_there() -> None:
    rows = [
        (depth, branch.frame.function if branch.frame else None, str(branch.ranks), str(missing))
        for depth, branch, missing in walk(build_tree([waits(0), reads(1), waits(2)]), 6)
    ]
    assert rows == [
        (0, "<module>", "0-2", ""),
        (1, "step", "0,2", "1"),
        (1, "all_reduce", "0,2", ""),
        (1, "read", "1", "0,2"),
    ]


def test_the_text_has_groups_and_tree() -> None:
    text = show(look(waits(0), reads(1), waits(2), Stand(3, alive=False)))
    assert "ranks    ranks 0, 2: in all_reduce, sleeping, 0% of a core, main thread last ran 43 s ago" in text
    assert "rank 3: gone" in text
    assert "here: 0,2 | not here: 1" in text
    assert "torch/…/distributed_c10d.py:3000" in text
    assert "dist.all_reduce(t)" in text


def test_on_eighty_columns_no_line_is_longer() -> None:
    assert max(map(len, show(look(waits(0), reads(1), waits(2)), 80).splitlines())) <= 80


def test_a_thousand_ranks_fold_to_a_handful_of_lines() -> None:
    stands = [reads(rank, rank) if rank % 100 == 7 else waits(rank) for rank in range(1024)]
    text = show(look(*stands))
    assert len(text.splitlines()) < 40
    assert "more places" in text or "more place" in text
    everything = show(look(*stands), verbose=True)
    assert all(f"data.py:{rank}" in everything for rank in range(7, 1024, 100))


def test_ranks_whose_stacks_are_unknown_have_no_tree() -> None:
    blind = Stand(0, 1000, state="D", note="py-spy has no permission", watched=False)
    text = show(look(blind))
    assert "stacks" not in text
    assert "uninterruptible" in text


def test_who_moves_and_who_waits_is_said() -> None:
    busy = replace(reads(1), state="R")
    still = replace(reads(2), frames_before=reads(2).frames)
    alike = replace(waits(0), frames_before=waits(0).frames)
    assert (
        describe_movement(look(alike, busy))
        == "rank 1 made progress; rank 0 waited meanwhile, for 43 s so far"
    )
    assert describe_movement(look(alike, busy, still)).endswith("; rank 2 did not")
    assert (
        describe_movement(look(reads(0), reads(1))) == "both ranks made progress"
    )  # other lines than before
    assert describe_movement(look(alike, replace(alike, rank=1))) == "both ranks are making progress"


def test_a_rank_in_backward_is_not_said_to_be_outside_of_every_call() -> None:
    engine = Frame("/venv/lib/python3.11/site-packages/torch/autograd/graph.py", 869, "_engine_run_backward")
    text = show(look(waits(0), replace(reads(1), frames=(engine, STEP, MAIN))))
    assert "rank 1: in the backward pass, sleeping" in text


def test_what_run_puts_into_a_process_is_no_line_of_the_users() -> None:
    ours = Frame(
        "/opt/ddpdoctor/watch/inject/ddpdoctor_watch/interpreter/patches.py",
        52,
        "bootstrap",
        "return real(self)",
    )
    spawned = replace(reads(0), frames=(READ, MAIN, ours))
    assert [frame.function for frame in list_frames(spawned)] == ["<module>", "read"]


def test_the_tree_has_only_the_living() -> None:
    assert build_tree([waits(0), replace(waits(1), alive=False)]).ranks == RankSet([0])


def test_a_rank_that_spins_in_a_call_waits_whatever_it_uses() -> None:
    """CUDA and gloo spin: a whole core, always ready to run, and on the same line."""
    spins = waits(0)
    spins = replace(spins, frames_before=spins.frames, state="R", cpu_share=1.0, watched=True)
    computes = replace(reads(1), state="R", cpu_share=1.0)
    assert describe_movement(look(spins, computes)).startswith("rank 1 made progress")


def test_native_frames_end_the_stack_and_fold_over_ranks() -> None:
    inside = (
        NativeFrame("pause", "libc.so.6"),
        NativeFrame("do_work", "libfoo.so"),
        NativeFrame("ffi_call", "libffi.so.8"),
    )
    stuck = [replace(reads(rank), native=inside) for rank in (1, 2)]
    gone = replace(reads(3), frames=(), native=inside)
    rows = [
        (branch.frame.function if branch.frame else None, str(branch.ranks))
        for _, branch, _ in walk(build_tree([waits(0), *stuck, gone]), 6)
    ]
    assert rows[1:4] == [("read", "1-2"), ("do_work", "1-2"), ("pause", "1-2")]
    assert rows[-2:] == [("do_work", "3"), ("pause", "3")]
    text = show(look(waits(0), *stuck, gone))
    assert "libfoo.so" in text
    assert "libfoo.so:0" not in text
    assert "in do_work() of libfoo.so, pid 1001, 1002" in text
    assert "stack not readable" not in text
