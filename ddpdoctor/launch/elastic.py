"""Running the ranks of one node under torch's own elastic agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous import registry as rdzv_registry

from ddpdoctor.evidence import encode
from ddpdoctor.facts.versions import pick_taken
from ddpdoctor.launch.failure import RankFailure
from ddpdoctor.launch.plan import Plan
from ddpdoctor.launch.rank import run_rank

MONITOR_INTERVAL_S = 0.05
"""How often the agent looks at its ranks; torchrun's default is 0.1 s."""
SHUTDOWN_S = 3
"""Seconds between SIGTERM and SIGKILL for ranks that the agent ends; ours hold nothing that needs longer. Where torch
does not take it (up to 2.11) it waits 30 s, and the supervisor is there before."""


def run_ranks(plan: Plan, report: Callable[[RankFailure], None]) -> None:
    """Launch this node's ranks and wait for them.

    Args:
        plan: what to launch.
        report: told of each rank that failed, as soon as the agent sees it.

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
    agent = _PromptAgent(
        report,
        spec,
        logs_specs=logs,
        start_method="forkserver",
        exit_barrier_timeout=plan.limits["rendezvous"],
        **pick_taken(LocalElasticAgent, shutdown_timeout=SHUTDOWN_S),
    )
    agent.run()


class _PromptAgent(LocalElasticAgent):
    """torch's agent, which says at once which rank failed and how.

    Its own account comes only after it has ended the others and described the failure, seconds later; the first
    word on who failed is what tells a culprit from its victims.
    """

    def __init__(self, report: Callable[[RankFailure], None], *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._report = report

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        for rank, failure in (result.failures or {}).items():
            text = str(failure.message) if failure.message else None
            self._report(RankFailure.of(rank, failure.pid, failure.exitcode, text))
        return result
