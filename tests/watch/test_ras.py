"""Asking NCCL's RAS service: against a small server that speaks as it does, and against ones that do not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.sockets import RasAnswer
from ddpdoctor.evidence.standstill import Stand, Standstill
from ddpdoctor.watch.live import ras
from ddpdoctor.watch.live.monitor import Monitor
from ddpdoctor.watch.live.policy import Policy, Ruling

PAGE = """\
NCCL version 2.24.3 compiled with CUDA 12.6

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4        7-8            1         31       31

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data
"""
"""As in the documentation of NCCL."""
HELLO, OK = b"SERVER PROTOCOL 2\n", b"OK\n"


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve one client; give the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                peer, _ = listener.accept()
                with peer:
                    answer(peer)
            except OSError:
                return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    thread.join(30)


def speak(peer: socket.socket, page: bytes = PAGE.encode()) -> None:
    with peer.makefile("rb") as lines:
        assert lines.readline() == b"CLIENT PROTOCOL 2\n"
        peer.sendall(HELLO)
        assert lines.readline() == b"TIMEOUT 2\n"
        peer.sendall(OK)
        assert lines.readline() == b"STATUS\n"
        peer.sendall(page)


def look(backend: str | None = "nccl", host: str = "") -> Standstill:
    return Standstill(Moment(0), 20.0, 12.0, (Stand(0, os.getpid(), backend=backend, host=host),), 1)


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let a rank's variables say where its service is."""
    return lambda address: monkeypatch.setattr(ras, "_read_variables", lambda pid: {"NCCL_RAS_ADDR": address})


def test_answer_is_kept_and_its_errors_and_warnings_are_read(
    tmp_path: Path, at: Callable[[str], None]
) -> None:
    with server(speak) as address:
        at(address)
        answer = ras.ask_ras(look(), tmp_path)
    assert answer is not None
    assert (answer.address, answer.note, answer.file) == (address, None, "ras/0001.txt")
    assert answer.lines == (
        "INCOMPLETE",
        "Missing communicator data from 1 job process",
        "Process 3487984 on node 172.16.64.213 managing GPU 5",
        "TIMEOUT",
        "Encountered 2 communication timeouts while gathering communicator data",
    )
    kept = tmp_path / "ras" / "0001.txt"
    assert kept.read_text().splitlines() == PAGE.splitlines()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_page_about_another_job_of_the_host_is_left(tmp_path: Path, at: Callable[[str], None]) -> None:
    """Jobs of one host share the usual port: whose ranks came first answers."""
    count = "Rank 0 has launched up to operation 22 -- GPU 0 managed by process {} on node {}\n"

    def ask(*lines: str) -> RasAnswer:
        page = PAGE.replace("Process 3487984 on node 172.16.64.213 managing GPU 5\n", "".join(lines))
        with server(lambda peer: speak(peer, page.encode())) as address:
            at(address)
            answer = ras.ask_ras(look(), tmp_path)
        assert answer is not None
        return answer

    other = ask(count.format(1 << 30, "127.0.0.1"))
    assert not other.lines
    assert "another job answers there" in str(other.note)
    assert ask(count.format(1 << 30, "127.0.0.1"), count.format(os.getpid(), "127.0.0.1")).lines
    assert ask(count.format(1 << 30, "172.16.64.213")).lines  # of our job, on another host


def test_monitor_asks_at_a_proof_and_keeps_the_answer_with_the_look(
    tmp_path: Path, at: Callable[[str], None]
) -> None:
    told: list[str] = []
    monitor = Monitor(
        tmp_path, tmp_path, lambda seen: Ruling(proved=True, code="COL002"), Policy(), told.append
    )
    with server(speak) as address:
        at(address)
        monitor._rule(look(), 10.0, [])
    assert "Missing communicator data" in (tmp_path / "snapshots" / "0001.json").read_text()
    assert told
    assert monitor.decided


@pytest.mark.parametrize(("backend", "host"), [("gloo", ""), (None, ""), ("nccl", "another-host")])
def test_only_ranks_of_this_host_that_use_nccl_are_asked(
    tmp_path: Path, at: Callable[[str], None], backend: str | None, host: str
) -> None:
    at("127.0.0.1:1")
    assert ras.ask_ras(look(backend, host), tmp_path) is None


def test_service_that_is_switched_off_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "_read_variables", lambda pid: {"NCCL_RAS_ENABLE": "0"})
    monkeypatch.setattr(ras, "converse", lambda address: pytest.fail("asked"))
    assert ras.ask_ras(look(), tmp_path) is None


def test_nobody_at_the_usual_place_is_nothing_and_elsewhere_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: Callable[[str], None]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = f"127.0.0.1:{listener.getsockname()[1]}"
    at(free)
    answer = ras.ask_ras(look(), tmp_path)
    assert answer is not None
    assert answer.note == "nothing is listening there"
    monkeypatch.setattr(ras, "DEFAULT", free)
    assert ras.ask_ras(look(), tmp_path) is None


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not answer like NCCL's RAS service"),
        (b"", "it closed the connection"),
        (HELLO + b"NO\n", "did not accept a time limit"),
    ],
)
def test_whoever_answers_otherwise_is_left_alone(
    tmp_path: Path, at: Callable[[str], None], sent: bytes, words: str
) -> None:
    def answer(peer: socket.socket) -> None:
        peer.sendall(sent)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(4096):
            pass

    with server(answer) as address:
        at(address)
        got = ras.ask_ras(look(), tmp_path)
    assert got is not None
    assert words in str(got.note)
    assert not (tmp_path / "ras").exists()


def test_time_is_limited_and_half_a_page_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: Callable[[str], None]
) -> None:
    monkeypatch.setattr(ras, "LIMIT_S", 1.0)
    over = threading.Event()

    def mute(peer: socket.socket) -> None:
        over.wait(60)

    def half(peer: socket.socket) -> None:
        speak(peer, PAGE[: PAGE.index("Warnings")].encode())
        over.wait(60)

    with server(mute) as address:
        at(address)
        began = time.monotonic()
        got = ras.ask_ras(look(), tmp_path)
        assert time.monotonic() - began < 20
        over.set()
    assert got is not None
    assert "no end within" in str(got.note) or "timed out" in str(got.note)
    over.clear()
    with server(half) as address:
        at(address)
        got = ras.ask_ras(look(), tmp_path)
        over.set()
    assert got is not None
    assert got.lines[0] == "INCOMPLETE"


@pytest.mark.unmeasured
def test_flood_is_bounded_and_bytes_of_any_kind_are_survived(
    tmp_path: Path, at: Callable[[str], None]
) -> None:
    page = b"Errors\n======\n\n" + b"\x1b[2J\xff\x00 evil\n" * 200_000

    def flood(peer: socket.socket) -> None:
        speak(peer, page)

    with server(flood) as address:
        at(address)
        got = ras.ask_ras(look(), tmp_path)
    assert got is not None
    assert len(got.lines) == ras.MOST_LINES
    assert "\x1b" not in "".join(got.lines)
    kept = (tmp_path / "ras" / "0001.txt").read_bytes()
    assert len(kept) <= 2 * ras.MOST_BYTES
    assert b"\x1b" not in kept


@pytest.mark.parametrize("address", ["nonsense", ":28028", "host:port"])
def test_address_that_is_none_is_said(tmp_path: Path, at: Callable[[str], None], address: str) -> None:
    at(address)
    got = ras.ask_ras(look(), tmp_path)
    assert got is not None
    assert "not host:port" in str(got.note)


def test_healthy_page_and_a_page_of_something_else() -> None:
    assert ras.summarise("Errors\n======\n\nWarnings\n========\n") == (
        "it reports no errors and no warnings",
    )
    assert ras.summarise("hello") == ("its answer has neither errors nor warnings to read",)


def test_variables_of_a_rank_are_read_and_no_others() -> None:
    given = {
        "NCCL_RAS_ADDR": "host:28029",
        "NCCL_RAS_ENABLE": "1",
        "NCCL_DEBUG": "INFO",
        "MY_NCCL_RAS_ADDR": "x",
    }
    command = [sys.executable, "-c", "print(); input()"]
    with subprocess.Popen(command, env=given, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert ras._read_variables(process.pid) == {"NCCL_RAS_ADDR": "host:28029", "NCCL_RAS_ENABLE": "1"}
        process.kill()
    assert ras._read_variables(2**22 + 1) == {}


@contextmanager
def unwatched_rank(folder: Path, **variables: str) -> Iterator[int]:
    """Start a process that has a file of NCCL's name mapped, as a rank that nobody watches has NCCL; give its id."""
    library = folder / "libnccl.so.2"
    library.write_bytes(b"\0" * 4096)
    program = (
        "import mmap, sys\nfile = open(sys.argv[1], 'rb')\n"
        "mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\nprint(flush=True)\ninput()"
    )
    command = [sys.executable, "-c", program, str(library)]
    with subprocess.Popen(
        command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_service_of_a_job_that_nobody_watches_is_asked_where_it_has_loaded_nccl(tmp_path: Path) -> None:
    with server(speak) as address, unwatched_rank(tmp_path, NCCL_RAS_ADDR=address) as pid:
        seen = replace(look(None), stands=(Stand(0, pid, watched=False),))
        answer = ras.add_ras(seen).ras[0]
        # A rank that writes its calls down, and has named no backend yet, has none.
        assert ras.add_ras(replace(seen, stands=(Stand(0, pid),))).ras == ()
    assert (answer.address, answer.note, answer.file) == (address, None, None)
    assert "Missing communicator data from 1 job process" in answer.lines


def test_service_is_not_asked_for_a_process_without_nccl() -> None:
    seen = replace(look(None), stands=(Stand(0, os.getpid(), watched=False), Stand(1, 0, watched=False)))
    assert ras.add_ras(seen) is seen
