"""Looks how much swap a node has and uses."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddpdoctor.evidence import NodeFacts
    from ddpdoctor.evidence.gatherers import GathererRegistry

MEMINFO = Path("/proc/meminfo")
KIBIBYTE = 1024
"""The unit of /proc/meminfo (man 5 proc), although it writes kB."""


def register(registry: GathererRegistry) -> None:
    """Add the gatherer."""
    registry.add("swap", functools.partial(read_swap, path=MEMINFO))


def read_swap(facts: NodeFacts, *, path: Path) -> dict[str, Any]:
    """Return swap of this node in bytes: ``{"total": …, "used": …}``.

    Args:
        facts: the node that this runs on; its host's name goes along, so that the check can say it.
        path: the file to read, so that a test can bring its own.

    Raises:
        OSError: the system has no such file.
        KeyError: the file has no line on swap.
    """
    sizes = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        if rest.split():
            sizes[name] = int(rest.split()[0]) * KIBIBYTE
    total = sizes["SwapTotal"]
    return {"host": facts.host, "total": total, "used": total - sizes["SwapFree"]}
