"""A plain training job that times its own steps; nothing in it knows of ddpdoctor.

    training.py FOLDER MILLISECONDS STEPS [PARAMETERS] [ddp|fsdp]

Takes steps of a small model on gloo, made as long as asked for by a loop that counts: one that waited for the clock
would hide what the hooks cost within it. Each rank writes the seconds of each step and its processor time, of the
first steps and of those after them: `run` measures short steps one by one only as long as the former last.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.stepping import WARM_UP, calibrate, make_step, time_steps

UNTIMED = 64
"""Steps between the calibration and the first that counts."""
FIRST = 800
"""Steps that count as the first ones. With those before them they are more than the 1,024 that `run` measures all."""


def main() -> None:
    """Train, and write ``rank-N.json``."""
    import torch
    import torch.distributed as dist

    folder, wanted_s, steps = Path(sys.argv[1]), float(sys.argv[2]) / 1e3, int(sys.argv[3])
    parameters = int(sys.argv[4]) if len(sys.argv) > 4 else 4
    sharded = sys.argv[5:] == ["fsdp"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step: Callable[[int], None] = make_step(torch, dist, parameters, _shard if sharded else None)
    loops = _read_loops(folder) or calibrate(step, wanted_s, torch, dist)
    if dist.get_rank() == 0:
        (folder / "loops").write_text(str(loops))
    for _ in range(WARM_UP + UNTIMED):
        step(loops)
    phases = (("first", FIRST), ("steady", steps))
    result = {name: time_steps(step, count, loops) for name, count in phases}
    (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def _read_loops(folder: Path) -> int:
    """Return the length of the loop that an earlier run of this folder found: all runs do the same work."""
    kept = folder.parent / "loops"
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
