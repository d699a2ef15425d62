"""Nodes and local ranks by what the ranks say of their machines."""

from __future__ import annotations

from typing import Any

import pytest

from ddpdoctor.gather.launcher import detect_launcher
from ddpdoctor.launch.meeting.layout import Seat, arrange_ranks
from ddpdoctor.launch.planning import make_plan
from ddpdoctor.launch.request import CheckRequest


def say(machine: str, leads: bool = True) -> dict[str, Any]:
    return {"machine": machine, "leads": leads}


def test_nodes_follow_the_lowest_ranks_however_they_are_spread() -> None:
    seats = arrange_ranks({0: say("b"), 1: say("a"), 2: say("b"), 3: say("c"), 4: say("b")})
    assert seats == {
        0: Seat(0, 0, 3, True),
        1: Seat(1, 0, 1, True),
        2: Seat(0, 1, 3, False),
        3: Seat(2, 0, 1, True),
        4: Seat(0, 2, 3, False),
    }


def test_the_rank_that_looked_at_its_node_speaks_for_it() -> None:
    seats = arrange_ranks({0: say("a", leads=False), 1: say("a"), 2: say("a", leads=False)})
    assert [seat.leads for seat in seats.values()] == [False, True, False]


SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "n[1-2]",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
BY_HAND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
COUNTED = {**BY_HAND, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0", "NNODES": "1"}
ELASTIC = {**COUNTED, "TORCHELASTIC_RUN_ID": "x", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}


@pytest.mark.parametrize(
    ("environ", "told"),
    [(ELASTIC, True), (SLURM, True), (OPEN_MPI, False), (BY_HAND, False), (COUNTED, False)],
    ids=["torchrun", "srun", "mpirun", "by-hand", "counted"],
)
def test_only_launchers_that_number_nodes_are_believed(environ: dict[str, str], told: bool) -> None:
    assert detect_launcher(environ).is_rank
    assert make_plan(CheckRequest(), "/nowhere", environ).told == told
