"""The local smoke test: each device touched on its own, in a process that can be killed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ddpdoctor.launch.processes import follow_parent
from ddpdoctor.launch.wire import EventWriter


def smoke_file(workdir: str, device: str) -> Path:
    """Return where the smoke test of a device writes its events."""
    return Path(workdir) / f"smoke-{device.replace(':', '-')}.jsonl"


def list_accelerators(workdir: str) -> None:
    """Write what torch is and which accelerators it sees here; touches no device's memory."""
    follow_parent()
    writer = EventWriter(smoke_file(workdir, "list"))
    try:
        writer.write("torch", **_describe_torch())
    except Exception as problem:
        writer.write("broken", text=f"{type(problem).__name__}: {problem}")


def _describe_torch() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "distributed": dist.is_available(),
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "nccl": dist.is_available() and dist.is_nccl_available(),
        "devices": [f"cuda:{index}" for index in range(count)],
    }


def run_smoke(workdir: str, node: int, device: str) -> None:
    """Touch one device and write `SmokeResult` rows; whatever happens stays in this process."""
    follow_parent()
    writer = EventWriter(smoke_file(workdir, device))
    writer.write("hello", pid=os.getpid())
    from ddpdoctor.launch.defects import describe_defect
    from ddpdoctor.launch.probes.smoke import smoke_device

    try:
        for result in smoke_device(node, device):
            writer.emit("smoke", result)
    except Exception as problem:
        defect = describe_defect(problem, f"the smoke test of {device} on node {node}", "smoke", node)
        if defect is None:
            raise
        writer.emit("defects", defect)
    writer.write("bye")
