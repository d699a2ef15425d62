"""Slurm's compact host lists, read without ``scontrol`` (which containers and compute nodes may lack)."""

from __future__ import annotations

import itertools
import re

MAX_HOSTS = 65536
"""A larger list is cut: nothing here needs more, and a mistyped range must not fill the memory."""

_GROUP = re.compile(r"\[([^\[\]]*)\]")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of a list such as ``node[01-04,7],rack[1-2]n[1-3]``, in Slurm's order.

    Ranges keep their leading zeros, several brackets multiply, and a text after a bracket stays
    (scontrol(1), ``show hostnames``). A malformed range is taken as it is written.
    """
    hosts: list[str] = []
    for part in _split_outside(text):
        pieces = _GROUP.split(part)
        choices = [_expand_range(p) if i % 2 else [p] for i, p in enumerate(pieces)]
        room = MAX_HOSTS - len(hosts)
        hosts += ["".join(choice) for choice in itertools.islice(itertools.product(*choices), room)]
    return tuple(hosts)


def first_host(text: str) -> str | None:
    """Return the first host of a list, None when it is empty."""
    return next(iter(expand_hosts(text)), None)


def expand_counts(text: str) -> tuple[int, ...]:
    """Return tasks per node from Slurm's form ``4(x2),3``: (4, 4, 3). Empty when it is malformed."""
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        match = _COUNT.fullmatch(part.strip())
        if match is None:
            return ()
        counts += [int(match[1])] * min(int(match[2] or 1), MAX_HOSTS)
    return tuple(counts[:MAX_HOSTS])


def _split_outside(text: str) -> list[str]:
    """Split at commas that are not inside brackets."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _expand_range(text: str) -> list[str]:
    names: list[str] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not dash or not (low.isdigit() and high.isdigit()) or int(high) < int(low):
            names.append(part.strip())
            continue
        last = min(int(high), int(low) + MAX_HOSTS - 1)
        names += [str(number).zfill(len(low)) for number in range(int(low), last + 1)]
    return names
