"""What one node tells the head, and what the head makes of it: bounded, and never trusted."""

from __future__ import annotations

import dataclasses
import json
import random
import socket
import typing
import zlib
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, RankFacts, RankSet
from ddpdoctor.evidence.job import ExceptionRecord, JobEnd, Moment, ProcessRecord, TextMatch
from ddpdoctor.evidence.members import JobNode
from ddpdoctor.evidence.nodes import BY_NODE, join_evidence
from ddpdoctor.evidence.sockets import Connection, NodeNetwork
from ddpdoctor.evidence.standstill import Standstill
from ddpdoctor.evidence.training.fingerprints import EpochLook, StepLook, Training
from ddpdoctor.watch.commandline import Split
from ddpdoctor.watch.launch.desk import ADDRESS, Desk
from ddpdoctor.watch.live.memory import MemoryWatch
from ddpdoctor.watch.nodes.parcels import PARCEL_BYTES, pack
from ddpdoctor.watch.nodes.sums import (
    FOLDER,
    add_nodes,
    find_head,
    read_members,
)
from ddpdoctor.watch.run_companions import Companions, Guard
from ddpdoctor.watch.rundir import RunDirectory, make_run_directory

LAUNCHER = 100
NS = 1_700_000_000_000_000_000


def evidence(node: int, *ranks: int, **changes: Any) -> Evidence:
    host = f"node-{'abc'[node]}"
    processes = [ProcessRecord(LAUNCHER, node, host, role="launcher")]
    processes += [
        ProcessRecord(200 + rank, node, host, rank=rank, world_size=4, exit_code=1) for rank in ranks
    ]
    made = Evidence(processes=tuple(processes), job=(JobEnd(1),))
    return dataclasses.replace(made, **changes)


def journal(path: Path, *events: dict[str, Any], pid: int = LAUNCHER) -> Path:
    folder = path / "processes"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"event": e["event"], "wall_ns": NS, **e}, separators=(",", ":")) for e in events]
    (folder / f"{pid}-1.jsonl").write_text("\n".join(lines) + "\n")
    return path


def head_journal(path: Path, *events: dict[str, Any], nodes: int = 2) -> Path:
    own = {"event": "node", "node": 0, "nodes": nodes, "ranks": [0, 1], "head": True, "host": "node-a"}
    return journal(path, own, *events)


HELLO = {
    "event": "peer",
    "node": 1,
    "host": "node-b",
    "ranks": [2, 3],
    "offset_ns": 2_000_000_000,
    "error_ns": 5_000,
}


@pytest.mark.parametrize(
    ("event", "state", "silent_s"),
    [
        ({"told": True, "whole": True, "state": "ended"}, "told", None),
        ({"told": True, "whole": False, "state": "ended"}, "ended", None),
        (
            {"told": False, "state": "running", "alive_ns": NS - 10**9, "moved": True, "closed": False},
            "alive",
            3.0,
        ),
        (
            {"told": False, "state": "running", "alive_ns": NS - 10**9, "moved": False, "closed": False},
            "silent",
            3.0,
        ),
        ({"told": False, "state": "running", "alive_ns": NS, "moved": False, "closed": None}, "silent", 2.0),
        ({"told": False, "state": "running", "alive_ns": NS, "moved": False, "closed": True}, "closed", 2.0),
        (
            {"told": False, "state": "stopping", "alive_ns": NS, "moved": False, "closed": True},
            "stopping",
            2.0,
        ),
        ({"told": False, "state": None, "alive_ns": None, "moved": False, "closed": False}, "silent", None),
    ],
)
def test_head_judges_others_by_their_last_word(
    tmp_path: Path, event: dict[str, Any], state: str, silent_s: float | None
) -> None:
    path = head_journal(tmp_path, HELLO, {"event": "peer", "node": 1, **event})
    own, other = read_members(path, evidence(0, 0, 1))
    assert (own.own, own.head, own.state, own.ranks) == (True, True, "told", RankSet([0, 1]))
    assert (other.host, other.ranks, other.state, other.silent_s) == (
        "node-b",
        RankSet([2, 3]),
        state,
        silent_s,
    )
    assert (other.clock_offset_s, other.clock_error_s) == (2.0, 5e-6)


def test_node_without_a_hello_is_not_watched_and_without_a_look_unknown(tmp_path: Path) -> None:
    looked = {
        "event": "peer",
        "node": 2,
        "told": False,
        "state": None,
        "alive_ns": None,
        "moved": False,
        "closed": None,
    }
    path = head_journal(tmp_path, looked, nodes=3)
    assert [each.state for each in read_members(path, evidence(0, 0))] == ["told", "unknown", "unwatched"]


@pytest.mark.parametrize(
    ("arrived", "connection", "state"),
    [
        (True, None, "alive"),
        (False, "unacknowledged", "cut"),
        (False, "closed", "left"),
        (False, "open", "unknown"),
    ],
)
def test_others_judge_the_head_by_how_telling_it_went(
    tmp_path: Path, arrived: bool, connection: str | None, state: str
) -> None:
    own = {"event": "node", "node": 1, "nodes": 2, "ranks": [1], "head": False, "host": "node-b"}
    head = {"node": 0, "host": "node-a", "ranks": [0], "run": "/x/runs/1"}
    sent = {"event": "sent", "arrived": arrived, "head": head, "connection": connection}
    path = journal(tmp_path, own, sent)
    seen = evidence(0, 1)
    first, second = read_members(path, seen)
    assert (first.node, first.head, first.state, first.ranks) == (0, True, state, RankSet([0]))
    assert (second.own, second.head) == (True, False)
    found = find_head(path, seen)
    assert found is not None
    assert (found.host, found.directory, found.arrived) == ("node-a", "/x/runs/1", arrived)
    whole = add_nodes(path, seen)
    assert {each.node for each in whole.processes} == {1}
    assert (whole.launch.nnodes, whole.launch.node_rank) == (2, 1)


def test_job_on_one_node_has_no_members(tmp_path: Path) -> None:
    path = journal(tmp_path, {"event": "role", "role": "launcher"})
    seen = evidence(0, 0, 1)
    assert read_members(path, seen) == ()
    assert add_nodes(path, seen) is seen
    assert find_head(path, seen) is None


@pytest.mark.parametrize(
    "event",
    [
        {"event": "node", "node": 10**9, "nodes": 2},
        {"event": "node", "node": 0, "nodes": 10**9},
        {"event": "node", "node": "0", "nodes": 2},
        {"event": "node", "node": True, "nodes": None},
        {"event": "node"},
    ],
)
def test_numbers_that_cannot_be_are_not_believed(tmp_path: Path, event: dict[str, Any]) -> None:
    assert read_members(journal(tmp_path, event), evidence(0, 0)) == ()


def test_what_others_told_becomes_evidence_of_their_node(tmp_path: Path) -> None:
    told = {"event": "peer", "node": 1, "told": True, "whole": True, "state": "ended"}
    path = head_journal(tmp_path, HELLO, told)
    failure = ExceptionRecord(202, "KeyError", "'x'", node=0, host="node-b", rank=2)
    members = (JobNode(1, "node-b", RankSet([2, 3]), own=True, state="told", interrupted="SIGINT"),)
    # It says node 0 of itself: the number is the head's to give.
    part = evidence(0, 2, 3, exceptions=(failure,), members=members)
    (path / FOLDER).mkdir()
    (path / FOLDER / "1.json").write_bytes(zlib.decompress(pack(part)))
    whole = add_nodes(path, evidence(0, 0, 1))
    assert {(each.node, each.rank) for each in whole.processes if each.rank is not None} == {
        (0, 0),
        (0, 1),
        (1, 2),
        (1, 3),
    }
    assert [each.node for each in whole.exceptions] == [1]
    assert [(each.own, each.head, each.state, each.interrupted) for each in whole.members] == [
        (True, True, "told", None),
        (False, False, "told", "SIGINT"),
    ]
    assert whole.members[1].clock_offset_s == 2.0
    assert (whole.launch.nnodes, whole.launch.world_size, whole.launch.nproc) == (2, 4, 2)
    assert len(whole.job) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        b'{"processes": 5}',
        b'{"processes": [{"pid": "x"}]}',
        b'{"processes": [{"pid": 1, "node": "one"}]}',
        b'{"members": [{"node": 0, "ranks": "x"}]}',
        b'{"processes": [{"pid": 1, "rank": 1000000000000}]}',
        b'{"processes": [{"pid": 1, "world_size": 1000000000000}]}',
        b'{"exceptions": [{"pid": 1, "type": "x", "message": "", "rank": -1}]}',
        b'{"members": [{"node": 1, "own": true, "ranks": "0-1000000000000"}]}',
        b"\xff\xfe",
        None,
    ],
    ids=range(14),
)
def test_damaged_or_hostile_parts_are_said_and_left_out(tmp_path: Path, content: bytes | None) -> None:
    told = {"event": "peer", "node": 1, "told": True, "whole": True, "state": "ended"}
    path = head_journal(tmp_path, HELLO, told)
    if content is not None:
        (path / FOLDER).mkdir()
        (path / FOLDER / "1.json").write_bytes(content)
    whole = add_nodes(path, evidence(0, 0, 1))
    assert [each.state for each in whole.members] == ["told", "ended"]
    assert [each.rank for each in whole.processes] == [None, 0, 1]
    assert any("the report of node-b could not be read" in text for text in whole.job[0].lost)


def test_each_nodes_own_word_goes_before_what_another_has_of_it() -> None:
    members = (JobNode(0, "node-a", own=True, state="told"), JobNode(1, "node-b", state="closed"))
    first = evidence(0, 0, members=members)
    copy = ProcessRecord(201, 1, "node-b", rank=1)
    first = dataclasses.replace(first, processes=(*first.processes, copy))
    theirs = (JobNode(0, "node-a", state="left"), JobNode(1, "node-b", own=True, state="told"))
    second = evidence(1, 1, members=theirs)
    whole = join_evidence([first, second])
    ranks = [each for each in whole.processes if each.rank is not None]
    assert [(each.node, each.rank, each.exit_code) for each in ranks] == [(0, 0, 1), (1, 1, 1)]
    assert [(each.node, each.own, each.state) for each in whole.members] == [
        (0, True, "told"),
        (1, False, "told"),
    ]


def test_a_node_that_left_before_the_last_attempt_has_no_ranks_in_it() -> None:
    """Of an elastic job (--nnodes 1:2) each environment is that of its attempt: they need not agree."""

    def seen(node: int, pid: int, rank: int, attempt: int) -> Evidence:
        facts = RankFacts(rank, 0, node=node, host=f"host-{node}", pid=pid, world_size=2 - attempt)
        process = ProcessRecord(pid, node=node, rank=rank, attempt=attempt)
        return Evidence(ranks=(facts,), processes=(process,), members=(JobNode(node, own=True),))

    whole = join_evidence([seen(0, 100, 0, attempt=1), seen(1, 200, 1, attempt=0)])
    assert [(each.node, each.rank) for each in whole.ranks] == [(0, 0)]
    assert len(whole.processes) == 2


def test_every_kind_that_travels_says_of_which_node_it_is() -> None:
    own = (JobNode(0, "node-a", own=True, state="told"),)
    seen = evidence(0, 0, members=own, standstills=(Standstill(Moment(NS), 1.0, 1.0, ()),))
    assert join_evidence([seen]).standstills == seen.standstills
    for kind in BY_NODE:
        hint = typing.get_args(typing.get_type_hints(Evidence)[kind])[0]
        assert "node" in {each.name for each in dataclasses.fields(hint)}


@pytest.mark.unmeasured
def test_parcel_fits_whatever_was_seen_and_failures_stay_longest() -> None:
    noise = "".join(chr(33 + (n * n * 7919) % 90) for n in range(3000))
    processes = tuple(
        ProcessRecord(
            n,
            rank=n if n < 8 else None,
            role="rank" if n < 8 else "other",
            last_words=f"{n}{noise[n % 999 :]}",
        )
        for n in range(6000)
    )
    texts = tuple(TextMatch("x", f"{n} {noise[n % 2000 :][:900]}") for n in range(5000))
    failure = ExceptionRecord(3, "KeyError", "'label_9917'", rank=3)
    seen = Evidence(processes=processes, texts=texts, exceptions=(failure,))
    data = pack(seen)
    assert 0 < len(data) <= PARCEL_BYTES
    read = Evidence.from_dict(json.loads(zlib.decompress(data)))
    assert read.exceptions == (failure,)
    assert {each.rank for each in read.processes} >= set(range(8))


@pytest.mark.unmeasured
def test_parcel_keeps_the_connections_of_the_last_looks_and_failures_before_the_training() -> None:
    noise = random.Random(7)

    def connection() -> Connection:
        near, far = (f"10.0.0.{noise.randrange(256)}:{noise.randrange(1 << 16)}" for _ in range(2))
        return Connection(
            0, near, far, acked_bytes=noise.getrandbits(40), received_bytes=noise.getrandbits(40)
        )

    looks = tuple(
        dataclasses.replace(
            Standstill(Moment(NS), float(number), 1.0, ()),
            network=(NodeNetwork(connections=tuple(connection() for _ in range(1024))),),
        )
        for number in range(50)
    )
    epochs = tuple(
        EpochLook("train.py:9", n, RankSet([n % 8]), f"{noise.getrandbits(128):032x}", 8)
        for n in range(40_000)
    )
    failure = ExceptionRecord(3, "KeyError", "'label_9917'", rank=3)
    shown = Evidence(standstills=looks, exceptions=(failure,), training=(Training(steps=(StepLook(1, 1),)),))
    read = Evidence.from_dict(json.loads(zlib.decompress(pack(shown))))
    assert read.standstills[-3:] == looks[-3:]
    assert [look.after_s for look in read.standstills if look.network] == [47, 48, 49]
    assert len(read.standstills) == 50
    assert read.training == shown.training
    data = pack(dataclasses.replace(shown, training=(Training(epochs=epochs),)))
    assert 0 < len(data) <= PARCEL_BYTES
    read = Evidence.from_dict(json.loads(zlib.decompress(data)))
    assert read.exceptions == (failure,)
    assert not read.training
    assert read.standstills[-3:] == looks[-3:]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return make_run_directory(str(tmp_path / "run"))


def ask(run: RunDirectory, question: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(60)
        peer.connect(str(run.private / ADDRESS))
        peer.sendall(question)
        peer.shutdown(socket.SHUT_WR)
        data = b""
        while chunk := peer.recv(65536):
            data += chunk
        return data


def test_desk_sums_up_what_was_seen_so_far_without_secrets(run: RunDirectory) -> None:
    start = {"event": "start", "pid": 7, "ppid": 1, "role": "rank", "rank": 2, "host": "node-b", "mono_ns": 1}
    failure = {
        "event": "exception", "mono_ns": 2, "kind": "uncaught", "type": "KeyError",
        "message": "'no token=hunter2'", "frames": [["/x/train.py", 3, "main"]],
    }  # fmt: skip
    journal(run.path, {**start, "variables": {"RANK": "2", "MY_SECRET": "hunter2"}}, failure, pid=7)
    (run.path / "logs" / "rank-2.0.7.stderr.log").write_text("KeyError: 'no token=hunter2'\n")
    desk = Desk(run, Split((), (), ("train.py",)))
    signals: list[str] = []
    desk.expect(MemoryWatch(run.processes), signals)
    desk.start()
    try:
        for question in (b"", b"[]", b"{}", b'{"node": "x"}', b"\xff"):
            assert ask(run, question) == b""
        signals.append("SIGINT")
        text = zlib.decompress(ask(run, b'{"node": 3}')).decode()
    finally:
        desk.close()
        run.remove_private()
    assert "hunter2" not in text
    part = Evidence.from_dict(json.loads(text))
    (record,) = part.processes
    assert (record.node, record.rank, record.host) == (3, 2, "node-b")
    assert part.exceptions[0].node == 3
    assert part.job == ()
    assert len(desk.lost) == 5


def test_desk_that_cannot_listen_says_so(run: RunDirectory) -> None:
    run.remove_private()
    desk = Desk(run, Split((), (), ("train.py",)))
    guard = Guard()
    companions = Companions(guard)
    assert companions.begin("evidence of other nodes", lambda: desk) is None
    companions.close()
    assert [text.partition(":")[0] for text in companions.lost] == ["evidence of other nodes"]
