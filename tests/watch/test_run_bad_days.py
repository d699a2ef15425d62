"""``run`` on bad days: the job's fate is what it would have been, and what was lost is said."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddpdoctor.errors import DoctorError
from ddpdoctor.watch.launch import job
from ddpdoctor.watch.launch.guardian import Witness
from ddpdoctor.watch.live.memory import MemoryWatch
from ddpdoctor.watch.live.stillness import read_node
from ddpdoctor.watch.rundir import make_run_directory
from tests.watch.injecting import write
from tests.watch.launching import (
    DOCTOR,
    TORCHRUN,
    alive,
    doctor,
    environ,
    finish,
    start,
    torchrun_pair,
    wait_for,
)

GREETING = "import os; print('hello', os.environ.get('RANK', '-'))"
RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
"""Makes a plain command a rank, without the time that torchrun takes."""


def report_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "report.json").read_text())
    return found


@pytest.mark.parametrize("kind", ["nowhere", "a file"])
def test_a_run_directory_that_cannot_be_made(tmp_path: Path, kind: str) -> None:
    write(tmp_path, GREETING)
    (tmp_path / "file").write_text("")
    where = "/proc/nothing/here" if kind == "nowhere" else str(tmp_path / "file")
    process = start(
        [*doctor(tmp_path)[:-2], "--run-dir", where, "--", sys.executable, "train.py"], tmp_path, tmp_path,
        env=environ(tmp_path, TMPDIR=str(tmp_path), **RANK),
    )  # fmt: skip
    ended = finish(process, tmp_path)
    assert (ended.code, ended.stdout) == (0, b"hello 0\n")
    assert f"{where} cannot be used".encode() in ended.stderr
    (kept,) = tmp_path.glob("ddpdoctor-run-*")
    assert (kept / "report.json").exists()
    assert list((kept / "logs").glob("rank-0.*"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"a small disk cannot be mounted: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.root
def test_a_disk_that_gets_full(tmp_path: Path, small_disk: Path) -> None:
    write(
        tmp_path,
        "import sys\nfor n in range(5000):\n    print('%1023d' % n)\nprint('done', file=sys.stderr)\n",
    )
    process = start(
        [*doctor(tmp_path)[:-2], "--run-dir", str(small_disk / "run"), "--", sys.executable, "train.py"],
        tmp_path, tmp_path, env=environ(tmp_path, **RANK),
    )  # fmt: skip
    ended = finish(process, tmp_path)
    assert ended.code == 0
    assert ended.stdout == b"".join(b"%1023d\n" % n for n in range(5000))
    assert ended.stderr.startswith(b"done\n")
    assert re.search(rb"ddpdoctor: lost: rank-0\S*stdout.log: No space left on device", ended.stderr)
    assert b"report.json" in ended.stderr  # that it could not be written
    assert b"internal error" not in ended.stderr


def test_output_of_200_mb_is_passed_on_whole_and_kept_in_part(tmp_path: Path) -> None:
    size = 200 << 20
    write(tmp_path, "import sys\nfor n in range(200):\n    sys.stdout.buffer.write(bytes([n]) * (1 << 20))\n")
    process = start(
        doctor(tmp_path, "--log-limit", "1", "--", sys.executable, "train.py"), tmp_path, tmp_path,
        env=environ(tmp_path, **RANK), stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    digest, count = hashlib.sha256(), 0
    while part := process.stdout.read(1 << 20):
        digest.update(part)
        count += len(part)
    assert process.wait(60) == 0
    assert count == size
    assert digest.digest() == hashlib.sha256(b"".join(bytes([n]) * (1 << 20) for n in range(200))).digest()
    (log,) = (tmp_path / "run" / "logs").glob("*.stdout.log")
    kept = log.read_bytes()
    assert kept.startswith(bytes(1 << 20))
    assert kept.endswith(bytes([199]) * (1 << 20))
    assert f"{size - (2 << 20)} bytes omitted here".encode() in kept
    assert sum(path.stat().st_size for path in (tmp_path / "run").rglob("*")) < 4 << 20


def test_binary_output_passes_and_breaks_nothing(tmp_path: Path) -> None:
    write(
        tmp_path,
        "import os, sys\nos.write(1, bytes(range(256)) * 500)\nos.write(2, b'\\xff\\0\\x1b[2J' * 500)\nsys.exit(3)\n",
    )
    process = start(
        doctor(tmp_path, "--", sys.executable, "train.py"), tmp_path, tmp_path, env=environ(tmp_path, **RANK)
    )
    ended = finish(process, tmp_path)
    assert ended.code == 3
    assert ended.stdout == bytes(range(256)) * 500
    said = ended.stderr.removeprefix(b"\xff\0\x1b[2J" * 500)
    assert len(said) < len(ended.stderr)
    assert not {0, 0x1B, 0xFF} & set(said)  # nothing that would disturb a terminal
    assert report_of(tmp_path / "run")["job"]["exit_code"] == 3


STUBBORN = """
    import os, signal, time
    signal.signal(signal.SIGTERM, lambda *_: None)
    time.sleep(2)  # torchrun forgets ranks that it has just started when a signal comes before it begins to watch them
    with open(os.path.join(os.environ["OUT"], "rank-" + os.environ["RANK"]), "w") as file:
        file.write(str(os.getpid()))
    end = time.time() + 100
    while time.time() < end:
        time.sleep(0.1)
"""


def pids(folder: Path) -> list[int]:
    return [int(text) for path in folder.glob("rank-?") if (text := path.read_text())]


@pytest.mark.long
def test_a_rank_that_ignores_sigterm_is_ended_by_torchrun(tmp_path: Path) -> None:
    write(tmp_path, STUBBORN)

    def act(process: subprocess.Popen[bytes], folder: Path) -> None:
        wait_for(lambda: len(pids(folder)) == 2, "the ranks did not come up")
        process.send_signal(signal.SIGTERM)

    plain, watched = torchrun_pair(
        tmp_path, "--nproc-per-node=2", "--shutdown-timeout=2", "train.py", act=act
    )
    assert watched.code == plain.code
    assert not [pid for pid in pids(tmp_path / "watched") if alive(pid)]


def test_nothing_is_left_when_the_doctor_is_killed(tmp_path: Path) -> None:
    write(tmp_path, STUBBORN)
    arguments = ["--standalone", "--nproc-per-node=2", "--shutdown-timeout=2", "train.py"]
    process = start(doctor(tmp_path, *arguments), tmp_path, tmp_path)
    wait_for(lambda: len(pids(tmp_path)) == 2, "the ranks did not come up")
    below = psutil.Process(process.pid).children(recursive=True)
    assert {child.pid for child in below} >= set(pids(tmp_path))
    process.kill()
    process.wait()
    wait_for(lambda: not any(alive(child.pid) for child in below), "a process was left behind")


def test_two_runs_in_one_directory_keep_apart(tmp_path: Path) -> None:
    write(tmp_path, GREETING)
    command = doctor(tmp_path, "--", sys.executable, "train.py")
    folders = [tmp_path / "one", tmp_path / "two"]
    started = [start(command, folder, tmp_path, env=environ(folder, **RANK)) for folder in folders]
    for process, folder in zip(started, folders, strict=True):
        assert finish(process, folder).code == 0
    reports = list((tmp_path / "run").rglob("report.json"))
    assert len(reports) == 2
    for report in reports:
        assert len(list((report.parent / "processes").glob("*.jsonl"))) == 1


@pytest.mark.root
def test_files_that_may_not_be_read_or_written(tmp_path: Path) -> None:
    ordinary = ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-sys_ptrace"]
    if shutil.which("setpriv") is None or subprocess.run([*ordinary, "true"], check=False).returncode:
        pytest.skip("root's privileges cannot be dropped here")
    locked = tmp_path / "locked"
    locked.mkdir()
    write(locked, GREETING)
    write(locked, GREETING, "secret.py").chmod(0)
    locked.chmod(0o555)
    for name, code in (("train.py", 0), ("secret.py", 1)):
        folder = tmp_path / name
        command = [*ordinary, *DOCTOR, "--standalone", name]
        environment = environ(folder, TMPDIR=str(tmp_path))
        ended = finish(start(command, folder, locked, env=environment), folder)
        assert ended.code == code
        if code == 0:
            assert ended.stdout == b"hello 0\n"
            assert b"Permission denied); the run is kept in " in ended.stderr
        else:
            assert b"ERR009" in ended.stderr
            assert b"ls -l secret.py; id" in ended.stderr
    assert sorted(path.name for path in locked.iterdir()) == ["secret.py", "train.py"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["-m", "no_such_module"], "ERR009"),
        (["no_such_file.py"], "ERR009"),
        (["-c", "import os; os.kill(os.getpid(), 9)"], "ERR005"),
        (["-c", "import sys; sys.exit(4)"], "ERR006"),
    ],
)
def test_a_command_that_nobody_watches_is_seen_to_end(tmp_path: Path, words: list[str], code: str) -> None:
    ended = finish(start(doctor(tmp_path, "--", sys.executable, *words), tmp_path, tmp_path), tmp_path)
    assert ended.code != 0
    assert report_of(tmp_path / "run")["verdict"]["code"] == code


STARTER = """
    import os, subprocess, sys
    print("before", flush=True)
    code = "import os, sys; print('rank', os.environ['RANK'], flush=True); print('err', file=sys.stderr)"
    for number in range(2):
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "RANK": str(number), "WORLD_SIZE": "2"})
    subprocess.run(["sh", "-c", "echo of a shell"])
    print("after")
"""


def test_output_of_a_script_that_starts_its_ranks_is_kept_apart_from_theirs(tmp_path: Path) -> None:
    write(tmp_path, STARTER)
    ended = finish(start(doctor(tmp_path, "--", sys.executable, "train.py"), tmp_path, tmp_path), tmp_path)
    assert ended.code == 0
    assert sorted(ended.stdout.splitlines()) == [b"after", b"before", b"of a shell", b"rank 0", b"rank 1"]
    logs = {
        re.sub(r"\.0\.\d+", "", path.name): path.read_bytes()
        for path in (tmp_path / "run" / "logs").iterdir()
    }
    assert logs == {
        "command.stdout.log": b"before\nof a shell\nafter\n",
        "command.stderr.log": b"",
        "rank-0.stdout.log": b"rank 0\n",
        "rank-0.stderr.log": b"err\n",
        "rank-1.stdout.log": b"rank 1\n",
        "rank-1.stderr.log": b"err\n",
    }


WRITING = """
    import time
    for n in range(100000):
        print("line", n, flush=True)
"""


def test_a_reader_that_leaves_is_noticed_as_without_us(tmp_path: Path) -> None:
    write(tmp_path, WRITING)
    codes = []
    for folder, command in (
        (tmp_path / "plain", [*TORCHRUN, "--standalone", "train.py"]),
        (tmp_path / "watched", doctor(tmp_path / "watched", "--standalone", "train.py")),
    ):
        process = start(command, folder, tmp_path, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"line 0\n"
        process.stdout.close()
        ended = finish(process, folder)
        codes.append(ended.code)
        assert b"BrokenPipeError" in ended.stderr
    assert codes[1] == codes[0]
    assert b"ddpdoctor" in ended.stderr


@pytest.mark.long
def test_a_slow_reader_gets_everything(tmp_path: Path) -> None:
    write(tmp_path, "print('x' * (1 << 20))")
    process = start(
        doctor(tmp_path, "--", sys.executable, "train.py"), tmp_path, tmp_path,
        env=environ(tmp_path, **RANK), stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    waited = threading.Event()
    waited.wait(6)  # longer than output on its way is waited for
    assert len(process.stdout.read()) == (1 << 20) + 1
    assert process.wait(60) == 0


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_as_if_sent_nowhere(tmp_path: Path, closed: str) -> None:
    script = write(
        tmp_path,
        """
        import os, sys
        with open(os.path.join(os.environ["OUT"], "seen"), "w") as file:
            file.write("begun")
        os.write(1, b"out")
        os.write(2, b"err")
        """,
    )
    command = doctor(tmp_path / "watched", "--", sys.executable, str(script))
    folder = tmp_path / "watched"
    whole = ["sh", "-c", f'exec "$@" {closed}', "sh", *command]
    seen = finish(start(whole, folder, tmp_path, env=environ(folder, **RANK)), folder)
    # Without us a rank fails that writes to what is closed; with us it is as if sent to /dev/null.
    assert (seen.code, seen.stdout) == (0, b"" if ">&-" in closed.split() else b"out")
    assert seen.stderr.startswith(b"" if "2>&-" in closed.split() else b"err")
    assert (tmp_path / "watched" / "seen").exists()
    assert (tmp_path / "watched" / "run" / "report.json").exists()


def test_the_witness_tells_a_signal_for_the_group_from_one_for_us() -> None:
    program = (
        "import os, signal, sys, time\nfrom pathlib import Path; from ddpdoctor.watch.launch.guardian import Witness\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "witness = Witness(['torchrun'])\n"
        "for kill in (os.kill, os.killpg, os.kill, os.killpg):\n"
        "    kill(os.getpid(), signal.SIGTERM)\n"
        "    signal.sigwait([signal.SIGTERM])\n"
        "    print(witness.heard(signal.SIGTERM))\n"
        "witness.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, start_new_session=True
    )
    assert done.stdout.split() == ["False", "True", "False", "True"]


def test_the_guardian_tidies_up_after_one_who_was_killed(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    for name in ("streams", "fr-17-4711"):
        (private / name).touch()
    program = (
        "import os, sys; from pathlib import Path; from ddpdoctor.watch.launch.guardian import Guardian\n"
        "guardian = Guardian(Path(sys.argv[1]), Path('/nonexistent'))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(private)], check=False)
    assert done.returncode == -9
    wait_for(lambda: not private.exists(), "the directory stayed")


def test_without_a_shell_signals_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    witness = Witness(["torchrun"])
    with contextlib.closing(witness):
        assert not witness.heard(signal.SIGTERM)


def test_a_command_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    process = start(doctor(tmp_path, "--", "no-such-command"), tmp_path, tmp_path)
    ended = finish(process, tmp_path)
    assert ended.code == 127  # as a shell says it
    assert b"there is no command 'no-such-command' in PATH" in ended.stderr
    assert not os.path.exists(tmp_path / "run" / "report.json")


def test_a_defect_of_ours_after_the_job_leaves_its_code(tmp_path: Path) -> None:
    broken = (
        "import sys, ddpdoctor.cli.run as r; from ddpdoctor.cli import main; r._report = lambda *_: 1 / 0; "
        "sys.exit(main(sys.argv[1:]))"
    )
    process = start(
        [sys.executable, "-c", broken, "run", "--run-dir", str(tmp_path / "run"), "--", "sh", "-c", "exit 5"],
        tmp_path,
        tmp_path,
    )
    ended = finish(process, tmp_path)
    assert ended.code == 5
    assert ended.stderr == b"ddpdoctor: internal error after the job: ZeroDivisionError: division by zero\n"


def test_without_descriptors_to_spare_the_ranks_keep_their_streams(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        import os, subprocess, sys
        code = "print('rank', flush=True); import time; time.sleep(1)"
        ranks = [
            subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "RANK": str(n), "WORLD_SIZE": "16"})
            for n in range(16)
        ]
        sys.exit(max(rank.wait() for rank in ranks))
        """,
    )
    command = [
        "sh",
        "-c",
        'ulimit -n 40; exec "$@"',
        "sh",
        *doctor(tmp_path, "--", sys.executable, "train.py"),
    ]
    ended = finish(start(command, tmp_path, tmp_path), tmp_path)
    assert ended.code == 0
    assert ended.stdout == b"rank\n" * 16
    assert b"lost: streams of a process: " in ended.stderr


def test_a_process_that_outlives_the_job_does_not_hold_it_up(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        import os, time
        if os.fork() == 0:
            for _ in range(2000):
                print("still here", flush=True)
                time.sleep(0.1)
        """,
    )
    process = start(
        doctor(tmp_path, "--", sys.executable, "train.py"), tmp_path, tmp_path, env=environ(tmp_path, **RANK)
    )
    began = time.monotonic()
    assert finish(process, tmp_path).code == 0
    assert time.monotonic() - began < 150  # the process itself stays for 200 s


def test_a_stdout_that_takes_nothing_more_leaves_the_job_alone(tmp_path: Path) -> None:
    write(tmp_path, "print('hello')")
    with open("/dev/full", "wb") as full:
        process = start(
            doctor(tmp_path, "--", sys.executable, "train.py"),
            tmp_path,
            tmp_path,
            env=environ(tmp_path, **RANK),
            stdout=full,
        )
    ended = finish(process, tmp_path)
    assert ended.code == 0
    assert b"lost: output for the terminal: No space left on device" in ended.stderr
    (log,) = (tmp_path / "run" / "logs").glob("*.stdout.log")
    assert log.read_bytes() == b"hello\n"


def test_a_script_that_removes_the_run_directory(tmp_path: Path) -> None:
    write(
        tmp_path,
        "import os, shutil, sys\nshutil.rmtree(os.path.join(os.environ['OUT'], 'run'))\nsys.exit(7)\n",
    )
    process = start(
        doctor(tmp_path, "--", sys.executable, "train.py"), tmp_path, tmp_path,
        env=environ(tmp_path, OUT=str(tmp_path), **RANK),
    )  # fmt: skip
    ended = finish(process, tmp_path)
    assert ended.code == 7
    assert b"was removed while the job ran" in ended.stderr
    assert b"could not be written" not in ended.stderr
    assert report_of(tmp_path / "run")["job"]["exit_code"] == 7


@pytest.mark.parametrize("number", ["zz", "²", "-1", "9" * 30, "\udcff"])
def test_a_number_of_the_node_that_is_none(tmp_path: Path, number: str) -> None:
    assert read_node({"GROUP_RANK": number}) == 0


def test_a_variable_of_the_users_own_does_not_touch_the_job(tmp_path: Path) -> None:
    write(tmp_path, "import sys\nprint('worked')\nsys.exit(7)\n")
    process = start(
        doctor(tmp_path, "--", sys.executable, "train.py"), tmp_path, tmp_path,
        env=environ(tmp_path, GROUP_RANK="left-over", DDPDOCTOR_NODES_WAIT="x", DDPDOCTOR_RUN="x", **RANK),
    )  # fmt: skip
    ended = finish(process, tmp_path)
    assert (ended.code, ended.stdout) == (7, b"worked\n")
    assert report_of(tmp_path / "run")["job"]["exit_code"] == 7


def test_what_fails_of_ours_beside_the_job_is_said_and_leaves_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(MemoryWatch, "look", fail)
    run = make_run_directory(str(tmp_path / "run"))
    command = [sys.executable, "-c", "import time; time.sleep(0.5); raise SystemExit(5)"]
    try:
        result = job.run_job(command, os.environ, run, job.Company(monitoring=fail, viewing=fail))
    finally:
        run.remove_private()
    assert result.exit_code == 5
    said = ("memory", "watching for hangs", "the live view")
    assert sorted(result.lost) == sorted(f"{what}: KeyError: 'ours'" for what in said)


def test_no_place_for_a_run_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ddpdoctor.watch.rundir._short_base", lambda: str(tmp_path / "nowhere"))
    with pytest.raises(DoctorError, match="no directory can be created for the run: No such file") as caught:
        make_run_directory(None)
    assert caught.value.exit_code == 3
    assert "TMPDIR" in caught.value.render()
