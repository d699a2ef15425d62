"""Jobs that other launchers start: a rank that fails is named with its line, however it was started."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.watch.live.stacks import find_py_spy
from tests.watch.launching import wait_for

PROGRAM = """\
import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist


def train(mode):
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(4))
    if mode == "sleep" and rank == 1:
        pathlib.Path(__file__).with_name("sleeping").write_text(f"{os.getpid()}\\n")
        time.sleep(10_000)  # sleep
    if mode == "raise" and rank == 1:
        raise ValueError("bad batch")  # raise
    if mode == "kill" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # kill
    if mode == "order":
        if rank == 1:
            dist.barrier()  # order
        else:
            dist.all_reduce(torch.ones(4))
    if mode == "sizes":
        dist.all_reduce(torch.ones(64 if rank else 1))  # sizes
    dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(next(each for each in sys.argv if each in ("healthy", "raise", "kill", "sizes", "order")))
    dist.destroy_process_group()
"""
SPAWNS = """\
import os
import sys

import torch.distributed as dist
import torch.multiprocessing as mp

from train import train


def work(rank, mode, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    train(mode)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[-1], os.path.abspath("meeting")), nprocs=2)
"""
RAY = """\
import os
import sys

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def loop(config):
    sys.path.insert(0, config["folder"])
    from train import train

    train(config["mode"])


if __name__ == "__main__":
    ray.init(**({} if "RAY_ADDRESS" in os.environ else {"num_cpus": 2, "include_dashboard": False}))
    TorchTrainer(
        loop,
        train_loop_config={"mode": sys.argv[-1], "folder": os.getcwd()},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=os.path.abspath("ray")),
    ).fit()
"""
COMMANDS = {
    "spawn": ("python", "spawns.py"),
    "launch": ("python", "-m", "torch.distributed.launch", "--nproc-per-node", "2", "train.py"),
    "torchx": ("torchx", "run", "-s", "local_cwd", "dist.ddp", "-j", "1x2", "--script", "train.py", "--"),
    "deepspeed": ("deepspeed", "--num_gpus", "2", "train.py"),
    "ray": ("python", "rays.py"),
}
PACKAGES = {"torchx": "torchx", "deepspeed": "deepspeed", "ray": "ray.train"}


def write_programs(folder: Path, launcher: str) -> None:
    """Write all programs; skips the test where the launcher's package is not installed."""
    for name in PACKAGES.get(launcher, "").split("."):
        if name and name != "train" and importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    for name, text in (("train.py", PROGRAM), ("spawns.py", SPAWNS), ("rays.py", RAY)):
        (folder / name).write_text(text)


def run(folder: Path, launcher: str, mode: str, **more: str) -> dict[str, Any]:
    """Return the report of a job."""
    write_programs(folder, launcher)
    subprocess.run(
        [sys.executable, "-m", "ddpdoctor", "run", "--run-dir", "runs", "--", *COMMANDS[launcher], mode],
        cwd=folder,
        env=variables(**more),
        capture_output=True,
        timeout=280,
        check=False,
    )
    report = folder / "runs" / "report.json"
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def variables(**more: str) -> dict[str, str]:
    scripts = os.path.dirname(sys.executable)
    ray = {"RAY_TRAIN_V2_ENABLED": "1", "RAY_AUTH_MODE": "disabled"}
    known = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", **ray, **more}
    return {**os.environ, **known, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}


def line_of(mark: str) -> int:
    return next(number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith(f"# {mark}"))


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("launch", "torchx", "deepspeed", "ray")]


@pytest.mark.parametrize("launcher", ["spawn", *LONG])
def test_sizes_that_do_not_fit_are_the_cause_and_not_the_abort(tmp_path: Path, launcher: str) -> None:
    """What gloo prints as it aborts may stand on a stream that all ranks share."""
    if launcher == "ray":
        pytest.skip("nobody sees how a worker of Ray ends")
    finding = run(tmp_path, launcher, "sizes")["findings"][0]
    assert finding["code"] == "COL003", finding
    assert finding["where"][0]["line"] == line_of("sizes")


@pytest.mark.long
@pytest.mark.parametrize("launcher", COMMANDS)
def test_an_exception_is_named_by_its_line(tmp_path: Path, launcher: str) -> None:
    finding = run(tmp_path, launcher, "raise")["findings"][0]
    assert finding["code"] == "ERR001", finding
    assert finding["where"][0]["line"] == line_of("raise")
    assert finding["ranks"] == [1]


@pytest.mark.long
@pytest.mark.parametrize("launcher", COMMANDS)
def test_a_rank_that_kills_itself_is_named(tmp_path: Path, launcher: str) -> None:
    finding = run(tmp_path, launcher, "kill")["findings"][0]
    assert (finding["code"], finding["ranks"]) == ("ERR005", [1]), finding
    assert finding["where"][0]["line"] == line_of("kill")


@pytest.mark.long
@pytest.mark.parametrize("launcher", COMMANDS)
def test_a_healthy_job_is_seen_and_left_alone(tmp_path: Path, launcher: str) -> None:
    report = run(tmp_path, launcher, "healthy")
    assert report["findings"] == []
    assert report["world"]["size"] == 2


@pytest.mark.long
@pytest.mark.parametrize("launcher", COMMANDS)
def test_ranks_that_wait_in_different_collectives_are_named(tmp_path: Path, launcher: str) -> None:
    """The program would wait for ever: that it ended at all shows that the hang was seen live."""
    report = run(tmp_path, launcher, "order")
    assert [finding["code"] for finding in report["findings"]] == ["COL003"]
    assert report["job"]["stopped_by"] == "ddpdoctor"
    assert line_of("order") in {place["line"] for place in report["findings"][0]["where"]}


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def listens(address: str, port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((address, port)) == 0


@pytest.fixture
def cluster() -> Iterator[dict[str, str]]:
    """Start a Ray cluster that knows nothing of ddpdoctor."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed")
    ask = [sys.executable, "-c", "import ray; print(ray.util.get_node_ip_address())"]
    address = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    port = find_port()
    folder = tempfile.mkdtemp(
        prefix="ray-", dir="/tmp"
    )  # its sockets have short names, and `auto` is not changed
    start = [
        "ray",
        "start",
        "--head",
        "--block",
        "--num-cpus",
        "2",
        "--port",
        str(port),
        "--temp-dir",
        folder,
    ]
    job = subprocess.Popen(
        [*start, "--include-dashboard=false"],
        env=variables(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not listens(address, port):
            assert job.poll() is None, "the cluster did not start"
            time.sleep(0.2)
        yield {"RAY_ADDRESS": f"{address}:{port}"}
    finally:
        job.terminate()
        job.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.long
def test_ranks_in_a_cluster_of_others_are_not_seen_and_that_is_said(
    tmp_path: Path, cluster: dict[str, str]
) -> None:
    (tmp_path / "well").mkdir()
    verdict = run(tmp_path / "well", "ray", "healthy", **cluster)["verdict"]
    assert verdict["status"] == "unknown"
    assert verdict["headline"].startswith("saw no rank: the workers ran in the Ray cluster")
    assert "ddpdoctor attach" in verdict["headline"]
    finding = run(tmp_path, "ray", "raise", **cluster)["findings"][0]
    assert (finding["code"], finding["ranks"]) == ("ERR001", [1])  # Ray's own words


@pytest.mark.long
@pytest.mark.skipif(find_py_spy() is None, reason="no py-spy")
def test_attach_names_the_rank_that_stalls_in_a_cluster(tmp_path: Path, cluster: dict[str, str]) -> None:
    write_programs(tmp_path, "ray")
    job = subprocess.Popen(
        [sys.executable, "rays.py", "sleep"], cwd=tmp_path, env=variables(**cluster),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        sleeping = tmp_path / "sleeping"
        wait_for(lambda: sleeping.exists() and sleeping.read_text().endswith("\n"), "rank 1 sleeps")
        attach = [sys.executable, "-m", "ddpdoctor", "attach", "--json", "attached.json"]
        subprocess.run([*attach, sleeping.read_text().strip()], cwd=tmp_path, env=variables(), check=False)
    finally:
        job.kill()
        job.wait()
    finding = json.loads((tmp_path / "attached.json").read_text())["findings"][0]
    assert (finding["code"], finding["ranks"], finding["victims"]) == ("COL009", [1], [0])
    assert finding["where"][0]["line"] == line_of("sleep")
