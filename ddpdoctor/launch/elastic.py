"""Running the ranks of one node under torch's own elastic agent."""

from __future__ import annotations

from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous import registry as rdzv_registry

from ddpdoctor.evidence import encode
from ddpdoctor.launch.failure import RankFailure
from ddpdoctor.launch.plan import Plan
from ddpdoctor.launch.rank import run_rank

MONITOR_INTERVAL_S = 0.05
"""How often the agent looks at its ranks; torchrun's default is 0.1 s."""
SHUTDOWN_S = 3
"""Seconds between SIGTERM and SIGKILL for ranks that the agent ends; ours hold nothing that needs longer."""


def run_ranks(plan: Plan) -> list[RankFailure]:
    """Launch this node's ranks and wait for them.

    Returns:
        The ranks that failed, by the agent's account; empty when all ended well.

    Raises:
        Exception: whatever the rendezvous raised.
    """
    launch = plan.launch
    config: dict[str, Any] = {"timeout": int(plan.limits["rendezvous"])}
    if launch.rdzv_backend == "static":
        config["rank"] = launch.node_rank or 0
    parameters = RendezvousParameters(
        backend=launch.rdzv_backend or "static",
        endpoint=launch.rdzv_endpoint or "",
        run_id=launch.rdzv_id or "ddpdoctor",
        min_nodes=launch.nnodes,
        max_nodes=launch.nnodes,
        local_addr=launch.local_addr,
        **config,
    )
    static = launch.rdzv_backend == "static"
    spec = WorkerSpec(
        role="ddpdoctor",
        local_world_size=launch.nproc,
        entrypoint=run_rank,
        args=(encode(plan),),
        rdzv_handler=rdzv_registry.get_rendezvous_handler(parameters),
        max_restarts=0,
        monitor_interval=MONITOR_INTERVAL_S,
        master_addr=launch.master_addr if static else None,
        master_port=launch.master_port if static else None,
        local_addr=launch.local_addr,
    )
    logs = DefaultLogsSpecs(log_dir=f"{plan.workdir}/logs", redirects=Std.ALL)
    agent = LocalElasticAgent(
        spec,
        logs_specs=logs,
        start_method="forkserver",
        exit_barrier_timeout=plan.limits["rendezvous"],
        shutdown_timeout=SHUTDOWN_S,
    )
    result = agent.run()
    return [] if result is None or not result.is_failed() else _list_failures(result.failures)


def _list_failures(failures: dict[int, Any]) -> list[RankFailure]:
    return [
        RankFailure.of(rank, failure.pid, failure.exitcode, str(failure.message) if failure.message else None)
        for rank, failure in failures.items()
    ]
