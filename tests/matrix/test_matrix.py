"""The matrix without its environments: what is chosen, gone on from, judged and written."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.launch.torchcheck import OLDEST_TORCH
from tests.faults.score import score_trial
from tests.faults.trial import Trial
from tests.faults.truth import load_all
from tests.matrix import __main__ as matrix
from tests.matrix import steps
from tests.matrix.entries import ENTRIES, Entry, choose_entries, find_python
from tests.matrix.environment import CannotInstall, copy_tree, explain_failure, remove_stale
from tests.matrix.page import COLUMNS, make_page
from tests.matrix.results import Result, Shown, fingerprint, read_all, read_result
from tests.matrix.running import Ended, find_warnings

ROOT = Path(__file__).parents[2]
OLD, NEW = Entry("2.4.1", "3.11"), Entry("2.15.0", "3.11")


# --- what is tried


def test_the_rows_begin_where_the_package_does() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert ENTRIES[0].torch.rpartition(".")[0] == ".".join(map(str, OLDEST_TORCH))
    assert (
        f'requires-python = ">={min((entry.python for entry in ENTRIES), key=lambda p: int(p[2:]))}"' in text
    )


def test_the_corners_come_first_and_other_pythons_last() -> None:
    order = [entry.name for entry in choose_entries([])]
    assert order[:3] == ["2.4.1-py3.11", "2.15.0-py3.11", "2.5.1-py3.11"]
    assert order[-3:] == ["2.13.0-py3.10", "2.13.0-py3.12", "2.13.0-py3.13"]
    assert sorted(order) == sorted(entry.name for entry in ENTRIES)


@pytest.mark.parametrize(
    ("word", "count"),
    [("2.4", 1), ("2.4.1", 1), ("2.13.0", 4), ("2.13.0-py3.12", 1), ("2.1", None), ("3.11", None)],
)
def test_an_entry_is_meant_by_its_version_or_name(word: str, count: int | None) -> None:
    if count is None:
        with pytest.raises(ValueError, match="no entry"):
            choose_entries([word])
    else:
        assert len(choose_entries([word])) == count


def test_an_interpreter_that_does_not_start_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "python9.9"
    broken.write_text("#!/bin/sh\necho 'pyenv: python9.9: command not found' >&2\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert find_python("9.9") is None
    real = tmp_path / "versions/9.9.1/bin/python9.9"
    real.parent.mkdir(parents=True)
    real.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    real.chmod(0o755)
    assert find_python("9.9") == str(real)


def test_the_sample_has_every_family_and_nothing_that_needs_more_than_a_user() -> None:
    truths = load_all()
    chosen = steps.choose_cases(truths)
    families = {truth.code.rstrip("0123456789") for truth in truths}
    assert {truth.code.rstrip("0123456789") for truth in chosen} == families
    assert not [truth.name for truth in chosen if truth.needs]
    assert 30 <= len(chosen) <= 50
    assert sum(truth.is_healthy for truth in chosen) >= 3
    broken = [truth.code for truth in chosen if truth.code]
    assert len(set(broken)) == len(broken)


# --- what is kept, and gone on from


def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    shown = Shown("wrong", "1 of 2", ("a: said b",), {"x": [1]}, 2.5, "abc")
    kept = Result(OLD, "2026-01-02", "c0ffee", None, 12.0, {"cases": shown})
    kept.keep(tmp_path)
    assert read_result(OLD, tmp_path) == kept
    assert read_result(NEW, tmp_path) == Result(NEW)
    assert not kept.is_right
    assert not list(tmp_path.glob("*.new"))


def test_what_was_measured_changes_with_every_line(tmp_path: Path) -> None:
    for part in ("ddpdoctor", "checks"):
        (tmp_path / part).mkdir()
    module = tmp_path / "checks" / "module.py"
    module.write_text("one")
    before = fingerprint(tmp_path)
    (tmp_path / "checks/__pycache__").mkdir()
    (tmp_path / "checks/__pycache__/module.pyc").write_text("compiled")
    assert fingerprint(tmp_path) == before
    module.write_text("two")
    assert fingerprint(tmp_path) != before


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the steps that were tried, in an environment that is there at once."""
    names: list[str] = []

    @contextlib.contextmanager
    def make(entry: Entry) -> Iterator[tuple[Path, float]]:
        names.append(f"install {entry.name}")
        yield tmp_path, 1.0

    def try_step(name: str, place: Path, source: str) -> Shown:
        names.append(name)
        if name == "dumps" and names.count("dumps") == 1:
            raise KeyboardInterrupt
        return Shown("right", name, source=source)

    monkeypatch.setattr(matrix, "make_environment", make)
    monkeypatch.setattr(matrix, "try_step", try_step)
    return names


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path, tried: list[str]) -> None:
    todo = ("facts", "dumps", "lint")
    with pytest.raises(KeyboardInterrupt):
        matrix.try_entry(OLD, todo, tmp_path, again=False)
    assert tried == ["install 2.4.1-py3.11", "facts", "dumps"]
    matrix.try_entry(OLD, todo, tmp_path, again=False)
    assert tried[3:] == ["install 2.4.1-py3.11", "facts", "dumps", "lint"]
    assert list(read_result(OLD, tmp_path).steps) == ["dumps", "facts", "lint"]
    count = len(tried)
    matrix.try_entry(OLD, todo, tmp_path, again=False)
    assert len(tried) == count  # nothing is installed where all is known
    matrix.try_entry(OLD, todo, tmp_path, again=True)
    assert len(tried) == count + 4


def test_another_ddpdoctor_is_tried_anew(
    tmp_path: Path, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix.try_entry(OLD, ("facts",), tmp_path, again=False)
    monkeypatch.setattr(matrix, "fingerprint", lambda: "another")
    matrix.try_entry(OLD, ("facts",), tmp_path, again=False)
    assert tried.count("facts") == 2


def test_what_cannot_be_installed_is_said_and_known_results_stay(
    tmp_path: Path, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix.try_entry(OLD, ("facts",), tmp_path, again=False)

    def refuse(entry: Entry) -> None:
        raise CannotInstall(f"no torch {entry.torch}")

    monkeypatch.setattr(matrix, "make_environment", refuse)
    for entry in (OLD, NEW):
        matrix.try_entry(entry, ("facts",), tmp_path, again=True)
    assert read_result(NEW, tmp_path).why_not == "no torch 2.15.0"
    assert read_result(OLD, tmp_path).why_not is None
    assert "not run: no torch 2.15.0" in make_page(read_all(tmp_path))


def test_the_last_error_of_pip_is_the_reason() -> None:
    text = "WARNING: x\nERROR: Could not find a version\nERROR: No matching distribution found for torch==9\nnotice\n"
    assert explain_failure(text) == "No matching distribution found for torch==9"
    assert explain_failure("one\nKilled\n") == "Killed"


def test_what_a_killed_run_has_left_goes_with_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
    )
    stale, mine = tmp_path / f"ddm-{gone.stdout.strip()}-a", tmp_path / f"ddm-{os.getpid()}-b"
    for place in (stale, mine):
        (place / "env/bin").mkdir(parents=True)
        os.symlink("/bin/sleep", place / "env/bin/sleep")
    left, running = (subprocess.Popen([str(place / "env/bin/sleep"), "600"]) for place in (stale, mine))
    try:
        for each in (left, running):  # Popen returns a moment before the kernel knows the new command line
            while not Path(f"/proc/{each.pid}/cmdline").read_bytes():
                time.sleep(0.01)
        remove_stale()
        assert left.wait(60) == -9
        assert running.poll() is None
        assert not stale.exists()
        assert mine.exists()
    finally:
        for process in (left, running):
            process.kill()
            process.wait()


# --- how steps are judged


def test_a_step_runs_under_the_interpreter_of_the_environment(tmp_path: Path) -> None:
    python = tmp_path / "env/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    copy_tree(tmp_path)
    shown = matrix.try_step("facts", tmp_path, "abc")
    assert (shown.outcome, shown.source) == ("right", "abc"), shown.notes
    assert shown.details["python"] == ".".join(map(str, sys.version_info[:3]))


def test_a_step_that_fails_itself_is_wrong_and_says_why(tmp_path: Path) -> None:
    python = tmp_path / "env/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho ImportError: no rich >&2\nexit 1\n")
    python.chmod(0o755)
    (tmp_path / "tree").mkdir()
    shown = matrix.try_step("check", tmp_path, "abc")
    assert (shown.outcome, shown.text, shown.notes) == ("wrong", "the step failed", ("ImportError: no rich",))


def collective(**more: Any) -> dict[str, Any]:
    return {
        "op": "all_reduce",
        "dtype": "int8",
        "reduction": "AVG",
        "failures": [],
        "unsupported": None,
        **more,
    }


def report(**more: Any) -> dict[str, Any]:
    return {
        "verdict": {"status": "healthy", "looked": 60, "of": 87, "code": None},
        "findings": [],
        "checks": [
            {"id": "a", "status": "pass", "reason": ""},
            {"id": "b", "status": "unknown", "reason": "two cores"},
        ],
        "evidence": {
            "collectives": [{"op": "all_reduce", "dtype": "int8", "failures": [], "unsupported": None}]
        },
        **more,
    }


FOUND = {"code": "COL002", "severity": "error", "message": "rank 1 never came", "ranks": [1]}


def test_a_check_is_right_when_all_is_healthy_and_exact() -> None:
    shown = steps.judge_check(Ended(0, "", "", report()))
    assert (shown.outcome, shown.text, shown.details["unknown"]) == (
        "right",
        "healthy, 60 of 87",
        {"b": "two cores"},
    )


def test_a_collective_that_torch_lacks_is_no_mistake_and_kept() -> None:
    changed = {
        "collectives": [collective(), collective(op="reduce", reduction=None, unsupported="no reduce")]
    }
    shown = steps.judge_check(Ended(0, "", "", report(evidence=changed)))
    assert (shown.outcome, shown.details["exact"], shown.details["unsupported"]) == (
        "right",
        1,
        {"reduce": "no reduce"},
    )


@pytest.mark.parametrize(
    ("code", "changed", "note"),
    [
        (1, {"findings": [FOUND]}, "COL002: rank 1 never came"),
        (0, {"findings": [{**FOUND, "severity": "warning"}]}, "COL002: rank 1 never came"),
        (0, {"checks": [{"id": "c", "status": "error", "reason": "KeyError"}]}, "c failed: KeyError"),
        (
            0,
            {"evidence": {"collectives": [collective(failures=["3, not 4"])]}},
            "all_reduce of int8: 3, not 4",
        ),
        (3, {}, "exit 3"),
    ],
)
def test_a_check_is_wrong_where_anything_is_not(code: int, changed: dict[str, Any], note: str) -> None:
    shown = steps.judge_check(Ended(code, "", "", report(**changed)))
    assert shown.outcome == "wrong"
    assert note in shown.notes


def test_a_check_that_leaves_files_is_wrong() -> None:
    shown = steps.judge_check(Ended(0, "", "", report()), ["tmpabc"])
    assert (shown.outcome, shown.text, shown.notes) == (
        "wrong",
        "healthy, 60 of 87",
        ("left behind: tmpabc",),
    )


def test_a_check_without_a_report_is_wrong() -> None:
    shown = steps.judge_check(Ended(None, "", "Traceback\nValueError: no", {}))
    assert (shown.outcome, shown.text, shown.notes) == (
        "wrong",
        "no report, exit None",
        ("Traceback", "ValueError: no"),
    )


@pytest.mark.parametrize(
    ("code", "finding", "right"),
    [
        (1, FOUND, True),
        (3, FOUND, False),
        (1, {**FOUND, "ranks": [0]}, False),
        (1, {**FOUND, "code": "X"}, False),
    ],
)
def test_a_finding_is_right_with_code_ranks_and_exit_code(
    code: int, finding: dict[str, Any], right: bool
) -> None:
    shown = steps.judge_named(Ended(code, "", "", report(findings=[finding])), [1], ("COL002",))
    assert (shown.outcome == "right") == right
    assert bool(shown.notes) == (not right)


def test_cases_are_right_in_everything_and_other_jobs_are_not_counted() -> None:
    truths = [truth for truth in load_all() if truth.is_healthy][:2]
    fine, bad = (
        score_trial(truth, Trial(code, 1.0, "", report())) for truth, code in zip(truths, (0, 1), strict=True)
    )
    shown = steps.judge_scores([fine], {"old": "exit 0"})
    assert (shown.outcome, shown.text) == ("right", "1 of 1")
    assert shown.notes == ("old is another job there: exit 0 without ddpdoctor",)
    shown = steps.judge_scores([fine, bad], {})
    assert (shown.outcome, shown.text, shown.notes) == (
        "wrong",
        "1 of 2",
        (f"{bad.name}: exit 1, expected 0",),
    )


def test_a_job_is_the_same_with_its_exit_code_and_every_line() -> None:
    plain = Ended(1, "rank 0: 1\nrank 1: 2\n", "", {})
    assert steps.compare_ends(plain, Ended(1, "rank 1: 2\nrank 0: 1\n", "", {})) == []
    assert steps.compare_ends(plain, Ended(0, plain.stdout, "", {})) == ["exit 0 instead of 1"]
    assert steps.compare_ends(plain, Ended(1, "rank 0: 1\n", "", {}))
    assert steps.compare_ends(Ended(1, "", "", {}), Ended(1, "", "", {}))


def test_what_gloo_prints_in_pieces_is_no_difference() -> None:
    whole = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"
    plain, watched = (
        Ended(0, f"rank 0: 1\n{text}", "", {}) for text in (whole * 2, f"[Gloo] Rank {whole}\n")
    )
    assert steps.compare_ends(plain, watched) == []


def test_warnings_of_python_are_read() -> None:
    text = "a line\n/x/ddpdoctor/net.py:12: ResourceWarning: unclosed <socket>\n  code()\nsys:1: DeprecationWarning: old\n"
    assert find_warnings(text) == [
        ("/x/ddpdoctor/net.py", "ResourceWarning", "unclosed <socket>"),
        ("sys", "DeprecationWarning", "old"),
    ]


# --- the page


def test_every_step_has_a_column() -> None:
    assert set(COLUMNS) == set(matrix.STEPS) == set(steps.STEPS)


def test_the_page_is_what_is_kept() -> None:
    assert (ROOT / "docs/compatibility.md").read_text() == make_page(read_all())


def test_the_page_says_what_is_wrong_what_is_lacking_and_what_was_not_run(tmp_path: Path) -> None:
    old = {"a": "two cores", "x.y": "this torch has no hook"}
    lacking = {"all_reduce AVG": "Cannot use ReduceOp.AVG with Gloo"}
    first = Shown("right", "healthy, 5 of 7", (), {"unknown": old, "skipped": {}, "unsupported": lacking})
    second = Shown("right", "healthy, 6 of 7", (), {"unknown": {"a": "two cores"}, "skipped": {}})
    wrong = Shown("wrong", "1 of 2", ("hang-lock: said <x>",))
    absent = Shown("absent", "none written", ("this torch writes none",))
    Result(
        OLD,
        "2026-01-02",
        "abc",
        None,
        1.0,
        {"check": first, "cases": replace(wrong, source="new"), "dumps": absent},
    ).keep(tmp_path)
    Result(NEW, "2026-01-03", "abc", None, 1.0, {"check": second}).keep(tmp_path)
    page = make_page(read_all(tmp_path))
    rows = [line for line in page.splitlines() if re.match(r"\| 2\.", line)]
    assert len(rows) == len(ENTRIES)
    assert "healthy, 5 of 7" in rows[0]
    assert "**1 of 2**" in rows[0]
    assert "not run" in rows[1]
    assert "abc and earlier" in rows[0]
    assert "  * hang-lock: said \\<x\\>" in page
    assert "* `x.y` did not run: this torch has no hook (torch 2.4.1 on Python 3.11)" in page
    assert (
        "* collective `all_reduce AVG`: Cannot use ReduceOp.AVG with Gloo (torch 2.4.1 on Python 3.11)"
        in page
    )
    assert "* recorder dumps: this torch writes none (torch 2.4.1 on Python 3.11)" in page
    assert "* `a`: two cores" in page
    assert page.count("two cores") == 1


def test_a_wrong_option_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert matrix.main(["--only", "1.13"]) == 2
    assert "no entry 1.13" in capsys.readouterr().err
