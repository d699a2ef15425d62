"""What the kernel's log says of devices: NVIDIA's Xid messages, and amdgpu's of a fault of the hardware."""

from __future__ import annotations

import contextlib
import os
import re
import time

from ddpdoctor.gather.deadline import ToolError, run_tool
from ddpdoctor.gather.scrub import scrub

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9A-Fa-f:.]+)\): (?P<text>\d+.*)")
_AMDGPU = re.compile(
    r"amdgpu (?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d): "
    r"(?:amdgpu: |\[drm\] ){0,2}(?P<text>[^\n]{0,400})"
)
_AMDGPU_FAULT = re.compile(
    r"uncorrectable hardware error|lost from bus|GPU reset (?:begin|end with|\(\d+\) failed)"
    r"|Fatal error during GPU init|bad page threshold|GPU mode\d reset failed"
)
"""A reset and what precedes it. A page fault or a ring that timed out may be the program's own, as Xid 31 is; with
such a ring the driver resets the GPU, which is told."""
_NONE_COUNTED = re.compile(r"\b0 uncorrectable hardware error")
_STAMP = re.compile(r"^(?:<\d+>)?\[\s*(?P<seconds>\d+\.\d+)\]")
MAX_MESSAGES = 5
"""Messages kept per device; a card that fell off the bus repeats itself hundreds of times."""


def normal_pci(address: str) -> str:
    """Return a PCI address as ``0000:83:00``: nvidia-smi writes eight digits of domain, the kernel four."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:].zfill(4)}:{rest.partition('.')[0]}"


def parse_messages(text: str, uptime_s: float | None = None) -> dict[str, list[str]]:
    """Return PCI address (`normal_pci`) -> what the kernel's log says last of that device, oldest first.

    A message reads ``Xid 79, pid=1234, GPU has fallen off the bus. (12 min ago)``, of which the numbers are listed at
    docs.nvidia.com/deploy/xid-errors, or ``amdgpu: GPU reset begin! (2 min ago)``.

    Args:
        text: lines of ``dmesg`` or /dev/kmsg.
        uptime_s: seconds since boot now, to say how long ago a stamped line was.
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        told = _read_message(line)
        if told is None:
            continue
        pci, message = told
        stamp = _STAMP.match(line)
        if stamp is not None and uptime_s is not None:
            message += f" ({_ago(uptime_s - float(stamp['seconds']))})"
        messages = found.setdefault(normal_pci(pci), [])
        messages.append(message)
        del messages[:-MAX_MESSAGES]
    return found


def _read_message(line: str) -> tuple[str, str] | None:
    if xid := _XID.search(line):
        return xid["pci"], scrub(f"Xid {xid['text'].strip()}")
    amd = _AMDGPU.search(line) if "amdgpu" in line else None
    if amd and _AMDGPU_FAULT.search(amd["text"]) and not _NONE_COUNTED.search(amd["text"]):
        return amd["pci"], scrub(f"amdgpu: {amd['text'].strip()}")
    return None


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
