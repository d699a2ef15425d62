"""What the tasks of one job saw, as one: hosts, ranks, ends, looks."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence import Absent, Evidence, Launch
from ddpdoctor.evidence.bundle import JOB_KINDS, KINDS
from ddpdoctor.evidence.job import JobEnd, MemoryRecord, Milestone, Moment, ProcessRecord
from ddpdoctor.evidence.sockets import NodeNetwork
from ddpdoctor.evidence.standstill import Recorder, Stand, Standstill
from ddpdoctor.plugins import load_plugins
from ddpdoctor.report.build import build_report
from ddpdoctor.watch.tasks.folder import Folder, open_job
from ddpdoctor.watch.tasks.identity import Task
from ddpdoctor.watch.tasks.joining import join_tasks, write_end
from ddpdoctor.watch.tasks.looks import TaskExchange

HOSTS = ("node-a", "node-a", "node-b")
STARTED = datetime(2026, 1, 2, tzinfo=timezone.utc)
NOT_OF_RUNS = {kind: Absent("", applicable=False) for kind in KINDS if kind not in JOB_KINDS}


@pytest.fixture
def opened(tmp_path: Path) -> list[Folder]:
    made = []
    for number, host in enumerate(HOSTS):
        folder = open_job(tmp_path, Task("slurm-7.0", number, len(HOSTS), "srun", lasting=True))
        folder.about = dataclasses.replace(folder.about, host=host, place=host)
        folder.introduce()
        made.append(folder)
    return made


def see(rank: int, exit_code: int | None = 0, **end: Any) -> Evidence:
    """Return what a task sees of its one rank."""
    joined = Milestone("init", Moment(1, 1))
    process = ProcessRecord(
        100 + rank, host=HOSTS[rank], rank=rank, world_size=len(HOSTS), backend="gloo", milestones=(joined,),
        exit_code=exit_code, clean_end=exit_code == 0,
    )  # fmt: skip
    return Evidence(
        absent=NOT_OF_RUNS,
        launch=Launch(command="run", launcher="python", backend="gloo"),
        processes=(process,),
        memory=(MemoryRecord(0, HOSTS[rank], oom_kills=rank),),
        job=(JobEnd(exit_code, launcher="python", **end),),
    )


def join(opened: list[Folder], evidence: list[Evidence | None], judge: int = 0) -> Evidence:
    for folder, each in zip(opened, evidence, strict=True):
        if each is not None:
            write_end(folder, each)
    own = evidence[judge]
    assert own is not None
    return join_tasks(opened[judge], own, opened[judge].look())


def test_ranks_keep_their_hosts_whoever_judges(opened: list[Folder]) -> None:
    whole = join(opened, [see(0), see(1), see(2)], judge=2)
    assert [(each.rank, each.node, each.host) for each in whole.processes] == [
        (0, 0, "node-a"),
        (1, 0, "node-a"),
        (2, 1, "node-b"),
    ]
    launch = whole.launch
    assert (launch.launcher, launch.nnodes, launch.nproc, launch.world_size) == ("srun", 2, 2, 3)
    assert whole.job == (JobEnd(0, launcher="srun"),)
    assert [(each.host, each.oom_kills) for each in whole.memory] == [("node-a", 1), ("node-b", 2)]


def test_job_ends_as_its_worst_task(opened: list[Folder]) -> None:
    whole = join(opened, [see(0), see(1, 3, interrupted="SIGTERM"), see(2)])
    assert (whole.job[0].exit_code, whole.job[0].interrupted) == (3, "SIGTERM")


def test_hang_that_one_task_ended_is_not_elsewhere(opened: list[Folder]) -> None:
    told = see(1, 1, stopped=True, stopped_elsewhere="COL001: …")
    whole = join(opened, [see(0, 1, stopped=True), told, told], judge=1)
    assert (whole.job[0].stopped, whole.job[0].stopped_elsewhere) == (True, None)


@pytest.mark.parametrize("gone", [True, False], ids=["without a word", "never begun"])
def test_nothing_is_healthy_where_a_task_did_not_report(
    opened: list[Folder], gone: bool, tmp_path: Path
) -> None:
    if not gone:
        for path in sorted((opened[2].path / "task-2").iterdir()):
            path.unlink()
        (opened[2].path / "task-2").rmdir()
    whole = join(opened, [see(0), see(1), None])
    assert whole.job[0].exit_code is None
    assert len(whole.job[0].lost) == 1
    assert whole.job[0].lost[0].startswith("task 2 ")
    report = build_report(whole, registry=load_plugins().checks, started_at=STARTED, duration_s=1.0)
    assert report.verdict.status == "unknown"
    assert report.verdict.headline.startswith("saw 2 of 3 ranks (ranks 0-1)")


def test_what_a_task_left_that_cannot_be_read_is_named(opened: list[Folder]) -> None:
    write_end(opened[0], see(0))
    (opened[1].path / "task-1/end.json").write_text('{"launch": 5}')
    write_end(opened[2], dataclasses.replace(see(2), processes=(ProcessRecord(9, rank=1 << 30),)))
    whole = join_tasks(opened[0], see(0), opened[0].look())
    assert [each.rank for each in whole.processes] == [0]
    assert [text.partition(":")[0] for text in whole.job[0].lost] == [
        "the evidence of task 1 could not be read",
        "the evidence of task 2 could not be read",
    ]


def look(rank: int, *, alive: bool = True, after_s: float = 9.0, stage: str = "waiting") -> Standstill:
    stand = Stand(rank, 100 + rank, host=HOSTS[rank], alive=alive)
    network = NodeNetwork(host=HOSTS[rank], source="sock_diag")
    return Standstill(Moment(1, 1), after_s, 5.0, (stand,), len(HOSTS), stage=stage, network=(network,))


def test_looks_of_tasks_count_when_each_has_looked_again_or_ended(opened: list[Folder]) -> None:
    exchanges = [TaskExchange(folder.path / folder.slot, folder) for folder in opened]
    first = exchanges[0]
    exchanges[1].publish(look(1), 1)
    assert first.join(look(0)) is None, "task 2 is missing"
    exchanges[2].leave(lambda: look(2, alive=False))
    assert first.join(look(0)) is None, "task 1 has not looked again"
    exchanges[1].publish(look(1), 2)
    joined = first.join(look(0))
    assert joined is not None
    assert [(each.rank, each.node, each.alive) for each in joined.stands] == [
        (0, 0, True),
        (1, 0, True),
        (2, 1, False),
    ]
    assert joined.joined
    assert [(each.node, each.host) for each in joined.network] == [(0, "node-a"), (1, "node-b")]
    assert exchanges[1].join(look(1)) is None, "one task reads what all have written"
    first.stop("COL001: why")
    assert exchanges[2].read_stop() == "COL001: why"
    exchanges[1].withdraw()
    assert first.join(look(0)) is None


def test_last_look_has_what_each_ranks_own_recorder_told(opened: list[Folder]) -> None:
    stands = tuple(
        Stand(rank, 100 + rank, recorder=Recorder(problem="it was not queried")) for rank in range(3)
    )
    joined = dataclasses.replace(look(0, stage="proved"), stands=stands, joined=True)
    asked = dataclasses.replace(
        look(2, stage="look"), stands=(dataclasses.replace(stands[2], recorder=Recorder()),)
    )
    parts: list[Evidence | None] = [
        dataclasses.replace(see(0), standstills=(joined,)),
        dataclasses.replace(see(1), standstills=(look(1),)),
        dataclasses.replace(see(2), standstills=(look(2), asked)),
    ]
    last = join(opened, parts).standstills[-1]
    assert (last.stage, last.joined) == ("proved", True)
    assert [each.recorder is not None and each.recorder.problem is None for each in last.stands] == [
        False,
        False,
        True,
    ]
