"""Commands to paste: the same launch again with something changed, in its launcher's own words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.evidence import Launch
from ddpdoctor.text.shell import quote_word
from ddpdoctor_checks.common.places import is_loopback, join_endpoint, split_endpoint

DEFAULT_PORT = 29500
"""torchrun's default for --master-port (torch/distributed/run.py)."""

FIXED = (None, "static", "env")
"""Rendezvous backends with which node 0, or rank 0, hosts whatever the names are."""


def repeat_launch(
    launch: Launch,
    *,
    node_rank: int | None = None,
    address: str | None = None,
    port: int | None = None,
    local_address: str | None = None,
    rank: int | None = None,
) -> str:
    """Return the command that starts this launch again on one node: the examination, or the job that was watched.

    Args:
        launch: what was asked for.
        node_rank: the node it is for; None leaves the number as it was.
        address: another host for the rendezvous.
        port: another port for the rendezvous.
        local_address: the address under which the node shall publish itself.
        rank: the rank it is for, where each is started by itself; None stands for that of the environment.
    """
    asked = address is not None or port is not None
    host, known_port = meeting_point(launch)
    host, port = address or host, port or known_port or DEFAULT_PORT
    node = launch.node_rank if node_rank is None else node_rank
    watched = launch.command != "check"
    task = ["python", SCRIPT] if watched else _CHECK
    if launch.launcher == "srun":
        count = ["--nodes", str(launch.nnodes), "--ntasks", str(launch.world_size)]
        return _join([f"MASTER_ADDR={host}", f"MASTER_PORT={port}", "srun", *count, *task])
    if launch.launcher == "mpirun":
        variables = ["-x", f"MASTER_ADDR={host}", "-x", f"MASTER_PORT={port}"]
        return _join(["mpirun", "-n", str(launch.world_size), *variables, *task])
    if launch.launcher == "env" and not watched:
        own = "$RANK" if rank is None else str(rank)
        return _join([f"RANK={own}", f"WORLD_SIZE={launch.world_size}", f"MASTER_ADDR={host}", f"MASTER_PORT={port}",
                      *_CHECK])  # fmt: skip
    torchrun = launch.launcher == "torchrun" and not watched
    parts = ["torchrun"] if torchrun else ["ddpdoctor", "run" if watched else "check"]
    if launch.nnodes > 1:
        parts += ["--nnodes", str(launch.nnodes)]
        if launch.rdzv_backend in FIXED:
            parts += ["--node-rank", "0" if node is None else str(node)]
    parts += ["--nproc-per-node" if torchrun else "--nproc", str(launch.nproc)]
    if launch.nnodes > 1 or asked:
        parts += _rendezvous_options(launch, host, port)
    if local_address:
        parts += ["--local-addr", local_address]
    return _join([*parts, *(_CHECK[1:] if torchrun else []), *([SCRIPT] if watched else [])])


def examine_again(launch: Launch, *options: str, settings: str = "") -> str:
    """Return the command that examines the same world again with other options.

    Args:
        launch: what was asked for; its model is named again.
        options: further options, as words.
        settings: variables to set before it, ``NAME=value NAME=value``.
    """
    model = ["--model", launch.model] if launch.model else []
    command = f"{repeat_launch(replace(launch, command='check'))} {_join([*model, *options])}".rstrip()
    return f"{settings} {command}".lstrip()


def start_torchrun(launch: Launch, *options: str) -> str:
    """Return the command that starts a training script as this launch was started, on one node."""
    host, port = meeting_point(launch)
    parts = ["torchrun", "--nnodes", str(launch.nnodes), "--nproc-per-node", str(launch.nproc)]
    return _join([*parts, *_rendezvous_options(launch, host, port or DEFAULT_PORT), *options, "train.py"])


_CHECK = ["python", "-m", "ddpdoctor", "check"]
SCRIPT = "train.py"
"""Stands for the user's script where it is not known."""


def meeting_point(launch: Launch) -> tuple[str, int | None]:
    """Return host and port of the rendezvous as the launch names them; the host may be ``localhost``."""
    if launch.rdzv_endpoint:
        host, port = split_endpoint(launch.rdzv_endpoint)
        return host, port or launch.master_port
    return launch.master_addr or "localhost", launch.master_port


def _rendezvous_options(launch: Launch, host: str, port: int) -> list[str]:
    if launch.rdzv_backend not in FIXED or (launch.rdzv_endpoint and not launch.master_addr):
        named = ["--rdzv-id", launch.rdzv_id] if launch.rdzv_id else []
        endpoint = join_endpoint(host, port)
        return ["--rdzv-backend", launch.rdzv_backend or "c10d", "--rdzv-endpoint", endpoint, *named]
    where = [] if launch.nnodes == 1 and is_loopback(host) else ["--master-addr", host]
    return [*where, "--master-port", str(port)]


def _join(parts: Sequence[str]) -> str:
    """Quote what needs it, but leave ``NAME=value`` before a command an assignment."""
    assigned = ("MASTER_", "RANK=", "WORLD_SIZE=")
    return " ".join(part if part.startswith(assigned) else quote_word(part) for part in parts)
