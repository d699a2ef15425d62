"""``ddpdoctor attach`` as a stranger uses it, with processes that look like ranks and have no torch in them."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import jsonschema
import pytest

from benchmarks.lookalikes import start_job, write_program
from ddpdoctor import cli
from ddpdoctor.cli import attach, targets
from ddpdoctor.errors import DoctorError, UsageError
from ddpdoctor.report.schema import load_schema
from ddpdoctor.watch.attach.jobs import FoundJob, find_jobs
from ddpdoctor.watch.attach.processes import Seen, read_process
from ddpdoctor.watch.live.native import take_native
from ddpdoctor.watch.live.stacks import find_py_spy
from tests.unmeasured import unmeasured

pytestmark = pytest.mark.skipif(find_py_spy() is None, reason="no py-spy")
Start = Callable[..., list[int]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts jobs that look like ranks; returns their process ids."""
    with ExitStack() as stack:

        def begin(size: int, stands: dict[int, str], name: str = "job") -> list[int]:
            place = tmp_path / name
            place.mkdir()
            write_program(place)
            return [each.pid for each in stack.enter_context(start_job(place, size, stands))]

        yield begin


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[int]], None]:
    """Hides all processes of the host but some."""

    def hide(pids: list[int]) -> None:
        def read() -> dict[int, Seen]:
            return {pid: seen for pid in pids if (seen := read_process(pid)) is not None}

        monkeypatch.setattr("ddpdoctor.watch.attach.processes.read_processes", read)
        monkeypatch.setattr(targets, "read_processes", read)

    return hide


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["attach", *arguments])
    captured = capsys.readouterr()
    return code, " ".join(captured.out.split()), captured.err


def readable(pid: int) -> bool:
    from ddpdoctor.watch.live.stacks import take_stacks

    return bool(take_stacks([pid])[pid].frames)


def test_the_rank_that_holds_the_others_is_named(
    start: Start, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pids = start(3, {1: "read"})
    if not readable(pids[0]):
        pytest.skip("py-spy has no permission to read processes here")
    kept = tmp_path / "kept"
    code, text, err = run(
        capsys, str(pids[2]), "--run-dir", str(kept), "--json", str(tmp_path / "report.json")
    )
    assert (code, err) == (1, "")
    assert text.startswith("ddpdoctor ✖ COL009 rank-stalled · medium confidence")
    assert (
        "Ranks 0, 2 wait in all_reduce (train.py:14, train_step); rank 1 has been in read_shard (train.py:10)"
        in text
    )
    assert "here: 0,2 | not here: 1" in text
    report = json.loads((tmp_path / "report.json").read_text())
    jsonschema.Draft202012Validator(load_schema()).validate(report)
    assert report["command"] == "attach"
    assert report["findings"][0]["confidence"] == "medium"
    assert {path.name for path in kept.iterdir()} == {"report.json", "report.html"}
    assert cli.main(["analyze", str(kept)]) == 1
    assert "COL009" in capsys.readouterr().out
    for pid in pids:  # nothing was changed
        assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_a_job_that_moves_is_said_to_move(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    pids = start(2, {0: "spin", 1: "spin"})
    if not readable(pids[0]):
        pytest.skip("py-spy has no permission to read processes here")
    code, text, _ = run(capsys, str(pids[0]))
    assert code == 0
    assert text.startswith("ddpdoctor ✓ moving · both ranks made progress")


@pytest.mark.parametrize(
    ("what", "word"), [("native", "? hang, root cause not determined"), ("spin", "✓ moving")]
)
def test_that_a_rank_with_an_accelerator_runs_is_no_sign_that_it_gets_on(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, what: str, word: str
) -> None:
    pids = start(2, {0: what, 1: what})
    if not readable(pids[0]):
        pytest.skip("py-spy has no permission to read processes here")
    monkeypatch.setattr("ddpdoctor.watch.attach.sight.uses_accelerator", lambda _: True)
    monkeypatch.setattr("ddpdoctor.watch.attach.sight.STILL_S", 2.0)
    monkeypatch.setattr("ddpdoctor.watch.attach.sight.BUSY_SHARE", 0.01)  # on whatever machine
    _, text, _ = run(capsys, str(pids[0]))
    assert text.startswith(f"ddpdoctor {word}")


@pytest.mark.long
def test_native_frames_are_shown_where_they_are_asked_for(
    start: Start, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pids = start(2, {1: "read"})
    if not readable(pids[0]) or take_native(pids[:1])[pids[0]].problem:
        pytest.skip("py-spy has no permission to read processes here, or takes no native frames")
    code, text, _ = run(capsys, str(pids[0]), "--native", "--json", str(tmp_path / "report.json"))
    assert code == 1
    assert "native frames, innermost first:" in text
    assert "nanosleep" in text
    report = json.loads((tmp_path / "report.json").read_text())
    jsonschema.Draft202012Validator(load_schema()).validate(report)
    (look,) = report["evidence"]["standstills"]
    assert all(stand["native"] for stand in look["stands"])
    assert {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids} == {"S"}


def test_a_look_of_a_supervisor_has_no_native_frames(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "somewhere", "--dump", "--native")
    assert code == 2
    assert "--dump cannot be combined with --native" in err


def test_a_stopped_rank_is_found(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    pids = start(2, {})
    if not readable(pids[0]):
        pytest.skip("py-spy has no permission to read processes here")
    os.kill(pids[1], signal.SIGSTOP)
    try:
        code, text, _ = run(capsys, str(pids[1]), "--pause")
    finally:
        os.kill(pids[1], signal.SIGCONT)
    assert code in (1, 3)  # both ranks stand in the same call: that one is stopped is seen, and said
    assert "stopped by a signal" in text


def test_without_permission_it_says_what_to_grant_and_what_can_be_seen(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pids = start(2, {1: "read"})
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\necho 'Error: Permission Denied' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr("ddpdoctor.watch.live.stacks.find_py_spy", lambda: str(program))
    monkeypatch.setattr("ddpdoctor.watch.attach.sight.STILL_S", 2.0)
    code, text, _ = run(capsys, str(pids[0]))
    assert code == 3
    assert text.startswith("ddpdoctor ? hang, root cause not determined")
    assert "kernel.yama.ptrace_scope=0" in text
    assert "both ranks: sleeping" in text
    assert f"next: sudo ddpdoctor attach {pids[0]}" in text


def test_of_several_jobs_one_has_to_be_named(
    start: Start, only: Callable[[list[int]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = start(2, {}, "first"), start(2, {}, "second")
    only([*first, *second])
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert err.startswith("ddpdoctor: 2 jobs are running on this host")
    assert f"{first[0]:<8} torchrun, 2 ranks, train.py" in err
    assert "--all" in err


def test_on_a_terminal_it_asks_which(
    start: Start, only: Callable[[list[int]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    only([*start(2, {}, "first"), *start(2, {}, "second")])

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    asked = Terminal()
    monkeypatch.setattr(sys, "stderr", asked)
    monkeypatch.setattr(sys, "stdin", Terminal("what?\n2\n"))
    (job,) = targets.find_targets(None)
    assert asked.getvalue().count("which (1-2)?") == 2
    shown = [line.split()[1] for line in asked.getvalue().splitlines() if line.strip()[:1].isdigit()]
    assert str(job.pid) == shown[1]
    monkeypatch.setattr(sys, "stdin", Terminal(f"{shown[0]}\n"))
    assert str(targets.find_targets(None)[0].pid) == shown[0]
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    with pytest.raises(UsageError):
        targets.find_targets(None)


def test_all_jobs_one_after_the_other(
    start: Start, only: Callable[[list[int]], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first, second = start(2, {0: "spin"}, "first"), start(2, {0: "spin"}, "second")
    only([*first, *second])
    code, text, _ = run(capsys, "--all", "--run-dir", str(tmp_path / "kept"))
    assert code in (0, 3)  # 3 where stacks may not be read
    assert text.count("torchrun, 2 ranks, train.py") == 2
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {f"job-{first[0]}", f"job-{second[0]}"}
    code, _, err = run(capsys, "--all", "--json", "-")
    assert code == 2
    assert "a report covers one job" in err


def test_it_looks_again_until_the_job_has_ended(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = start(2, {0: "spin", 1: "spin"})
    looks: list[FoundJob] = []

    def see(job: FoundJob, tools: object, *, several: bool) -> int:
        looks.append(job)
        if len(looks) > 1:
            os.kill(job.ranks[-1].pid, signal.SIGKILL)
            os.waitpid(job.ranks[-1].pid, os.WNOHANG)
        return 0

    monkeypatch.setattr(attach, "_look_at", see)
    code, _, err = run(capsys, str(pids[0]), "--watch", "0.5")
    assert code == 0
    assert "the job has ended" in err
    assert len(looks[0].ranks) == 2
    assert len(looks) >= 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("999999999",), "there is no process 999999999"),
        (("1",), "process 1"),
        (("no-such-directory",), "neither a process ID nor a run directory"),
        (("--dump",), "--dump needs the run directory of a live `ddpdoctor run`"),
        (("7", "--all"), "--all cannot be combined with a PID"),
    ],
)
def test_what_cannot_be_is_said_with_what_to_type(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "try: ddpdoctor attach" in err


def test_no_job_is_no_verdict(only: Callable[[list[int]], None], capsys: pytest.CaptureFixture[str]) -> None:
    only([])
    code, out, err = run(capsys)
    assert (code, out) == (3, "")
    assert "no distributed job was found on this host" in err


def test_a_process_of_no_job_is_refused(
    only: Callable[[list[int]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        only([other.pid])
        code, _, err = run(capsys, str(other.pid))
    finally:
        other.communicate(b"\n")
    assert code == 2
    assert "is not part of a distributed job" in err


@pytest.mark.parametrize(("uid", "who"), [(1000, "by this user"), (0, "from this container")])
def test_jobs_of_others_are_listed_with_what_to_type(
    start: Start, only: Callable[[list[int]], None], monkeypatch: pytest.MonkeyPatch, uid: int, who: str
) -> None:
    from dataclasses import replace

    pids = start(2, {})
    only(pids)
    processes = {pid: seen for pid in pids if (seen := read_process(pid)) is not None}
    (job,) = find_jobs(processes, lambda _: {})
    hidden = tuple(replace(rank, seen=replace(rank.seen, readable=False)) for rank in job.ranks)
    monkeypatch.setattr(targets, "find_jobs", lambda *_: [replace(job, ranks=hidden)])
    monkeypatch.setattr("os.geteuid", lambda: uid)
    with pytest.raises(DoctorError, match=f"1 job is running here but cannot be read {who}") as told:
        targets.find_targets(None)
    if uid:
        assert told.value.hint == f"sudo ddpdoctor attach {pids[0]}"
    else:
        assert "grant this container SYS_PTRACE" in (told.value.hint or "")


def test_a_reader_that_goes_away_is_no_error(start: Start) -> None:
    pids = start(2, {0: "spin"})
    line = f"{sys.executable} -m ddpdoctor attach {pids[0]} -v | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], env=unmeasured(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in (0, 3)
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith("ddpdoctor")
