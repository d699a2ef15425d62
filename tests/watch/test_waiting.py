"""What is said while torchrun waits for other nodes, and when nothing is."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.watch.commandline import Split
from ddpdoctor.watch.launch.waiting import AGENT_S, SAID_AT_S, RendezvousWatch

START = 1_800_000_000.0
AGENT = {"event": "role", "role": "launcher", "how": "elastic agent"}
TORCH = {"event": "torch", "version": "2.13.0"}


def start(*argv: str, role: str = "launcher") -> dict[str, Any]:
    return {"event": "start", "role": role, "argv": list(argv)}


TORCHRUN = start("/venv/bin/python", "-m", "torch.distributed.run", "train.py")


class Run:
    """The events of a run, and what is said of them."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        command: tuple[str, ...] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.said: list[str] = []
        split = Split((), words, command or ("train.py",), is_command=bool(command))
        self.watch = RendezvousWatch(folder, split, self.said.append, environ or {})

    def write(self, *events: dict[str, Any], pid: int | None = None) -> None:
        lines = [
            json.dumps({"event": each["event"], "wall_ns": int(START * 1e9), **each}, separators=(",", ":"))
            for each in events
        ]
        with (self.folder / f"{pid or os.getpid()}-1.jsonl").open("a") as file:
            file.write("\n".join(lines) + "\n")

    def look(self, *seconds: float) -> list[str]:
        for each in seconds:
            self.watch.look(START + each)
        return self.said


def static(port: int, *more: str) -> list[str]:
    return ["--nnodes", "2", "--node-rank=0", "--master-addr", "127.0.0.1", "--master_port", str(port), *more]


@contextlib.contextmanager
def listening() -> Iterator[tuple[socket.socket, int]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server, server.getsockname()[1]


def test_nothing_is_said_at_first_and_then_more_and_more_rarely(tmp_path: Path) -> None:
    run = Run(tmp_path, *static(1))
    run.write(TORCHRUN, AGENT)
    assert run.look(1, 19) == []
    assert len(run.look(21, 23, 30, 119)) == 1
    assert run.said[0].startswith(
        "no rank has been started since torchrun was ready for the rendezvous of 2 nodes 21 s ago; "
    )
    assert len(run.look(121, 125, 300)) == 2
    assert len(run.look(*range(601, 9000, 100))) == len(SAID_AT_S)


@pytest.mark.parametrize(
    ("events", "counts"),
    [
        ((TORCHRUN, AGENT), True),
        ((TORCHRUN, TORCH), True),
        ((start("/venv/bin/python", "/venv/bin/torchrun", "train.py"), TORCH), True),
        ((TORCHRUN,), False),
        ((start("/venv/bin/python", "/venv/bin/accelerate", "launch", "torchrun.py"), TORCH), False),
        ((start("python", "train.py", role="other"), TORCH), False),
    ],
)
def test_who_waits_is_torchs_agent(tmp_path: Path, events: tuple[dict[str, Any], ...], counts: bool) -> None:
    run = Run(tmp_path, "--nnodes", "2")
    run.write(*events)
    assert bool(run.look(50)) == counts


def test_nothing_is_said_once_a_rank_was_started(tmp_path: Path) -> None:
    run = Run(tmp_path, *static(1))
    run.write(TORCHRUN, AGENT)
    run.look(5)
    run.write(start("python", "train.py", role="rank"), pid=77)
    assert run.look(*range(20, 4000, 50)) == []


def test_command_without_an_agent_is_looked_at_for_a_while_only(tmp_path: Path) -> None:
    run = Run(tmp_path, command=("python", "train.py"))
    run.write(start("python", "train.py", role="other"))
    run.watch.look(START + AGENT_S + 1e9)
    run.write(AGENT)
    assert run.look(1e9 + 2 * AGENT_S) == []


@pytest.mark.parametrize(
    "content", [b"", b'"how":"elastic agent"', b'{"how":"elastic agent","wall_ns":{}}', b"\xff" * 100]
)
def test_damaged_events_are_survived(tmp_path: Path, content: bytes) -> None:
    run = Run(tmp_path)
    (tmp_path / "5-1.jsonl").write_bytes(content)
    (tmp_path / "x.jsonl").write_bytes(content)
    assert run.look(50, 200) == []


def test_host_says_who_has_connected(tmp_path: Path) -> None:
    with listening() as (server, port):
        run = Run(tmp_path, *static(port))
        run.write(TORCHRUN, AGENT)
        assert f"no other node has connected to port {port} here" in run.look(21)[0]
        with socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0)):
            peer, _ = server.accept()
            with peer:
                assert run.look(121)[1].endswith(f"connected to port {port} here so far: 127.0.0.2")


def test_others_say_how_their_connection_stands(tmp_path: Path) -> None:
    with listening() as (_, port), socket.create_connection(("127.0.0.1", port)) as client:
        run = Run(tmp_path, "--nnodes=2:4", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}")
        # This process listens too; one that only waits has the connection and nothing else.
        with subprocess.Popen(["sleep", "600"], pass_fds=[client.fileno()]) as other:
            try:
                run.write(TORCHRUN, TORCH, pid=other.pid)
                said = run.look(21)[0]
            finally:
                other.kill()
    assert "for the rendezvous of 2:4 nodes" in said
    assert f"it is connected to 127.0.0.1:{port}, and a node is missing" in said


@pytest.mark.parametrize(
    ("words", "environ", "place"),
    [
        (["--master-addr", "node-a"], {}, "node-a:29500"),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "node-a"], {}, "node-a:29400"),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "node-a:17"], {}, "node-a:17"),
        (["--rdzv-endpoint=node-a:17"], {"PET_RDZV_BACKEND": "c10d"}, "node-a:17"),
        ([], {"PET_MASTER_ADDR": "node-b", "PET_MASTER_PORT": "18"}, "node-b:18"),
        (["--master-addr=node-a"], {"PET_MASTER_ADDR": "node-b"}, "node-a:29500"),
        (["--nnodes", "2"], {}, "the rendezvous:29500"),
        (["--nnodes", "2", "--master-port", "99999999"], {}, "the rendezvous:29500"),
    ],
)
def test_place_is_read_from_options_and_variables(
    tmp_path: Path, words: list[str], environ: dict[str, str], place: str
) -> None:
    run = Run(tmp_path, *words, environ=environ)
    run.write(TORCHRUN, AGENT)
    assert f"it has no connection to {place} now" in run.look(30)[0]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--nnodes", "1"],
        ["--nnodes=1:1", "--standalone"],
        ["--master-addr", "127.0.0.1", "--master-port", "29500"],
        ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"],
    ],
)
def test_slow_launcher_on_one_node_waits_for_nobody(tmp_path: Path, words: list[str]) -> None:
    """On a busy machine it was said that nobody listened, before torchrun had come to listen."""
    run = Run(tmp_path, *words)
    run.write(TORCHRUN, AGENT)
    assert run.look(*range(20, 4000, 50)) == []


def test_listening_on_one_node_is_not_waiting_for_others(tmp_path: Path) -> None:
    with listening() as (_, port):
        run = Run(tmp_path, "--master-port", str(port))
        run.write(TORCHRUN, AGENT)
        assert run.look(21, 121, 601) == []


def test_options_of_a_command_are_read_too(tmp_path: Path) -> None:
    run = Run(tmp_path, command=("torchrun", "--nnodes", "3", "--master-addr", "node-a", "train.py"))
    run.write(TORCHRUN, AGENT)
    assert "rendezvous of 3 nodes" in run.look(30)[0]
    assert "node-a:29500" in run.said[0]


def test_options_of_the_script_are_not_the_launchers(tmp_path: Path) -> None:
    words = (
        "torchrun",
        "--nnodes",
        "3",
        "--master-addr",
        "node-a",
        "train.py",
        "--nnodes",
        "8",
        "--master-addr",
        "x",
    )
    run = Run(tmp_path, command=words)
    run.write(TORCHRUN, AGENT)
    assert "rendezvous of 3 nodes" in run.look(30)[0]
    assert "node-a:29500" in run.said[0]
