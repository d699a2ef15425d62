"""Ranks whose collectives are queued on a device: that a call has come back does not say that it is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ddpdoctor.evidence import Evidence, Frame, Launch
from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.standstill import Call, Stand, Standstill
from ddpdoctor.judge import Finding
from ddpdoctor_checks.job.hangs.progress import judge_look

from .standing import TORCH, at, collective

FETCH = at(20, source="losses.append(loss.item())")
SYNC = Frame(f"{TORCH}cuda/__init__.py", 1083, "synchronize")


def queued(op: str, number: int, line: int, **more: Any) -> Call:
    return replace(collective(op, number, line, 2, **more), device="cuda", returned=True, took_s=0.0001)


def stand(
    rank: int, calls: list[Call], frames: tuple[Frame, ...], *, before: tuple[Frame, ...] | None = None
) -> Stand:
    counts = {call.series: call.ordinal for call in calls}
    return Stand(
        rank,
        100 + rank,
        recent=tuple(calls),
        counts=counts,
        still_s=12.0,
        frames=frames,
        frames_before=frames if before is None else before,
        cpu_share=1.0,
        state="R",
        backend="nccl",
    )


def judge(*stands: Stand, stage: str = "look") -> Finding | None:
    look = Standstill(Moment(1, 1), 40.0, 12.0, stands, len(stands), 0.7, stage)
    return judge_look(Evidence(launch=Launch(command="run"), standstills=(look,)))


def test_calls_that_differ_in_the_queues_are_likely_but_no_proof() -> None:
    first = [queued("all_reduce", 1, 10), queued("all_reduce", 2, 11)]
    second = [queued("all_reduce", 1, 10), queued("broadcast", 2, 12)]
    found = judge(
        stand(0, first, (FETCH,)), stand(1, second, (SYNC, at(21, source="torch.cuda.synchronize()")))
    )
    assert found is not None
    assert found.code == "COL003"
    assert found.confidence == "medium"
    assert found.details["proof"] is False
    assert set(found.ranks) == {0, 1}
    assert found.message.startswith(
        "At collective #2 rank 0 calls all_reduce of [4] float32 (train.py:11, train)"
    )


def test_a_rank_that_has_queued_less_and_waits_for_its_device_may_only_be_slow() -> None:
    first = [queued("all_reduce", 1, 10), queued("all_reduce", 2, 11)]
    found = judge(stand(0, first, (FETCH,)), stand(1, first[:1], (FETCH,)))
    assert found is None


def test_a_rank_that_computes_is_left_alone() -> None:
    calls = [queued("all_reduce", 1, 10)]
    assert judge(stand(0, calls, (FETCH,)), stand(1, calls, (at(30),), before=(at(31),))) is None


def test_a_rank_that_sleeps_while_others_wait_for_their_device_is_suspected() -> None:
    calls = [queued("all_reduce", 1, 10), queued("all_reduce", 2, 10)]
    sleeper = replace(stand(1, calls[:1], (at(40, source="time.sleep(600)"),)), cpu_share=0.0, state="S")
    found = judge(stand(0, calls, (FETCH,)), sleeper, stage="suspected")
    assert found is not None
    assert (found.code, list(found.ranks)) == ("COL009", [1])
    assert "all_reduce #2" in found.message


def test_the_recorder_tells_which_of_the_queued_calls_does_not_end() -> None:
    """All ranks have queued three calls, and the second one does not end: the network, or the library."""
    first = [queued("all_reduce", 1, 10), queued("all_reduce", 2, 11), queued("all_reduce", 3, 12)]
    known = [replace(call, over=call.ordinal == 1) for call in first]
    for calls, number in ((first, 3), (known, 2)):
        stands = (stand(0, calls, (FETCH,)), stand(1, calls, (FETCH,)))
        look = Standstill(Moment(1, 1), 400.0, 130.0, stands, 2, 0.7, "suspected")
        found = judge_look(Evidence(launch=Launch(command="run"), standstills=(look,)))
        assert found is not None
        assert found.code == "COL005"
        assert f"all_reduce #{number} " in found.message


def test_a_call_that_the_recorder_says_is_over_holds_nobody() -> None:
    calls = [queued("all_reduce", 1, 10), queued("all_reduce", 2, 10)]
    over = [replace(call, over=True) for call in calls]
    sleeper = replace(stand(1, calls[:1], (at(40, source="time.sleep(600)"),)), cpu_share=0.0, state="S")
    assert judge(stand(0, over, (FETCH,)), sleeper, stage="suspected") is None
