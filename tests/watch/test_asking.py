"""Looks at a live run that somebody asks for: the socket, what is trusted of it, and what is written."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpdoctor.errors import DoctorError
from ddpdoctor.watch.live.asking import CONTROL, Reception, ask_for_look, read_look
from ddpdoctor.watch.rundir import RunDirectory, make_run_directory
from tests.watch.launching import wait_for
from tests.watch.test_rings import make_row, write_ring


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    made = make_run_directory(str(tmp_path / "run"))
    yield made
    made.remove_private()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def reception(directory: RunDirectory, told: list[str], tmp_path: Path) -> Iterator[Reception]:
    made = Reception(directory, tmp_path, told.append)
    made.start()
    yield made
    made.close()


def add_rank(directory: RunDirectory) -> None:
    """Write the ring and the journal of a rank that is this very process."""
    write_ring(directory.processes, [make_row(1), make_row(2, end=0)])
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    events = [
        {"event": "start", "role": "rank", "rank": 0, "host": "here"},
        {"event": "init", "rank": 0, "world_size": 1},
        {"event": "signature", "number": 1, "op": "barrier"},
    ]
    for suffix in ("ring", "jsonl"):
        (directory.processes / f"12-34.{suffix}").rename(
            directory.processes / f"{os.getpid()}-{ticks}.{suffix}"
        )
    lines = (json.dumps({**event, "wall_ns": 1, "mono_ns": 1}) for event in events)
    (directory.processes / f"{os.getpid()}-{ticks}.jsonl").write_text("\n".join(lines) + "\n")


def test_who_asks_gets_a_look_that_is_written_down(directory: RunDirectory, reception: Reception) -> None:
    add_rank(directory)
    first, second = ask_for_look(directory.path), ask_for_look(directory.path)
    assert [path.name for path in (first, second)] == ["asked-0001.json", "asked-0002.json"]
    look = read_look(first)
    assert (look.asked, look.stage) == (True, "look")
    (stand,) = look.stands
    assert (stand.rank, stand.pid, stand.alive) == (0, os.getpid(), True)
    assert stand.call is not None
    assert stand.call.op == "barrier"
    assert first.parent.stat().st_mode & 0o077 == 0


def test_only_the_owner_can_find_the_socket_and_it_goes_with_the_run(
    directory: RunDirectory, told: list[str], tmp_path: Path
) -> None:
    reception = Reception(directory, tmp_path, told.append)
    reception.start()
    control = directory.path / CONTROL
    assert control.stat().st_mode & 0o777 == 0o600
    assert Path(json.loads(control.read_text())["socket"]).stat().st_mode & 0o077 == 0
    reception.close()
    assert not control.exists()
    assert reception.lost == []
    with pytest.raises(DoctorError, match="it has ended"):
        ask_for_look(directory.path)


def test_before_there_are_ranks_it_says_so(directory: RunDirectory, reception: Reception) -> None:
    with pytest.raises(DoctorError, match="no rank has created a process group yet"):
        ask_for_look(directory.path)


def test_a_signal_asks_in_a_thread_and_the_path_is_told(
    directory: RunDirectory, reception: Reception, told: list[str]
) -> None:
    reception.take_later()
    wait_for(lambda: told, "it is told that there is nothing to look at")
    assert told == ["no snapshot was saved: no rank has created a process group yet"]
    add_rank(directory)
    reception.take_later()
    wait_for(lambda: len(told) == 2, "a look is taken")
    assert told[1] == f"snapshot: {directory.path / 'snapshots' / 'asked-0001.json'}"


def test_a_look_is_given_up_when_the_job_ends(
    directory: RunDirectory, reception: Reception, told: list[str]
) -> None:
    add_rank(directory)
    reception.take_later()
    time.sleep(0.1)
    reception.close()
    wait_for(lambda: told, "the look is given up, or was ready just before")
    assert told[0].startswith(("no snapshot was saved: the job has ended", "looked: "))


@pytest.mark.parametrize("text", [b"", b"[]", b'{"ask": "everything"}', b"\xff", b'{"ask":'])
def test_what_is_no_question_is_answered_with_a_problem(
    directory: RunDirectory, reception: Reception, text: bytes
) -> None:
    address = json.loads((directory.path / CONTROL).read_text())["socket"]
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(60)
        asking.connect(address)
        asking.sendall(text)
        asking.shutdown(socket.SHUT_WR)
        assert "problem" in json.loads(asking.recv(4096))
    add_rank(directory)
    assert ask_for_look(directory.path).exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"socket": 5}', '{"socket": "/etc/passwd"}', '{"socket": "/nonexistent/asked"}']
)
def test_a_control_file_of_anybody_is_not_trusted(tmp_path: Path, text: str) -> None:
    (tmp_path / CONTROL).write_text(text)
    with pytest.raises(DoctorError):
        ask_for_look(tmp_path)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (b'{"look": "../../etc/passwd"}', "saved no snapshot"),
        (b'{"look": ""}', "saved no snapshot"),
        (b"[" * 2000, "could not be reached"),
        (b"[" * 1_000_000, "could not be reached"),
    ],
)
def test_an_answer_is_nothing_but_the_name_of_a_look(tmp_path: Path, said: bytes, problem: str) -> None:
    address = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen(1)
        (tmp_path / CONTROL).write_text(json.dumps({"socket": str(address)}))

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                with contextlib.suppress(ConnectionError):  # it does not listen that long
                    peer.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(DoctorError, match=problem):
            ask_for_look(tmp_path)
        thread.join()


def test_a_look_that_is_damaged_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "asked-0001.json").write_text('{"at": 3}')
    with pytest.raises(DoctorError, match="cannot be read"):
        read_look(tmp_path / "asked-0001.json")
