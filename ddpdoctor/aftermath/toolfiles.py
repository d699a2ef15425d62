"""Output of vendors' tools, read by its structure: what it says of one device, as a line that the table of texts knows.

``nvidia-smi -q``, ``dcgmi diag`` (text and JSON), ``dcgmi health``, ``ibstat`` and ``ethtool -S`` print a device in one
line and its trouble many lines below; tables of counters have a module of their own. Only problems are kept; a tool
that reports none adds nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from ddpdoctor.aftermath.device_tables import Told, choose_table

PREFIX = "Device evidence: "
"""How lines made here begin; entries of the table match behind it."""
SIZE_LIMIT = 16 << 20
"""Bytes of a tool's output: ``nvidia-smi -q`` of 16 GPUs is 0.2 MB."""
HEAD = 8192
"""Bytes by which a tool's output is known."""
MOST_TOLD = 200

_GPU = re.compile(r"^GPU (?P<bus>[\dA-Fa-f]{4,8}:[\dA-Fa-f]{2}:[\dA-Fa-f]{2}\.\d)")
_ROW = re.compile(r"^(?P<indent> {0,40})(?P<name>[^ :\n][^:\n]{0,119}): (?P<value>.{1,100})$")
_HEAD = re.compile(r"^(?P<indent> {0,40})(?P<name>[^ :\n][^:\n]{0,99})$")
_DIAG = re.compile(
    r"^\|\W{0,3}(?P<test>[\w][\w /()-]{1,40}?) {1,40}\| Fail\w{0,3}"
    r"(?: - (?:GPUs?|All)?:? ?(?P<gpus>[\d, ]{0,80}))?"
)
_DIAG_WARNING = re.compile(r"^\| (?:Warning|Error): GPU (?P<gpu>\d{1,3}) {1,30}\| (?P<what>[^|\n]{1,200})")
_HEALTH = re.compile(r"^\| ?-?>? ?GPU ID: {0,3}(?P<gpu>\d{1,3}) {1,30}\| {0,3}(?:Failure|Fail)")
_CA = re.compile(r"^CA '(?P<name>[\w-]{1,40})'")
_PORT = re.compile(r"^\s{1,8}Port (?P<port>\d{1,3}):")
_STATISTIC = re.compile(
    r"^ {1,10}(?P<name>rx_crc_errors_phy|rx_symbol_err_phy|rx_pcs_symbol_err_phy|link_down_events_phy"
    r"|rx_in_range_len_errors_phy|tx_errors_phy|rx_crc_errors(?:\.nic)?|rx_fcs_errors|rx_fcs_err_frames|rx_fec_uncorrectable_errors|crc_errors|symbol_error|link_downed|port_rcv_errors|local_link_integrity_errors)"
    r": (?P<count>[1-9]\d{0,18})\s*$"
)
SOFTWARE = frozenset({
    "denylist", "nvml library", "cuda main library", "permissions and os blocks", "persistence mode",
    "environment variables", "page retirement/row remap", "graphics processes", "inforom",
})  # fmt: skip
"""Tests of dcgmi that are of the node's set-up, but for those that speak of memory."""


def read_tool(data: bytes) -> list[Told] | None:
    """Return what a tool's output says of devices in trouble; None where it is no such output."""
    reader = _choose(data[:HEAD].decode("utf-8", "replace"))
    if reader is None:
        return None
    text = data[:SIZE_LIMIT].decode("utf-8", "replace")
    return [(number, PREFIX + words) for number, words in list(reader(text))[:MOST_TOLD]]


def _choose(head: str) -> Callable[[str], Iterator[Told]] | None:
    if "==NVSMI LOG==" in head:
        return _read_smi
    if '"DCGM GPU Diagnostic"' in head or '"DCGM Diagnostic"' in head:
        return _read_diag_json
    if "| Diagnostic " in head or "Successfully ran diagnostic" in head or "Health Monitor Report" in head:
        return _read_dcgmi
    if head.lstrip().startswith("CA '"):
        return _read_ibstat
    if "NIC statistics:" in head:
        return _read_statistics
    if '"communicators"' in head and '"nccl_version"' in head:
        return _read_ras
    return choose_table(head)


def _read_smi(text: str) -> Iterator[Told]:
    """Read ``nvidia-smi -q``: sections are indented below each GPU."""
    bus, path = "", [(-1, "")]
    for number, line in enumerate(text.splitlines(), 1):
        found = _GPU.match(line)
        if found:
            bus, path = found["bus"], [(-1, "")]
            continue
        row = _ROW.match(line)
        told = row or _HEAD.match(line)
        if not bus or told is None:
            continue
        indent, name = len(told["indent"]), told["name"].rstrip()
        while path[-1][0] >= indent:
            path.pop()
        if row is None:
            path.append((indent, name))
        else:
            words = _judge_smi([each for _, each in path], name, row["value"].strip())
            if words:
                yield number, f"GPU {bus}: {words}"


def _judge_smi(path: list[str], name: str, value: str) -> str | None:
    """Return what one value of ``nvidia-smi -q`` means where it is trouble."""
    above = " ".join(path)
    if "ECC Errors" in above and "Volatile" in above and value.isdigit() and int(value):
        bad = "Uncorrectable" in name or "Double Bit" in above or "Uncorrectable" in above
        return f"uncorrectable memory errors: {name} : {value}" if bad else None
    if path[-1] == "Remapped Rows" and value == "Yes":
        return f"memory rows: {name} : {value}" if name in ("Pending", "Remapping Failure Occurred") else None
    if path[-1] == "Retired Pages" and name.startswith("Pending") and value == "Yes":
        return f"memory pages: {name} : {value}"
    if name == "GPU Recovery Action" and value not in ("None", "N/A"):
        return f"recovery needed: {name} : {value}"
    if path[-1] == "Fabric" and (name, value) not in (("State", "Completed"), ("Status", "Success")):
        return (
            f"fabric not ready: {name} : {value}" if name in ("State", "Status") and value != "N/A" else None
        )
    if "requires reset" in value or value in ("Unknown Error", "GPU is lost"):
        return f"recovery needed: {name} : {value}"
    return None


def _read_dcgmi(text: str) -> Iterator[Told]:
    """Read the tables of ``dcgmi diag`` and ``dcgmi health``."""
    for number, line in enumerate(text.splitlines(), 1):
        found = _DIAG.match(line)
        if found:
            gpus = [each for each in (found["gpus"] or "").replace(",", " ").split() if each]
            for gpu in gpus or [""]:
                yield number, _tell_diag(found["test"].strip(), gpu, "Fail")
        elif warned := _DIAG_WARNING.match(line):
            yield number, f"GPU {warned['gpu']}: failed its diagnosis: {warned['what'].strip()}"
        elif ill := _HEALTH.match(line):
            yield number, f"GPU {ill['gpu']}: failed its diagnosis: dcgmi health reports a failure"


def _tell_diag(test: str, gpu: str, status: str) -> str:
    if "fabric" in test.lower():
        return f"fabric not ready: {test} : {status}"
    if test.lower() in SOFTWARE and "remap" not in test.lower():
        return f"the node's set-up: {test} : {status}"
    return f"GPU {gpu or '?'}: failed its diagnosis: {test} : {status}"


def _read_diag_json(text: str) -> Iterator[Told]:
    """Read ``dcgmi diag --json``: tests with results, in forms that differ between releases."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return
    for test in _walk(data):
        name, results = test.get("name"), test.get("results")
        if not isinstance(name, str) or not isinstance(results, list):
            continue
        for result in results:
            if isinstance(result, dict) and str(result.get("status", "")).lower().startswith("fail"):
                gpu = result.get("gpu_id", result.get("entity_id", ""))
                yield 1, _tell_diag(name, str(gpu), "Fail")


def _walk(value: Any) -> Iterator[dict[str, Any]]:
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, dict):
            yield each
            stack += reversed(list(each.values()))
        elif isinstance(each, list):
            stack += reversed(each)


def _read_ibstat(text: str) -> Iterator[Told]:
    """Read ``ibstat``: ports that are not up, of adapters of which one may be unused."""
    adapter, port, state = "", "", ""
    for number, line in enumerate(text.splitlines(), 1):
        if found := _CA.match(line):
            adapter, port, state = found["name"], "", ""
        elif found := _PORT.match(line):
            port, state = found["port"], ""
        elif port and line.strip().startswith("State: "):
            state = line.strip().removeprefix("State: ")
        elif port and line.strip().startswith("Physical state: ") and state not in ("", "Active"):
            yield number, f"adapter {adapter} port {port} is not up: {state}, {line.strip()}"


def _read_statistics(text: str) -> Iterator[Told]:
    for number, line in enumerate(text.splitlines(), 1):
        found = _STATISTIC.match(line)
        if found:
            yield number, f"adapter counts errors: {found['name']}: {found['count']}"


def _read_ras(text: str) -> Iterator[Told]:
    """Read NCCL's RAS report as JSON: ranks that do not answer, or whose process is dead."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return
    for communicator in _walk(data):
        for key in ("missing_ranks", "ranks"):
            ranks = communicator.get(key)
            for each in ranks if isinstance(ranks, list) else []:
                status = each.get("status") if isinstance(each, dict) else None
                if isinstance(status, dict) and (status.get("considered_dead") or status.get("unresponsive")):
                    host = str(each.get("host", ""))[:64]
                    who = f"process {each.get('pid')} on node {host}"
                    yield 1, f"rank {each.get('rank')} of NCCL's RAS does not answer: {who}"
