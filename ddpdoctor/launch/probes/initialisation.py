"""The other ways to initialise the default process group: by tcp:// and by file://."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from ddpdoctor.evidence import InitResult, RankMessage, RankSet
from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.defects import pass_defect
from ddpdoctor.launch.probes.base import ProbeError, word_exception
from ddpdoctor.launch.probes.collectives import compare_outcome
from ddpdoctor.launch.probes.exact_values import make_input, make_result
from ddpdoctor.launch.probes.groups import leave_group
from ddpdoctor.launch.probes.operations import Outcome
from ddpdoctor.launch.probes.sharing import find_common_directory

FILE = "init-file"
COUNT = 101
"""Elements of the all_reduce that proves the group."""

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"


def probe_initialisation(ctx: RankContext) -> None:
    """Form the default group anew by tcp:// and by file://, with one all_reduce each.

    To be run last: the default group is destroyed first, and none is left. The env:// row is the caller's,
    who formed the group that way. Emits one `InitResult` for each way.

    Raises:
        ProbeError: a group did not form; the ranks are out of step.
    """
    address = os.environ.get("MASTER_ADDR") or ctx.plan.launch.master_addr or "127.0.0.1"
    port = _agree_on_port(ctx)
    folder = find_common_directory(ctx)
    leave_group()
    host = f"[{address}]" if ":" in address else address
    ctx.note("initialization by tcp://")
    _try_method(ctx, "tcp", f"tcp://{host}:{port}")
    if folder is not None:
        ctx.note("initialization by file://")
        _try_method(ctx, "file", (folder / FILE).as_uri())
    else:
        ctx.emit("initialisations", InitResult("file", skipped="the ranks have no common directory"))


def _agree_on_port(ctx: RankContext) -> int:
    """Return a port that was free on rank 0's node a moment ago, the same on every rank."""
    port = torch.zeros(1, dtype=torch.int64, device=ctx.device)
    if ctx.rank == 0:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        with socket.socket(family) as finder:
            finder.bind(("", 0))
            port.fill_(finder.getsockname()[1])
    dist.broadcast(port, 0)
    return int(port.item())


def _try_method(ctx: RankContext, method: str, address: str) -> None:
    ranks = RankSet([ctx.rank])
    try:
        with _own_store():
            dist.init_process_group(
                ctx.backend,
                init_method=address,
                rank=ctx.rank,
                world_size=ctx.world_size,
                timeout=ctx.group_timeout("collectives"),
            )
        wrong = _try_sum(ctx)
        leave_group()
    except Exception as problem:
        pass_defect(problem)
        text = word_exception(problem)
        ctx.emit("initialisations", InitResult(method, failures=(RankMessage(ranks, text),)))
        raise ProbeError(f"initialization by {method}:// failed: {text}") from problem
    failures = (RankMessage(ranks, wrong),) if wrong else ()
    passed = RankSet() if wrong else ranks
    ctx.emit("initialisations", InitResult(method, passed=passed, failures=failures))


@contextmanager
def _own_store() -> Iterator[None]:
    """Let rank 0 host the store.

    Under torchrun's agent torch takes any tcp:// address for the agent's own store and only connects
    (torch/distributed/rendezvous.py, _create_c10d_store): at a new port nobody would ever listen.
    """
    kept = os.environ.pop(AGENT_STORE, None)
    try:
        yield
    finally:
        if kept is not None:
            os.environ[AGENT_STORE] = kept


def _try_sum(ctx: RankContext) -> str | None:
    buffer = make_input("SUM", ctx.rank, ctx.world_size, COUNT, torch.float32, ctx.device)
    dist.all_reduce(buffer)
    expected = make_result("SUM", ctx.world_size, COUNT, torch.float32, ctx.device)
    return compare_outcome(Outcome(buffer, expected))
