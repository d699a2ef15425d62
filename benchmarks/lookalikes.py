"""Processes that look like the ranks of a job that hangs, without torch: 64 of them fit on any machine.

Their environment is torchrun's, their stacks go through a file that is called as torch's own is.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.figures import BenchmarkError

READY_S = 120.0
"""For all of them to stand where they are meant to, on a busy machine."""
LIBRARY = """
import time


def all_reduce(tensor):
    time.sleep(100_000)


def barrier():
    time.sleep(100_000)
"""
PROGRAM = """
import os
import time
from pathlib import Path

from torch.distributed import distributed_c10d as dist


def read_shard():
    time.sleep(100_000)


def train_step():
    dist.all_reduce(None)


def spin():
    total = 0
    while True:
        total += sum(range(1000))
        total -= sum(range(1000))


def main():
    rank = os.environ["RANK"]
    what = os.environ.get("STAND_" + rank, "all_reduce")
    Path("ready-" + rank).touch()
    if what == "read":
        read_shard()
    if what == "spin":
        spin()
    if what == "native":
        sum(range(10**12))
    if what == "barrier":
        dist.barrier()
    train_step()


main()
"""


def write_program(folder: Path) -> None:
    """Write the program and what it takes for torch."""
    library = folder / "torch" / "distributed"
    library.mkdir(parents=True)
    (folder / "torch" / "__init__.py").touch()
    (library / "__init__.py").touch()
    (library / "distributed_c10d.py").write_text(LIBRARY)
    (folder / "train.py").write_text(PROGRAM)


@contextlib.contextmanager
def start_job(
    folder: Path, size: int, stands: Mapping[int, str], *, world: int | None = None, **variables: str
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start ranks and wait until all stand; end them afterwards.

    Args:
        folder: where the program is.
        size: ranks.
        stands: rank -> read (outside of every call), spin, native (the same in one line) or barrier; the others are in
            all_reduce.
        world: world size, if there are ranks elsewhere.
        variables: of all of them, on top of torchrun's.

    Raises:
        BenchmarkError: they did not get there.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("COV_", "COVERAGE", "DDPDOCTOR"))
    }
    common = {
        "PYTHONPATH": str(folder), "WORLD_SIZE": str(world or size), "LOCAL_WORLD_SIZE": str(size), "GROUP_RANK": "0",
        "MASTER_ADDR": "localhost", "MASTER_PORT": "29517", "TORCHELASTIC_RUN_ID": f"lookalikes-{folder}",
        "TORCHELASTIC_RESTART_COUNT": "0", **{f"STAND_{rank}": what for rank, what in stands.items()}, **variables,
    }  # fmt: skip
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(size):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append(
                subprocess.Popen(
                    [sys.executable, "train.py"],
                    cwd=folder,
                    env={**kept, **common, **own},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
            )
        _wait(folder, size)
        yield started
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def _wait(folder: Path, size: int) -> None:
    end = time.monotonic() + READY_S
    while any(not (folder / f"ready-{rank}").exists() for rank in range(size)):
        if time.monotonic() > end:
            raise BenchmarkError("the processes that look like ranks did not start")
        time.sleep(0.05)
    time.sleep(0.2)  # from the file to the call
