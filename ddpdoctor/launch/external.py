"""Running one rank where torchrun, srun or mpirun has started this process as that rank."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import record

from ddpdoctor.evidence import encode
from ddpdoctor.launch.failure import RankFailure
from ddpdoctor.launch.plan import Plan
from ddpdoctor.launch.rank import run_rank


def run_one_rank(plan: Plan, report: Callable[[RankFailure], None]) -> None:
    """Run this process's rank in a child, under torch's ``record``, and wait for it.

    Args:
        plan: what to run.
        report: told if it failed.
    """
    logs = Path(plan.workdir) / "logs" / "external" / "attempt_0" / "0"
    logs.mkdir(parents=True)
    process = multiprocessing.get_context("forkserver").Process(
        target=_run, args=(encode(plan), rank_variables(plan), str(logs))
    )
    process.start()
    process.join()
    if process.exitcode != 0:
        report(RankFailure.of(plan.first_rank, process.pid or 0, process.exitcode))


def rank_variables(plan: Plan) -> dict[str, str]:
    """Return what torch's ``env://`` needs; srun and mpirun tell it under names of their own."""
    launch = plan.launch
    return {
        "RANK": str(plan.first_rank),
        "LOCAL_RANK": str(plan.local_rank),
        "WORLD_SIZE": str(launch.world_size),
        "LOCAL_WORLD_SIZE": str(plan.local_world_size),
        "GROUP_RANK": str(plan.node),
        "MASTER_ADDR": str(launch.master_addr),
        "MASTER_PORT": str(launch.master_port),
        # The store is there already: torchrun's agent hosts it, or the meeting of our own rank 0 does.
        "TORCHELASTIC_USE_AGENT_STORE": str(plan.agent_store or plan.meets),
    }


def _run(plan_data: dict[str, Any], variables: dict[str, str], logs: str) -> None:
    os.environ.update(variables)
    # An error of ours must not be taken for one of the user's script by the agent above.
    os.environ.pop("TORCHELASTIC_ERROR_FILE", None)
    for descriptor, name in ((1, "stdout.log"), (2, "stderr.log")):
        target = os.open(os.path.join(logs, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(target, descriptor)
        os.close(target)
    record(run_rank)(plan_data)
