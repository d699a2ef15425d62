"""Training programs that fail as they are told, and the command lines that start two ranks of them."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

TRAIN = """\
import os
import sys
import time

import torch
import torch.distributed as dist


def work(mode, **how):
    dist.init_process_group("gloo", **how)
    rank, size = dist.get_rank(), dist.get_world_size()
    value = torch.ones(4)
    for step in range(3):
        dist.all_reduce(value)
    if mode == "raise" and rank == size - 1:
        raise ValueError("bad batch")  # FAULT
    if mode == "kill" and rank == size - 1:
        os.kill(os.getpid(), 9)  # KILL
    if mode == "hang":
        if rank == size - 1:
            dist.barrier()  # OTHER
        else:
            dist.all_reduce(value)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    work(sys.argv[1])
"""
LIGHTNING = """\
import os
import sys
import time
from pathlib import Path

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

mode = sys.argv[1]


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, number):
        if number == 2 and self.global_rank == 1:
            if mode == "raise":
                raise ValueError("bad batch")  # FAULT
            if mode == "kill":
                os.kill(os.getpid(), 9)  # KILL
            if mode == "hang":
                torch.distributed.barrier()  # OTHER
            if mode == "sleep":
                Path("sleeping").touch()
                time.sleep(10_000)  # SLEEP
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


if __name__ == "__main__":
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False,
                                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8))
"""
ACCELERATE = "accelerate launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no"
PYTHON = sys.executable
COMMANDS: dict[str, tuple[str | None, str]] = {
    "lightning": ("lightning", "{python} -u light.py {mode}"),
    "accelerate": ("accelerate", f"{ACCELERATE} --dynamo_backend no train.py {{mode}}"),
}
"""Launcher -> the package that it needs, and what a user types."""


def write_programs(folder: Path) -> Path:
    """Write all programs into a folder and return it."""
    for name, text in (("train.py", TRAIN), ("light.py", LIGHTNING)):
        (folder / name).write_text(text)
    return folder


def make_command(launcher: str, mode: str) -> list[str]:
    """Return a command line; skips the test where its package is not installed."""
    package, line = COMMANDS[launcher]
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    return [word.format(python=PYTHON, mode=mode) for word in line.split()]


def make_path() -> str:
    """Return a PATH on which launchers are found."""
    return os.pathsep.join((os.path.dirname(PYTHON), os.environ.get("PATH", os.defpath)))


def line_of(name: str, mark: str) -> int:
    """Return the line of a program that ends with a comment."""
    text = {"train.py": TRAIN, "light.py": LIGHTNING}[name]
    return next(n for n, line in enumerate(text.splitlines(), 1) if line.endswith(f"# {mark}"))
