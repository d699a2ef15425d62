"""What nvidia-smi prints of each GPU, and of one that it has no handle of; a value that a card lacks is None."""

from __future__ import annotations

import csv
import re

from ddpdoctor.evidence.facts import Device
from ddpdoctor.gather.deadline import ToolError, run_tool

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


def query_gpus(limit_s: float) -> tuple[Device, ...]:
    """Ask nvidia-smi for each GPU, with fewer fields where the driver does not know all."""
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
