"""Phases that a program names: nothing outside of `run`, the phase of each rank beside the root cause inside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ddpdoctor
from ddpdoctor import phases
from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.job import PHASE, Milestone, Moment, ProcessRecord
from ddpdoctor.judge.finding import Finding
from ddpdoctor.judge.phases import add_phases
from tests.unmeasured import unmeasured

JOB = """\
import torch
import torch.distributed as dist
import ddpdoctor

dist.init_process_group("gloo")
ddpdoctor.mark_phase("training, epoch 3")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    with ddpdoctor.phase("evaluation, epoch 3"):
        raise KeyError("label_9917")
dist.all_reduce(torch.ones(1))
"""


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What reaches the journal."""
    lines: list[Any] = []
    hook = SimpleNamespace(
        write=lambda event, fields: lines.append((event, fields["name"], fields["detail"]))
    )
    monkeypatch.setitem(sys.modules, "ddpdoctor_watch.core.journal", hook)
    monkeypatch.setattr(phases, "_current", None)
    monkeypatch.setattr(phases, "_marks", 0)
    return lines


def details(written: list[Any]) -> list[str | None]:
    assert all((event, name) == ("milestone", PHASE) for event, name, _ in written)
    return [detail for _, _, detail in written]


def test_block_ends_with_the_phase_before(written: list[Any]) -> None:
    ddpdoctor.mark_phase("training")
    with ddpdoctor.phase("evaluation"), ddpdoctor.phase("evaluation"):
        pass
    ddpdoctor.mark_phase(None)
    assert details(written) == ["training", "evaluation", "training", None]


def test_block_that_raises_leaves_its_phase(written: list[Any]) -> None:
    with pytest.raises(KeyError), ddpdoctor.phase("evaluation"):
        raise KeyError
    assert details(written) == ["evaluation"]


def test_name_is_one_short_line(written: list[Any]) -> None:
    ddpdoctor.mark_phase("a\n b " + "c" * 200)
    assert details(written) == ["a b " + "c" * 96]


def test_after_too_many_marks_no_name_is_left_that_may_be_wrong(written: list[Any]) -> None:
    for number in range(phases.MOST_MARKS + 50):
        ddpdoctor.mark_phase(f"step {number}")
    assert len(written) == phases.MOST_MARKS + 1
    assert details(written)[-1] is None


def test_hook_that_fails_is_not_the_programs_trouble(
    written: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ddpdoctor_watch.core.journal", None)
    ddpdoctor.mark_phase("training")
    broken = SimpleNamespace(write=lambda *_: 1 / 0)
    monkeypatch.setitem(sys.modules, "ddpdoctor_watch.core.journal", broken)
    ddpdoctor.mark_phase("evaluation")
    assert written == []


def make_rank(rank: int, phase: str | None, attempt: int = 0) -> ProcessRecord:
    made = (Milestone(PHASE, Moment(1, 1), phase),)
    return ProcessRecord(pid=rank + 10, role="rank", rank=rank, attempt=attempt, milestones=made)


def test_root_cause_names_phases_of_the_last_attempt_the_odd_one_first() -> None:
    ranks = [make_rank(rank, "training", attempt=1) for rank in (0, 2, 3)]
    evidence = Evidence(
        processes=(*ranks, make_rank(1, "evaluation", 1), make_rank(4, None, 1), make_rank(1, "old"))
    )
    cause, other = add_phases([Finding("a", severity="error"), Finding("b", severity="error")], evidence)
    assert [(each.text.split("'")[1], each.ranks) for each in cause.evidence] == [
        ("evaluation", RankSet([1])),
        ("training", RankSet([0, 2, 3])),
    ]
    assert other.evidence == ()
    assert add_phases([Finding("a", severity="warning")], evidence)[0].evidence == ()


def test_failure_is_reported_with_the_phase_of_each_rank(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(JOB)
    command = [sys.executable, "-m", "ddpdoctor", "run", "--nproc", "2", "--json", "report.json", "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=unmeasured(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    cause = json.loads((tmp_path / "report.json").read_text())["findings"][0]
    assert (cause["code"], cause["ranks"]) == ("ERR001", [1])
    said = {each["text"]: each["ranks"] for each in cause["evidence"] if each["kind"] == PHASE}
    assert said == {
        "in 'evaluation, epoch 3', as the program calls it": [1],
        "in 'training, epoch 3', as the program calls it": [0],
    }
    assert "rank 1: in 'evaluation, epoch 3'" in " ".join(done.stderr.split())
