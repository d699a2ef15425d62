"""The accelerators of a node: one look with nvidia-smi or rocm-smi, with the kernel's messages on each device.

What a tool says instead of a number is kept in `Device.state`.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddpdoctor.evidence.facts import Device
from ddpdoctor.gather.deadline import Later, ToolError, find_tool, run_tool
from ddpdoctor.gather.devices.kernel_log import normal_pci, parse_messages, read_kernel_log
from ddpdoctor.gather.devices.rocm import OPTIONS, parse_rocm
from ddpdoctor.gather.devices.smi import parse_handles, query_gpus
from ddpdoctor.gather.devices.topology import parse_topology
from ddpdoctor.gather.machine import ROOT
from ddpdoctor.gather.scrub import scrub


def gather_devices(limit_s: float, root: Path = ROOT) -> tuple[tuple[Device, ...], str | None]:
    """Return the accelerators of this node and, where there are none or the tool failed, a note why.

    Args:
        limit_s: seconds that the tools may take, together.
        root: where proc is mounted.
    """
    if find_tool("nvidia-smi") is not None:
        return _gather_nvidia(limit_s)
    if os.path.exists(root / "proc/driver/nvidia/version"):
        return (), "the NVIDIA driver is loaded, but nvidia-smi is not in PATH"
    if find_tool("rocm-smi") is not None:
        try:
            return _gather_rocm(limit_s)
        except ToolError as problem:
            return (), str(problem)
    return (), "neither nvidia-smi nor rocm-smi is installed"


def count_nvidia_devices(root: Path = ROOT) -> int:
    """Return how many GPUs the driver has, whichever of them this process may use."""
    try:
        return len(os.listdir(root / "proc/driver/nvidia/gpus"))
    except OSError:
        return 0


def _gather_nvidia(limit_s: float) -> tuple[tuple[Device, ...], str | None]:
    topology = Later(lambda: run_tool(["nvidia-smi", "topo", "-m"], limit_s))
    kernel = Later(lambda: read_kernel_log(limit_s))
    start = time.monotonic()
    try:
        devices, note = query_gpus(limit_s), None
    except ToolError as problem:
        text = f"{problem}\n{problem.output}"
        devices = parse_handles(text)
        note = scrub(str(problem))
    if not devices:
        return (), note or "nvidia-smi lists no device"
    left = max(0.1, limit_s - (time.monotonic() - start))
    links = parse_topology(topology.result_or("", left))
    devices = tuple(dataclasses.replace(each, links=links.get(each.index, {})) for each in devices)
    return _add_messages(devices, kernel.result_or("", left)), note


def _gather_rocm(limit_s: float) -> tuple[tuple[Device, ...], str | None]:
    kernel = Later(lambda: read_kernel_log(limit_s))
    start = time.monotonic()
    devices = parse_rocm(run_tool(["rocm-smi", *OPTIONS, "--json"], limit_s))
    left = max(0.1, limit_s - (time.monotonic() - start))
    return _add_messages(devices, kernel.result_or("", left)), None if devices else "rocm-smi lists no device"


def _add_messages(devices: Sequence[Device], log: str) -> tuple[Device, ...]:
    """Give each device what the kernel's log says of it."""
    told: Mapping[str, list[str]] = parse_messages(log, time.clock_gettime(time.CLOCK_BOOTTIME))
    return tuple(
        dataclasses.replace(each, xid=tuple(told.get(normal_pci(each.pci), ()))) if each.pci else each
        for each in devices
    )
