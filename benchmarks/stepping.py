"""A job whose steps are timed with the hooks of `run` on and off in turn; each rank writes what it measured.

    stepping.py FOLDER MILLISECONDS ROUNDS STEPS [PARAMETERS]

Takes DDP steps of a small model on gloo, made as long as asked for by a loop that counts: one that waited for the clock
would hide what the hooks cost within it. Each step sums its loss over the ranks and prints it now and then, as training
scripts do.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

STATES = ("off", "on", "again")
"""``again`` is off as well: it gives the gap of A against A."""
ORDERS = tuple(permutations(STATES))
WARM_UP = 200
"""Steps before anything is timed; the hooks that look at the first forwards are gone by then."""
SETTLING = 1
"""Steps after a change of state that are not timed."""
PRINTED = 10
"""Every so many steps a line is printed."""


def read_processor(pid: int) -> float:
    """Return the user and system time of a process in seconds, in steps of 0.01 (fields 14 and 15 of proc(5) stat)."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_folder(path: str | None) -> int:
    """Return the bytes of evidence in a run directory, without logs."""
    if not path:
        return 0
    found = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(os.stat(each).st_blocks * 512 for each in found if f"{os.sep}logs{os.sep}" not in each)


def read_looks() -> float:
    """Return the seconds that the looks at steps have taken, as the watcher itself measures them."""
    budget = sys.modules.get("ddpdoctor_watch.core.budget")
    return getattr(budget, "spent_ns", 0) / 1e9


def make_step(
    torch: Any, dist: Any, parameters: int, wrap: Callable[[Any], Any] | None = None, device: str = "cpu"
) -> Callable[[int], None]:
    """Return a training step of a model with so many parameters; it gets the length of its loop.

    ``wrap`` makes the model distributed, DistributedDataParallel unless another is given; ``device`` is what it is on.
    """
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU()]
    layers += [torch.nn.Linear(64, 64) for _ in range(parameters // 2 - 2)]
    layers.append(torch.nn.Linear(64, 10))
    model = (wrap or torch.nn.parallel.DistributedDataParallel)(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch, labels = torch.randn(16, 64).to(device), torch.randint(0, 10, (16,)).to(device)
    count = 0

    def step(loops: int) -> None:
        nonlocal count
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch), labels)
        loss.backward()
        optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        for _ in range(loops):
            pass
        count += 1
        if count % PRINTED == 0:
            print(f"step {count} loss {total.item() / dist.get_world_size():.4f}", flush=True)

    return step


def calibrate(step: Callable[[int], None], wanted_s: float, torch: Any, dist: Any) -> int:
    """Return the length of the loop with which a step takes ``wanted_s``, the same on all ranks."""
    bare = statistics.median(time_steps(step, WARM_UP, 0)[0])
    loops = 1_000_000
    began = time.perf_counter()
    for _ in range(loops):
        pass
    missing = torch.tensor(max(0.0, wanted_s - bare) / (time.perf_counter() - began) * loops)
    dist.broadcast(missing, 0)
    return int(missing.item())


def time_steps(step: Callable[[int], None], steps: int, loops: int) -> tuple[list[float], float]:
    """Return the seconds of each step, and the processor time of one on average."""
    for _ in range(SETTLING):
        step(loops)
    times: list[float] = []
    used = time.process_time()
    for _ in range(steps):
        began = time.perf_counter()
        step(loops)
        times.append(time.perf_counter() - began)
    return times, (time.process_time() - used) / steps


def take_rounds(
    step: Callable[[int], None], turn: Callable[[bool], None], rounds: int, steps: int, loops: int
) -> dict[str, dict[str, list[float]]]:
    """Time the states in turn, in all their orders; return the median step and the processor time of each turn."""
    found: dict[str, dict[str, list[float]]] = {state: {"wall": [], "processor": []} for state in STATES}
    for number in range(rounds):
        for state in ORDERS[number % len(ORDERS)]:
            turn(state == "on")
            times, used = time_steps(step, steps, loops)
            found[state]["wall"].append(statistics.median(times))
            found[state]["processor"].append(used)
    return found


def main() -> None:
    """Measure, and write ``rank-N.json``; where nothing watches, all states are one."""
    import torch
    import torch.distributed as dist

    folder, wanted_s = Path(sys.argv[1]), float(sys.argv[2]) / 1e3
    rounds, steps = int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step = make_step(torch, dist, int(sys.argv[5]) if len(sys.argv) > 5 else 4)
    loops = calibrate(step, wanted_s, torch, dist)
    calls: dict[str, dict[str, int]] = {}
    turn: Callable[[bool], None] = _leave
    if os.environ.get("DDPDOCTOR_RUN"):
        from benchmarks.switching import Switch, count_calls

        turn = Switch().turn
        for state in ("off", "on", "on"):  # twice: a call site is written down when it is first met
            turn(state == "on")
            calls[state] = count_calls(lambda: step(loops))
    take_rounds(step, turn, 1, steps, loops)  # what is written once is not evidence of each hour
    beside = {"supervisor": int(os.environ.get("DDPDOCTOR_SUPERVISOR", 0)), "agent": os.getppid()}
    before = {name: read_processor(pid) for name, pid in beside.items() if pid}
    written = measure_folder(os.environ.get("DDPDOCTOR_RUN"))
    looks = read_looks()
    began = time.perf_counter()
    found = take_rounds(step, turn, rounds, steps, loops)
    seconds = time.perf_counter() - began
    result = {
        "states": found,
        "calls": calls,
        "seconds": seconds,
        "beside": {name: (read_processor(beside[name]) - used) / seconds for name, used in before.items()},
        "written": measure_folder(os.environ.get("DDPDOCTOR_RUN")) - written,
        "looks": read_looks() - looks,
    }
    turn(True)
    (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def _leave(_: bool) -> None:
    """Nothing is there to be switched."""


if __name__ == "__main__":
    main()
