"""A training program for tasks of srun and mpirun, and what a `ddpdoctor run` per task left of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

from ddpdoctor.report.schema import load_schema

PROGRAM = """\
import os
import sys
import time

import torch
import torch.distributed as dist

FIRST = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
SECOND = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
rank, size = (int(next(os.environ[name] for name in names if name in os.environ)) for names in (FIRST, SECOND))
where = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
mode = sys.argv[1]

dist.init_process_group("gloo", init_method=where, rank=rank, world_size=size)
value = torch.ones(4)
for step in range(3):
    dist.all_reduce(value)
if mode == "raise" and rank == size - 1:
    raise ValueError("bad batch")  # FAULT
if mode == "kill" and rank == size - 1:
    os.kill(os.getpid(), 9)
if mode == "hang":
    if rank == size - 1:
        dist.barrier()  # OTHER
    else:
        dist.all_reduce(value)  # SAME
if mode == "loop":
    open(f"going-{rank}", "w").close()
    while True:
        dist.all_reduce(value)
        time.sleep(0.05)
dist.barrier()
dist.destroy_process_group()
"""


def write_program(folder: Path) -> Path:
    """Write the program into a folder of its own and return that."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(PROGRAM)
    return folder


def line_of(mark: str) -> int:
    """Return the line of the program that ends with a comment."""
    return next(n for n, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith(f"# {mark}"))


def read_report(folder: Path, job: str = "*") -> dict[str, Any]:
    """Return the one report of a job, which fits the schema."""
    (path,) = (folder / "ddpdoctor-runs").glob(f"{job}/report.json")
    report: dict[str, Any] = json.loads(path.read_text())
    jsonschema.validate(report, load_schema())
    assert not list(path.parent.glob("task-*/report.*")), "one task judges for all"
    return report


def count_verdicts(text: str) -> int:
    """Return how many verdicts stand in what all tasks printed."""
    lines = text.splitlines()
    return sum(line.startswith(("ddpdoctor ✖", "ddpdoctor ?", "ddpdoctor ✓")) for line in lines)
