"""Which node and rank a line of NCCL or of the kernel is of, by the host and the process that it names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.aftermath.joining.file_nodes import name_by_paths
from ddpdoctor.aftermath.parts import Log
from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.job import TextMatch

KERNELS = ("xid-", "device-", "switch-", "fabric-", "amdgpu-", "bus-", "adapter-", "kernel-", "driver-")
"""How entries begin that come from a node's own logs, which often name no host."""
_OF_NODE = re.compile(r"(?i)(?:^|[-_.])(?:node|host|pod)(?![a-z])")
"""What logs are called that were kept by node."""


class Hosts:
    """Nodes by their names, and ranks by host and process, as all logs together tell."""

    def __init__(self, logs: Sequence[Log], hosts: Sequence[str]) -> None:
        self._nodes = {_short(host): number for number, host in enumerate(hosts)}
        self._names = {_short(host): host for host in hosts}
        self._buses = {
            (_short(host), member.bus): member.rank
            for log in logs
            for (host, _), member in log.facts.members.items()
            if member.bus
        }
        self._members = {
            (_short(host), pid): member.rank
            for log in logs
            for (host, pid), member in log.facts.members.items()
        }
        said = [text.match.host for log in logs for text in log.facts.texts if text.match.host]
        named = {_short(host) for host in said} | {_short(host) for host, _ in self._members}
        paths = name_by_paths([log.name for log in logs]) if len(logs) > 1 else [""] * len(logs)
        self._paths = {id(log): path for log, path in zip(logs, paths, strict=True)}
        for name in dict.fromkeys([*said, *(host for log in logs for host, _ in log.facts.members)]):
            if len(named) > 1 or hosts:
                self._add(name)

    def _add(self, host: str) -> int:
        self._names.setdefault(_short(host), host)
        return self._nodes.setdefault(_short(host), len(self._nodes))

    def place(self, log: Log, match: TextMatch) -> tuple[int, str]:
        """Return the node and the host of a text."""
        if match.host and _short(match.host) in self._nodes:
            return self._nodes[_short(match.host)], self._names[_short(match.host)]
        if match.host:
            return log.node, match.host
        if match.entry.startswith(KERNELS) and not log.hosts and self._paths[id(log)]:
            part = _short(self._paths[id(log)])
            named = next((host for host in self._nodes if host and host in part), None)
            if named is not None:
                return self._nodes[named], self._names[named]
        return log.node, log.hosts[0] if log.hosts else ""

    def is_kernels(self, match: TextMatch) -> bool:
        """Whether a text is of a node's own log, and not of a job's."""
        return match.entry.startswith(KERNELS) and match.pid is None and match.rank is None

    def host_of(self, log: Log) -> str:
        """Return the host of a log that names none: what its path shares with a known host, or its path."""
        if log.hosts:
            return log.hosts[0]
        part = self._paths[id(log)]
        named = next((name for short, name in self._names.items() if short and short in _short(part)), None)
        return named or part

    def ranks_on(self, host: str) -> RankSet:
        """Return the ranks that NCCL placed on a host."""
        return RankSet(rank for (name, _), rank in self._members.items() if name == _short(host))

    @property
    def count(self) -> int:
        """Nodes that are known by name, or by what their logs are called."""
        return max(len(self._nodes), len({path for path in self._paths.values() if _OF_NODE.search(path)}))

    def find_rank(self, match: TextMatch, host: str) -> int | None:
        """Return the rank that NCCL gave to the process, or to the GPU, of a text; None where it said none.

        Args:
            match: the text.
            host: where it was said.
        """
        if match.rank is not None:
            return match.rank
        bus = read_bus(match.groups.get("bus", ""))
        if match.pid is None:
            return self._buses.get((_short(host), bus)) if bus and host else None
        return self._members.get((_short(match.host), match.pid))


_BUS = re.compile(r"(?:([\da-fA-F]{4,8}):)?([\da-fA-F]{2}):([\da-fA-F]{2})(?:\.([0-7]))?$")


def read_bus(text: str) -> str:
    """Return a PCI address such as ``0000:4c:00`` as NCCL writes it: ``4c000``; empty where it is none."""
    found = _BUS.search(text)
    if found is None:
        return ""
    domain, bus, device, function = (int(part or "0", 16) for part in found.groups())
    return f"{domain << 20 | bus << 12 | device << 4 | function:x}"


def _short(host: str) -> str:
    """Return a host's name without its domain, as NCCL shortens it."""
    first = host.partition(".")[0]
    return (host if first.isdigit() else first).lower()
