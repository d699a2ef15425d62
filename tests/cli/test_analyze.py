"""``ddpdoctor analyze``: from files to a verdict and an exit code, with the built-in checks."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ddpdoctor_checks
from ddpdoctor.evidence import Evidence, PortProbe
from ddpdoctor.judge import Registry
from ddpdoctor.plugins import CHECKS, Entry
from ddpdoctor.report.build import build_report
from ddpdoctor.testing import STARTED, make_world
from tests.checks.jobs import Job
from tests.cli.conftest import Run, Stage
from tests.cli.torchrun_output import ended, raised

RECORDED = Path(__file__).parents[1] / "gather" / "aftermath"
SCRIPT = """
import os, time
def load(label):
    return {"a": 1}[label]
if os.environ["RANK"] == "1":
    time.sleep(0.5)
    load("label_9917")
time.sleep(60)
"""
LIMIT_S = 120


@pytest.fixture(autouse=True)
def builtin(entries: list[Entry]) -> None:
    entries[:] = [Entry("ddpdoctor", CHECKS, "builtin", lambda: ddpdoctor_checks.register)]


def verdict(run: Run, *paths: Path | str) -> dict[str, Any]:
    result = run("analyze", *map(str, paths), "--json", "report.json")
    assert result.code == 1, result.out + result.err
    report: dict[str, Any] = json.loads(Path("report.json").read_text())
    return report


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("key", "ERR001", "KeyError: 'label_9917'"),
        ("chain", "ERR001", "RuntimeError: sample label_9917 is broken"),
        ("kill", "ERR005", "signal 9 (SIGKILL)"),
        ("segv", "ERR004", "segmentation fault"),
        ("worker", "ERR001", "ValueError: bad sample 5"),
        ("tee", "ERR001", "KeyError"),
        ("restart", "ERR001", "KeyError"),
        ("exit", "ERR006", "exited with status 3"),
    ],
)
def test_a_log_of_torchrun_names_the_rank_that_failed_first(
    run: Run, name: str, code: str, words: str
) -> None:
    report = verdict(run, RECORDED / f"{name}.txt")
    first = report["findings"][0]
    assert (report["verdict"]["code"], first["ranks"], report["command"]) == (code, [1], "analyze")
    assert words in first["message"]
    assert report["job"]["exit_code"] == 1


def test_a_script_that_is_missing_is_no_ranks_fault(run: Run) -> None:
    report = verdict(run, RECORDED / "nofile.txt")
    assert report["verdict"]["code"] == "ERR009"
    assert (report["findings"][0]["ranks"], report["findings"][0]["role"]) == ([], "cause")


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("spawn", "ERR001", "KeyError: 'spawned'"),
        ("caught", "ERR001", "ValueError: only me"),
        ("unused", "DDP001", "received no gradient"),
        ("syntax", "ERR009", "SyntaxError: invalid syntax"),
        ("port", "NET001", "port 29555"),
        ("term", "ERR005", "signal 15 (SIGTERM)"),
        ("hup", "ENV012", "SIGHUP"),
        ("hup-of-one", "ERR005", "Rank 1 failed first: it was killed by signal 1 (SIGHUP)"),
    ],
)
def test_other_ends_of_jobs_are_known_from_their_logs(run: Run, name: str, code: str, words: str) -> None:
    result = run("analyze", str(RECORDED / f"{name}.txt"), "--json", "report.json", "--fail-on", "warning")
    assert result.code == 1
    first = json.loads(Path("report.json").read_text())["findings"][0]
    assert first["code"] == code
    assert words in first["message"]


def test_victims_are_told_and_the_place_in_the_log(run: Run) -> None:
    first = verdict(run, RECORDED / "key.txt")["findings"][0]
    assert first["victims"] == [0]
    assert first["where"][0]["function"] == "load"
    assert any(item.get("source", {}).get("line") == 6 for item in first["evidence"])


def test_a_log_from_a_pipe(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (RECORDED / "key.txt").read_bytes()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert verdict(run, "-")["verdict"]["code"] == "ERR001"


def test_a_path_that_does_not_exist_is_a_usage_error(run: Run) -> None:
    result = run("analyze", "nowhere.log")
    assert (result.code, result.out) == (2, "")
    assert "there is no file or directory nowhere.log" in result.err


def test_nothing_that_can_be_read_is_a_failure_with_its_reason(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(b"")
    result = run("analyze", "x.log")
    assert result.code == 3
    assert "x.log is empty" in result.err


def test_what_was_skipped_is_said_beside_the_verdict(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(bytes(500))
    shutil.copy(RECORDED / "key.txt", tmp_path / "key.log")
    result = run("analyze", "x.log", "key.log")
    assert result.code == 1
    assert "x.log is binary" in result.err


def test_a_text_that_is_no_jobs_log_is_not_called_healthy(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    result = run("analyze", "notes.txt")
    assert result.code == 3
    assert "no line of a distributed job" in result.out


def test_a_job_that_its_user_interrupted_had_no_fault(run: Run) -> None:
    result = run("analyze", str(RECORDED / "interrupted.txt"))
    assert result.code == 3
    assert "interrupted by the user (SIGINT): no failure was seen" in " ".join(result.out.split())


def test_never_fails_where_asked_not_to(run: Run) -> None:
    assert run("analyze", str(RECORDED / "key.txt"), "--fail-on", "never").code == 0


def test_a_report_of_check_is_sent_to_the_right_command(run: Run, stage: Stage, tmp_path: Path) -> None:
    stage.evidence = make_world(ports=(PortProbe(0, 29500, "taken", holder_pid=4242),))
    run("check", "--json", "saved.json")
    result = run("analyze", "saved.json")
    assert result.code == 3
    assert "ddpdoctor report saved.json" in result.err


def test_a_run_directory_is_judged_again_with_its_report_and_without(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "ddpdoctor", "run", "--run-dir", "kept", "--nproc", "2", "t.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 1, done.stderr
    with_report = verdict(run, "kept")
    assert with_report["job"]["exit_code"] == 1
    (tmp_path / "kept" / "report.json").unlink()
    without = verdict(run, "kept")
    for report in (with_report, without):
        first = report["findings"][0]
        assert (first["code"], first["ranks"], first["where"][0]["line"]) == ("ERR001", [1], 4)
        assert "KeyError" in first["message"]
    assert without["job"]["exit_code"] is None


DUMPS = Path(__file__).parents[1] / "gather" / "recorder"
BEGUN_NS = 1_795_295_520 * 10**9
"""Second in which the calls of the recorded dumps were made; their time limit is 60 s."""


def copy_dumps(name: str, folder: Path, *, after_s: float = 62.0) -> Path:
    """Copy recorded dumps as if they had been written so many seconds after the calls: by the time-out."""
    shutil.copytree(DUMPS / name, folder)
    written = BEGUN_NS + int(after_s * 1e9)
    for path in folder.iterdir():
        os.utime(path, ns=(written, written))
    return folder


@pytest.mark.parametrize(
    ("name", "code", "ranks", "lines"),
    [
        ("missing", "COL002", [1], [47, 58, 36]),
        ("missing.json", "COL002", [1], []),
        ("shape", "COL003", [1], [31, 48, 58, 36]),
        ("operation", "COL003", [1], [33, 48, 58, 36]),
        ("extra", "COL002", [0], [12, 35, 48, 36]),
        ("order", "COL004", [1], [16, 24, 46, 12]),
    ],
)
def test_recorder_dumps_name_the_rank_and_both_lines(
    run: Run, name: str, code: str, ranks: list[int], lines: list[int], tmp_path: Path
) -> None:
    report = verdict(run, copy_dumps(name, tmp_path / "dumps"))
    first = report["findings"][0]
    assert (first["code"], first["ranks"], report["world"]["size"]) == (code, ranks, 3)
    assert [place["line"] for place in first["where"]] == lines


def test_recorder_dumps_of_ranks_in_step_show_no_fault_and_no_end(run: Run) -> None:
    result = run("analyze", str(DUMPS / "healthy"))
    assert (result.code, "✓" in result.out.splitlines()[0]) == (3, False)
    assert "nothing given here shows how the job ended" in " ".join(result.out.split())


def test_two_dumps_leave_open_which_rank_is_wrong(run: Run, tmp_path: Path) -> None:
    for rank in (0, 1):
        shutil.copy(DUMPS / "operation" / f"rank_{rank}", tmp_path)
    first = verdict(run, "rank_0", "rank_1")["findings"][0]
    assert (first["code"], first["ranks"], first["confidence"]) == ("COL003", [], "medium")


def test_dumps_tell_more_than_the_log_of_those_who_waited(run: Run, tmp_path: Path) -> None:
    shutil.copytree(DUMPS / "missing", tmp_path / "job")
    words = (
        "[rank0]:[E1218 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600081 "
        "milliseconds before timing out.\n"
    )
    (tmp_path / "job" / "train.log").write_text(words + ended([(0, -6), (1, -15), (2, -15)]))
    report = verdict(run, "job")
    assert [finding["code"] for finding in report["findings"]] == ["COL002"]
    assert report["findings"][0]["ranks"] == [1]
    (tmp_path / "job" / "train.log").write_text(
        raised(1, "KeyError: 'x'") + ended([(1, 1), (0, -6), (2, -15)])
    )
    assert [finding["code"] for finding in verdict(run, "job")["findings"]] == ["ERR001", "COL002"]


def test_dumps_that_cannot_be_read_are_named_beside_the_verdict(run: Run, tmp_path: Path) -> None:
    copy_dumps("missing", tmp_path / "job")
    whole = (tmp_path / "job" / "rank_2").read_bytes()
    (tmp_path / "job" / "rank_2").write_bytes(whole[:1500])
    result = run("analyze", "job")
    assert result.code == 1
    assert "job/rank_2 is truncated" in result.err
    assert "COL002" in result.out


def test_dumps_of_a_moment_name_the_rank_and_leave_open_whether_it_was_a_hang(
    run: Run, tmp_path: Path
) -> None:
    copy_dumps("missing", tmp_path / "dumps", after_s=3600.0)
    result = run("analyze", "dumps")
    assert (result.code, "! COL002" in result.out) == (0, True)
    text = " ".join(result.out.split())
    assert "At the moment of the dumps ranks 0, 2 wait in all_reduce #7" in text
    assert "there is no evidence of whether that was a hang" in text


def test_dumps_of_a_job_that_was_getting_on_show_no_fault(run: Run, tmp_path: Path) -> None:
    copy_dumps("missing", tmp_path / "dumps", after_s=1.0)
    result = run("analyze", "dumps")
    assert (result.code, "no failure was found" in result.out) == (3, True)


def test_later_dumps_of_the_same_calls_show_that_nothing_moved(run: Run, tmp_path: Path) -> None:
    copy_dumps("missing", tmp_path / "dumps", after_s=3600.0)
    copy_dumps("missing", tmp_path / "later", after_s=4200.0)
    first = verdict(run, "dumps", "later")["findings"][0]
    assert (first["code"], first["ranks"]) == ("COL002", [1])
    assert any(
        "rank 1 issued nothing between two dumps 10 min apart" in each["text"] for each in first["evidence"]
    )


def test_a_report_on_dumps_holds_their_calls_and_is_shown_again(run: Run, tmp_path: Path) -> None:
    copy_dumps("missing", tmp_path / "dumps")
    assert verdict(run, "dumps")["findings"][0]["code"] == "COL002"
    shutil.move("report.json", "saved.json")
    data = json.loads(Path("saved.json").read_text())
    assert Evidence.from_dict(data["evidence"]).calls[0].ranks[0].sequences[6] == 7
    assert "COL002 collective-missing" in run("report", "saved.json").out


STACKS = DUMPS.parent / "stacks"


@pytest.mark.parametrize("kind", ["spy", "fault"])
def test_stacks_in_files_name_the_rank_that_stands_elsewhere(run: Run, kind: str) -> None:
    first = verdict(run, STACKS / kind)["findings"][0]
    assert (first["code"], first["ranks"], first["victims"], first["confidence"]) == (
        "COL009",
        [1],
        [0, 2],
        "medium",
    )
    assert (first["where"][0]["line"], first["where"][0]["function"]) == (3, "read_shard")


def test_stacks_of_those_who_wait_alone_name_nobody(run: Run, tmp_path: Path) -> None:
    for rank in (0, 2):
        shutil.copy(STACKS / "spy" / f"rank{rank}.txt", tmp_path)
    result = run("analyze", "rank0.txt", "rank2.txt")
    assert result.code == 3
    assert "there is no stack of rank 1" in " ".join(result.out.split())


def test_stacks_whose_rank_is_not_told_are_named(run: Run, tmp_path: Path) -> None:
    shutil.copy(STACKS / "spy" / "rank1.txt", tmp_path / "dump.txt")
    shutil.copy(STACKS / "spy" / "rank0.txt", tmp_path)
    assert (
        "dump.txt does not show which rank's stacks it contains"
        in run("analyze", "dump.txt", "rank0.txt").err
    )


def write_report(path: Path, evidence: Evidence) -> None:
    report = build_report(
        dataclasses.replace(evidence, launch=dataclasses.replace(evidence.launch, command="run")),
        registry=Registry(),
        started_at=STARTED,
        duration_s=1.0,
    )
    path.mkdir()
    (path / "report.json").write_text(json.dumps(report.to_dict()))


def test_dumps_in_a_run_directory_are_read_with_it(run: Run, tmp_path: Path) -> None:
    job = Job(3).complains([0, 2], 10.0).terminates([1], 10.5)
    write_report(tmp_path / "kept", job.evidence())
    for rank in range(3):
        shutil.copy(DUMPS / "missing" / f"rank_{rank}", tmp_path / "kept" / f"recorder-{rank}")
    first = verdict(run, "kept")["findings"][0]
    assert (first["code"], first["ranks"]) == ("COL002", [1])


def test_a_compressed_report_of_a_job_is_judged_again(run: Run, tmp_path: Path) -> None:
    write_report(tmp_path / "kept", Job(2).raises(1, "KeyError", "'x'", 3.0).evidence())
    (tmp_path / "saved.json.gz").write_bytes(gzip.compress((tmp_path / "kept" / "report.json").read_bytes()))
    assert verdict(run, "saved.json.gz")["verdict"]["code"] == "ERR001"


def test_a_report_that_breaks_off_is_named(run: Run, tmp_path: Path) -> None:
    write_report(tmp_path / "kept", Job(2).raises(1, "KeyError", "'x'", 3.0).evidence())
    whole = gzip.compress((tmp_path / "kept" / "report.json").read_bytes())
    (tmp_path / "saved.json.gz").write_bytes(whole[: len(whole) // 2])
    result = run("analyze", "saved.json.gz")
    assert result.code == 3
    assert "saved.json.gz cannot be read" in result.err


def test_run_directories_of_two_containers_are_two_nodes(run: Run, tmp_path: Path) -> None:
    job = Job(4, nproc=2).raises(3, "KeyError", "'label_9917'", 10.0).complains([0, 1, 2], 10.2)
    whole = job.evidence()
    for node, name in enumerate(("pod-0", "pod-1")):
        kept: dict[str, Any] = {
            kind: tuple(
                dataclasses.replace(row, node=0, host="localhost")
                for row in getattr(whole, kind)
                if row.node == node
            )
            for kind in ("processes", "exceptions", "texts")
        }
        write_report(tmp_path / name, dataclasses.replace(whole, **kept))
    report = verdict(run, "pod-0", "pod-1")
    assert report["findings"][0]["ranks"] == [3]
    assert {node["host"]: node["ranks"] for node in report["world"]["nodes"]} == {
        "pod-0": [0, 1],
        "pod-1": [2, 3],
    }


def test_this_torchs_own_output_and_log_tree(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--log-dir", "tree", "--tee", "3", "t.py"]
    with (tmp_path / "job.log").open("wb") as log:
        subprocess.run(
            [*command, *options], cwd=tmp_path, stdout=log, stderr=log, check=False, timeout=LIMIT_S
        )
    for paths in (["job.log"], ["tree"], ["tree", "job.log"]):
        first = verdict(run, *paths)["findings"][0]
        assert (first["code"], first["ranks"], first["where"][0]["line"]) == ("ERR001", [1], 4), paths
