"""Ranks whose collectives are queued on a device: that a call has come back does not say that it is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ddpdoctor.evidence import Evidence, Frame, Launch
from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.native import NativeFrame
from ddpdoctor.evidence.standstill import Call, Stand, Standstill
from ddpdoctor.judge import Finding
from ddpdoctor_checks.job.hangs.progress import judge_look

from .standing import TORCH, at, collective, forward

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
    if stage == "confirmed":
        look = replace(look, hang_timeout_s=10.0)
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


IN_DRIVER = (NativeFrame("?", "libcuda.so.580.1"), NativeFrame("cuStreamSynchronize", "libcuda.so.580.1"))
LAYER = at(64, "forward", source="x = block(x)")
BLOCKS = Frame("train.py", 63, "for", "for block in self.blocks:")
BATCHES = Frame("train.py", 94, "for", "for inputs, labels in loader:")


def test_native_frames_in_the_driver_show_that_a_rank_waits_for_its_device() -> None:
    """One rank has ended its epoch; the other's device waits for the all-gather of a layer that only it has issued."""
    gathers = [queued("all_gather_into_tensor", number, 64) for number in range(1, 5)]
    ahead = stand(0, gathers, (LAYER,))
    ahead = replace(ahead, conditions=(BLOCKS, BATCHES), native=IN_DRIVER)
    end = replace(collective("all_reduce", 1, 102, 2, group="1"), device="cpu")
    left = replace(
        stand(1, gathers[:3], (at(102, "end_epoch"),)),
        call=end, recent=(*gathers[:3], end), counts={"0": 3, "1": 1}, state="S", cpu_share=0.0,
    )  # fmt: skip
    found = judge(ahead, left, stage="confirmed")
    assert found is not None
    assert (found.code, list(found.ranks)) == ("COL002", [1])
    assert "rank 0 waits for its device, which has all_gather_into_tensor #4" in found.message.lower()
    assert "rank 1 has left the loop (train.py:94)" in found.message
    assert found.details["proof"] is False
    busy = replace(ahead, native=(NativeFrame("parse_all", "libfoo.so"),))
    other = judge(busy, left, stage="confirmed")
    assert other is not None
    assert (other.code, list(other.ranks)) == ("COL009", [0])  # it computes


def trained(number: int) -> list[Call]:
    return [forward(each, 111, 2, reduces=True) for each in range(1, number + 1)]


def test_gradients_that_one_rank_alone_has_queued_make_its_device_wait() -> None:
    """DistributedDataParallel issues its all-reduces from C++: a forward stands for them."""
    reader = (
        Frame("/usr/lib/python3.11/queue.py", 171, "get"),
        at(56, "__iter__", source="yield self.queue.get()"),
    )
    reader_stand = replace(stand(1, trained(21), reader), cpu_share=0.0, state="S")
    found = judge(stand(0, trained(22), (FETCH,)), reader_stand, stage="confirmed")
    assert found is not None
    assert (found.code, list(found.ranks)) == ("COL009", [1])
    assert "the all-reduce of gradients after forward pass #22" in found.message
    assert found.where[0].line == 56
    # One that sleeps does not wait for its device, whatever its line may ask of it.
    moves = (at(57, source="batch = next(shards).to(device)"),)
    asleep = replace(stand(1, trained(21), moves), cpu_share=0.0, state="S")
    early = judge(stand(0, trained(22), (FETCH,)), asleep, stage="suspected")
    assert early is not None
    assert (early.code, list(early.ranks)) == ("COL009", [1])
    # Who has begun the same forward will issue them.
    slow = replace(stand(1, trained(22), (at(57, source="time.sleep(9)"),)), cpu_share=0.0, state="S")
    assert judge(stand(0, trained(22), (FETCH,)), slow, stage="suspected") is None


def test_a_rank_that_went_on_to_the_next_backward_and_one_in_a_collective_that_it_skipped() -> None:
    metric = queued("all_reduce", 8, 32, group="1")
    behind = stand(0, [*trained(40), metric], (at(33, "global_avg", source="packed.tolist()"),))
    ahead = replace(stand(1, trained(41), (at(115, source="n = int(fg.sum())"),)), native=IN_DRIVER)
    ahead = replace(ahead, counts={**ahead.counts, "1": 7})
    found = judge(behind, ahead, stage="confirmed")
    assert found is not None
    assert found.code == "COL002"
    assert "all_reduce #8" in found.message
    assert "forward pass #41" in found.message


def test_a_device_that_waits_for_what_is_not_recorded_holds_the_others() -> None:
    """One rank consolidates DTensors, whose collectives are C++; the others are in a barrier behind that."""
    guard = Frame("train.py", 53, "if", "if dist.get_rank() == 0:")
    steps = [queued("all_gather_into_tensor", number, 64) for number in range(1, 4)]
    alone = stand(0, steps, (at(65, "consolidate", source="full[name] = value.cpu()"),))
    alone = replace(alone, conditions=(guard,))
    wait = replace(collective("barrier", 1, 56, 2, group="1"), device="cpu")
    waits = replace(
        stand(1, steps, (at(56, "maybe_save"),)),
        call=wait, recent=(*steps, wait), counts={"0": 3, "1": 1}, state="S", cpu_share=0.0,
    )  # fmt: skip
    found = judge(alone, waits, stage="confirmed")
    assert found is not None
    assert (found.code, list(found.ranks), list(found.victims)) == ("COL009", [0], [1])
    assert "in consolidate (train.py:65), where it waits for its device" in found.message
    assert [(each.role, each.line) for each in found.where if each.role == "condition"] == [("condition", 53)]
    assert "is not recorded" in str(found.fix)


def test_groups_of_the_same_ranks_are_told_apart() -> None:
    sync = (at(58, "synchronize", source="torch.cuda.synchronize()"),)
    found = judge(
        stand(0, [queued("all_reduce", 1, 56, group="1")], sync),
        stand(1, [queued("all_reduce", 1, 56, group="2")], sync),
        stage="confirmed",
    )
    assert found is not None
    assert found.code == "COL002"
    assert found.message.endswith("These are groups 1 and 2, which have the same ranks.")


def moved(op: str, number: int, peer: int, line: int, *, returned: bool = True) -> Call:
    call = replace(queued(op, number, line), point_to_point=True, peer=peer, returned=returned)
    return call if returned else replace(call, took_s=None)


def passing(sent: int) -> tuple[Stand, Stand]:
    """A stage that has sent so much and waits for a gradient, and one that has asked for three and fetches a number."""
    sends = [moved("send", number, 1, 10) for number in range(1, sent + 1)]
    waits = moved("recv", 1, 1, 12, returned=False)
    first = replace(
        stand(0, sends, (at(12, source="dist.recv(grad, src=1)"),)),
        call=waits,
        counts={},
        cpu_share=0.0,
        state="S",
    )
    first = replace(first, counts={call.series: call.ordinal for call in (*sends, waits)})
    asked = [moved("recv", number, 0, 11) for number in (1, 2, 3)]
    return first, replace(stand(1, asked, (FETCH,)), native=IN_DRIVER)


def test_a_receive_in_the_queue_of_a_device_waits_for_its_send() -> None:
    found = judge(*passing(sent=2), stage="confirmed")
    assert found is not None
    assert found.code == "COL011"
    assert "which has recv from rank 0, issued (train.py:11, train), in its queue" in found.message


def test_a_device_whose_receives_were_all_sent_is_not_said_to_wait_for_one() -> None:
    found = judge(*passing(sent=3), stage="confirmed")
    assert found is None or found.code == "COL009"


BUCKETS = (
    Frame(f"{TORCH}nn/parallel/distributed.py", 1584, "_pre_forward"),
    Frame(f"{TORCH}nn/parallel/distributed.py", 1695, "forward"),
    at(105, source="logits = model(img)"),
)


def test_a_rank_that_spins_before_its_second_forward_waits_for_the_buckets_of_all() -> None:
    """Torch broadcasts them from C++ (Reducer::rebuild_buckets), and nothing records that: it is no stalled rank."""
    metric = queued("all_reduce", 2, 68, group="1")
    behind = stand(0, [*trained(1), metric], (at(69, "update", source="stats.tolist()"),))
    begun = replace(
        stand(1, trained(1), BUCKETS), native=IN_DRIVER, counts={**stand(1, trained(1), ()).counts, "1": 1}
    )
    found = judge(behind, begun, stage="confirmed")
    assert found is not None
    assert found.code == "COL002"
    assert "forward pass #2" in found.message


def test_the_if_around_a_call_that_a_device_waits_for_is_named_where_the_rank_has_gone_on() -> None:
    worst = Frame("train.py", 24, "if", "if step > 40 and x[0, 0].item() > 1.8:")
    steps = Frame("train.py", 16, "for", "for step in range(400):")
    call = replace(queued("all_reduce", 1, 26), conditions=(worst, steps))
    own = [replace(each, frames=(at(20),)) for each in trained(43)]
    inside = replace(
        stand(1, [*own[:42], call], (at(19, source="x = make().to(device)"),)), conditions=(steps,)
    )
    past = replace(stand(0, own, (at(24, source=worst.source),)), conditions=(steps,))
    past = replace(past, counts={**past.counts, "0": 0})
    found = judge(past, inside, stage="confirmed")
    assert found is not None
    assert (found.code, found.where[0].line) == ("COL002", 24)
