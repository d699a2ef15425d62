"""Once the job has been started nothing of ours ends it or changes its exit code: each operation of ours fails in turn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.marks import mostly_long
from tests.watch.breaking import KINDS
from tests.watch.launching import alive, doctor, environ, finish, start, wait_for

PARTS = 18
"""Each place fails in one of so many tests. A plain run takes three, with another kind of failure in each."""
TURNS = [
    pytest.param(kind, part, marks=() if (kind, part) == ("type", 0) else pytest.mark.long)
    for kind in KINDS
    for part in range(PARTS)
]
SILENT = (
    *(
        "os.kill",
        "Popen.kill",
        "Popen.communicate",
        "os.close",
        "os.rmdir",
        "os.unlink",
        "file.close",
        "file.flush cli/__init__",
        "socket.close",
    ),
    *("watch/rundir.py", "watch/launch/waiting.py"),
)
"""What ends or removes something of ours, or only tells of a rendezvous that does not come about: where that fails
nothing is lost that anybody has to know of."""
CARRYING = ("os.read watch/launch/relay", "os.write watch/launch/relay")
"""What carries the job's output: where that fails, the output is lost, which is said, and the job continues."""


def is_job(result: dict[str, Any]) -> bool:
    """Whether the job ended as it ends without us."""
    carried = str(result["target"]).startswith(CARRYING) or (
        result["stdout"] == "worked\n" and "on stderr" in result["stderr"]
    )
    return (result["code"], result["ended"], result["left"]) == (7, True, []) and carried


@pytest.mark.parametrize(("kind", "part"), TURNS)
def test_whatever_fails_of_ours_the_job_ends_as_it_ends(kind: str, part: int, tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "tests.watch.breaking",
        str(tmp_path / "runs"),
        kind,
        str(part),
        str(PARTS),
    ]
    subprocess.run(words, env=environ(tmp_path), check=True, timeout=1500, stdin=subprocess.DEVNULL)
    results = json.loads((tmp_path / "runs" / "results.json").read_text())
    assert len(results) > 150 / PARTS, "hardly anything was made to fail"
    wrong = [result for result in results if not is_job(result)]
    assert not wrong, json.dumps(wrong[:5], indent=1)


@pytest.mark.long
def test_what_failed_is_said(tmp_path: Path) -> None:
    """A defect of ours (no failure of the system, which has its own words) is said once, wherever it shows."""
    words = [sys.executable, "-m", "tests.watch.breaking", str(tmp_path / "runs"), "type", "0", "8"]
    subprocess.run(words, env=environ(tmp_path), check=True, timeout=1500, stdin=subprocess.DEVNULL)
    _, *results = json.loads((tmp_path / "runs" / "results.json").read_text())
    told = [each for each in results if not any(word in each["target"] for word in SILENT)]
    assert len(told) > 5
    told_as = (
        "TypeError: made to fail",
        "ddpdoctor: lost: ",
    )  # the latter of evidence that could not be read
    unsaid = [each["target"] for each in told if not any(word in each["stderr"] for word in told_as)]
    assert not unsaid


STAYING = """
import os, sys, time
open(os.path.join(os.environ["OUT"], f"pid-{os.environ.get('RANK', 'x')}"), "w").write(str(os.getpid()))
time.sleep(600)
"""


@pytest.mark.parametrize("whole_group", [True, False])
def test_ranks_and_sockets_go_with_those_who_are_killed(tmp_path: Path, whole_group: bool) -> None:
    (tmp_path / "train.py").write_text(STAYING)
    (tmp_path / "short").mkdir()
    process = start(
        doctor(tmp_path, "--standalone", "--nproc-per-node=2", "train.py"), tmp_path, tmp_path,
        env=environ(tmp_path, TMPDIR=str(tmp_path / "short")),
    )  # fmt: skip
    wait_for(lambda: len(list(tmp_path.glob("pid-*"))) == 2, "the ranks did not come up")
    ranks = [int(path.read_text() or 0) for path in tmp_path.glob("pid-*")]
    private = _private(process.pid)
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not any(map(alive, ranks)), "a rank was left behind")
    wait_for(lambda: not private.exists(), "the sockets were left behind")


def _private(pid: int) -> Path:
    """The directory of the sockets, as the environment of the launcher has it."""
    (child,) = [
        int(each)
        for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if b"DDPDOCTOR_STREAMS=" in Path(f"/proc/{each}/environ").read_bytes()
    ]
    words = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
    (text,) = [word.partition(b"=")[2] for word in words if word.startswith(b"DDPDOCTOR_STREAMS=")]
    return Path(os.fsdecode(text.partition(b"|")[0])).parent


MOVES = {
    "run directory": "os.rename(run, run + '.was'); os.symlink(other, run)",
    "a link at the report": "os.symlink(os.path.join(other, 'x'), os.path.join(run, 'report.html'))",
    "the logs": "os.rename(os.path.join(run, 'logs'), os.path.join(run, 'l')); os.symlink(other, os.path.join(run, 'logs'))",
    "a link at a folder of ours": "os.symlink(other, os.path.join(run, 'snapshots'))",
}


@pytest.mark.parametrize("what", MOVES)
def test_a_job_cannot_send_what_we_write_elsewhere(tmp_path: Path, what: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    program = (
        f"import os, subprocess, sys\nrun, other = {str(tmp_path / 'run')!r}, {str(other)!r}\n{MOVES[what]}\n"
        "subprocess.run([sys.executable, '-c', 'print(1)'], env={**os.environ, 'RANK': '0'})\nsys.exit(7)\n"
    )
    (tmp_path / "train.py").write_text(program)
    process = start(doctor(tmp_path, "--", sys.executable, "train.py"), tmp_path, tmp_path)
    ended = finish(process, tmp_path)
    assert ended.code == 7
    ours = [path for path in other.rglob("*") if path.is_file() and "processes" not in path.parts]
    assert not ours
    kept = tmp_path / ("run.was" if what == "run directory" else "run")
    report = kept / "report.html"
    assert not report.is_symlink()
    assert "ERR006" in report.read_text()
    assert str(kept / "report.html") in ended.stderr.decode().replace("\n", "")


def test_what_a_run_keeps_is_for_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(1)\nsys.exit(7)\n")
    command = ["sh", "-c", 'umask 0; exec "$0" "$@"', *doctor(tmp_path, "--", sys.executable, "train.py")]
    ended = finish(
        start(command, tmp_path, tmp_path, env=environ(tmp_path, RANK="0", WORLD_SIZE="1")), tmp_path
    )
    assert ended.code == 7
    kept = [tmp_path / "run", *(tmp_path / "run").rglob("*")]
    assert {"report.json", "report.html", "logs"} <= {path.name for path in kept}
    assert any(path.suffix == ".log" for path in kept)
    open_to_others = {
        str(path.relative_to(tmp_path)): oct(path.stat().st_mode)
        for path in kept
        if path.stat().st_mode & 0o077
    }
    assert not open_to_others


@pytest.mark.parametrize(
    "streams",
    mostly_long(
        [">/dev/full", "2>/dev/full", ">/dev/full 2>&1", "1<&0", ">&-", "2>&-", ">&- 2>&-"],
        ">/dev/full",
        "1<&0",
        ">&- 2>&-",
    ),
)
@pytest.mark.parametrize("code", [0, 7])
def test_streams_that_take_nothing_leave_the_exit_code(tmp_path: Path, streams: str, code: int) -> None:
    words = doctor(tmp_path, "--", sys.executable, "-c", f"raise SystemExit({code})")
    shell = subprocess.run(
        ["sh", "-c", f'"$0" "$@" {streams}', *words], env=environ(tmp_path), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert shell.returncode == code


@pytest.mark.parametrize(
    "limit", mostly_long(["-n 8", "-n 10", "-n 12", "-v 150000", "-v 300000"], "-n 10", "-v 150000")
)
def test_little_room_leaves_the_job_alone(tmp_path: Path, limit: str) -> None:
    words = doctor(tmp_path, "--", sys.executable, "-c", "print('worked'); raise SystemExit(7)")
    shell = subprocess.run(
        ["bash", "-c", f'ulimit {limit}; "$0" "$@"', *words], env=environ(tmp_path), capture_output=True,
        check=False, cwd=tmp_path, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (shell.returncode, shell.stdout) == (7, b"worked\n")


def test_a_command_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ddpdoctor", "run", "--", "no-such-command"], env=environ(tmp_path),
        cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 127
    assert not list(tmp_path.iterdir())
