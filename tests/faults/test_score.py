"""The table is only worth what its scoring is: wrong verdicts are counted as wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults import accuracy
from tests.faults.score import Score, score_trial
from tests.faults.trial import Trial, find_obstacle, try_case
from tests.faults.truth import Truth, find_half, load_all, load_truth
from tests.watch.launching import alive, wait_for

TRUTH = Truth(
    name="made-up",
    folder=Path("made-up"),
    about="one rank raises",
    launch=("--nproc", "2", "train.py"),
    code="ERR001",
    ranks=(1,),
    victims=(0,),
    mentions=("loss.py",),
    exit=1,
    lines=(("loss.py", 7),),
)
HEALTHY = Truth(name="fine", folder=Path("fine"), about="nothing is wrong", launch=("train.py",))


def make_finding(code: str = "ERR001", **changes: Any) -> dict[str, Any]:
    where = [{"file": "loss.py", "line": 7, "role": "culprit"}]
    made = {
        "code": code,
        "severity": "error",
        "role": "cause",
        "ranks": [1],
        "where": where,
        "message": "loss.py broke",
    }
    return {**made, **changes}


def score(truth: Truth, *findings: dict[str, Any], exit_code: int | None = 1) -> Score:
    code = findings[0]["code"] if findings else None
    status = "problems" if findings else "healthy"
    report = {"verdict": {"status": status, "code": code}, "findings": list(findings)}
    return score_trial(truth, Trial(exit_code, 1.0, "", report))


def test_a_right_verdict_is_right() -> None:
    assert score(TRUTH, make_finding()).is_right


@pytest.mark.parametrize(
    ("finding", "part"),
    [
        (make_finding("ERR006"), "code"),
        (make_finding(ranks=[0]), "ranks"),
        (make_finding(ranks=[0, 1]), "ranks"),
        (make_finding(ranks=[]), "ranks"),
        (make_finding(where=[{"file": "loss.py", "line": 8}]), "line"),
        (make_finding(where=[{"file": "train.py", "line": 7}]), "line"),
        (make_finding(where=[]), "line"),
        (make_finding(message="it broke", where=[{"file": "other.py", "line": 7}]), "content"),
    ],
)
def test_one_wrong_part_makes_the_case_wrong(finding: dict[str, Any], part: str) -> None:
    found = score(TRUTH, finding)
    assert getattr(found, part) is False
    assert not found.is_right
    assert found.detected


@pytest.mark.parametrize(
    ("finding", "note"),
    [
        (make_finding("ERR006"), "said ERR006, expected ERR001"),
        (make_finding(ranks=[0, 1]), "affected ranks [0] named"),
        (make_finding(ranks=[0]), "ranks [0], expected [1]"),
        (make_finding(ranks=[0], victims=[1]), "[1] called innocent"),
    ],
)
def test_whatever_is_wrong_is_told_on_the_page(finding: dict[str, Any], note: str) -> None:
    wrong = score(TRUTH, finding)
    assert not wrong.is_right
    assert note in wrong.notes
    assert note in accuracy.make_page([wrong], [])


def test_a_false_alarm_is_told_on_the_page() -> None:
    wrong = score(TRUTH, make_finding(), make_finding("COL005", severity="warning"))
    assert wrong.notes == ("further: COL005",)


def test_a_job_that_nothing_is_said_about_is_missed() -> None:
    found = score(TRUTH)
    assert (found.detected, found.code, found.ranks, found.line) == (False, False, False, False)


def test_no_report_is_a_miss() -> None:
    found = score_trial(TRUTH, Trial(1, 1.0, "", None))
    assert found.detected is False
    assert "no report" in found.notes


def test_another_exit_code_is_wrong() -> None:
    assert not score(TRUTH, make_finding(), exit_code=2).is_right
    assert not score(TRUTH, make_finding(), exit_code=None).is_right


def test_a_further_warning_is_a_false_alarm_and_an_info_or_a_consequence_is_none() -> None:
    assert score(TRUTH, make_finding(), make_finding("ENV008")).false_alarms == ("ENV008",)
    assert not score(TRUTH, make_finding(), make_finding("NET012", severity="info")).false_alarms
    assert not score(TRUTH, make_finding(), make_finding("COL008", role="consequence")).false_alarms


def test_any_finding_on_a_healthy_job_is_a_false_alarm() -> None:
    assert score(HEALTHY, exit_code=0).is_right
    found = score(HEALTHY, make_finding(), exit_code=0)
    assert found.false_alarms == ("ERR001",)
    assert not found.is_right


def test_some_of_the_ranks_are_enough_where_all_fail_alike() -> None:
    truth = Truth("all", Path("all"), "", ("train.py",), code="ERR001", ranks=(0, 1, 2), some=True, exit=1)
    assert score(truth, make_finding(ranks=[2])).ranks
    assert score(truth, make_finding(ranks=[0, 3])).ranks is False


def test_every_case_can_be_read_and_is_complete() -> None:
    truths = load_all()
    assert sum(truth.is_healthy for truth in truths) >= 8
    for truth in truths:
        assert truth.about, truth.name
        assert truth.says or truth.hangs, truth.name
        # A job that ends well may have something left on, which is a warning.
        assert not truth.is_healthy or truth.exit == 0, truth.name
        assert not set(truth.ranks or ()) & set(truth.victims), truth.name
        assert not (truth.is_healthy and truth.lines), truth.name


def test_a_marker_is_the_line_it_stands_on(tmp_path: Path) -> None:
    (tmp_path / "truth.toml").write_text('about = "x"\nlaunch = ["a.py"]\nranks = [1]\n')
    (tmp_path / "a.py").write_text("x = 1\ny = x / 0  # culprit\nprint('# culprit')\n")
    truth = load_truth(tmp_path)
    assert truth.lines == (("a.py", 2),)
    assert truth.ranks == (1,)


def test_a_case_that_needs_root_is_left_out_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = Truth("shm", Path("shm"), "", ("a.py",), needs=("root",))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert find_obstacle(truth) == "needs root"


@pytest.mark.parametrize(
    ("version", "why"), [("2.9.1", "needs torch 2.13"), ("2.13.0+cpu", None), ("3.0.0a0", None)]
)
def test_a_case_that_needs_a_newer_torch_is_left_out(
    monkeypatch: pytest.MonkeyPatch, version: str, why: str | None
) -> None:
    monkeypatch.setattr("tests.faults.trial.version", lambda name: version)
    assert find_obstacle(Truth("mesh", Path("mesh"), "", ("a.py",), needs=("torch-2.13",))) == why


def test_nothing_that_a_case_starts_outlives_it(tmp_path: Path) -> None:
    code = "import subprocess as s; print(s.Popen(['sleep', '600'], start_new_session=True, stdout=s.DEVNULL).pid)"
    trial = try_case(Truth("leaves-one", tmp_path, "", ("a.py",)), (sys.executable, "-c", code))
    assert trial.exit_code == 0
    pid = int(trial.output)
    wait_for(lambda: not alive(pid), "its end")


def test_the_page_counts_what_was_right_and_names_what_was_not() -> None:
    scores = [
        score(TRUTH, make_finding()),
        score(TRUTH, make_finding(ranks=[0])),
        score(HEALTHY, exit_code=0),
    ]
    page = accuracy.make_page(scores, ["shm: needs root"])
    assert "* detected 2 of 2\n* right class 2 of 2\n* right ranks 1 of 2\n" in page
    assert "* false alarms on 0 of 1 healthy jobs\n" in page
    assert "| made-up | ERR001 | ERR001 | yes | yes | **no** | yes | yes | yes | - | - | 1.0 |\n" in page
    assert "* `made-up`: ranks [0], expected [1]; affected ranks [0] named\n" in page
    assert "* shm: needs root\n" in page


def test_halves_are_counted_apart() -> None:
    scores = [score_trial(TRUTH, Trial(1, 1.0, "", None)), score_trial(HEALTHY, Trial(0, 1.0, "", None))]
    part = accuracy.make_halves("Sharded training", scores)
    assert part.startswith("## Sharded training\n")
    seen = [each for each in scores if find_half(each.name) == "seen" and each.detected is not None]
    assert f"| detected | 0 of {len(seen)} | 0 of {1 - len(seen)} |" in part


@pytest.mark.parametrize("more", [(), ("--unseen",)])
def test_cases_of_the_unseen_half_are_shown_only_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, more: tuple[str, ...]
) -> None:
    names = {find_half(name): name for name in ("sharded-norms-not-summed", "sharded-hook-on-first-rank")}
    truths = [Truth(name, Path(name), "nothing is wrong", ("train.py",)) for name in names.values()]
    monkeypatch.setattr(accuracy, "load_all", lambda: truths)
    monkeypatch.setattr(accuracy, "make_section", lambda *_: "")
    monkeypatch.setattr(accuracy, "read_cases", lambda _: [])
    monkeypatch.setattr(accuracy, "try_programs", lambda: [])
    monkeypatch.setattr(accuracy, "try_case", lambda truth, doctor: Trial(0, 1.0, "", None))
    accuracy.main(["--halves", "Sharded training", "--outputs", str(tmp_path), *more])
    printed = capsys.readouterr().out
    assert names["seen"] in printed
    assert (names["unseen"] in printed) == bool(more)
    assert (tmp_path / f"{names['unseen']}.txt").exists() == bool(more)


def test_what_was_scored_is_not_run_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept, ran = tmp_path / "scores.jsonl", []
    truths = [Truth(name, Path(name), "nothing is wrong", ("train.py",)) for name in ("one", "two")]

    def attempt(truth: Truth, doctor: object) -> Trial:
        ran.append(truth.name)
        return Trial(0, 1.0, "", None)

    monkeypatch.setattr(accuracy, "load_all", lambda: truths)
    monkeypatch.setattr(accuracy, "make_section", lambda *_: "")
    monkeypatch.setattr(accuracy, "read_cases", lambda _: [])
    monkeypatch.setattr(accuracy, "try_programs", lambda: [])
    monkeypatch.setattr(accuracy, "try_case", attempt)
    accuracy.main(["--only", "one", "--kept", str(kept)])
    kept.write_text(kept.read_text() + '{"name": "tw')  # it was cut there
    accuracy.main(["--kept", str(kept)])
    assert ran == ["one", "two"]
    assert [each.name for each in accuracy.read_kept(kept)] == ["one", "two"]
