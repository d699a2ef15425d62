"""Ranks that wait outside of every process group: stores, rpc, locks on files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.native import NativeFrame
from ddpdoctor.evidence.standstill import ChildStand, FileLock, Stand
from ddpdoctor.judge import Finding
from tests.checks.standing import TORCH, at, gone, judge, stand

PYTHON = "/usr/lib/python3.11/"


def waiting(rank: int, *frames: Frame, **more: Any) -> Stand:
    return stand(rank, frames=frames, still_s=20.0, **more)


def suspected(stands: list[Stand], **more: Any) -> Finding | None:
    return judge(stands, **{"still": 20.0, "stage": "suspected", **more})


@pytest.mark.parametrize(
    ("frames", "kind", "words"),
    [
        ([at(7, "connect", "return dist.TCPStore(host, 29500, 3, rank == 0)")], "store", "to connect to the store"),
        ([at(7, "<module>", "s = TCPStore('head', 1234, is_master=False)")], "store", "to connect to the store"),
        ([at(9, "read", 'plan = store.get("plan")')], "store", 'the key "plan" of the store'),
        ([at(9, "read", "self.kv_store.wait([f'ready/{peer}'])")], "store", 'the key "ready/{peer}" of the store'),
        ([at(9, "read", "store.wait(keys, timeout)")], "store", "a key of the store"),
        (
            [
                Frame(f"{PYTHON}threading.py", 1, "wait"),
                Frame(f"{TORCH}distributed/rpc/api.py", 225, "_all_gather"),
                Frame(f"{TORCH}distributed/rpc/__init__.py", 200, "init_rpc"),
                at(7, "main", "rpc.init_rpc(name, rank=rank, world_size=2)"),
            ],
            "rpc",
            "torch.distributed.rpc",
        ),
        (
            [
                Frame(f"{TORCH}utils/file_baton.py", 49, "wait"),
                Frame(f"{TORCH}utils/cpp_extension.py", 1700, "_jit_compile"),
                at(7, "main", "ops = load(name='ops', sources=files)"),
            ],
            "filelock",
            "the lock file of an extension",
        ),
        (
            [Frame("/venv/lib/python3.11/site-packages/filelock/_api.py", 300, "acquire"), at(12, "cache", "with lock:")],
            "filelock",
            "a lock file",
        ),
        ([at(12, "cache", "fcntl.lockf(file, fcntl.LOCK_EX)")], "filelock", "a lock on a file"),
    ],
)  # fmt: skip
def test_what_ranks_wait_for_is_told_with_their_line(frames: list[Frame], kind: str, words: str) -> None:
    found = suspected([waiting(0, *frames), waiting(1, *frames)])
    assert found is not None
    assert (found.code, found.ranks, found.details["doing"]) == ("COL009", RankSet([0, 1]), kind)
    assert words in found.message
    own = next(frame for frame in frames if frame.source is not None)
    assert (found.where[0].file, found.where[0].line) == (own.file, own.line)
    assert found.details["proof"] is False


def test_a_store_of_any_name_is_known_by_its_native_frames() -> None:
    inside = (NativeFrame("poll", "libc.so.6"), NativeFrame("c10d::TCPStore::doWait", "libtorch_cpu.so"))
    frames = [at(9, "read", "plan = kv.fetch(name)")]
    found = suspected([waiting(0, *frames, native=inside), waiting(1, *frames, native=inside)])
    assert found is not None
    assert found.details["doing"] == "store"


GET = at(9, "read", 'plan = store.get("plan")')


def test_a_rank_that_does_something_else_is_given_time_and_then_named() -> None:
    stands = [waiting(0, at(30, "prepare", "time.sleep(1e6)")), waiting(1, GET)]
    assert suspected(stands) is None
    found = judge(stands, still=400.0, stage="confirmed")
    assert found is not None
    assert (found.ranks, found.victims, found.details["waiting"]) == (RankSet([0]), RankSet(), [1])


@pytest.mark.parametrize(
    "more",
    [
        {"children": (ChildStand(77, state="running"),)},
        {"cpu_share": 0.9},
    ],
    ids=["its child works", "it computes"],
)
def test_a_rank_that_gets_on_accuses_nobody(more: dict[str, Any]) -> None:
    """The one that builds the extension for which the others wait."""
    baton = Frame(f"{TORCH}utils/file_baton.py", 49, "wait")
    builds = (Frame(f"{PYTHON}subprocess.py", 1, "_try_wait"), at(7, "main", "load(name='ops')"))
    stands = [waiting(0, *builds, **more), waiting(1, baton, at(7, "main", "load(name='ops')"))]
    assert judge(stands, still=400.0, stage="confirmed") is None


def test_a_rank_that_has_ended_and_one_that_was_not_seen_are_told() -> None:
    found = suspected([waiting(0, GET), gone(1)])
    assert found is not None
    assert "rank 1 has ended" in found.message
    found = suspected([waiting(0, GET), waiting(1, GET)], world=3)
    assert found is not None
    assert "no process of rank 2 was seen" in found.message


def test_who_holds_a_lock_is_told() -> None:
    line = at(12, "cache", "fcntl.flock(f, fcntl.LOCK_EX)")
    wait, hold = FileLock("/data/index.lock", False, (1000, 4711)), FileLock("/data/index.lock", True)
    found = suspected([waiting(0, GET, locks=(hold,)), waiting(1, line, locks=(wait,))])
    assert found is not None
    assert "(/data/index.lock)" in found.message
    texts = [item.text for item in found.evidence if item.kind == "lock"]
    assert texts == [
        "holds a lock on /data/index.lock",
        "waits for a lock on /data/index.lock, which rank 0 and process 4711 hold",
    ]


def test_ranks_that_do_what_nobody_knows_are_left_alone() -> None:
    stands = [waiting(rank, at(30, "prepare", "time.sleep(1e6)")) for rank in range(2)]
    assert judge(stands, still=400.0, stage="confirmed") is None


def test_looking_from_beside_tells_the_same_with_less_confidence() -> None:
    def unwatched(rank: int) -> Stand:
        return replace(waiting(rank, GET), watched=False, asleep_s=30.0, still_s=None)

    found = judge([unwatched(0), unwatched(1)], still=20.0, stage="look")
    assert found is not None
    assert (found.code, found.ranks, found.confidence) == ("COL009", RankSet([0, 1]), "medium")
    assert "sequence numbers" in found.evidence[0].text
