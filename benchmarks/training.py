"""A plain training job that times its own steps, in slices when it is its turn; nothing in it knows of ddpdoctor.

    training.py FOLDER MILLISECONDS SLICES STEPS PARAMETERS ddp|fsdp

Takes steps of a small model on gloo, made as long as asked for by a loop that counts: one that waited for the clock
would hide what the hooks cost within it. That loop is part of a step's wall time, and not of its processor time: it
calls nothing, so nothing is watched in it, and it varies by more than hooks cost.

On a GPU the backend is NCCL. A kernel that does nothing makes a step longer, put before it, and the step ends when the
GPU is done: what hooks cost shows in the wall time only where the GPU is not slower, and in the processor time always.

FOLDER holds what all jobs share: the length of that loop, and a file in which each slice of each job has a byte, set
when it is its turn. Variables `INDEX` and `JOBS` say which job this one is. Each rank writes, of each slice, the lower
quartiles of the wall time of its steps and of the processor time of its main thread.
"""

from __future__ import annotations

import json
import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.stepping import WARM_UP, calibrate, make_step

TURNS = "turns"
UNTIMED = 10
"""Steps at the beginning of a slice: what other jobs have pushed out of the caches comes back."""
POLL_S = 0.005
CYCLES = 1.5e9
"""Of a GPU in a second, about."""
MEASURED_ALL = 1064
"""Steps of a job after which `run` no longer measures each short one, with some to spare."""


def main() -> None:
    """Train, and write ``INDEX-rank-N.json``."""
    import torch
    import torch.distributed as dist

    folder, wanted_s = Path(sys.argv[1]), float(sys.argv[2]) / 1e3
    slices, steps, parameters = map(int, sys.argv[3:6])
    index, jobs = int(os.environ["INDEX"]), int(os.environ["JOBS"])
    torch.set_num_threads(1)
    device = _choose_device(torch)
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    rank = dist.get_rank()
    step: Callable[[int], None] = make_step(
        torch, dist, parameters, _shard if sys.argv[6] == "fsdp" else None, device
    )
    gpu = None if device == "cpu" else torch.cuda
    loops = _read_loops(folder) or (int(wanted_s * CYCLES) if gpu else calibrate(step, wanted_s, torch, dist))
    looped = 0 if gpu else loops
    for _ in range(WARM_UP):
        step(looped)
    taken = 2 * WARM_UP
    if rank == 0:
        (folder / "loops").write_text(str(loops))
        (folder / f"{index}.ready").touch()
    found: list[tuple[int, float, float]] = []
    with (folder / TURNS).open("r+b") as file, mmap.mmap(file.fileno(), 0) as turns:
        for number in range(slices):
            while not turns[number * jobs + index]:
                time.sleep(POLL_S)
            for _ in range(UNTIMED):
                step(looped)
            found.append((taken + UNTIMED, *_time(step, steps, loops, gpu)))
            taken += UNTIMED + steps
            if rank == 0:
                turns[number * jobs + index + 1] = 1
    (folder / f"{index}-rank-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _choose_device(torch: Any) -> str:
    """Return the GPU of this rank, which may share it with others, or the CPU."""
    if not torch.cuda.is_available():
        return "cpu"
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    return "cuda"


def _time(step: Callable[[int], None], steps: int, loops: int, gpu: Any) -> tuple[float, float]:
    """Return lower quartiles of the wall time of so many steps and of their processor time, in seconds."""
    wall: list[float] = []
    processor: list[float] = []
    for _ in range(steps):
        began = time.perf_counter()
        if gpu is not None:
            gpu._sleep(loops)
        used = time.thread_time()
        step(0)
        processor.append(time.thread_time() - used)
        if gpu is not None:
            gpu.synchronize()
        else:
            for _ in range(loops):
                pass
        wall.append(time.perf_counter() - began)
    return statistics.quantiles(wall, n=4)[0], statistics.quantiles(processor, n=4)[0]


def _read_loops(folder: Path) -> int:
    """Return the length of the loop that the first job of this folder found: all do the same work."""
    kept = folder / "loops"
    return int(kept.read_text()) if kept.exists() else 0


def _shard(model: Any) -> Any:
    """Shard each layer and the whole, as FSDP2 is used."""
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer)
    return fully_shard(model)


if __name__ == "__main__":
    main()
