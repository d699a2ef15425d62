"""Which processes are ranks, which belong together, and what a process id means: on made-up process tables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.gather.launcher import detect_launcher
from ddpdoctor.watch.attach.jobs import (
    FoundJob,
    choose_by_pid,
    find_jobs,
    follow_job,
    keep_living,
    name_script,
)
from ddpdoctor.watch.attach.processes import Seen, read_process, read_processes

PYTHON = "/venv/bin/python"
SPAWNED = (
    PYTHON,
    "-c",
    "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=4, pipe_handle=6)",
)
GROUP = frozenset(("python", "pt_gloo_runloop"))


def make(
    pid: int,
    parent: int = 1,
    command: Sequence[str] = (PYTHON, "-u", "train.py"),
    environ: Mapping[str, str] | None = None,
    **more: Any,
) -> Seen:
    given = dict(environ or {})
    fields: dict[str, Any] = {
        "ticks": pid,
        "name": "python",
        "command": tuple(command),
        "python": True,
        "uid": 0,
        "place": detect_launcher(given),
        "identity": tuple(given.get(name) for name in ("RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID")),
        "job": (given.get("TORCHELASTIC_RUN_ID"), given.get("MASTER_PORT")),
        "attempt": int(given.get("TORCHELASTIC_RESTART_COUNT", 0)),
        "local_rank": int(given["LOCAL_RANK"]) if "LOCAL_RANK" in given else None,
    }
    return Seen(pid=pid, parent=parent, **{**fields, **more})


def torchrun(rank: int, size: int = 3, run: str = "a", port: int = 29500, **more: str) -> dict[str, str]:
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
        "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": run, "TORCHELASTIC_RESTART_COUNT": "0", **more,
    }  # fmt: skip


AGENT = make(
    100, command=(PYTHON, "-m", "torch.distributed.run", "train.py"), threads=frozenset(("pt_elastic",))
)


def find(*seen: Seen, stacks: Mapping[int, Sequence[Frame]] | None = None) -> list[FoundJob]:
    def take(pids: Sequence[int]) -> dict[int, tuple[Frame, ...]]:
        return {pid: tuple((stacks or {}).get(pid, ())) for pid in pids}

    return find_jobs({each.pid: each for each in seen}, take)


def test_the_ranks_of_torchrun_are_one_job_under_their_agent() -> None:
    (job,) = find(AGENT, *(make(110 + rank, 100, environ=torchrun(rank)) for rank in range(3)))
    assert [(rank.rank, rank.pid) for rank in job.ranks] == [(0, 110), (1, 111), (2, 112)]
    assert (job.launcher, job.world_size, job.pid, job.script) == ("torchrun", 3, 100, "train.py")
    assert not job.missing


def test_a_rank_without_a_process_is_missing() -> None:
    (job,) = find(AGENT, *(make(110 + rank, 100, environ=torchrun(rank)) for rank in (0, 2)))
    assert job.missing == RankSet([1])


def test_what_a_rank_starts_is_no_rank() -> None:
    rank = make(110, 100, environ=torchrun(0, 1))
    worker = make(120, 110, environ=torchrun(0, 1), threads=frozenset(("pt_data_worker",)))
    helper = make(121, 110, (PYTHON, "tool.py"), environ=torchrun(0, 1))
    (job,) = find(AGENT, rank, worker, helper)
    assert [each.pid for each in job.ranks] == [110]


def test_wrappers_between_agent_and_rank_are_passed_over() -> None:
    shell = make(105, 100, ("bash", "run.sh"), environ=torchrun(0, 1), python=False)
    (job,) = find(AGENT, shell, make(110, 105, environ=torchrun(0, 1)))
    assert [each.pid for each in job.ranks] == [110]
    assert job.pid == 100


def test_an_agent_that_a_cluster_numbers_is_no_rank() -> None:
    slurm = {
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "1",
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_LOCALID": "0",
    }
    agent = make(100, command=(PYTHON, "/venv/bin/torchrun", "train.py"), environ=slurm)
    (job,) = find(agent, make(110, 100, environ={**slurm, **torchrun(0, 1)}))
    assert (job.launcher, [each.pid for each in job.ranks]) == ("torchrun", [110])


def test_two_jobs_are_told_apart_by_run_and_port() -> None:
    first = [make(110 + rank, 100, environ=torchrun(rank, 2, "a", 1)) for rank in range(2)]
    second = [make(210 + rank, 200, environ=torchrun(rank, 2, "b", 2)) for rank in range(2)]
    found = find(AGENT, *first, *second)
    assert [[each.pid for each in job.ranks] for job in found] == [[210, 211], [110, 111]]


def test_the_same_variables_twice_are_two_jobs() -> None:
    plain = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "29500"}
    assert len(find(make(10, 1, environ=plain), make(20, 2, environ=plain))) == 2


def test_only_the_newest_attempt_counts() -> None:
    old = make(110, 100, environ=torchrun(0, 2))
    new = [
        make(120 + rank, 100, environ=torchrun(rank, 2, TORCHELASTIC_RESTART_COUNT="1")) for rank in range(2)
    ]
    (job,) = find(AGENT, old, *new)
    assert [each.pid for each in job.ranks] == [120, 121]


@pytest.mark.parametrize(
    "environ",
    [
        {"OMPI_COMM_WORLD_RANK": "{}", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "{}"},
        {"SLURM_PROCID": "{}", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "{}",
         "SLURM_STEP_NUM_TASKS": "2"},
        {"RANK": "{}", "WORLD_SIZE": "2"},
    ],
    ids=["mpirun", "srun", "env"],
)  # fmt: skip
def test_ranks_of_other_launchers_are_found(environ: dict[str, str]) -> None:
    ranks = [
        make(110 + rank, 1, environ={key: value.format(rank) for key, value in environ.items()})
        for rank in range(2)
    ]
    (job,) = find(*ranks)
    assert [each.rank for each in job.ranks] == [0, 1]


def test_spawned_children_with_a_process_group_are_ranks_in_order_of_their_start() -> None:
    parent = make(100, command=(PYTHON, "main.py"))
    tracker = make(101, 100, (PYTHON, "-c", "from multiprocessing.resource_tracker import main"))
    (job,) = find(parent, tracker, *(make(110 + n, 100, SPAWNED, threads=GROUP) for n in (1, 0, 2)))
    assert [(rank.rank, rank.pid) for rank in job.ranks] == [(0, 110), (1, 111), (2, 112)]
    assert (job.numbered, job.script, job.pid) == ("order", "main.py", 100)


def test_before_there_is_a_process_group_the_stack_tells() -> None:
    parent = make(100, command=(PYTHON, "main.py"))
    children = [make(110 + n, 100, SPAWNED) for n in range(2)]
    starting = (
        Frame("train.py", 3, "work"),
        Frame("/site-packages/torch/multiprocessing/spawn.py", 87, "_wrap"),
    )
    (job,) = find(parent, *children, stacks={110: starting, 111: starting})
    assert len(job.ranks) == 2
    assert find(parent, *children, stacks={110: (Frame("pool.py", 3, "work"),)}) == []


def test_loader_workers_and_pools_are_no_ranks() -> None:
    parent = make(100, command=(PYTHON, "single.py"))
    workers = [make(110 + n, 100, threads=frozenset(("pt_data_worker",))) for n in range(4)]
    old = [make(120 + n, 100) for n in range(4)]
    loop = (Frame("/site-packages/torch/utils/data/_utils/worker.py", 374, "_worker_loop"),)
    assert find(parent, *workers, *old, stacks={each.pid: loop for each in old}) == []


def test_a_first_rank_that_starts_the_others_is_one_of_them() -> None:
    first = make(100, threads=GROUP)
    others = [make(110 + n, 100, environ={"LOCAL_RANK": str(n)}, threads=GROUP) for n in (1, 2)]
    (job,) = find(first, *others)
    assert [(rank.rank, rank.pid) for rank in job.ranks] == [(0, 100), (1, 111), (2, 112)]


@pytest.mark.parametrize(("above", "found"), [("raylet", True), ("bash", False), ("-zsh", False)])
def test_the_workers_of_a_daemon_are_ranks_by_what_they_hold(above: str, found: bool) -> None:
    """Ray's workers get their variables after their start, and their command line is a name that Ray gives them."""
    parent = make(90, command=(f"/opt/{above}" if found else above,), python=False)
    workers = [make(101 + n, 90, ("ray::RayTrainWorker",), threads=GROUP) for n in range(2)]
    others = [make(111 + n, 90, ("ray::IDLE",)) for n in range(3)]
    jobs = find(parent, *workers, *others)
    assert [[each.pid for each in job.ranks] for job in jobs] == ([[101, 102]] if found else [])


@pytest.mark.parametrize(
    ("typed", "started"),
    [
        (("python", "-u", "train.py", "--lr", "1"), (PYTHON, "/home/me/train.py", "--lr", "1")),
        (("python", "-X", "dev", "-m", "pkg.train"), (PYTHON, "-m", "pkg.train")),
    ],
)
def test_a_first_rank_may_start_the_others_by_full_paths(
    typed: Sequence[str], started: Sequence[str]
) -> None:
    first = make(100, command=typed, threads=GROUP)
    rank = make(101, 100, started, environ={"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, threads=GROUP)
    (job,) = find(first, rank)
    assert [(each.rank, each.pid) for each in job.ranks] == [(0, 100), (1, 101)]
    assert not find(make(100, command=(PYTHON, "other.py"), threads=GROUP), rank)


def test_ranks_whose_environment_may_not_be_read_are_found_by_their_threads() -> None:
    ranks = [make(110 + n, 100, threads=GROUP, readable=False) for n in range(2)]
    (job,) = find(AGENT, *ranks)
    assert (job.launcher, job.readable, job.numbered) == ("torchrun", False, "order")


def test_any_process_of_a_job_means_it() -> None:
    rank = make(110, 100, environ=torchrun(0, 1))
    worker = make(120, 110, environ=torchrun(0, 1), threads=frozenset(("pt_data_worker",)))
    shell = make(90, 1, ("bash",), python=False)
    agent = make(100, 90, AGENT.command, threads=AGENT.threads)
    other = make(500, 1, (PYTHON, "server.py"))
    processes = {each.pid: each for each in (rank, worker, shell, agent, other)}
    jobs = find(*processes.values())
    for pid in (110, 120, 100, 90):
        assert choose_by_pid(jobs, pid, processes) == jobs, pid
    assert choose_by_pid(jobs, 500, processes) == []


def test_a_job_is_followed_until_its_last_rank_has_ended() -> None:
    ranks = [make(110 + rank, 100, environ=torchrun(rank, 2)) for rank in range(2)]
    (job,) = find(AGENT, *ranks)
    again = make(111, 1, (PYTHON, "other.py"), ticks=999)
    left = keep_living(job, {110: ranks[0], 111: again})
    assert left is not None
    assert ([rank.pid for rank in left.ranks], left.missing) == ([110], RankSet([1]))
    assert keep_living(job, {111: again}) is None


def test_ranks_that_the_agent_has_started_anew_are_the_same_job() -> None:
    (job,) = find(AGENT, *(make(110 + rank, 100, environ=torchrun(rank, 2)) for rank in range(2)))
    anew = [
        make(120 + rank, 100, environ=torchrun(rank, 2, TORCHELASTIC_RESTART_COUNT="1")) for rank in range(2)
    ]
    now = {each.pid: each for each in (AGENT, *anew)}
    followed = follow_job(job, now, lambda _: {})
    assert followed is not None
    assert [rank.pid for rank in followed.ranks] == [120, 121]
    other = make(100, ticks=5000, command=AGENT.command)  # another process under its number
    assert follow_job(job, {**now, 100: other}, lambda _: {}) is None
    assert follow_job(job, {100: AGENT}, lambda _: {}) is None


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ((PYTHON, "-u", "dir/train.py", "--x"), "train.py"),
        ((PYTHON, "-m", "pkg.train"), "-m pkg.train"),
        ((PYTHON, "-c", "import secret"), "-c …"),
        (("timeout", "900", "python"), "timeout"),
        ((), "?"),
    ],
)
def test_a_job_is_called_by_its_script(command: tuple[str, ...], name: str) -> None:
    assert name_script(command) == name


def test_a_process_is_read_and_its_environment_is_not_kept(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True); input()"],
        env={**os.environ, **torchrun(1, 2), "MY_PASSWORD": "hidden-word", "HOSTNAME": "node-a"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        seen = read_process(child.pid)
        assert seen is not None
        assert (seen.python, seen.marked, seen.place.rank, seen.host) == (True, True, 1, "node-a")
        assert "hidden-word" not in repr(seen)
        assert seen.age_s < 600
        found = read_processes()
        assert child.pid in found
        assert os.getpid() not in found
    finally:
        child.communicate(b"\n")
    assert read_process(child.pid) is None
