"""Asking torch's recorders: what is asked, how long, what is believed of an answer, and what is kept."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.standstill import Recorder, Stand, Standstill
from ddpdoctor.gather.recorder import read_dumps
from ddpdoctor.watch.live import recorders
from ddpdoctor.watch.live.recorders import LIMIT_S, Recorders, name_socket
from ddpdoctor.watch.readers.rings import Ring
from tests.watch.test_recording import AT, entry

DUMP = {
    "version": "2.10",
    "pg_config": {"": {"desc": "", "name": "", "ranks": "[0, 1]"}},
    "entries": [entry(1, 8.0), entry(2, 7.0, size=(1000,), over=False)],
}


def frame(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


WELL = frame(json.dumps(DUMP).encode())
NONE = frame(b"Handler not found", "404 Not Found")
SILENT = b""
"""It takes the question and says nothing."""
OF_DEVICE = {
    **DUMP,
    "pg_config": {"0": {"desc": "default_pg", "name": "0", "ranks": "[0, 1]"}},
    "entries": [
        {
            **entry(sequence, age, over=over),
            "process_group": ["0", "default_pg"],
            "profiling_name": "nccl:all_reduce",
        }
        for sequence, age, over in ((5, 9.0, True), (6, 7.5, False))
    ],
}


class Servers:
    """Ranks whose worker servers give made-up answers."""

    def __init__(self, folder: Path) -> None:
        self.private, self.run = folder / "private", folder / "run"
        self.private.mkdir()
        self.run.mkdir()
        self.rings: list[Ring] = []
        self.questions: list[bytes] = []
        self._open = contextlib.ExitStack()

    def add(
        self,
        answer: bytes | None,
        *,
        backend: str = "gloo",
        listens: bool = True,
        of_device: bytes | None = None,
    ) -> Ring:
        """Add a rank; None: it takes the question and says nothing.

        ``of_device`` is what it answers for the recorder of NCCL, by default that it has none.
        """
        rank = len(self.rings)
        ring = Ring(self.run / f"{100 + rank}-5.ring", 100 + rank, 5, rank=rank, backend=backend)
        self.rings.append(ring)
        if listens:
            listener = self._open.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(name_socket(self.private, ring)))
            listener.listen()
            threading.Thread(
                target=self._serve,
                args=(listener, answer, NONE if of_device is None else of_device),
                daemon=True,
            ).start()
        return ring

    def _serve(self, listener: socket.socket, answer: bytes | None, of_device: bytes) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                self._open.enter_context(peer)
                question = peer.recv(4096)
                self.questions.append(question)
                told = of_device if b"/dump_nccl_trace_json " in question else answer
                if told is not None and told is not SILENT:
                    peer.sendall(told)
                    peer.close()

    def ask(self, *, ends: bool = False) -> list[Recorder | None]:
        stands = tuple(Stand(ring.rank or 0, ring.pid) for ring in self.rings)
        look = Standstill(AT, 20.0, 12.0, stands, len(stands))
        told = Recorders(self.run, self.private).tell(look, self.rings, "0001", ends=ends)
        return [stand.recorder for stand in told.stands]

    def problems(self, *, ends: bool = False) -> list[str | None]:
        return [told.problem if told is not None else "" for told in self.ask(ends=ends)]

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    made = Servers(tmp_path)
    yield made
    made.close()


def test_what_ranks_tell_is_kept_for_analyze_and_for_torch(servers: Servers) -> None:
    servers.add(WELL)
    servers.add(WELL)
    told = servers.ask()
    assert [[each.sequence for each in one.open] for one in told if one is not None] == [[2], [2]]
    kept = sorted((servers.run / "recorder" / "0001").iterdir())
    assert [path.name for path in kept] == ["rank_0", "rank_1"]
    assert kept[0].parent.stat().st_mode & 0o077 == 0
    lost: list[str] = []
    log = read_dumps([(path, path.name) for path in kept], lost)
    assert not lost
    assert log is not None
    assert [list(rank.sequences) for rank in log.ranks] == [[1, 2], [1, 2]]
    loaded = pytest.importorskip("torch.distributed.flight_recorder.components.loader").read_dump(
        "rank_", str(kept[1])
    )
    assert (loaded["rank"], loaded["version"]) == (1, "2.10")
    assert all("frames" in each for each in loaded["entries"])
    assert servers.questions[0].startswith(b"POST /handler/fr_trace_json HTTP/1.1\r\n")


@pytest.mark.parametrize("answer", [
    b"", b"\r\n\r\n", b"SSH-2.0-OpenSSH\r\n\r\n{}", b"\x00" * 5000, frame(b"not json"), frame(b"[]"), frame(b"{}"),
    frame(b'{"entries": 3, "pg_config": {}}'), frame(b"[" * 200_000), frame(b'{"entries": [' + b"9" * 5000 + b"]}"),
    frame(b"gone", "404 Not Found"), b"HTTP/1.1\r\n\r\n", frame(b"\xff\xfe\x00"),
])  # fmt: skip
def test_an_answer_that_is_none_costs_only_itself(servers: Servers, answer: bytes) -> None:
    servers.add(answer)
    servers.add(WELL)
    bad, good = servers.ask()
    assert bad is not None
    assert bad.problem
    assert bad.open == ()
    assert good is not None
    assert good.problem is None
    assert [path.name for path in (servers.run / "recorder" / "0001").iterdir()] == ["rank_1"]


def test_strange_entries_are_left_out(servers: Servers) -> None:
    dump = {"pg_config": [1], "entries": [None, 7, {}, {"process_group": []}, entry(3, 5.0, over=False)]}
    servers.add(frame(json.dumps(dump).encode()))
    (told,) = servers.ask()
    assert told is not None
    assert [each.sequence for each in told.open] == [3]


def test_a_recorder_that_holds_nothing_says_so(servers: Servers) -> None:
    servers.add(
        frame(b'{"comm_lib_version":"","nccl_comm_state":{},"pg_config":{},"pg_status":{},"version":"2.10"}')
    )
    (problem,) = servers.problems()
    assert problem is not None
    assert "contains no collective" in problem


def test_an_answer_without_end_is_given_up(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "LARGEST", 100_000)
    servers.add(frame(b" " * 2_000_000))
    (problem,) = servers.problems()
    assert problem is not None
    assert "larger" in problem


def test_a_rank_that_does_not_answer_is_waited_for_no_longer_than_the_limit(servers: Servers) -> None:
    for _ in range(3):
        servers.add(None)
    servers.add(WELL)
    began = time.monotonic()
    problems = servers.problems()
    assert time.monotonic() - began < LIMIT_S + 5.0  # one limit for all; a busy machine
    assert [problem and "within" in problem for problem in problems] == [True, True, True, None]


def test_a_rank_without_a_server_says_why(servers: Servers) -> None:
    servers.add(None, listens=False)
    servers.add(None, listens=False).no_recorder = "this torch has no worker server"
    stale = servers.add(None, listens=False)
    with socket.socket(socket.AF_UNIX) as listener:  # of a process that was killed
        listener.bind(str(name_socket(servers.private, stale)))
    assert servers.problems() == [
        "it does not listen",
        "this torch has no worker server",
        "it does not listen",
    ]


@pytest.mark.parametrize(("backend", "accelerated", "asked"), [
    ("gloo", False, True), ("gloo", True, True), ("None", False, True), ("nccl", True, False), ("None", True, False),
    ("cpu:gloo,cuda:nccl", True, False), ("nccl", False, False),
])  # fmt: skip
def test_a_device_is_asked_only_when_the_job_is_to_end(
    servers: Servers, backend: str, accelerated: bool, asked: bool
) -> None:
    servers.add(WELL, backend=backend).accelerated = accelerated
    assert [problem is None for problem in servers.problems()] == [asked]
    assert bool(servers.questions) == asked
    if not asked:
        assert servers.problems(ends=True) == [None]


def test_both_recorders_of_a_rank_are_asked_and_make_one_dump(servers: Servers) -> None:
    servers.add(WELL, backend="nccl", of_device=frame(json.dumps(OF_DEVICE).encode()))
    (told,) = servers.ask(ends=True)
    assert told is not None
    assert sorted(each.sequence for each in told.open) == [2, 6]
    assert {question.split()[1] for question in servers.questions} == {
        b"/handler/dump_nccl_trace_json",
        b"/handler/fr_trace_json",
    }
    (kept,) = (servers.run / "recorder" / "0001").iterdir()
    lost: list[str] = []
    log = read_dumps([(kept, kept.name)], lost)
    assert log is not None
    assert not lost
    (rank,) = log.ranks
    assert list(rank.begun_ns) == sorted(rank.begun_ns)
    assert sorted(rank.sequences) == [1, 2, 5, 6]


@pytest.mark.parametrize("of_device", [NONE, SILENT, frame(b"[]"), frame(b'{"entries": 3}')])
def test_one_recorder_is_enough(servers: Servers, of_device: bytes) -> None:
    servers.add(WELL, backend="nccl", of_device=of_device)
    (told,) = servers.ask(ends=True)
    assert told is not None
    assert told.problem is None
    assert [each.sequence for each in told.open] == [2]


def test_one_group_on_a_device_is_enough(servers: Servers) -> None:
    ring = servers.add(WELL)
    ring.accelerated = True
    ring.groups = {1: {"name": "0", "backend": "gloo"}, 2: {"name": "1", "backend": "nccl"}}
    (problem,) = servers.problems()
    assert problem is not None
    assert "GPU" in problem
    assert not servers.questions


def test_a_rank_that_is_stopped_is_not_waited_for(servers: Servers) -> None:
    ring = servers.add(None)
    look = Standstill(AT, 20.0, 12.0, (Stand(0, ring.pid, state="T"),), 1)
    began = time.monotonic()
    told = Recorders(servers.run, servers.private).tell(look, servers.rings, "0001", ends=True)
    assert time.monotonic() - began < LIMIT_S
    assert told.stands[0].recorder == Recorder("its process is stopped")


def test_only_so_many_dumps_are_kept_of_a_job_that_goes_on(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorders, "KEPT_BYTES", 1)
    ring = servers.add(WELL)
    look = Standstill(AT, 20.0, 12.0, (Stand(0, ring.pid),), 1)
    asking = Recorders(servers.run, servers.private)
    told = asking.tell(look, servers.rings, "0001").stands[0].recorder
    assert told is not None
    assert [each.sequence for each in told.open] == [2]
    assert not (servers.run / "recorder").exists()
    other = servers.add(WELL)
    asking.tell(replace(look, stands=(Stand(1, other.pid),)), servers.rings, "0002", ends=True)
    assert [path.name for path in (servers.run / "recorder" / "0002").iterdir()] == ["rank_1"]


def test_only_ranks_of_this_node_that_live_are_asked(servers: Servers) -> None:
    ring = servers.add(WELL)
    stands = (Stand(0, ring.pid, alive=False), Stand(1, ring.pid), Stand(2, 99))
    look = Standstill(Moment(0), 20.0, 12.0, stands, 3)
    told = Recorders(servers.run, servers.private).tell(look, servers.rings, "0001")
    assert told == look
    assert not servers.questions


def test_what_cannot_be_kept_is_said(servers: Servers) -> None:
    servers.add(WELL)
    (servers.run / "recorder").write_text("in the way")
    (problem,) = servers.problems()
    assert problem is not None
    assert "could not be saved" in problem
    assert os.listdir(servers.private)
