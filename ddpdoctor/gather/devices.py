"""Accelerators as the vendor's own tool describes them: one look with nvidia-smi or rocm-smi, no more.

The parsers are pure functions of recorded text. A field that a card does not have, or cannot give in its
present state, is None; what the tool says instead of a number is kept in `Device.state`.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from ddpdoctor.evidence.facts import Device
from ddpdoctor.gather.deadline import Later, ToolError, find_tool, run_tool
from ddpdoctor.gather.machine import ROOT
from ddpdoctor.gather.scrub import scrub

FIELDS = (
    "index",
    "uuid",
    "name",
    "compute_cap",
    "memory.total",
    "memory.used",
    "driver_version",
    "ecc.errors.uncorrected.volatile.total",
    "pci.bus_id",
    "pstate",
)
"""Fields asked of nvidia-smi (``nvidia-smi --help-query-gpu``). ``pstate`` says when a card needs a reset."""
_OPTIONAL = frozenset({"compute_cap", "ecc.errors.uncorrected.volatile.total"})
"""Fields that drivers before R470 refuse as a whole query; it is then asked again without them."""

_MIB = 1 << 20
_NO_VALUE = frozenset(
    {
        "[n/a]",
        "n/a",
        "[not supported]",
        "not supported",
        "[unknown]",
        "[insufficient permissions]",
        "[not found]",
    }
)
"""What the tool prints for a field that this card or this user does not have, in lower case."""
_HANDLE = re.compile(
    r"(?:Unable to determine the device handle for|lost|Failed to (?:initialize|get handle))[^\n]*",
    re.IGNORECASE,
)
_HANDLE_PCI = re.compile(
    r"(?:GPU\s?(?P<index>\d+):\s*)?(?:GPU\s?)?(?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})"
)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9A-Fa-f:.]+)\): (?P<text>\d+.*)")
_STAMP = re.compile(r"^(?:<\d+>)?\[\s*(?P<seconds>\d+\.\d+)\]")
MAX_XIDS = 5
"""Messages kept per device; a card that fell off the bus repeats itself hundreds of times."""


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
            text = run_tool(["rocm-smi", *_ROCM_OPTIONS, "--json"], limit_s)
        except ToolError as problem:
            return (), str(problem)
        devices = parse_rocm(text)
        return devices, None if devices else "rocm-smi lists no device"
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
        devices, note = _query(limit_s), None
    except ToolError as problem:
        text = f"{problem}\n{problem.output}"
        devices = parse_handles(text)
        note = scrub(str(problem))
    if not devices:
        return (), note or "nvidia-smi lists no device"
    left = max(0.1, limit_s - (time.monotonic() - start))
    links = parse_topology(topology.result_or("", left))
    xids = parse_xids(kernel.result_or("", left), time.clock_gettime(time.CLOCK_BOOTTIME))
    complete = tuple(
        dataclasses.replace(
            each,
            links=links.get(each.index, {}),
            xid=tuple(xids.get(normal_pci(each.pci), ())) if each.pci else (),
        )
        for each in devices
    )
    return complete, note


def _query(limit_s: float) -> tuple[Device, ...]:
    fields: tuple[str, ...] = FIELDS
    while True:
        command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        try:
            return parse_gpus(run_tool(command, limit_s), fields)
        except ToolError as problem:
            said = str(problem) + problem.output
            fewer = tuple(name for name in fields if name not in _OPTIONAL)
            if "not a valid field" not in said or fewer == fields:
                devices = parse_gpus(problem.output, fields) + parse_handles(problem.output)
                if not devices:
                    raise
                return devices
            fields = fewer


def parse_gpus(text: str, fields: tuple[str, ...] = FIELDS) -> tuple[Device, ...]:
    """Return the devices of ``nvidia-smi --query-gpu=… --format=csv,noheader,nounits``.

    Args:
        text: what it printed; lines that are no rows are passed over.
        fields: the fields that were asked for, in order.
    """
    devices = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != len(fields) or not row[0].strip().isdigit():
            continue
        values = dict(zip(fields, (cell.strip() for cell in row), strict=True))
        devices.append(
            Device(
                index=int(values["index"]),
                uuid=_known(values.get("uuid")),
                name=_known(values.get("name")),
                capability=_known(values.get("compute_cap")),
                memory_total=_mebibytes(values.get("memory.total")),
                memory_used=_mebibytes(values.get("memory.used")),
                driver=_known(values.get("driver_version")),
                ecc_uncorrected=_number(values.get("ecc.errors.uncorrected.volatile.total")),
                state=_find_state(values),
                pci=_known(values.get("pci.bus_id")),
            )
        )
    return tuple(devices)


def _known(value: str | None) -> str | None:
    """A value, unless it is one of the tool's words for "none" or an error in brackets."""
    if not value or value.lower() in _NO_VALUE or value.startswith("[") or value in ("ERR!", "Unknown Error"):
        return None
    return value


def _number(value: str | None) -> int | None:
    known = _known(value)
    return int(known) if known is not None and known.isdigit() else None


def _mebibytes(value: str | None) -> int | None:
    number = _number(value.removesuffix(" MiB") if value else value)
    return None if number is None else number * _MIB


def _find_state(values: dict[str, str]) -> str | None:
    """The first thing that is neither a value nor "not supported", e.g. ``[GPU requires reset]``."""
    return next(
        (
            value
            for value in values.values()
            if (value.startswith("[") or value in ("ERR!", "Unknown Error"))
            and value.lower() not in _NO_VALUE
        ),
        None,
    )


def parse_handles(text: str) -> tuple[Device, ...]:
    """Return a device for each that nvidia-smi names as lost or without a handle, with its words as state."""
    devices: list[Device] = []
    for match in _HANDLE.finditer(text):
        start = text.rfind("\n", 0, match.start()) + 1
        end = text.find("\n", match.end())
        line = text[start : end if end >= 0 else None].strip()
        place = _HANDLE_PCI.search(line)
        if place is None or any(each.pci == place["pci"] for each in devices):
            continue
        taken = {each.index for each in devices}
        index = (
            int(place["index"])
            if place["index"]
            else next(i for i in range(len(taken) + 1) if i not in taken)
        )
        devices.append(
            Device(index, state=line[line.find("Unable") :] if "Unable" in line else line, pci=place["pci"])
        )
    return tuple(devices)


def parse_topology(text: str) -> dict[int, dict[str, str]]:
    """Return GPU index -> peer index -> connection (NV18, PIX, SYS …) from ``nvidia-smi topo -m``."""
    links: dict[int, dict[str, str]] = {}
    columns: list[str] = []
    for line in text.replace("\x1b[4m", "").replace("\x1b[0m", "").splitlines():
        cells = [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()
        if not columns:
            if "GPU0" in cells:
                columns = [cell for cell in cells if re.fullmatch(r"GPU\d+|NIC\d+|mlx\S+", cell)]
            continue
        if not cells or not re.fullmatch(r"GPU\d+", cells[0]):
            continue
        row = [cell for cell in cells[1 : len(columns) + 1]]
        links[int(cells[0][3:])] = {
            column[3:]: cell
            for column, cell in zip(columns, row, strict=False)
            if column.startswith("GPU") and cell and cell != "X"
        }
    return links


def normal_pci(address: str) -> str:
    """Return a PCI address as ``0000:83:00``: nvidia-smi writes eight digits of domain, the kernel four."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:].zfill(4)}:{rest.partition('.')[0]}"


def parse_xids(text: str, uptime_s: float | None = None) -> dict[str, list[str]]:
    """Return PCI address (`normal_pci`) -> its last Xid messages from the kernel's log, oldest first.

    A message reads ``Xid 79, pid=1234, GPU has fallen off the bus. (12 min ago)``; the numbers are listed at
    docs.nvidia.com/deploy/xid-errors.

    Args:
        text: lines of ``dmesg`` or /dev/kmsg.
        uptime_s: seconds since boot now, to say how long ago a stamped line was.
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        match = _XID.search(line)
        if match is None:
            continue
        message = scrub(f"Xid {match['text'].strip()}")
        stamp = _STAMP.match(line)
        if stamp is not None and uptime_s is not None:
            message += f" ({_ago(uptime_s - float(stamp['seconds']))})"
        messages = found.setdefault(normal_pci(match["pci"]), [])
        messages.append(message)
        del messages[:-MAX_XIDS]
    return found


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"


def read_kernel_log(limit_s: float, path: str = "/dev/kmsg") -> str:
    """Return the kernel's log as dmesg prints it; empty where it may not be read."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        end = time.monotonic() + limit_s
        try:
            while time.monotonic() < end:
                try:
                    record = os.read(log, 8192)  # one record a read: dev-kmsg in the kernel's ABI documents
                except BrokenPipeError:
                    continue  # the oldest records were overwritten meanwhile
                if not record:
                    break
                lines.append(_format_record(record.decode(errors="replace")))
        except BlockingIOError:
            pass  # the end of the log
        finally:
            os.close(log)
    if lines:
        return "\n".join(lines)
    with contextlib.suppress(ToolError):
        return run_tool(["dmesg"], limit_s)
    return ""


def _format_record(record: str) -> str:
    """Turn ``6,339,5140900,-;text`` (microseconds since boot) into ``[    5.140900] text``."""
    head, separator, text = record.partition(";")
    if not separator:
        return record
    fields = head.split(",")
    message = text.partition("\n")[0]
    if len(fields) < 3 or not fields[2].isdigit():
        return message
    return f"[{int(fields[2]) / 1e6:12.6f}] {message}"


_ROCM_OPTIONS = (
    "--showproductname",
    "--showuniqueid",
    "--showmeminfo",
    "vram",
    "--showdriverversion",
    "--showbus",
)


def parse_rocm(text: str) -> tuple[Device, ...]:
    """Return the devices of ``rocm-smi … --json``; keys differ between releases, others are passed over."""
    try:
        data: Any = json.loads(text[text.index("{") :])
    except ValueError:
        return ()
    if not isinstance(data, dict):
        return ()
    driver = _pick(data.get("system"), "driver version")
    devices = []
    for key, card in data.items():
        if not (key.startswith("card") and key[4:].isdigit()):
            continue
        total, used = _pick(card, "vram total memory (b)"), _pick(card, "vram total used memory (b)")
        devices.append(
            Device(
                index=int(key[4:]),
                uuid=_pick(card, "unique id"),
                name=_pick(card, "card series") or _pick(card, "card model"),
                kind="rocm",
                memory_total=int(total) if total and total.isdigit() else None,
                memory_used=int(used) if used and used.isdigit() else None,
                driver=driver,
                pci=_pick(card, "pci bus"),
            )
        )
    return tuple(sorted(devices, key=lambda each: each.index))


def _pick(card: Any, wanted: str) -> str | None:
    """Return the value under a key, whatever its case."""
    if not isinstance(card, dict):
        return None
    value = next((value for key, value in card.items() if str(key).lower() == wanted), None)
    return None if value is None or str(value) in ("N/A", "None") else str(value)
