"""`ddpdoctor check` under other launchers and by hand: each rank has a temporary directory of its own, none the counts."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from ddpdoctor.gather.network.ports import free_port
from tests.launch.doctor import Result, Running, check, start

DOCTOR = (sys.executable, "-m", "ddpdoctor")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "ddpdoctor")
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", *DOCTOR)
SHARED = ("--skip", "bandwidth")
IDLE = {"OMP_NUM_THREADS": "1"}
"""What the threads of the ranks are is no question here."""


def require_healthy(result: Result) -> None:
    assert result.report is not None, result.err
    assert result.report["verdict"]["status"] == "healthy", result.out
    kept = [path for path in result.left if "torchelastic_" not in path]  # torchrun's own
    assert (result.code, kept) == (0, [])


def experiment(result: Result, name: str) -> dict[str, object]:
    assert result.report is not None
    return next(dict(each) for each in result.report["evidence"]["experiments"] if each["name"] == name)


def test_world_of_one_rank_is_healthy(tmp_path: Path) -> None:
    """What takes two ranks does not apply to it; it was "could not tell"."""
    result = check(tmp_path, "--nproc", "1")
    require_healthy(result)
    assert result.report is not None
    assert {row["status"] for row in result.report["checks"]} <= {"pass", "skipped"}


@pytest.mark.parametrize(
    "program",
    [pytest.param(TORCHRUN, id="torchrun"), pytest.param(MPIRUN, id="mpirun", marks=pytest.mark.long)],
)
def test_other_launchers_on_one_node_are_healthy(tmp_path: Path, program: tuple[str, ...]) -> None:
    if shutil.which(program[0]) is None:
        pytest.skip(f"{program[0]} is not installed")
    result = check(tmp_path, *SHARED, environ=IDLE, program=program)
    require_healthy(result)
    assert experiment(result, "checkpoint")["facts"] == {"by": "file", **_rest(result)}
    assert result.out.count("healthy") == 1


def _rest(result: Result) -> dict[str, object]:
    facts = experiment(result, "checkpoint")["facts"]
    assert isinstance(facts, dict)
    return {key: value for key, value in facts.items() if key != "by"}


def start_ranks(
    stack: ExitStack, folder: Path, world: int, ranks: list[tuple[int, int]], *options: str, **variables: str
) -> list[Running]:
    """Start ranks by hand: (rank, port) each."""
    running = []
    for number, (rank, port) in enumerate(ranks):
        environ = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
        environ |= {"MASTER_PORT": str(port), **IDLE, **variables}
        running.append(stack.enter_context(start(folder / str(number), *options, environ=environ)))
    return running


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({}, id="uncounted"),
        pytest.param({"LOCAL_WORLD_SIZE": "2"}, id="counted", marks=pytest.mark.long),
    ],
)
def test_ranks_started_by_hand_are_healthy_and_say_it_once(tmp_path: Path, variables: dict[str, str]) -> None:
    port = free_port()
    with ExitStack() as stack:
        running = start_ranks(stack, tmp_path, 2, [(0, port), (1, port)], *SHARED, **variables)
        results = [each.finish() for each in running]
    require_healthy(results[0])
    assert (results[1].code, results[1].out, results[1].left) == (0, "", [])
    assert results[0].report is not None
    assert [node["ranks"] for node in results[0].report["world"]["nodes"]] == [[0, 1]]


@pytest.mark.parametrize(
    "limit", [("--join-timeout", "12"), pytest.param(("--timeout", "30"), marks=pytest.mark.long)]
)
@pytest.mark.long
def test_missing_rank_is_named_whatever_limit_ends_the_wait(tmp_path: Path, limit: tuple[str, str]) -> None:
    port = free_port()
    with ExitStack() as stack:
        running = start_ranks(stack, tmp_path, 3, [(0, port), (2, port)], *SHARED, *limit)
        results = [each.finish() for each in running]
    for result in results:
        assert (result.code, result.left) == (1, []), result.out + result.err
        assert result.codes()[0] == "NET006"
        assert result.first()["ranks"] == [1]
        assert "BKD011" not in result.codes()
        assert result.report is not None
        (view,) = {
            (v["limit_option"], v["error"].split("(")[1]) for v in result.report["evidence"]["rendezvous"]
        }
        assert view == (limit[0], f"{limit[0]} {limit[1]})")


@pytest.mark.long
def test_rank_at_another_port_is_named_on_both_sides(tmp_path: Path) -> None:
    with ExitStack() as stack:
        ranks = [(0, free_port()), (1, free_port())]
        results = [r.finish() for r in start_ranks(stack, tmp_path, 2, ranks, *SHARED, "--join-timeout", "8")]
    assert [result.codes()[0] for result in results] == ["NET006", "NET006"]
    assert [result.first()["ranks"] for result in results] == [[1], [0]]
    assert "Connection refused" in results[1].first()["message"]


def test_rank_claimed_twice_is_named_under_a_short_limit(tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        ranks = [(0, port), (1, port), (1, port)]
        results = [r.finish() for r in start_ranks(stack, tmp_path, 3, ranks, *SHARED, "--timeout", "40")]
    assert {result.codes()[0] for result in results} == {"ENV002"}


@pytest.mark.long
def test_variable_of_the_shell_that_asks_for_too_many_threads_is_named(tmp_path: Path) -> None:
    threads = 64 * (os.cpu_count() or 1)
    result = check(
        tmp_path, "--nproc", "2", "--only", "facts,rendezvous", environ={"OMP_NUM_THREADS": str(threads)}
    )
    assert (result.code, result.first()["code"], result.first()["severity"]) == (0, "ENV011", "warning")
    assert f"OMP_NUM_THREADS={threads}" in result.first()["message"]


def slow_import(folder: Path, seconds: float) -> dict[str, str]:
    """Return variables under which whoever will import torch sleeps first, as on a cold or busy machine."""
    folder.mkdir(parents=True)
    text = f"if 'multiprocessing.forkserver' in str(sys.orig_argv): time.sleep({seconds})"
    (folder / "sitecustomize.py").write_text(f"import sys, time\n{text}\n")
    return {"PYTHONPATH": str(folder)}


@pytest.mark.long
def test_slow_import_of_torch_is_waited_for(tmp_path: Path) -> None:
    result = check(
        tmp_path, "--nproc", "1", "--only", "rendezvous", environ=slow_import(tmp_path / "site", 8)
    )
    assert result.code == 0, result.out + result.err
    assert result.codes() == []


def test_limit_that_ends_the_import_of_torch_blames_nothing(tmp_path: Path) -> None:
    begun = time.monotonic()
    result = check(tmp_path, "--nproc", "1", "--timeout", "5", environ=slow_import(tmp_path / "site", 60))
    assert time.monotonic() - begun < 40
    assert (result.code, result.codes(), result.left) == (3, [], [])
    assert "cannot be imported" not in result.out + result.err
    assert "torch was still being imported when --timeout 5 expired" in result.stage("rendezvous")["reason"]


@pytest.mark.long
def test_cut_names_the_limit_that_cut_and_how_long_it_was(tmp_path: Path) -> None:
    """Stopped ranks of one node, cut by the limit of the command: not by that of the stage."""
    with start(tmp_path, "--nproc", "2", "--skip", "bandwidth", "--timeout", "30") as running:
        running.wait_for(lambda: running.events("rank-0"))
        os.kill(running.pid_of("rank-0"), signal.SIGSTOP)
        result = running.finish()
    assert (result.code, result.left) == (1, [])
    assert result.report is not None
    finding = next(each for each in result.report["findings"] if each["code"] == "BKD011")
    stage = result.stage(finding["details"]["stage"])
    assert (stage["status"], stage["limit_option"], stage["limit_s"]) == ("cut", "--timeout", 30.0)
    assert f"was cut after {stage['duration_s']:.1f} s by --timeout 30" in finding["message"]
    assert stage["duration_s"] < 30.5
