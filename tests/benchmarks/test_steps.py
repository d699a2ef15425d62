"""That the benchmark of steps switches all hooks, times what it says, and refuses what it could not switch."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import stepping, steps
from benchmarks.figures import BenchmarkError
from benchmarks.machine import ROOT
from ddpdoctor.watch.launch.job import INJECT
from tests.watch.injecting import environment

SWITCHING = """
import gc, json, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from benchmarks.switching import Switch, count_calls

dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(2, 2))
batch, total = torch.ones(1, 2), torch.ones(1)

def step():
    model(batch).sum().backward()
    dist.all_reduce(total)
    dist.barrier()

for _ in range(20):
    step()
switch = Switch()
found = []
for state in (False, True, False):
    switch.turn(state)
    step()
    found.append(count_calls(step))
print(json.dumps(found))
del model
gc.collect()  # torch may abort a process in which a wrapper is alive at its end
"""


@pytest.mark.long
def test_all_hooks_of_a_step_are_switched_off_and_on_again(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    environ = {**environment(None), "PYTHONPATH": os.pathsep.join((str(INJECT), str(ROOT)))}
    environ["DDPDOCTOR_RUN"] = str(tmp_path / "run")
    command = [sys.executable, "-c", SWITCHING, str(tmp_path / "store")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    off, on, off_again = json.loads(done.stdout)
    assert off == off_again == {}
    assert any(name.startswith("calls.") for name in on)


def test_states_take_turns_in_all_orders_and_settle_before_they_are_timed() -> None:
    seen: list[str] = []
    found = stepping.take_rounds(
        lambda loops: seen.append(f"step {loops}"), lambda on: seen.append("on" if on else "off"), 6, 2, 7
    )
    turns = [each for each in seen if not each.startswith("step")]
    assert turns.count("on") == 6
    assert {tuple(turns[i : i + 3]).index("on") for i in range(0, 18, 3)} == {0, 1, 2}
    assert seen[1:4] == ["step 7"] * (2 + stepping.SETTLING)
    assert {state: len(kinds["wall"]) for state, kinds in found.items()} == dict.fromkeys(stepping.STATES, 6)


def rank(
    on: float, off: float, again: float, calls: dict[str, dict[str, int]] | None = None
) -> dict[str, Any]:
    """What one rank measured: a step in seconds in each state, the same in all of five rounds."""
    states = {"on": on, "off": off, "again": again}
    return {
        "states": {name: {"wall": [value] * 5, "processor": [value] * 5} for name, value in states.items()},
        "calls": calls or {"on": {"calls.begin": 3}, "off": {}},
        "seconds": 10.0,
        "beside": {"supervisor": 0.01, "agent": 0.03},
        "written": 1000,
    }


def test_the_difference_is_that_of_the_ranks_mean_round_by_round() -> None:
    ranks = [rank(0.01005, 0.010, 0.010), rank(0.01015, 0.010, 0.010)]
    ranks[0]["states"]["on"]["wall"][2] = 5.0  # one round in which the machine did something else
    plain = [rank(0.01, 0.01, 0.01) for _ in range(2)]
    plain[0]["beside"] = {"agent": 0.02}
    for each in plain:
        each["states"]["off"]["processor"] = [0.009] * 5
    found = {figure.what: figure for figure in steps.judge(10, 4, ranks, plain)}
    assert found["10 ms step: more with hooks"].value == pytest.approx(0.1)
    assert found["10 ms step: off against off"].value == 0
    more = "10 ms step: hooks off, more processor time than under torchrun"
    assert found[more].value == pytest.approx(1.0)
    assert found["10 ms step: supervisor"].value == pytest.approx(1.0)
    assert found["10 ms step: agent, more than torchrun's"].value == pytest.approx(1.0)
    assert found["10 ms step: evidence of an hour"].value == pytest.approx(0.36)


def test_a_hook_that_stays_or_none_at_all_is_no_measurement() -> None:
    plain = [rank(1, 1, 1)]
    stays = copy.deepcopy(plain[0])
    stays["calls"]["off"] = {"calls.begin": 1}
    with pytest.raises(BenchmarkError, match=r"cannot be switched: calls\.begin"):
        steps.judge(1, 1, [stays], plain)
    none = rank(1, 1, 1, {"on": {}, "off": {}})
    with pytest.raises(BenchmarkError, match="no hook was called"):
        steps.judge(1, 1, [none], plain)


def test_evidence_is_counted_without_logs(tmp_path: Path) -> None:
    for name in ("logs", "processes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * 100_000)
    assert 100_000 <= stepping.measure_folder(str(tmp_path)) < 200_000
    assert stepping.measure_folder(None) == 0
