"""Who shares a machine with whom, as the ranks themselves say it, where no launcher has said it for all of them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddpdoctor.gather import machine


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one rank is."""

    node: int
    local_rank: int
    local_size: int
    leads: bool
    """Whether it speaks for its node."""


def identify_machine() -> str:
    """Return what only the processes of one machine with one network have alike; its name is the last resort."""
    return machine.boot_id() or socket.gethostname()


def arrange_ranks(others: Mapping[int, Mapping[str, Any]]) -> dict[int, Seat]:
    """Return rank -> seat: nodes are numbered in the order of their lowest ranks.

    Args:
        others: rank -> what it said of itself: its ``machine``, and whether it ``leads`` as far as it knew.
    """
    machines: dict[str, list[int]] = {}
    for rank in sorted(others):
        machines.setdefault(str(others[rank]["machine"]), []).append(rank)
    seats = {}
    for node, ranks in enumerate(machines.values()):
        leader = next((rank for rank in ranks if others[rank]["leads"]), ranks[0])
        for local, rank in enumerate(ranks):
            seats[rank] = Seat(node, local, len(ranks), rank == leader)
    return seats
