"""ENV021: a launcher that starts fewer ranks than it was asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence.job import ProcessRecord
from ddpdoctor_checks.job.ends.launch_size import read_count
from tests.checks.jobs import Job, judge

ACCELERATE = ("/venv/bin/python", "/venv/bin/accelerate", "launch")
SCRIPT = ("train.py", "--lr", "0.1")


def launched(*options: str, world: int = 1, script: tuple[str, ...] = SCRIPT, **changes: object) -> Job:
    """A job of `world` processes that a launcher started in this way; one of them alone is no rank."""
    job = Job(world, exit_code=0)
    launcher = ProcessRecord(
        pid=900, host="node-a", role="launcher", command=(*ACCELERATE, *options, *script)
    )
    job.extra.append(launcher)
    alone = {"rank": None, "local_rank": None, "world_size": None, "role": "other", "backend": None}
    for rank in range(world):
        started = {"parent": 900, "command": ("/venv/bin/python", *script)}
        values: Any = {**started, **(alone if world == 1 else {}), **changes}
        job.processes[rank] = replace(job.processes[rank], **values)
    return job


def codes(job: Job) -> list[str]:
    return [each.code for each in judge(job)[0]]


@pytest.mark.parametrize(
    "options", [("--num_processes", "4"), ("--num-processes=4",), ("--cpu", "--num_processes", "4")]
)
def test_one_process_where_four_were_asked_for_is_named_with_what_to_type(options: tuple[str, ...]) -> None:
    (finding,), verdict, _ = judge(launched(*options))
    assert (finding.code, verdict.code) == ("ENV021", "ENV021")
    assert finding.message == (
        "`accelerate launch` was asked for 4 processes and started 1: train.py ran with a world size of 1."
    )
    assert finding.fix[0].command == "ddpdoctor run --nproc 4 train.py --lr 0.1"
    assert finding.details == {"asked": 4, "started": 1, "launcher": "accelerate"}


def test_module_is_what_the_launcher_was_given_too() -> None:
    job = launched("--num_processes", "2", script=("-m", "package.train"))
    assert judge(job)[0][0].fix[0].command == "ddpdoctor run --nproc 2 -m package.train"


@pytest.mark.parametrize(
    "job",
    [
        launched("--multi_gpu", "--num_processes", "4", world=4),
        launched("--num_processes", "1"),
        launched(),
        # The script's own option of that name asks nobody for ranks.
        launched(script=("train.py", "--num_processes", "4")),
        # Two nodes of four ranks: what is asked for is the total, and here are those of one node.
        launched("--num_machines", "2", "--num_processes", "8", world=4, world_size=8),
        # Another program, and a script that is still running: nothing is known yet.
        launched("--num_processes", "4", command=("/venv/bin/python", "other.py")),
        launched("--num_processes", "4", clean_end=False, exit_code=None, running=True),
    ],
    ids=["all", "one", "none", "script", "nodes", "other", "running"],
)
def test_launches_as_large_as_asked_or_not_known_are_fine(job: Job) -> None:
    assert "ENV021" not in codes(job)


def test_ranks_that_the_one_script_starts_itself_count() -> None:
    job = launched("--num_processes", "2")
    for rank in range(2):
        child = replace(Job(2).processes[rank], pid=2000 + rank, parent=1000, role="other", watched=True)
        job.extra.append(child)
    assert "ENV021" not in codes(job)


def test_other_launchers_are_not_asked() -> None:
    assert read_count(("torchrun", "--num-processes", "4", "train.py")) is None
    assert read_count(("accelerate", "config", "--num_processes", "4")) is None
    assert read_count(("python", "-m", "accelerate.commands.launch", "--num_processes", "3", "t.py")) == 3
    _, _, rows = judge(Job(2, exit_code=0))
    assert rows["crash.launch_size"].status == "pass"


def test_script_that_lacks_the_variables_of_ranks_fails_for_the_launch() -> None:
    job = launched("--num_processes", "2")
    job.exit_code = 1
    job.raises(
        0,
        "ValueError",
        "Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set",
    )
    findings, verdict, _ = judge(job)
    assert (verdict.code, findings[0].code, findings[0].severity) == ("ENV021", "ENV021", "error")
    assert [(each.code, each.role) for each in findings[1:]] == [("ENV001", "consequence")]
