"""Jobs that other launchers start: a rank that fails is named with its line, however it was started."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """\
import os
import signal
import sys

import torch
import torch.distributed as dist


def train(mode):
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(4))
    if mode == "raise" and rank == 1:
        raise ValueError("bad batch")  # raise
    if mode == "kill" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # kill
    if mode == "sizes":
        dist.all_reduce(torch.ones(64 if rank else 1))  # sizes
    dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(next(each for each in sys.argv if each in ("healthy", "raise", "kill", "sizes")))
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
    ray.init(num_cpus=2, include_dashboard=False)
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


def run(folder: Path, launcher: str, mode: str) -> dict[str, Any]:
    """Return the report of a job."""
    for name in PACKAGES.get(launcher, "").split("."):
        if name and name != "train" and importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    for name, text in (("train.py", PROGRAM), ("spawns.py", SPAWNS), ("rays.py", RAY)):
        (folder / name).write_text(text)
    scripts = os.path.dirname(sys.executable)
    variables = {"DS_ACCELERATOR": "cpu", "RAY_TRAIN_V2_ENABLED": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "ddpdoctor", "run", "--run-dir", "runs", "--", *COMMANDS[launcher], mode],
        cwd=folder,
        env={**os.environ, **variables, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        timeout=280,
        check=False,
    )
    report = folder / "runs" / "report.json"
    found: dict[str, Any] = json.loads(report.read_text())
    return found


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
    assert finding["ranks"] == ([] if launcher == "ray" else [1])  # Ray catches it


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
