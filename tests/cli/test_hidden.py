"""What happens around a second run: whatever goes wrong in it, the first verdict is still to be given."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.cli.running import hidden_errors
from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.job import JobEnd
from ddpdoctor.judge.registry import Registry
from ddpdoctor.judge.verdict import Verdict
from ddpdoctor.report.model import Report
from ddpdoctor.watch.commandline import Split
from ddpdoctor.watch.launch import job, rerun
from ddpdoctor.watch.launch.rerun import Choice, Stdin
from ddpdoctor.watch.launch.result import JobResult
from ddpdoctor.watch.launch.toggles import Applied
from ddpdoctor.watch.live.memory import MemoryWatch
from ddpdoctor.watch.rundir import make_run_directory
from tests.report.samples import sample_problems

MINE = {"PATH": "/bin", "CUDA_LAUNCH_BLOCKING": "0", "PYTHONHASHSEED": "5"}


@pytest.fixture
def first(tmp_path: Path) -> hidden_errors.First:
    directory = make_run_directory(str(tmp_path / "run"))
    directory.remove_private()
    result = JobResult(1, 10.0, MemoryWatch(directory.processes))
    return hidden_errors.First(
        ["python", "train.py"], directory, Applied(dict(MINE)), Stdin(), result, Registry
    )


def options(**more: object) -> argparse.Namespace:
    return argparse.Namespace(split=Split((), (), ("python", "train.py"), is_command=True), **more)


def replace_job(monkeypatch: pytest.MonkeyPatch, act: Callable[..., Any]) -> None:
    monkeypatch.setattr(job, "run_job", act)


def test_the_second_run_is_given_the_first_ones_environment_and_a_limit(
    first: hidden_errors.First, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, Any] = {}

    def act(
        command: list[str], environ: dict[str, str], directory: Any, company: Any, **more: Any
    ) -> JobResult:
        seen.update(command=command, environ=environ, directory=directory, **more)
        os.write(1, b"of the second run\n")
        return JobResult(0, 3.0, MemoryWatch(directory.processes))

    replace_job(monkeypatch, act)
    found = hidden_errors.run_again(Choice("blocking"), options(), first, "Rank 1 failed first.")
    assert seen["command"] == ["python", "train.py"]
    assert seen["limit_s"] == 90.0
    assert seen["environ"]["PYTHONHASHSEED"] == "5"
    assert seen["environ"]["CUDA_LAUNCH_BLOCKING"] == "1"  # goes before what the user has set
    assert seen["directory"].path == first.directory.path / "rerun-blocking"
    assert (found.state, found.directory, found.limit_s) == ("ended", "rerun-blocking", 90.0)
    assert found.variables == {"CUDA_LAUNCH_BLOCKING": "1"}
    assert found.job[0].exit_code == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert "of the second run" in err
    assert "Rank 1 failed first." in err


@pytest.mark.parametrize(
    ("signals", "timed_out", "state"), [(["SIGINT"], False, "interrupted"), ([], True, "timed-out")]
)
def test_how_it_ended_is_kept(
    first: hidden_errors.First,
    monkeypatch: pytest.MonkeyPatch,
    signals: list[str],
    timed_out: bool,
    state: str,
) -> None:
    ended = JobResult(-2, 1.0, MemoryWatch(first.directory.processes), signals, timed_out=timed_out)
    replace_job(monkeypatch, lambda *_, **__: ended)
    found = hidden_errors.run_again(Choice("detail"), options(rerun_limit=5.0), first, "")
    assert (found.state, found.limit_s) == (state, 5.0)


def test_a_second_run_that_cannot_be_made_costs_nothing(
    first: hidden_errors.First, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    replace_job(monkeypatch, refuse)
    found = hidden_errors.run_again(Choice("blocking"), options(), first, "")
    assert found.state == "skipped"
    assert "Resource temporarily unavailable" in (found.reason or "")

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    replace_job(monkeypatch, interrupt)
    assert hidden_errors.run_again(Choice("blocking"), options(), first, "").state == "interrupted"
    skipped = hidden_errors.run_again(Choice("blocking", problem="a pipe"), options(), first, "")
    assert (skipped.state, skipped.reason) == ("skipped", "a pipe")


def reported(*codes: str) -> Report:
    report = sample_problems()
    findings = tuple(dataclasses.replace(report.findings[0], code=code, role="cause") for code in codes)
    verdict = Verdict("problems", "…", codes[0] if codes else None, 1, 1)
    return dataclasses.replace(
        report, findings=findings, verdict=verdict, evidence=Evidence(job=(JobEnd(exit_code=1),))
    )


def test_a_choice_says_why_not(first: hidden_errors.First, capsys: pytest.CaptureFixture[str]) -> None:
    assert hidden_errors.choose(options(), first, reported("ERR007")) is None
    assert capsys.readouterr().err == ""
    assert hidden_errors.choose(options(rerun="auto"), first, reported("ERR001")) is None
    assert "it would show nothing more about ERR001" in capsys.readouterr().err
    made = hidden_errors.choose(options(rerun="auto"), first, reported("ERR010", "ERR007"))
    assert made == Choice("blocking")
    hung = dataclasses.replace(first, result=dataclasses.replace(first.result, stopped=True))
    assert hidden_errors.choose(options(rerun="auto"), hung, reported("COL003")) is None
    assert "it would show nothing more about COL003" in capsys.readouterr().err
    report = reported("ERR001", "ERR007")
    later = dataclasses.replace(report.findings[1], role="consequence")
    assert (
        hidden_errors.choose(options(rerun="auto"), first, dataclasses.replace(report, findings=(later,)))
        is None
    )
    piped = dataclasses.replace(first, stdin=Stdin("stdin is a pipe"))
    refused = hidden_errors.choose(options(rerun="auto"), piped, reported("ERR007"))
    assert refused is not None
    assert refused.problem is not None
    assert "stdin is a pipe" in capsys.readouterr().err
    hidden_errors.announce(options(rerun="auto"), Stdin("stdin is a pipe"))
    assert "is not replayable" in capsys.readouterr().err


def test_stdin_of_each_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(descriptor: int) -> Stdin:
        kept = os.dup(0)
        os.dup2(descriptor, 0)
        try:
            return rerun.look_at_stdin()
        finally:
            os.dup2(kept, 0)
            os.close(kept)

    (tmp_path / "file").write_text("abc")
    reading, writing = os.pipe()
    null, file = os.open(os.devnull, os.O_RDONLY), os.open(tmp_path / "file", os.O_RDONLY)
    try:
        assert look(null) == Stdin()
        assert look(file) == Stdin(offset=0)
        os.read(file, 2)
        assert look(file).offset == 2
        assert "a pipe" in (look(reading).problem or "")
    finally:
        for descriptor in (reading, writing, null, file):
            os.close(descriptor)


def test_what_the_first_run_was_told_holds_for_the_second(
    first: hidden_errors.First, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def act(
        command: list[str], environ: dict[str, str], directory: Any, company: Any, **more: Any
    ) -> JobResult:
        seen.update(environ=environ, company=company, **more)
        return JobResult(0, 3.0, MemoryWatch(directory.processes))

    replace_job(monkeypatch, act)
    told = options(no_record=True, nodes_wait=7.0, dump_signal="USR1")
    hidden_errors.run_again(Choice("blocking"), told, first, "Rank 1 failed first.")
    assert (seen["environ"]["DDPDOCTOR_RECORD"], seen["environ"]["DDPDOCTOR_NODES_WAIT"]) == ("0", "7.0")
    assert seen["company"].reception.signum == signal.SIGUSR1
