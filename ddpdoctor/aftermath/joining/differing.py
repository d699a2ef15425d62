"""What NCCL chose or was given, where it is not the same on all hosts of a job.

No line of a log says so: each process prints its own choice, and only all logs together show that two do not match.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from ddpdoctor.evidence.job import TextMatch
from ddpdoctor.evidence.texts.matching import match_line
from ddpdoctor.evidence.variables import WORLD, agreement

CHOICES = {"nccl-network": "network", "nccl-version": "version", "nccl-variable-set": "value"}
"""Entries in which a process of NCCL says what it uses, and the part that says it."""
NAMES = {"nccl-network": "NCCL network", "nccl-version": "NCCL version"}
HOSTS_NAMED = 3
"""Hosts that are named for each value."""
VALUES_NAMED = 3


def find_differences(texts: Sequence[TextMatch]) -> list[TextMatch]:
    """Return a text for each choice of which two hosts made disjoint ones.

    A host that never printed a choice is not compared: NCCL reads some variables only where it needs them.

    Args:
        texts: of all logs, with their hosts.
    """
    said: dict[str, dict[str, dict[str, TextMatch]]] = {}
    for text in texts:
        part = CHOICES.get(text.entry)
        if part is None or not text.host:
            continue
        name = NAMES.get(text.entry) or text.groups["variable"]
        if text.entry in NAMES or agreement(name) == WORLD:
            said.setdefault(name, {}).setdefault(text.host, {}).setdefault(text.groups[part], text)
    return [made for name, hosts in said.items() for made in _compare(name, hosts)]


def _compare(name: str, hosts: dict[str, dict[str, TextMatch]]) -> Iterable[TextMatch]:
    sides: dict[tuple[str, ...], list[str]] = {}
    for host, said in hosts.items():
        sides.setdefault(tuple(sorted(said)), []).append(host)
    first = min(sides, key=lambda values: (-len(sides[values]), values), default=())
    other = next((values for values in sides if not set(values) & set(first)), None)
    if other is None:
        return
    ordered = sorted(sides, key=lambda values: -len(sides[values]))
    parts = []
    for values in ordered[:VALUES_NAMED]:
        line = hosts[sides[values][0]][values[0]]
        parts.append(f"{' and '.join(values)} on {_name(sides[values])} ({line.file}:{line.line})")
    shown = hosts[sides[other][0]][other[0]]
    words = f"Hosts differ: {name}: {'; '.join(parts)}"
    for entry, groups in match_line(words):
        yield dataclasses.replace(
            shown, entry=entry, text=words, groups=groups, node=0, host="", rank=None, pid=None, count=1
        )


def _name(hosts: Sequence[str]) -> str:
    more = len(hosts) - HOSTS_NAMED
    return ", ".join(hosts[:HOSTS_NAMED]) + (f" and {more} more" if more > 0 else "")
