"""One rank of the tiny world: goes through the stages, and writes what it sees as it sees it.

The elastic agent runs `run_rank` under torch's ``record``. A rank that fails in a stage writes its error and
then
waits to be ended by the supervisor, so that the errors of the others are not lost to the agent's SIGTERM.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import DebugLevel, get_debug_level, set_debug_level

from ddpdoctor.evidence import InitResult, RankMessage, RankSet, decode
from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.defects import describe_defect, pass_defect
from ddpdoctor.launch.plan import Plan
from ddpdoctor.launch.probes import PROBES, probe_initialisation
from ddpdoctor.launch.probes.facts import rank_facts
from ddpdoctor.launch.probes.groups import leave_group
from ddpdoctor.launch.processes import follow_parent
from ddpdoctor.launch.wire import EventWriter

LINGER_S = 30.0
"""How long a failed rank waits to be ended; the supervisor gives the others 2 s and then ends all."""


LEAVE_S = 2.0
"""What torch's elastic agent gets to take the rank's return value, which is milliseconds, from a rank that would
never end by itself."""


class StageFailed(Exception):
    """A stage ended with an error that has been written already."""


def rank_file(workdir: str, rank: int) -> Path:
    """Return where a rank writes its events."""
    return Path(workdir) / f"rank-{rank}.jsonl"


def run_rank(plan_data: dict[str, Any]) -> None:
    """Run all selected stages of one rank; RANK and its kin are in the environment.

    Raises:
        SystemExit: with 1 when a stage failed.
    """
    follow_parent()
    gc.freeze()  # a collection over torch's own objects would copy every page shared with the forkserver
    plan = decode(Plan, plan_data)
    if not plan.external:
        _limit_threads()
    # torch makes this directory when it compiles, and sometimes only in case; here it goes away with ours.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{plan.workdir}/inductor")
    if not plan.external:
        # So does whatever else is kept until a rank exits: a forked one runs no exit handlers, and may be killed. With
        # torch 2.5 every rank has such a directory, for remote modules that nobody asked for.
        tempfile.tempdir = plan.workdir
    rank = int(os.environ["RANK"])
    writer = EventWriter(rank_file(plan.workdir, rank))
    writer.write("hello", rank=rank, pid=os.getpid())
    try:
        with suppress(StageFailed):
            _run_stages(_make_context(plan, rank, writer), writer)
            writer.write("bye")
            return
        time.sleep(LINGER_S)
        raise SystemExit(1)
    finally:
        if dist.is_initialized():
            with suppress(Exception):
                leave_group()
        _leave_soon()


def _leave_soon() -> None:
    """Do not wait for threads or processes that the user's model has left: Python would, for as long as they run.

    What this rank saw is written by now, and the supervisor ends the processes.
    """
    threads = [
        each for each in threading.enumerate() if each is not threading.main_thread() and not each.daemon
    ]
    if threads or multiprocessing.active_children():
        leaving = threading.Timer(LEAVE_S, os._exit, (0,))
        leaving.daemon = True
        leaving.start()


def _limit_threads() -> None:
    """Do as torchrun does: one intra-op thread where several ranks share a node and nobody said otherwise.

    torchrun sets OMP_NUM_THREADS=1 for that (torch.distributed.run, config_from_args); here torch is imported already.
    Other launchers set nothing, so their ranks keep the threads that their jobs will have.
    """
    if "OMP_NUM_THREADS" not in os.environ and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)


def _make_context(plan: Plan, rank: int, writer: EventWriter) -> RankContext:
    local_rank = int(os.environ["LOCAL_RANK"])
    device = plan.devices[local_rank] if local_rank < len(plan.devices) else "cpu"

    def note(text: str) -> None:
        if rank == plan.first_rank:
            writer.write("note", text=text)

    return RankContext(
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        local_rank=local_rank,
        local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        node=plan.node,
        host=socket.gethostname(),
        device=device,
        backend=plan.launch.backend,
        plan=plan,
        emit=writer.emit,
        note=note,
        enter=lambda step: writer.write("user", step=step),
    )


def _run_stages(context: RankContext, writer: EventWriter) -> None:
    with _stage("rendezvous", context, writer):
        writer.emit("ranks", rank_facts(context))
        _initialise(context)
    for stage in ("backends", "collectives", "ddp", "bandwidth", "strategies"):
        if context.plan.runs(stage):
            with _stage(stage, context, writer):
                _run_probes(stage, context)
    if context.plan.runs("collectives"):
        with _stage("collectives", context, writer):
            probe_initialisation(context)


def _run_probes(stage: str, context: RankContext) -> None:
    probes: list[Callable[[RankContext], None]] = PROBES[stage]
    for probe in probes:
        probe(context)


@contextmanager
def _stage(stage: str, context: RankContext, writer: EventWriter) -> Iterator[None]:
    writer.write("begin", stage=stage)
    try:
        yield
    except Exception as problem:
        defect = describe_defect(problem, f"rank {context.rank}", stage, context.node, context.rank)
        if defect is None:
            writer.error(context.rank, stage, problem)
        else:
            writer.emit("defects", defect)
        writer.write("failed", stage=stage)
        raise StageFailed from problem
    writer.write("end", stage=stage)


def _initialise(context: RankContext) -> None:
    """Form the default process group the way scripts do, from the environment."""
    if get_debug_level() == DebugLevel.DETAIL:
        # With DETAIL torch 2.13 crashes in DDP on gloo, every time. The user's variable stays evidence (ENV014).
        set_debug_level(DebugLevel.INFO)
    if context.device.startswith("cuda"):
        torch.cuda.set_device(torch.device(context.device))
    timeout: timedelta = context.group_timeout("rendezvous")
    ranks = RankSet([context.rank])
    try:
        dist.init_process_group(context.backend, init_method="env://", timeout=timeout)
        dist.barrier()
    except Exception as problem:
        pass_defect(problem)
        text = f"{type(problem).__name__}: {problem}".splitlines()[0]
        context.emit("initialisations", InitResult("env", failures=(RankMessage(ranks, text),)))
        raise
    context.emit("initialisations", InitResult("env", passed=ranks))
