"""Running a job once more with a toggle: what is run, what becomes of its streams, and that the verdict always comes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, Launch
from ddpdoctor.evidence.job import ProcessRecord
from ddpdoctor.watch.launch import limit
from ddpdoctor.watch.launch.limit import Limit
from ddpdoctor.watch.launch.rerun import Stdin, choose_rerun, default_limit
from tests.watch.injecting import write
from tests.watch.launching import alive, doctor, environ, finish, start, wait_for

RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "PYTHONHASHSEED": "7", "PL_GLOBAL_SEED": "11"}
"""Makes a plain command a rank, without the time that torchrun takes."""

SCRIPT = """
    import os, sys, time
    TEXT = "CUDA error: device-side assert triggered\\nCUDA kernel errors might be asynchronously reported"
    blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
    def kernel():
        if blocking:
            raise RuntimeError(TEXT)  # TRUE
    def synchronise():
        raise RuntimeError(TEXT)  # REPORTED
    print("run", blocking, hash("seed"), os.environ["PL_GLOBAL_SEED"], sys.stdin.read(3), flush=True)
    if blocking and len(sys.argv) > 1:
        open(os.path.join(os.environ["OUT"], "pid"), "w").write(str(os.getpid()))
        time.sleep(600)
    kernel()
    synchronise()
"""


def line_of(folder: Path, mark: str) -> int:
    lines = (folder / "train.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if f"# {mark}" in line)


def begin(
    tmp_path: Path, *options: str, script: str = SCRIPT, words: tuple[str, ...] = (), **more: Any
) -> Any:
    write(tmp_path, script)
    command = [*doctor(tmp_path, *options), "--", sys.executable, "train.py", *words]
    return start(command, tmp_path, tmp_path, env=environ(tmp_path, **RANK), **more)


def report_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "report.json").read_text())
    return found


def test_the_true_line_is_shown_beside_the_reported_one(tmp_path: Path) -> None:
    ended = finish(begin(tmp_path, "--rerun", "auto"), tmp_path)
    assert ended.code == 1
    report = report_of(tmp_path)
    finding = report["findings"][0]
    assert finding["code"] == "ERR007"
    true, reported = line_of(tmp_path, "TRUE"), line_of(tmp_path, "REPORTED")
    places = [(place["role"], place["line"]) for place in finding["where"]]
    assert places[0] == ("culprit", true)
    assert ("noticed", reported) in places
    assert f"raised at train.py:{true} in kernel, which is the true line" in finding["message"]
    text = re.sub(r"\s+", " ", ended.stderr.decode())
    assert "rerunning the same command with CUDA_LAUNCH_BLOCKING=1" in text
    shown = text.rpartition("ddpdoctor ✖")[2]
    assert f"train.py:{true} kernel" in shown
    assert f"detected on rank 0 train.py:{reported} synchronise" in shown
    (rerun,) = report["evidence"]["reruns"]
    assert (rerun["toggle"], rerun["state"]) == ("blocking", "ended")
    assert rerun["variables"] == {"CUDA_LAUNCH_BLOCKING": "1"}
    assert rerun["limit_s"] == pytest.approx(default_limit(report["evidence"]["job"][0]["duration_s"]))
    assert (tmp_path / "run" / rerun["directory"] / "processes").is_dir()


def test_who_reads_stdout_reads_one_run_and_seeds_are_the_same(tmp_path: Path) -> None:
    ended = finish(begin(tmp_path, "--rerun", "blocking"), tmp_path)
    (first,) = ended.stdout.decode().splitlines()
    second = next(line for line in ended.stderr.decode().splitlines() if line.startswith("run True"))
    assert first.startswith("run False")
    assert first.split()[2:] == second.split()[2:]


def test_without_the_option_the_next_command_is_only_offered(tmp_path: Path) -> None:
    ended = finish(begin(tmp_path), tmp_path)
    report = report_of(tmp_path)
    assert report["evidence"]["reruns"] == []
    commands = [fix.get("command") or "" for fix in report["findings"][0]["fix"]]
    assert any("ddpdoctor run --blocking -- " in command for command in commands), commands
    assert b"once more" not in ended.stderr.partition(b"ddpdoctor \xe2")[0]


def test_a_file_on_stdin_is_read_again_from_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("abcdef")
    with (tmp_path / "input").open("rb") as stdin:
        os.lseek(stdin.fileno(), 2, os.SEEK_SET)
        ended = finish(begin(tmp_path, "--rerun", "auto", stdin=stdin), tmp_path)
    assert ended.stdout.split()[-1] == b"cde"
    second = next(line for line in ended.stderr.decode().splitlines() if line.startswith("run True"))
    assert second.split()[-1] == "cde"


def test_a_pipe_on_stdin_cannot_be_read_again(tmp_path: Path) -> None:
    process = begin(tmp_path, "--rerun", "auto", stdin=subprocess.PIPE)
    process.stdin.write(b"abc")
    process.stdin.close()
    ended = finish(process, tmp_path)
    assert ended.code == 1
    finding = report_of(tmp_path)["findings"][0]
    assert "it was not rerun: stdin is a pipe" in finding["message"]
    assert finding["where"][0]["line"] == line_of(tmp_path, "REPORTED")
    assert b"stdin is not replayable" in ended.stderr


def test_a_second_run_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    ended = finish(begin(tmp_path, "--rerun", "auto", "--rerun-limit", "3", words=("slow",)), tmp_path)
    assert ended.code == 1
    report = report_of(tmp_path)
    assert report["evidence"]["reruns"][0]["state"] == "timed-out"
    finding = report["findings"][0]
    assert "it did not occur within 3 s" in finding["message"]
    assert any("--rerun-limit 6" in (fix.get("command") or "") for fix in finding["fix"])
    assert not alive(int((tmp_path / "pid").read_text()))


def test_the_first_verdict_is_given_when_the_second_run_is_interrupted(tmp_path: Path) -> None:
    process = begin(tmp_path, "--rerun", "auto", words=("slow",))
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "", "run again")
    assert report_of(tmp_path)["findings"][0]["code"] == "ERR007"  # also for who kills us now
    os.killpg(process.pid, signal.SIGINT)
    ended = finish(process, tmp_path)
    assert ended.code == 1
    report = report_of(tmp_path)
    assert report["verdict"]["code"] == "ERR007"
    assert report["evidence"]["reruns"][0]["state"] == "interrupted"
    assert "was interrupted before that" in re.sub(r"\s+", " ", ended.stderr.decode())


def test_other_failures_are_not_run_again(tmp_path: Path) -> None:
    ended = finish(begin(tmp_path, "--rerun", "auto", script="raise KeyError('x')"), tmp_path)
    assert ended.code == 1
    assert report_of(tmp_path)["evidence"]["reruns"] == []
    assert b"not rerun; it would show nothing more about ERR001" in ended.stderr


def test_a_job_that_ends_well_is_not_run_again(tmp_path: Path) -> None:
    ended = finish(begin(tmp_path, "--rerun", "auto", script="print('once')"), tmp_path)
    assert (ended.code, ended.stdout) == (0, b"once\n")
    assert b"again" not in ended.stderr


def ranks(*variables: dict[str, str]) -> Evidence:
    return Evidence(
        launch=Launch(command="run"),
        processes=tuple(ProcessRecord(10 + n, rank=n, variables=each) for n, each in enumerate(variables)),
    )


def test_a_toggle_is_chosen_by_the_failure() -> None:
    def chosen(asked: str, *codes: str, **environ: str) -> tuple[str, bool] | None:
        choice = choose_rerun(asked, codes, ranks({}), environ, stdin=Stdin(), interrupted=False)
        return None if choice is None else (choice.toggle, choice.problem is None)

    assert chosen("auto", "ERR007") == ("blocking", True)
    assert chosen("auto", "COL003") == ("detail", True)
    assert chosen("detail", "ERR007") is None
    assert chosen("blocking", "COL005") is None
    assert chosen("auto", "ERR001") is None
    assert chosen("auto", "ERR007", CUDA_LAUNCH_BLOCKING="1") == ("blocking", False)
    assert chosen("auto", "ERR007", CUDA_LAUNCH_BLOCKING="0") == ("blocking", True)
    assert chosen("detail", "COL005", TORCH_DISTRIBUTED_DEBUG="detail") == ("detail", False)


def test_nodes_would_have_to_start_again_together() -> None:
    evidence = ranks({"GROUP_WORLD_SIZE": "2"})
    choice = choose_rerun("auto", ["ERR007"], evidence, {}, stdin=Stdin(), interrupted=False)
    assert choice is not None
    assert "several nodes" in (choice.problem or "")
    choice = choose_rerun("auto", ["ERR007"], ranks({}), {}, stdin=Stdin(), interrupted=True)
    assert choice is not None
    assert "interrupted" in (choice.problem or "")


def test_what_does_not_end_when_asked_is_killed_with_all_that_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limit, "GRACE_S", 0.2)
    deaf = (
        "import signal, time, sys; signal.signal(15, signal.SIG_IGN); print('x', flush=True); time.sleep(600)"
    )
    children: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(4):
            children.append(subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE))
            stdout = children[-1].stdout
            assert stdout is not None
            assert stdout.readline() == b"x\n"
        elder, launcher, left, stranger = children
        for pid in (elder.pid, os.getpid()):  # neither is of a job that began later
            (tmp_path / f"{pid}-{limit._started(pid)}.jsonl").write_text("")
        ticks = limit._started(left.pid)
        (tmp_path / f"{left.pid}-{ticks}.jsonl").write_text("")
        (tmp_path / f"{stranger.pid}-{1}.jsonl").write_text("")
        for name in ("no-process", "²-²", f"{10**12}-1"):
            (tmp_path / f"{name}.jsonl").write_text("")
        bound = Limit(launcher, tmp_path, 0.0)
        until = time.monotonic() + 60
        while launcher.poll() is None and time.monotonic() < until:
            bound.enforce()
            time.sleep(0.05)
        bound.clear()
        assert bound.over
        assert launcher.wait(60) == -signal.SIGKILL
        assert left.wait(60) == -signal.SIGKILL
        assert (stranger.poll(), elder.poll()) == (None, None)
    finally:
        for child in children:
            child.kill()
            child.communicate()
