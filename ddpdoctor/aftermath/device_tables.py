"""Tables of counters and links that tools print of devices. Only counters that show a problem are kept.

``nvidia-smi topo -m`` and ``nvlink``, ``ip -s link``, ``ibv_devinfo``, ``perfquery``, ``rocm-smi`` and ``amd-smi``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from ddpdoctor.facts.peer_links import find_odd_gpus
from ddpdoctor.gather.devices.topology import parse_topology

Told: TypeAlias = tuple[int, str]
"""Number of the line, from 1, and what it says."""

LOST_PACKETS = 100
"""Errors of an interface from which on they are told, where they are also `LOST_SHARE` of its packets: a few come with
any plugging of a cable."""
LOST_SHARE = 1e-6

_NO_CARD = (
    "lo",
    "docker",
    "veth",
    "br-",
    "virbr",
    "cni",
    "cali",
    "flannel",
    "tun",
    "tap",
    "kube",
    "vxlan",
    "dummy",
)
"""How interfaces without a card of their own begin."""
_INTERFACE = re.compile(r"^\d{1,6}: (?P<name>[\w.-]{1,40})(?:@[\w.-]{1,40})?: <[\w,-]{0,200}> mtu \d")
_DIRECTION = re.compile(
    r"^\s{1,10}(?P<way>RX|TX)(?: errors)?: {1,4}(?P<names>[a-z_]{1,20}(?: {1,20}[a-z_]{1,20}){1,11})\s{0,20}$"
)
_SMI_GPU = re.compile(r"^GPU (?P<gpu>\d{1,3}): ")
_RECOVERED = re.compile(r"^\s{1,8}Link (?P<link>\d{1,3}): Recovery Errors?: (?P<count>[1-9]\d{0,18})\s*$")
_LINK = re.compile(r"^\s{1,8}Link (?P<link>\d{1,3}): (?P<state><inactive>|\d[\d.]{0,10} GB/s)\s*$")
_CARD = re.compile(r"^hca_id:\s{1,8}(?P<name>[\w-]{1,40})")
_CARD_PORT = re.compile(r"^\s{1,24}port:\s{1,8}(?P<port>\d{1,3})\s*$")
_CARD_STATE = re.compile(r"^\s{1,24}state:\s{1,24}(?P<state>PORT_(?!ACTIVE\b)[A-Z]{1,20} \(\d{1,3}\))")
_COUNTER = re.compile(
    r"^(?P<name>SymbolErrorCounter|LinkErrorRecoveryCounter|PortRcvErrors|LocalLinkIntegrityErrors"
    r"|ExcessiveBufferOverrunErrors):\.{1,60}(?P<count>[1-9]\d{0,18})\s*$"
)
_ROCM_GPU = re.compile(r"^GPU\[(?P<gpu>\d{1,3})\]\s{0,8}:")
_ROCM_BLOCK = re.compile(
    r"^\s{0,40}(?P<block>[A-Z_\d]{1,16})\s{1,30}ENABLED\s{1,40}\d{1,18}\s{1,40}(?P<count>[1-9]\d{0,17})\s*$"
)
_AMD_GPU = re.compile(r"^GPU: (?P<gpu>\d{1,3})\s*$")
_AMD_TOTAL = re.compile(r"^\s{1,20}TOTAL_UNCORRECTABLE_COUNT: (?P<count>[1-9]\d{0,17})\s*$")


def choose_table(head: str) -> Callable[[str], Iterator[Told]] | None:
    """Return the reader of a tool's table by its first lines; None where it is none of them."""
    for shape, reader in _SHAPES:
        if shape.search(head):
            return reader
    return None


def _read_topology(text: str) -> Iterator[Told]:
    odd = find_odd_gpus(parse_topology(text))
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r"(?:\x1b\[\d?m)?GPU(\d{1,3})\s", line)
        if found and int(found[1]) in odd:
            yield number, f"GPU {found[1]}: links missing: {odd.pop(int(found[1]))}"


def _read_interfaces(text: str) -> Iterator[Told]:
    """Read ``ip -s link``: a line of names and one of numbers for each direction of an interface."""
    name, way = "", ""
    names: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if found := _INTERFACE.match(line):
            name, way = found["name"], ""
        elif found := _DIRECTION.match(line):
            way, names = found["way"], found["names"].split()
        elif way:
            values = [int(each) for each in line.split() if each.isdigit()]
            counts = dict(zip(names, values, strict=False)) if len(names) == len(values) else {}
            errors, packets = counts.get("errors", 0), counts.get("packets", 0)
            if not name.startswith(_NO_CARD):
                if errors >= LOST_PACKETS and errors >= LOST_SHARE * packets:
                    verb = "received" if way == "RX" else "sent"
                    yield number, f"interface {name} counts errors: {errors} beside {packets} packets {verb}"
                elif counts.get("carrier", 0):
                    yield (
                        number,
                        f"interface {name} counts errors: its carrier was lost {counts['carrier']} times",
                    )
            way = ""


def _read_links(text: str) -> Iterator[Told]:
    """Read ``nvidia-smi nvlink``, with errors or with states of each link."""
    gpu = ""
    states: dict[str, dict[str, tuple[int, bool]]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if found := _SMI_GPU.match(line):
            gpu = found["gpu"]
        elif found := _RECOVERED.match(line):
            yield (
                number,
                f"GPU {gpu or '?'}: link errors: Link {found['link']}: Recovery Errors: {found['count']}",
            )
        elif gpu and (found := _LINK.match(line)):
            states.setdefault(gpu, {})[found["link"]] = number, found["state"] != "<inactive>"
    for gpu, links in states.items():
        others = [each for name, each in states.items() if name != gpu]
        for link, (number, active) in links.items():
            if not active and len(others) > 1 and all(each.get(link, (0, False))[1] for each in others):
                yield number, f"GPU {gpu}: link errors: Link {link} is inactive, and active on all other GPUs"


def _read_cards(text: str) -> Iterator[Told]:
    """Read ``ibv_devinfo``: ports that are not active, of adapters of which one may be unused."""
    card, port = "", ""
    for number, line in enumerate(text.splitlines(), 1):
        if found := _CARD.match(line):
            card, port = found["name"], ""
        elif found := _CARD_PORT.match(line):
            port = found["port"]
        elif port and (found := _CARD_STATE.match(line)):
            yield number, f"adapter {card} port {port} is not up: {found['state']}"


def _read_port_counters(text: str) -> Iterator[Told]:
    for number, line in enumerate(text.splitlines(), 1):
        if found := _COUNTER.match(line):
            yield number, f"adapter counts errors: {found['name']}: {found['count']}"


def _read_rocm(text: str) -> Iterator[Told]:
    """Read ``rocm-smi --showrasinfo`` and ``amd-smi metric --ecc``: errors that memory could not correct."""
    gpu = ""
    for number, line in enumerate(text.splitlines(), 1):
        if found := _ROCM_GPU.match(line) or _AMD_GPU.match(line):
            gpu = found["gpu"]
        elif found := _ROCM_BLOCK.match(line):
            yield (
                number,
                f"GPU {gpu or '?'}: uncorrectable memory errors: {found['block']} : {found['count']}",
            )
        elif found := _AMD_TOTAL.match(line):
            yield number, f"GPU {gpu or '?'}: uncorrectable memory errors: total : {found['count']}"


_SHAPES: tuple[tuple[re.Pattern[str], Callable[[str], Iterator[Told]]], ...] = (
    (re.compile(r"(?m)^[ \t]{0,12}(?:\x1b\[4m)?[ \t]{0,12}GPU0[ \t]"), _read_topology),
    (re.compile(r"(?m)^\d{1,6}: [\w.@-]{1,81}: <[\w,-]{0,200}> mtu \d"), _read_interfaces),
    (re.compile(r"(?m)^\s{1,8}Link \d{1,3}: (?:Replay Errors|<inactive>|\d[\d.]{0,10} GB/s)"), _read_links),
    (re.compile(r"(?m)^hca_id:\s"), _read_cards),
    (re.compile(r"(?m)^# Port (?:extended )?counters: Lid "), _read_port_counters),
    (re.compile(r"(?m)^GPU\[\d{1,3}\]\s{0,8}: .{0,40}RAS INFO|TOTAL_UNCORRECTABLE_COUNT:"), _read_rocm),
)
"""How each tool's output is known, and its reader."""
