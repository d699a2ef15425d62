"""What a second run with a toggle adds to a verdict: the true line, or why there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.job import Rerun, SettingChange
from ddpdoctor.evidence.texts.matching import find_entry
from ddpdoctor.judge import Finding
from tests.checks.jobs import LOOP, TIMED_OUT, Job, cause_of

ASSERT = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"
EMBED = (
    Frame("model.py", 12, "embed", "return self.table[index]"),
    Frame("train.py", 60, "step", "out = model(x)"),
    Frame("train.py", 90, "<module>"),
)


def first(toggle: dict[str, str] | None = None) -> Job:
    job = Job(2).raises(1, "RuntimeError", ASSERT).complains([0])
    return job.set(1, variables=toggle) if toggle else job


def with_rerun(job: Job, second: Job | None, **changes: Any) -> Evidence:
    evidence = job.evidence()
    seen = second.evidence() if second is not None else Evidence()
    name = "TORCH_DISTRIBUTED_DEBUG" if changes.get("toggle") == "detail" else "CUDA_LAUNCH_BLOCKING"
    rerun = Rerun(
        "blocking",
        variables={name: "DETAIL" if name.startswith("TORCH") else "1"},
        limit_s=90.0,
        directory="rerun-blocking",
        processes=seen.processes,
        exceptions=seen.exceptions,
        texts=seen.texts,
        job=tuple(replace(end, duration_s=7.5) for end in seen.job),
    )
    return replace(evidence, reruns=(replace(rerun, **changes),))


def seen_of(finding: Finding) -> list[str]:
    return [item.text for item in finding.evidence if item.kind == "rerun"]


def test_the_true_line_stands_before_the_reported_one() -> None:
    second = Job(2).raises(0, "RuntimeError", ASSERT, frames=EMBED).complains([1])
    finding = cause_of(with_rerun(first(), second))
    assert finding.code == "ERR007"
    assert finding.ranks == RankSet([1])
    places = [(place.role, place.file, place.line, list(place.ranks)) for place in finding.where]
    assert places[:4] == [
        ("culprit", "model.py", 12, [0]),
        ("caller", "train.py", 60, [0]),
        ("caller", "train.py", 90, [0]),
        ("noticed", "train.py", 71, [1]),
    ]
    assert "train.py:71" in finding.message
    assert "detected there" in finding.message
    assert "CUDA_LAUNCH_BLOCKING=1 it was raised at model.py:12 in embed" in finding.message
    assert "model.py:12" in finding.fix[0].text
    assert all("--blocking" not in (fix.command or "") for fix in finding.fix)
    assert finding.details["true_line"] == {"file": "model.py", "line": 12}
    assert finding.details["reported_line"] == {"file": "train.py", "line": 71}
    assert seen_of(finding) == [
        "rerun with CUDA_LAUNCH_BLOCKING=1 (7.5 s, kept in rerun-blocking/): RuntimeError: CUDA error: "
        "device-side assert triggered"
    ]


def test_the_same_line_in_both_runs_is_the_true_one() -> None:
    finding = cause_of(with_rerun(first(), Job(2).raises(1, "RuntimeError", ASSERT).complains([0])))
    assert [(place.role, place.line) for place in finding.where][:2] == [("culprit", 71), ("caller", 90)]
    assert "at the same line, so this is the true one" in finding.message


@pytest.mark.parametrize(
    ("second", "changes", "seen"),
    [
        pytest.param(Job(2, exit_code=0), {}, "exited cleanly", id="exited cleanly"),
        pytest.param(
            Job(2).raises(0, "KeyError", "'x'").complains([1]), {}, "failed differently: KeyError: 'x'", id="otherwise"
        ),
        pytest.param(Job(2), {"state": "timed-out"}, "was stopped at its time limit", id="timed out"),
        pytest.param(Job(2), {"state": "stopped"}, "hung and was stopped", id="hung"),
        pytest.param(Job(2), {"state": "interrupted"}, "was interrupted", id="interrupted"),
    ],
)  # fmt: skip
def test_an_error_that_did_not_come_again(second: Job, changes: dict[str, Any], seen: str) -> None:
    finding = cause_of(with_rerun(first(), second, **changes))
    assert finding.code == "ERR007"
    said = {
        "timed-out": "it did not occur within 90 s",
        "stopped": "hung before that",
        "interrupted": "a rerun with CUDA_LAUNCH_BLOCKING=1 was interrupted before that",
    }
    assert said.get(changes.get("state", ""), "it was not reproduced") in finding.message
    assert (finding.where[0].role, finding.where[0].line) == ("culprit", 71)
    (text,) = seen_of(finding)
    assert seen in text
    commands = [fix.command or "" for fix in finding.fix]
    assert any("--blocking" in command for command in commands)
    assert any("--rerun-limit 180" in command for command in commands) == ("limit" in seen)


def test_a_second_run_that_was_not_made_says_why() -> None:
    finding = cause_of(with_rerun(first(), None, state="skipped", reason="stdin is a pipe"))
    assert "it was not rerun: stdin is a pipe" in finding.message
    assert seen_of(finding) == ["not run: stdin is a pipe"]


def test_without_a_second_run_the_next_command_is_offered() -> None:
    finding = cause_of(first())
    assert "run again" not in finding.message
    assert finding.fix[0].command == "ddpdoctor run --nproc 2 --blocking train.py --lr 0.1"


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(
            "CUDA error: unknown error\nCUDA kernel errors might be asynchronously reported", id="torch"
        ),
        pytest.param(find_entry("nccl-failed-in-torch").example.partition(": ")[2], id="nccl"),
    ],
)
def test_other_errors_that_may_be_late_are_offered_it_too(message: str) -> None:
    finding = cause_of(Job(2).raises(1, "RuntimeError", message).complains([0]))
    assert finding.code in ("ERR001", "BKD002")
    assert finding.fix[0].command == "ddpdoctor run --nproc 2 --blocking train.py --lr 0.1"


def test_a_first_run_with_blocking_needs_no_second() -> None:
    second = Job(2).raises(0, "RuntimeError", ASSERT, frames=EMBED)
    finding = cause_of(with_rerun(first({"CUDA_LAUNCH_BLOCKING": "1"}), second))
    assert "so this is the line" in finding.message
    assert finding.where[0].line == LOOP[1].line
    assert seen_of(finding) == []


def compared() -> Job:
    """What torch's own comparison of calls says on every rank."""
    text = find_entry("mismatch-found-by-wrapper").example.partition(": ")[2]
    job = Job(3).raises(0, "RuntimeError", text, frames=EMBED).raises(1, "RuntimeError", text, frames=EMBED)
    return job.raises(2, "RuntimeError", text)


def test_calls_that_do_not_fit_are_named_by_the_second_run() -> None:
    job = Job(3).raises(1, "RuntimeError", find_entry("mismatch-suspected").example.partition(": ")[2])
    finding = cause_of(with_rerun(job.complains([0, 2]), compared(), toggle="detail"))
    assert finding.code == "COL003"
    assert "in a rerun with TORCH_DISTRIBUTED_DEBUG=DETAIL" in finding.message
    assert "there rank 0 runs ALLREDUCE #3 of [10] Float, rank 1 runs" in finding.message
    assert "true line" not in finding.message
    shown = [
        (place.role, place.line, list(place.ranks)) for place in finding.where if place.role == "culprit"
    ]
    assert shown == [("culprit", 12, [0, 1]), ("culprit", 71, [2])]
    assert all("--debug detail" not in (fix.command or "") for fix in finding.fix)


def test_a_time_out_is_explained_by_calls_that_do_not_fit() -> None:
    job = Job(3)
    for rank in range(3):
        job.raises(rank, "RuntimeError", TIMED_OUT, 10.0 + rank / 100)
    finding = cause_of(with_rerun(job, compared(), toggle="detail"))
    assert finding.code == "COL005"
    assert "there rank 0 runs ALLREDUCE" in finding.message
    assert (finding.where[0].file, finding.where[0].line) == ("model.py", 12)


def test_a_crash_that_the_setting_itself_brings_is_not_the_scripts() -> None:
    job = Job(2).raises(1, "RuntimeError", find_entry("mismatch-suspected").example.partition(": ")[2])
    crashed = Job(2).dies(0, 11).dies(1, 11)
    finding = cause_of(with_rerun(job.complains([0]), crashed, toggle="detail"))
    assert "it was not reproduced" in finding.message
    assert "the script is not the cause" in seen_of(finding)[0]
    assert all("--debug detail" not in (fix.command or "") for fix in finding.fix)
    for rank in range(2):
        job.set(rank, backend="nccl")
    skipped = cause_of(with_rerun(job, None, toggle="detail", state="skipped", reason="stdin is a pipe"))
    assert any("--debug detail" in (fix.command or "") for fix in skipped.fix)


def test_blocking_that_the_script_sets_in_time_needs_no_second_run() -> None:
    made = SettingChange("CUDA_LAUNCH_BLOCKING", "1")
    finding = cause_of(Job(2).raises(1, "RuntimeError", ASSERT).set(1, settings=(made,)).complains([0]))
    assert "CUDA_LAUNCH_BLOCKING=1 was set, so this is the line" in finding.message
    late = replace(made, cuda=True)
    finding = cause_of(Job(2).raises(1, "RuntimeError", ASSERT).set(1, settings=(late,)).complains([0]))
    assert "detected, not where it happened" in finding.message


def test_amds_own_switch_is_named() -> None:
    second = Job(2).raises(1, "RuntimeError", ASSERT, frames=EMBED).complains([0])
    finding = cause_of(with_rerun(first(), second, variables={"AMD_SERIALIZE_KERNEL": "3"}))
    assert "in a rerun with AMD_SERIALIZE_KERNEL=3 it was raised at model.py:12" in finding.message


def test_a_second_run_of_which_nothing_was_seen() -> None:
    for state in ("interrupted", "timed-out", "ended"):
        finding = cause_of(with_rerun(first(), None, state=state))
        assert finding.details["rerun"] == "not reproduced"


def finger(op: str, shape: str) -> str:
    return f"CollectiveFingerPrint(SequenceNumber=7, OpType={op}, TensorShape=[{shape}], TensorDtypes=Float)"


def mismatch(rank: int, own: str, other: int, others: str) -> str:
    return (
        f"Detected mismatch between collectives on ranks. Rank {rank} is running collective: {own}, but Rank {other} "
        f"is running collective: {others}."
    )


def test_the_rank_that_differs_from_most_is_at_fault() -> None:
    usual, odd = finger("ALLREDUCE", "10"), finger("ALLREDUCE", "20")
    job = Job(3)
    job.raises(0, "RuntimeError", mismatch(0, usual, 1, odd), 5.0)
    job.raises(2, "RuntimeError", mismatch(2, usual, 1, odd), 5.1)
    job.raises(1, "RuntimeError", mismatch(1, odd, 0, usual), 5.2, frames=EMBED)
    finding = cause_of(job)
    assert (finding.code, list(finding.ranks), list(finding.victims)) == ("COL003", [1], [0, 2])
    assert "rank 1 differs from the majority" in finding.message
    assert "rank 0 runs ALLREDUCE #7 of [10] Float, rank 1 runs ALLREDUCE #7 of [20] Float" in finding.message
    shown = [(place.role, place.line, list(place.ranks)) for place in finding.where]
    assert shown[0] == ("culprit", 12, [1])
    assert ("victim", 71, [0, 2]) in shown
    assert len([place for place in shown if place[1] == 71]) == 1


def test_two_ranks_do_not_outvote_each_other() -> None:
    usual, odd = finger("ALLREDUCE", "10"), finger("BARRIER", "")
    job = Job(2).raises(0, "RuntimeError", mismatch(0, usual, 1, odd), 5.0)
    finding = cause_of(job.raises(1, "RuntimeError", mismatch(1, odd, 0, usual), 5.2, frames=EMBED))
    assert list(finding.ranks) == [0, 1]
    assert "with two ranks the wrong one cannot be determined" in finding.message
    assert "most" not in finding.message
    four = Job(4)
    for rank in range(4):
        own, others = (usual, odd) if rank < 2 else (odd, usual)
        four.raises(rank, "RuntimeError", mismatch(rank, own, (rank + 2) % 4, others), 5.0 + rank / 10)
    assert "most" not in cause_of(four).message
