"""Ranks whose launcher is gone are found; living jobs are left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddpdoctor.evidence import Leftover, decode
from ddpdoctor.gather.leftovers import find_leftovers

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

RANK = (
    "import os, socket, sys, time; s = socket.create_server(('127.0.0.1', 0));"
    "print(os.getpid(), s.getsockname()[1], flush=True); time.sleep(600)"
)
LAUNCHER = (
    "import subprocess, sys, time;"
    f"p = subprocess.Popen([sys.executable, '-c', {RANK!r}, '--password=hunter2']);"
    "time.sleep(0 if sys.argv[1] == 'dies' else 600)"
)
Start = Callable[..., tuple[int, int]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a launcher with one rank; give the rank's pid and port. Both are killed at the end."""
    launchers: list[subprocess.Popen[str]] = []
    ranks: list[int] = []

    def begin(ends: str, **variables: str) -> tuple[int, int]:
        # A session of its own and a middleman, so that nothing descends from pytest once it is orphaned.
        environ = {"PATH": os.environ["PATH"], **variables}
        launcher = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, ends],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        launchers.append(launcher)
        assert launcher.stdout is not None
        pid, port = map(int, launcher.stdout.readline().split())
        ranks.append(pid)
        if ends == "dies":
            launcher.wait(timeout=30)
        return pid, port

    yield begin
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    for launcher in launchers:
        launcher.kill()
        launcher.wait(timeout=30)
        if launcher.stdout is not None:
            launcher.stdout.close()


def _find(pid: int) -> Leftover | None:
    """Look as another process would: what descends from this one is never a leftover to it."""
    code = (
        "import json; from ddpdoctor.evidence import encode;"
        "from ddpdoctor.gather.leftovers import find_leftovers;"
        "print(json.dumps(encode(find_leftovers()[0])))"
    )
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    found = [decode(Leftover, row) for row in json.loads(done.stdout)]
    return next((each for each in found if each.pid == pid), None)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "1", "WORLD_SIZE": "2"},
        {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job9"},
    ],
)
def test_a_rank_whose_launcher_died_is_found_with_what_it_holds(
    start: Start, variables: dict[str, str]
) -> None:
    pid, port = start("dies", **variables)
    found = _find(pid)
    assert found is not None
    assert (found.rank, found.run_id, found.orphaned) == ("1", variables.get("TORCHELASTIC_RUN_ID"), True)
    assert found.ports == (port,)
    assert 0 <= found.age_s < 600
    assert "hunter2" not in found.command
    assert "time.sleep(600)" in found.command


def test_a_rank_with_a_living_launcher_is_left_alone(start: Start) -> None:
    pid, _ = start("lives", RANK="1", WORLD_SIZE="2", TORCHELASTIC_RUN_ID="job9")
    assert _find(pid) is None


def test_an_orphan_that_is_no_rank_is_left_alone(start: Start) -> None:
    pid, _ = start("dies")
    assert _find(pid) is None


def _process(
    root: Path,
    pid: int,
    parent: int,
    command: str,
    environ: str | None = "",
    *,
    name: str = "python3",
    maps: str = "",
) -> None:
    folder = root / str(pid)
    (folder / "fd").mkdir(parents=True)
    fields = ["S", str(parent)] + ["0"] * 17 + [str(pid)] + ["0"] * 10
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}")
    (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
    (folder / "comm").write_text(name)
    (folder / "maps").write_text(maps)
    (folder / "exe").symlink_to(f"/usr/bin/{name}")
    if environ is not None:
        (folder / "environ").write_bytes(environ.replace(" ", "\0").encode() + b"\0")


ELASTIC = "TORCHELASTIC_RUN_ID=j RANK={} WORLD_SIZE=2"


def test_a_made_up_machine(tmp_path: Path) -> None:
    _process(tmp_path, 1, 0, "/sbin/init", name="init")
    _process(tmp_path, 10, 1, "/usr/bin/python3 -m torch.distributed.run train.py")
    _process(tmp_path, 11, 10, "python3 train.py", ELASTIC.format(0))
    _process(tmp_path, 20, 1, "python3 old.py", ELASTIC.format(1))
    _process(tmp_path, 21, 20, "python3 old.py", ELASTIC.format(1))  # its loader worker
    _process(
        tmp_path,
        30,
        1,
        "python3 -c from multiprocessing.spawn import spawn_main;",
        maps="x /l/libtorch_cpu.so\n",
    )
    _process(
        tmp_path, 31, 1, "python3 -c from multiprocessing.spawn import spawn_main;", maps="x /l/libc.so\n"
    )
    _process(tmp_path, 40, 1, "bash", ELASTIC.format(0), name="bash")
    _process(tmp_path, 50, 1, "systemd --user", name="systemd")
    _process(tmp_path, 51, 50, "python3 user.py", ELASTIC.format(0))
    _process(tmp_path, 60, 10, "bash -c wrapped", ELASTIC.format(1), name="bash")
    _process(tmp_path, 61, 60, "python3 train.py", ELASTIC.format(1))
    _process(tmp_path, 70, 1, "slurmstepd: [1.0]", name="slurmstepd")
    _process(tmp_path, 71, 70, "python3 train.py", "RANK=0 WORLD_SIZE=2")
    _process(tmp_path, 80, 1, "python3 hidden.py", None)
    (tmp_path / "20/fd/5").symlink_to("/dev/nvidia3")
    (tmp_path / "20/fd/6").symlink_to("/dev/nvidiactl")
    found, note = find_leftovers(tmp_path)
    assert {each.pid for each in found} == {20, 30, 51}
    assert next(each for each in found if each.pid == 20).devices == ("/dev/nvidia3",)
    assert note == "1 Python process could not be read; run as root to see whether they are ranks"


def test_a_rank_that_init_itself_runs_is_no_leftover(tmp_path: Path) -> None:
    _process(tmp_path, 1, 0, "/usr/bin/tini -- python3 train.py", "RANK=0 WORLD_SIZE=2", name="tini")
    _process(tmp_path, 7, 1, "python3 train.py", "RANK=0 WORLD_SIZE=2")
    assert find_leftovers(tmp_path) == ((), None)


def test_an_empty_proc_gives_nothing(tmp_path: Path) -> None:
    assert find_leftovers(tmp_path) == ((), None)
    assert find_leftovers(tmp_path / "none") == ((), None)


def test_it_is_quick() -> None:
    start_s = time.monotonic()
    find_leftovers()
    assert time.monotonic() - start_s < 30


def test_what_started_after_this_process_is_no_earlier_job(tmp_path: Path) -> None:
    me = os.getpid()
    _process(tmp_path, 1, 0, "init", name="systemd")
    _process(tmp_path, me, 1, "python3 -m ddpdoctor")
    for pid in (me - 1, me + 1):  # the helper takes the number for the time of the start
        _process(tmp_path, pid, 1, "python3 train.py", "RANK=1\0WORLD_SIZE=2\0")
    assert [each.pid for each in find_leftovers(tmp_path)[0]] == [me - 1]
