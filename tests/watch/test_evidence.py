"""What of a run's evidence the checks of launches get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ddpdoctor.evidence import Evidence, Launch
from ddpdoctor.evidence.job import JobEnd, ProcessRecord
from ddpdoctor.judge import Registry
from ddpdoctor.report import Report
from ddpdoctor.report.build import build_report, describe_world
from ddpdoctor.testing import STARTED
from ddpdoctor.watch.commandline import Split
from ddpdoctor.watch.launch.evidence import _describe_launch, _describe_ranks
from ddpdoctor.watch.readers.collect import Collected
from ddpdoctor_checks import environment
from ddpdoctor_checks.job import ends


def rank(number: int, pid: int, parent: int = 5, **changes: Any) -> ProcessRecord:
    variables = {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": "node-a", "NCCL_ALGO": "Ring"}
    return replace(
        ProcessRecord(
            pid, host="node-a", parent=parent, rank=number, local_rank=number, world_size=2, variables=variables,
            exit_code=0, clean_end=True, torch="2.13.0",
        ),
        **changes,
    )  # fmt: skip


def judge(*processes: ProcessRecord, **launch: Any) -> Report:
    registry = Registry()
    for family in (ends, environment):
        registry.add_module(family)
    values = {"command": "run", "launcher": "torchrun", "nproc": 2, "world_size": 2, **launch}
    evidence = Evidence(
        launch=Launch(**values),
        ranks=_describe_ranks(processes),
        processes=processes,
        job=(JobEnd(exit_code=0),),
    )
    return build_report(evidence, registry=registry, started_at=STARTED, duration_s=1.0)


def test_ranks_of_a_healthy_job_give_no_finding_and_their_rows_look() -> None:
    report = judge(rank(0, 10), rank(1, 11))
    assert [each.code for each in report.findings if each.severity != "info"] == []
    rows = {row.id: row.status for row in report.checks}
    assert rows["env.variables.agree"] == "pass"
    assert rows["env.launcher.agrees"] == "unknown"  # of what started them nothing is known here
    assert "fail" not in {status for id, status in rows.items() if id.startswith("env.ranks")}


def test_a_variable_that_differs_over_ranks_is_told() -> None:
    odd = rank(1, 11)
    odd = replace(odd, variables={**odd.variables, "NCCL_ALGO": "Tree"})
    report = judge(rank(0, 10), odd)
    assert "ENV004" in [each.code for each in report.findings]


def test_variables_of_the_launch_that_contradict_it_are_told() -> None:
    variables = {"SLURM_NTASKS": "9", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "4"}
    report = judge(rank(0, 10), rank(1, 11), variables=variables)
    assert "ENV006" in [each.code for each in report.findings]


def test_what_a_rank_starts_is_no_rank_of_the_job() -> None:
    helper = rank(0, 20, parent=15, world_size=1)
    shell = ProcessRecord(15, parent=10, role="other")
    assert [facts.pid for facts in _describe_ranks([rank(0, 10), rank(1, 11), shell, helper])] == [10, 11]


def test_two_jobs_of_one_command_are_not_compared() -> None:
    assert _describe_ranks([rank(0, 10), rank(1, 11), rank(0, 30, parent=6)]) == ()


def test_processes_that_are_each_others_parents_end_the_search() -> None:
    loop = [ProcessRecord(15, parent=16, role="other"), ProcessRecord(16, parent=15, role="other")]
    assert [facts.pid for facts in _describe_ranks([*loop, rank(0, 10, parent=15)])] == [10]


def test_the_launch_is_read_from_torchruns_own_options() -> None:
    given = (
        "--nnodes",
        "2",
        "--nproc-per-node",
        "4",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "u:p@a:29400",
    )
    own = _describe_launch(Collected(), "torchrun", Split((), given, ("train.py",)))
    launcher = ProcessRecord(
        4, role="launcher", command=("/venv/bin/python", "/venv/bin/torchrun", *given, "t.py")
    )
    command = Split((), (), ("sh", "start.sh"), is_command=True)
    seen = _describe_launch(Collected(processes=[launcher]), "sh", command)
    for launch in (own, seen):
        assert (launch.nnodes, launch.nproc, launch.rdzv_backend) == (2, 4, "c10d")
        assert (launch.rdzv_endpoint or "").endswith("a:29400")
    assert _describe_launch(Collected(), "sh", command).rdzv_backend is None


def test_children_of_a_script_that_joined_a_group_are_its_ranks() -> None:
    script = ProcessRecord(5, role="launcher")
    tracker = ProcessRecord(6, parent=5, role="other")
    joined = [rank(number, 10 + number, role="child", world_size=3, backend="gloo") for number in range(3)]
    joined = [replace(each, python="3.11.7") for each in joined]
    command = Split((), (), ("python", "train.py"), is_command=True)
    launch = _describe_launch(Collected(processes=[script, tracker, *joined]), "python", command)
    assert (launch.nproc, launch.world_size, launch.backend) == (3, 3, "gloo")
    world = describe_world(Evidence(launch=launch, processes=(script, tracker, *joined)))
    assert [(node.host, str(node.ranks)) for node in world.nodes] == [("node-a", "0-2")]
    assert (world.torch, world.python) == ("2.13.0", "3.11.7")


def test_children_of_ranks_with_a_group_of_their_own_do_not_count() -> None:
    ranks = [rank(number, 10 + number, backend="gloo") for number in range(2)]
    own = [rank(number, 20 + number, 11, role="child", world_size=8, backend="gloo") for number in range(8)]
    command = Split((), (), ("train.py",))
    launch = _describe_launch(Collected(processes=[*ranks, *own]), "torchrun", command)
    assert (launch.nproc, launch.world_size) == (2, 2)
