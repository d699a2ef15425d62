"""ddpdoctor under a real Slurm on two nodes: what users type, what they read, what is left."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ddpdoctor.gather.network.ports import free_port
from tests.hosts.harness import Result

from .cluster import LIMIT_S, Cluster, unavailable_reason
from .jobs import count_verdicts, line_of, read_report, write_program

DOCTOR = (sys.executable, "-m", "ddpdoctor")
RUN = (*DOCTOR, "run", "--nodes-wait", "60")
"""On a busy machine tasks may need longer than the 3 s that people wait; the wait ends when all have ended."""
PROGRAM = ("--", sys.executable, "train.py")
EACH = ("-n", "2", "-N", "2")


def has_pmix() -> bool:
    """Whether Slurm's plugin finds its library, under the name without a version."""
    with suppress(OSError):
        return bool(ctypes.CDLL("libpmix.so"))
    return False


needs_pmix = pytest.mark.skipif(not has_pmix(), reason="srun --mpi=pmix needs Debian's libpmix-dev")


def master() -> dict[str, str]:
    return {"MASTER_ADDR": "node-a", "MASTER_PORT": str(free_port())}


def wait_for_ranks(folder: Path, count: int) -> None:
    end = time.monotonic() + LIMIT_S
    while len(list(folder.glob("going-*"))) < count and time.monotonic() < end:
        time.sleep(0.2)


def srun(cluster: Cluster, folder: Path, *words: str) -> Result:
    return cluster.run(["srun", *words], write_program(folder), master())


def test_tasks_of_srun_get_one_verdict_with_their_hosts(cluster: Cluster, tmp_path: Path) -> None:
    result = srun(cluster, tmp_path, *EACH, *RUN, *PROGRAM, "raise")
    assert result.returncode == 1, result.describe()
    assert count_verdicts(result.stderr) == 1, result.stderr
    report = read_report(tmp_path)
    finding = report["findings"][0]
    assert (finding["code"], finding["ranks"], finding["nodes"]) == ("ERR001", [1], ["node-b"])
    assert (finding["where"][0]["file"], finding["where"][0]["line"]) == ("train.py", line_of("FAULT"))
    assert [(node["host"], node["ranks"]) for node in report["world"]["nodes"]] == [
        ("node-a", [0]),
        ("node-b", [1]),
    ]
    assert (report["world"]["launcher"], report["world"]["size"]) == ("srun", 2)


@needs_pmix
def test_tasks_that_pmix_connects_get_the_same_verdict(cluster: Cluster, tmp_path: Path) -> None:
    result = srun(cluster, tmp_path, "--mpi=pmix", *EACH, *RUN, *PROGRAM, "raise")
    assert result.returncode == 1, result.describe()
    assert count_verdicts(result.stderr) == 1, result.stderr
    finding = read_report(tmp_path)["findings"][0]
    assert (finding["code"], finding["ranks"], finding["nodes"]) == ("ERR001", [1], ["node-b"])


@pytest.mark.long
@needs_pmix
def test_machines_are_tested_under_pmix(cluster: Cluster, tmp_path: Path) -> None:
    result = srun(cluster, tmp_path, "--mpi=pmix", *EACH, *DOCTOR, "check", "--skip", "bandwidth")
    assert result.returncode == 0, result.describe()
    assert "all 2 node pairs reached" in result.stdout


@pytest.mark.long
def test_healthy_step_says_so_once(cluster: Cluster, tmp_path: Path) -> None:
    result = srun(cluster, tmp_path, "-n", "3", "-N", "2", *RUN, *PROGRAM, "ok")
    assert (result.returncode, count_verdicts(result.stderr)) == (0, 1), result.describe()
    assert read_report(tmp_path)["verdict"]["status"] == "healthy"


@pytest.mark.long
def test_hang_across_tasks_is_named_while_the_job_lives(cluster: Cluster, tmp_path: Path) -> None:
    """The program would wait for ever: that it ended at all shows that the hang was seen live."""
    result = srun(cluster, tmp_path, "-n", "4", "-N", "2", *RUN, *PROGRAM, "hang")
    assert (result.returncode, result.timed_out) == (1, False), result.describe()
    assert result.stderr.count("ddpdoctor: COL003: ") == 1, result.stderr
    assert count_verdicts(result.stderr) == 1
    report = read_report(tmp_path)
    finding = report["findings"][0]
    assert (finding["code"], finding["ranks"], finding["nodes"]) == ("COL003", [3], ["node-b"])
    assert (report["job"]["exit_code"], report["job"]["stopped_by"]) == (1, "ddpdoctor")


@pytest.mark.long
def test_task_that_is_not_watched_keeps_the_rest_from_being_healthy(cluster: Cluster, tmp_path: Path) -> None:
    doctor, program = " ".join((*DOCTOR, "run")), f"{sys.executable} train.py ok"
    choose = f"if [ $SLURM_PROCID = 1 ]; then exec {program}; else exec {doctor} -- {program}; fi"
    result = srun(cluster, tmp_path, *EACH, "sh", "-c", choose)
    assert result.returncode == 0
    assert "saw 1 of 2 ranks (rank 0)" in result.stderr
    assert "nothing found" not in result.stderr
    assert read_report(tmp_path)["verdict"]["status"] == "unknown"


@pytest.mark.long
def test_killed_rank_is_named(cluster: Cluster, tmp_path: Path) -> None:
    result = srun(cluster, tmp_path, *EACH, *RUN, *PROGRAM, "kill")
    assert (result.returncode, count_verdicts(result.stderr)) == (137, 1), result.describe()
    finding = read_report(tmp_path)["findings"][0]
    assert (finding["code"], finding["ranks"]) == ("ERR005", [1])


@pytest.mark.long
@pytest.mark.parametrize("how", ["scancel", "time limit"])
def test_report_is_written_before_slurm_kills(cluster: Cluster, tmp_path: Path, how: str) -> None:
    folder = write_program(tmp_path)
    limit = ("-t", "1") if how == "time limit" else ()
    step = cluster.start(["srun", *limit, *EACH, *RUN, *PROGRAM, "loop"], folder, master())
    wait_for_ranks(folder, 2)
    if how == "scancel":
        (job,) = (folder / "ddpdoctor-runs").glob("slurm-*")
        cluster.run(["scancel", job.name.removeprefix("slurm-").partition(".")[0]], folder)
    result = step.wait(LIMIT_S)
    assert count_verdicts(result.stderr) == 1, result.describe()
    assert "stopped by SIGTERM" in result.stderr
    report = read_report(folder)
    assert report["verdict"]["code"] is None
    assert len(report["evidence"]["processes"]) == 2


@pytest.mark.long
def test_lost_node_is_named(tmp_path: Path) -> None:
    reason = unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    folder = write_program(tmp_path)
    with Cluster(2) as cluster:
        step = cluster.start(["srun", "-n", "3", "-N", "2", *RUN, *PROGRAM, "loop"], folder, master())
        wait_for_ranks(folder, 3)
        cluster.hosts[1].kill_everything()
        result = step.wait(LIMIT_S)
    assert count_verdicts(result.stderr) == 1, result.describe()
    finding = read_report(folder)["findings"][0]
    assert (finding["code"], finding["nodes"]) == ("NET015", ["node-b"])


@pytest.mark.long
def test_one_run_per_node_in_a_batch_script_prints_once(cluster: Cluster, tmp_path: Path) -> None:
    """torchrun's agents join the nodes; the run directory that both share says who prints."""
    folder = write_program(tmp_path)
    doctor = " ".join((*RUN, "--nproc", "2", "--nnodes", "2", "--rdzv-backend", "c10d"))
    (folder / "job.sh").write_text(
        f"#!/bin/sh\nsrun {doctor} --rdzv-endpoint node-a:{free_port()} train.py raise\n"
    )
    cluster.run(["sbatch", "--wait", *EACH, "-o", "out", "job.sh"], folder)
    said = (folder / "out").read_text()
    assert count_verdicts(said) == 1, said
    report = read_report(folder)
    finding = report["findings"][0]
    assert (finding["code"], len(finding["ranks"])) == ("ERR001", 1)
    assert [len(node["ranks"]) for node in report["world"]["nodes"]] == [2, 2]


@pytest.mark.long
@pytest.mark.parametrize(("nodes", "ranks"), [(1, [[0, 1]]), (2, [[0, 1], [2, 3]])])
def test_check_under_srun_is_healthy_and_prints_once(
    cluster: Cluster, tmp_path: Path, nodes: int, ranks: list[list[int]]
) -> None:
    tasks = str(2 * nodes)
    result = srun(cluster, tmp_path, "-n", tasks, "-N", str(nodes), *DOCTOR, "check", "--skip", "bandwidth",
                  "--ignore", "ENV016", "--json", "report.json")  # fmt: skip
    assert result.returncode == 0, result.describe()
    assert count_verdicts(result.stdout) == 1, result.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"]["status"] == "healthy"
    assert [node["ranks"] for node in report["world"]["nodes"]] == ranks


PREEMPTION = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes=ALL PriorityTier=1 OverSubscribe=NO PreemptMode={mode} GraceTime={grace}
PartitionName=high Nodes=ALL PriorityTier=10 OverSubscribe=NO PreemptMode=OFF"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "grace", "why"),
    [("REQUEUE", 0, "Slurm requeued the job"), ("CANCEL", 20, "Slurm preempted the job")],
)
def test_preemption_is_said_and_the_second_attempt_stands_by_itself(
    tmp_path: Path, mode: str, grace: int, why: str
) -> None:
    reason = unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    folder = write_program(tmp_path)
    doctor = " ".join((*RUN, *PROGRAM))
    (folder / "job.sh").write_text(
        "#!/bin/sh\n"
        f"export MASTER_ADDR=node-a MASTER_PORT={free_port()}\n"
        f"srun {doctor} $([ ${{SLURM_RESTART_COUNT:-0}} = 0 ] && echo loop || echo ok)\n"
    )
    batch = ["sbatch", "--requeue", "-p", "low", *EACH, "--exclusive", "-o", "out", "--open-mode=append"]
    with Cluster(2, PREEMPTION.format(mode=mode, grace=grace)) as cluster:
        cluster.run([*batch, "job.sh"], folder)
        wait_for_ranks(folder, 2)
        cluster.run(["srun", "-p", "high", *EACH, "--exclusive", "true"], folder)
        cluster.run(
            ["scontrol", "update", "JobId=1", "StartTime=now"], folder
        )  # it waits for two minutes else
        end = time.monotonic() + LIMIT_S
        while cluster.run(["squeue", "-h", "-j", "1"], folder).stdout.strip() and time.monotonic() < end:
            time.sleep(0.5)
    said = (folder / "out").read_text()
    assert f"stopped by SIGTERM: {why}" in " ".join(said.split()), said
    assert read_report(folder, "slurm-1.0")["verdict"]["status"] == "unknown"
    again = sorted(path.name for path in (folder / "ddpdoctor-runs").glob("*restart*"))
    assert again == (["slurm-1.0-restart-1"] if mode == "REQUEUE" else [])
    if again:
        assert read_report(folder, again[0])["verdict"]["status"] == "healthy"
        assert count_verdicts(said) == 2
