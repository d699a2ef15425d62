"""ENV014 in a watched job: settings left on, made by the script, or made too late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.job import JobEnd, Milestone, Moment, ProcessRecord, SettingChange
from ddpdoctor.judge import Finding
from ddpdoctor_checks.environment import find_debug_left_on, find_workaround_left_on
from tests.checks.jobs import SITE, Job

OS = Frame("<frozen os>", 685, "__setitem__")
LINE = Frame("train.py", 5, "<module>", 'os.environ["X"] = "1"')


def at(seconds: float) -> Moment:
    return Moment(int(1.7e18 + seconds * 1e9), int(seconds * 1e9))


def change(name: str, value: str, seconds: float, **more: Any) -> SettingChange:
    return replace(SettingChange(name, value, at=at(seconds), frames=(OS, LINE)), **more)


def job(
    *settings: SettingChange, backend: str = "gloo", exit_code: int = 0, toggles: dict[str, str] | None = None,
    **variables: str,
) -> Evidence:  # fmt: skip
    milestones = tuple(Milestone(name, at(n)) for n, name in enumerate(("start", "import", "init", "wrap")))
    ranks = tuple(
        ProcessRecord(
            100 + rank, host="vm", rank=rank, world_size=2, backend=backend, milestones=milestones,
            variables={"RANK": str(rank), **variables}, settings=settings, exit_code=exit_code,
        )
        for rank in range(2)
    )  # fmt: skip
    return replace(
        Job(2).evidence(), processes=ranks, job=(JobEnd(exit_code=exit_code, toggles=toggles or {}),)
    )


def found(evidence: Evidence) -> list[Finding]:
    return list(find_debug_left_on(evidence))


def test_a_level_that_is_set_after_the_import_has_no_effect() -> None:
    late = change("TORCH_DISTRIBUTED_DEBUG", "DETAIL", 1.5)
    end = SettingChange("TORCH_DISTRIBUTED_DEBUG", "OFF", how="end", at=at(9))
    (finding,) = found(job(late, end))
    assert (
        "TORCH_DISTRIBUTED_DEBUG=DETAIL is set at train.py:5 too late to have any effect" in finding.message
    )
    assert "torch used OFF to the end" in finding.message
    assert [(place.file, place.line, list(place.ranks)) for place in finding.where] == [
        ("train.py", 5, [0, 1])
    ]
    assert finding.fix[0].command == "export TORCH_DISTRIBUTED_DEBUG=DETAIL"


def test_what_a_program_sets_itself_is_not_left_on() -> None:
    late = change("TORCH_DISTRIBUTED_DEBUG", "DETAIL", 1.5)
    (finding,) = found(job(late, TORCH_DISTRIBUTED_DEBUG="DETAIL"))  # seen again as the group is made
    assert "is set at train.py:5" in finding.message
    (finding,) = found(job(TORCH_DISTRIBUTED_DEBUG="DETAIL"))
    assert "is still set on vm" in finding.message


def test_a_level_that_torch_went_by_all_the_same_is_only_left_on() -> None:
    late = change("TORCH_DISTRIBUTED_DEBUG", "DETAIL", 1.5)
    end = SettingChange("TORCH_DISTRIBUTED_DEBUG", "DETAIL", how="end", at=at(9))
    (finding,) = found(job(late, end))
    assert "too late" not in finding.message
    assert "is set at train.py:5" in finding.message


@pytest.mark.parametrize(
    ("made", "backend", "late"),
    [
        pytest.param(change("CUDA_LAUNCH_BLOCKING", "1", 1.5, cuda=True), "nccl", True, id="CUDA in use"),
        pytest.param(change("CUDA_LAUNCH_BLOCKING", "1", 1.5), "nccl", False, id="CUDA not in use"),
        pytest.param(change("TORCH_NCCL_BLOCKING_WAIT", "1", 2.5), "nccl", True, id="group made"),
        pytest.param(change("TORCH_NCCL_BLOCKING_WAIT", "1", 1.5), "nccl", False, id="group not made"),
        pytest.param(change("NCCL_DEBUG", "TRACE", 3.5), "cpu:gloo,cuda:nccl", True, id="model wrapped"),
        pytest.param(change("NCCL_DEBUG", "TRACE", 2.5), "nccl", False, id="only the group made"),
        pytest.param(change("TORCH_CPP_LOG_LEVEL", "INFO", 1.5), "gloo", True, id="log level"),
    ],
)
def test_what_is_read_once_is_late_after_that(made: SettingChange, backend: str, late: bool) -> None:
    (finding,) = found(job(made, backend=backend))
    assert ("too late to have any effect" in finding.message) is late
    assert finding.details.get("late", False) is late
    assert finding.where[0].line == 5


@pytest.mark.parametrize(
    "evidence",
    [
        pytest.param(job(change("NCCL_DEBUG", "INFO", 0.5), backend="nccl"), id="early and harmless"),
        pytest.param(job(change("NCCL_DEBUG", "INFO", 3.5)), id="NCCL is not used"),
        pytest.param(job(change("CUDA_LAUNCH_BLOCKING", "1", 0.5)), id="no GPU is known"),
        pytest.param(
            job(change("TORCH_DISTRIBUTED_DEBUG", "DETAIL", 1.5, frames=(OS, Frame(SITE, 3, "f"), LINE))),
            id="set by a library",
        ),
        pytest.param(job(change("TORCH_DISTRIBUTED_DEBUG", "DETAIL", 1.5, frames=())), id="line unknown"),
        pytest.param(
            job(change("TORCH_CPP_LOG_LEVEL", "INFO", 1.5), change("TORCH_CPP_LOG_LEVEL", "", 1.6)), id="taken back"
        ),
        pytest.param(
            job(toggles={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, TORCH_DISTRIBUTED_DEBUG="DETAIL"), id="ours"
        ),
        pytest.param(job(CUDA_LAUNCH_BLOCKING="1"), id="blocking without a GPU"),
        pytest.param(job(change("anomaly mode", "on", 5)), id="anomaly for a look"),
    ],
)  # fmt: skip
def test_nothing_is_said_without_evidence(evidence: Evidence) -> None:
    assert found(evidence) == []


def test_what_was_on_in_the_environment_of_a_job_is_named() -> None:
    (finding,) = found(job(TORCH_DISTRIBUTED_DEBUG="DETAIL"))
    assert (finding.severity, finding.ranks) == ("warning", RankSet([0, 1]))
    assert "on vm" in finding.message
    (blocking,) = found(job(backend="nccl", CUDA_LAUNCH_BLOCKING="1"))
    assert blocking.severity == "warning"
    (other,) = found(job(toggles={"TORCH_DISTRIBUTED_DEBUG": "INFO"}, TORCH_DISTRIBUTED_DEBUG="DETAIL"))
    assert other.severity == "warning"


def test_where_the_job_failed_somebody_may_be_looking_for_the_cause() -> None:
    made = change("TORCH_DISTRIBUTED_DEBUG", "DETAIL", 0.5)
    assert [each.severity for each in found(job(made, exit_code=1, PYTHONDEVMODE="1"))] == ["info", "info"]
    (late,) = found(job(replace(made, at=at(1.5)), exit_code=1))
    assert late.severity is None  # a warning all the same: who set it believes that it is on


@pytest.mark.parametrize("how", ["first-forward", "end", "often"])
def test_anomaly_mode_is_named_where_it_stays_on(how: str) -> None:
    first = change("anomaly mode", "on", 4)
    again = (
        replace(first, count=10) if how == "often" else SettingChange("anomaly mode", "on", how=how, at=at(5))
    )
    (finding,) = found(job(first, again))
    assert "turned on at train.py:5," in finding.message
    assert finding.severity == "warning"
    assert finding.where[0].line == 5
    (unseen,) = found(job(SettingChange("anomaly mode", "on", how="end", at=at(9))))
    assert "enabled" not in unseen.message


def test_workarounds_of_a_job_matter_where_nccl_joins_gpus() -> None:
    assert list(find_workaround_left_on(job(NCCL_P2P_DISABLE="1"))) == []
    assert list(find_workaround_left_on(job(backend="nccl", NCCL_IB_DISABLE="1"))) == []
    (finding,) = find_workaround_left_on(job(backend="nccl", NCCL_P2P_DISABLE="1"))
    assert finding.severity == "warning"
