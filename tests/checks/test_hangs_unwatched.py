"""What is said of ranks that wrote no calls down: from their stacks alone, and never with high confidence."""

from __future__ import annotations

import dataclasses
import time
import tracemalloc
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, Frame, Launch, RankSet
from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.native import NativeFrame
from ddpdoctor.evidence.sockets import RasAnswer
from ddpdoctor.evidence.standstill import Call, Stand, Standstill
from ddpdoctor.judge import CannotLook, Finding, NotApplicable
from ddpdoctor_checks.job.hangs.progress import find_hang, judge_look
from ddpdoctor_checks.job.hangs.ras import read_ras

C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def waits(rank: int, op: str = "all_reduce", line: int = 88, **more: Any) -> Stand:
    own = Frame("train.py", line, "step", f"dist.{op}(t)")
    frames = (Frame(C10D, 3000, op), own, Frame("train.py", 99, "main"))
    call = Call(op, point_to_point=op in ("send", "recv"), frames=frames)
    return make(rank, frames, call=call, **more)


def outside(rank: int, source: str = "time.sleep(1000)", **more: Any) -> Stand:
    frames = (Frame("data.py", 61, "read_shard", source), Frame("train.py", 98, "main"))
    return make(rank, frames, **more)


def make(rank: int, frames: tuple[Frame, ...], **more: Any) -> Stand:
    fields: dict[str, Any] = {
        "pid": 1000 + rank, "frames": frames, "frames_before": frames, "cpu_share": 0.0, "state": "S",
        "asleep_s": 43.0, "watched": False,
    }  # fmt: skip
    return Stand(rank, **{**fields, **more})


def see(*stands: Stand, world: int | None = None, interval_s: float = 1.0, stage: str = "look") -> Evidence:
    look = Standstill(
        Moment(1_700_000_000_000_000_000, 1),
        100.0,
        0.0,
        stands,
        world or len(stands),
        interval_s,
        stage=stage,
    )
    return Evidence(launch=Launch(command="attach"), standstills=(look,))


def judge(*stands: Stand, world: int | None = None, interval_s: float = 1.0) -> Finding | None:
    return judge_look(see(*stands, world=world, interval_s=interval_s))


def test_a_rank_outside_of_every_call_holds_those_that_wait() -> None:
    found = judge(waits(0), outside(1), waits(2), waits(3))
    assert found is not None
    assert (found.code, found.confidence, found.ranks, found.victims) == (
        "COL009", "medium", RankSet([1]), RankSet([0, 2, 3])
    )  # fmt: skip
    assert found.message == (
        "Ranks 0, 2-3 wait in all_reduce (train.py:88, step); rank 1 has been in read_shard (data.py:61) for 43 s: it sleeps."
    )
    assert [(place.role, place.file, place.line) for place in found.where] == [
        ("culprit", "data.py", 61), ("caller", "train.py", 98), ("victim", "train.py", 88)
    ]  # fmt: skip
    assert found.details["proof"] is False
    assert "#" not in found.message


def test_a_stopped_rank_is_said_to_be_stopped() -> None:
    found = judge(waits(0), outside(1, state="T", asleep_s=2.0))
    assert found is not None
    assert found.details["doing"] == "stopped"
    assert found.fix[0].command == "kill -CONT 1001"


@pytest.mark.parametrize(
    "stands",
    [
        (waits(0, asleep_s=3.0), outside(1)),
        (waits(0), outside(1, cpu_share=0.9)),
        (waits(0), outside(1, frames_before=(Frame("data.py", 60, "read_shard"),))),
        (waits(0), make(1, (), note="py-spy has no permission to read")),
        (outside(0), outside(1)),
        (waits(0, asleep_s=12.0), waits(1, asleep_s=12.0)),
        (waits(0, line=88), waits(1, line=97, asleep_s=2.0)),
        (waits(0, "init_process_group"), waits(1, "init_process_group")),
    ],
    ids=[
        "just-now",
        "computes",
        "moves",
        "unreadable",
        "nobody-waits",
        "same-call-just-now",
        "one-came-just-now",
        "init",
    ],
)
def test_where_too_little_is_known_nobody_is_named(stands: tuple[Stand, ...]) -> None:
    assert judge(*stands) is None
    with pytest.raises(CannotLook):
        list(find_hang(see(*stands)))


def test_without_the_scheduler_s_word_the_time_of_looking_counts() -> None:
    stands = (waits(0, asleep_s=None), outside(1, asleep_s=None))
    assert judge(*stands, interval_s=4.0) is None
    found = judge(*stands, interval_s=10.5)
    assert found is not None
    assert found.code == "COL009"


def test_who_waited_longest_has_waited_for_the_one_that_is_not_there() -> None:
    found = judge(waits(0), waits(2, asleep_s=1.0), outside(1))
    assert found is not None
    assert found.details["waited_s"] == 43.0


def test_ranks_that_wait_in_different_calls_hold_each_other() -> None:
    found = judge(waits(0), waits(1), waits(2, "barrier", 97))
    assert found is not None
    assert (found.code, found.confidence, found.ranks) == ("COL002", "medium", RankSet([2]))
    assert "none of them reaches the other's collective" in found.message


def test_of_two_ranks_it_cannot_be_told_which_is_wrong() -> None:
    found = judge(waits(0), waits(1, line=97))
    assert found is not None
    assert (found.ranks, found.victims) == (RankSet([0, 1]), RankSet())
    assert "does not show which side is wrong" in found.message


@pytest.mark.parametrize(
    ("other", "code"), [("new_group", "COL006"), ("barrier", "COL002")], ids=["new_group", "barrier"]
)
def test_the_code_is_that_of_the_calls(other: str, code: str) -> None:
    found = judge(waits(0), waits(1), waits(2, other, 97))
    assert found is not None
    assert found.code == code


def test_sends_and_receives_without_their_other_side() -> None:
    found = judge(waits(0, "recv", 5), waits(1, "recv", 6))
    assert found is not None
    assert found.code == "COL011"
    assert "rank 0 waits in recv (train.py:5, step)" in found.message.lower()


def test_a_rank_without_a_process_is_gone() -> None:
    gone = Stand(1, alive=False, watched=False)
    found = judge(waits(0), gone)
    assert found is not None
    assert (found.code, found.ranks, found.confidence) == ("COL008", RankSet([1]), "medium")


def test_all_ranks_in_one_call_for_long_are_nobody_s_fault() -> None:
    found = judge(waits(0), waits(1))
    assert found is not None
    assert (found.code, found.confidence, found.ranks) == ("COL005", "low", RankSet())


def test_ranks_of_other_nodes_may_be_what_all_wait_for() -> None:
    stands = (waits(0), waits(1))
    assert judge(*stands, world=4) is None
    with pytest.raises(CannotLook, match=r"ranks 2-3 on other nodes were not seen: attach there as well"):
        list(find_hang(see(*stands, world=4)))


def test_the_reason_says_what_may_be_granted() -> None:
    stands = (
        make(0, (), note="py-spy has no permission to read: sudo"),
        make(1, (), note="py-spy has no permission to read: sudo"),
    )
    with pytest.raises(CannotLook, match=r"the stack of ranks 0-1 could not be read.*sudo"):
        list(find_hang(see(*stands)))


def test_a_rank_that_computes_while_others_wait_for_very_long_is_a_warning() -> None:
    stands = (waits(0, asleep_s=1200.0), outside(1, "spin()", state="R", cpu_share=1.0, asleep_s=0.0))
    found = judge_look(see(*stands, stage="moving"))
    assert found is not None
    assert (found.code, found.severity, found.confidence) == ("COL009", "warning", "low")
    assert found.message == (
        "Rank 0 waits in all_reduce (train.py:88, step) for 20 min; rank 1 has been in read_shard (data.py:61), and computes."
    )
    shortly = (waits(0, asleep_s=200.0), stands[1])
    assert judge_look(see(*shortly, stage="moving")) is None
    others_unread = (stands[0], make(1, (), note="no"))
    assert judge_look(see(*others_unread, stage="moving")) is None


@pytest.mark.parametrize("stage", ["moving", "brief"])
def test_a_job_that_moves_has_no_finding(stage: str) -> None:
    evidence = see(waits(0), outside(1), stage=stage)
    assert judge_look(evidence) is None
    if stage == "moving":
        assert list(find_hang(evidence)) == []
    else:
        with pytest.raises(CannotLook, match="too short to name a rank"):
            list(find_hang(evidence))


def test_a_look_that_was_asked_for_says_nothing_of_the_job_s_end() -> None:
    evidence = see(waits(0), outside(1))
    asked = dataclasses.replace(evidence.standstills[0], asked=True)
    with pytest.raises(NotApplicable):
        judge_look(dataclasses.replace(evidence, standstills=(asked,)))


@pytest.mark.unmeasured
def test_sixteen_thousand_ranks_are_judged_in_seconds() -> None:
    stands = [waits(rank) for rank in range(16_384) if rank != 77]
    began = time.monotonic()
    found = judge(*stands, outside(77))
    assert found is not None
    assert found.ranks == RankSet([77])
    assert time.monotonic() - began < 60
    assert len(found.message) < 300


def test_a_rank_outside_of_python_is_told_by_its_native_frames() -> None:
    inside = (NativeFrame("pause", "libc.so.6"), NativeFrame("ncclCommAbort", "libnccl.so.2"))
    left = make(1, (), native=inside)
    found = judge(waits(0), left, waits(2))
    assert found is not None
    assert (found.code, found.ranks) == ("COL009", RankSet([1]))
    assert "rank 1 has been outside of Python" in found.message
    assert "it is blocked in ncclCommAbort() of libnccl.so.2" in found.message
    assert any(
        each.kind == "native" and "ncclCommAbort (libnccl.so.2)" in each.text for each in found.evidence
    )
    assert judge(waits(0), make(1, ()), waits(2)) is None


RAS_DEAD = (
    "DEAD",
    "1 job process is considered dead (unreachable via the RAS network)",
    "Process 3487984 on node 172.16.64.213 managing GPU 5",
    "#0-0 (cf264af53edbe986) INCOMPLETE",
    "Missing communicator data from 1 rank",
    "The missing rank: 3",
)
RAS_BEHIND = (
    "#0-0 (fa93daea854b060b) MISMATCH",
    "Communicator ranks have different AllReduce operation counts",
    "1 rank has launched up to operation 640",
    "Rank 2 -- GPU 0 managed by process 323032 on node 10.0.0.2",
    "3 ranks have launched up to operation 641",
)


def judge_with_ras(lines: tuple[str, ...], *stands: Stand, world: int) -> Finding | None:
    evidence = see(*stands, world=world)
    look = dataclasses.replace(evidence.standstills[0], ras=(RasAnswer("127.0.0.1:28028", lines=lines),))
    return judge_look(dataclasses.replace(evidence, standstills=(look,)))


def test_a_rank_of_another_node_that_ras_does_not_reach_is_named() -> None:
    assert judge(waits(0), waits(1), world=4) is None
    found = judge_with_ras(RAS_DEAD, waits(0), waits(1), world=4)
    assert found is not None
    assert (found.code, found.ranks, found.victims, found.confidence) == (
        "COL009", RankSet([3]), RankSet([0, 1]), "medium"
    )  # fmt: skip
    assert "does not reach rank 3 (process 3487984 on 172.16.64.213)" in found.message
    assert any("considered dead" in item.text for item in found.evidence)


def test_a_rank_that_ras_counts_behind_is_named_and_one_ahead_is_not() -> None:
    four = [waits(rank) for rank in range(4)]
    found = judge_with_ras(RAS_BEHIND, *four, world=4)
    assert found is not None
    assert (found.code, found.ranks, found.victims) == ("COL002", RankSet([2]), RankSet([0, 1, 3]))
    ahead = tuple(line.replace("640", "642") for line in RAS_BEHIND)
    other = judge_with_ras(ahead, *four, world=4)
    assert other is not None
    assert (other.code, other.ranks) == ("COL005", RankSet())


def test_counts_of_a_smaller_communicator_and_a_brief_wait_name_nobody() -> None:
    eight = [waits(rank) for rank in range(8)]
    found = judge_with_ras(RAS_BEHIND, *eight, world=8)
    assert found is not None
    assert found.code == "COL005"
    assert judge_with_ras(RAS_BEHIND, *(waits(rank, asleep_s=12.0) for rank in range(4)), world=4) is None


def test_what_stacks_show_goes_before_what_ras_counts() -> None:
    found = judge_with_ras(RAS_BEHIND, waits(0), outside(1), waits(2), waits(3), world=4)
    assert found is not None
    assert (found.code, found.ranks) == ("COL009", RankSet([1]))
    assert any(item.kind == "ras" for item in found.evidence)


def test_ranges_of_ras_cost_no_memory() -> None:
    """Each was unrolled to a million numbers, as often as one line names it."""
    hostile = "The missing ranks: " + "0-1048576, " * 30 + "9-3, 99999999-100000000"
    look = see(waits(0), waits(1), world=4).standstills[0]
    asked = dataclasses.replace(look, ras=(RasAnswer("127.0.0.1:28028", lines=(hostile,)),))
    tracemalloc.start()
    try:
        missing = read_ras(asked).missing
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert missing.ranges == ((0, 1048576),)
    assert peak < 1 << 20
    plain = dataclasses.replace(look, ras=(RasAnswer("", lines=("The missing ranks: 3, 21-23",)),))
    assert read_ras(plain).missing == RankSet([3, 21, 22, 23])
