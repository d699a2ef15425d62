"""Telling the attempts of an elastic job apart where torchrun's own count does not.

A node that joins makes the others start their ranks again, with a new world and the same TORCHELASTIC_RESTART_COUNT,
for nothing has failed (torch/distributed/elastic/agent/server/api.py, ``_invoke_run``). The node that joins counts from
zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from ddpdoctor.evidence.bundle import Evidence
from ddpdoctor.evidence.job import ProcessRecord

Key = tuple[int, int]
"""Node and process id."""
CLOCKS_NS = 5 * 10**9
"""Nanoseconds by which the clocks of nodes may be apart."""
_KINDS = ("processes", "exceptions", "crashes", "wrappers", "texts")
"""Kinds of evidence whose rows say of which attempt they are."""


def number_rounds(evidence: Evidence) -> Evidence:
    """Return evidence in which ranks that never ran together have different attempts.

    Args:
        evidence: of all nodes; once, as it counts on from torchrun's numbers.
    """
    numbers = tell_rounds(evidence.processes)
    if not numbers:
        return evidence
    last = max(numbers.values())
    changed: dict[str, Any] = {
        kind: tuple(_renumber(row, numbers) for row in getattr(evidence, kind)) for kind in _KINDS
    }
    return dataclasses.replace(
        evidence,
        **changed,
        ranks=tuple(each for each in evidence.ranks if numbers.get((each.node, each.pid or 0), last) == last),
        job=tuple(dataclasses.replace(end, restarts=max(end.restarts, last)) for end in evidence.job),
    )


def tell_rounds(processes: Iterable[ProcessRecord]) -> dict[Key, int]:
    """Return the attempt of each rank's process; nothing where torchrun's own count tells them apart."""
    counted: dict[int, list[list[ProcessRecord]]] = {}
    ranks = [each for each in processes if each.role == "rank" and each.started is not None]
    for each in sorted(ranks, key=_started):
        rounds = counted.setdefault(each.attempt, [])
        fitting = next((members for members in rounds if _ran_with(each, members)), None)
        if fitting is None:
            rounds.append([each])
        else:
            fitting.append(each)
    if all(len(rounds) == 1 for rounds in counted.values()):
        return {}
    numbers: dict[Key, int] = {}
    more = 0
    for attempt, rounds in sorted(counted.items()):
        for number, members in enumerate(rounds):
            numbers.update({(each.node, each.pid): attempt + more + number for each in members})
        more += len(rounds) - 1
    return numbers


def _ran_with(one: ProcessRecord, members: Sequence[ProcessRecord]) -> bool:
    """Whether a process can be of the same attempt: after none in its own place, nor after one of another world.

    Those that run side by side are of one attempt also where their worlds differ in size: that is the mistake then.
    """
    if one.local_rank is None:
        return True
    if any(each.world_size != one.world_size and _is_over(each, one) for each in members):
        return False
    same = [each for each in members if (each.node, each.local_rank) == (one.node, one.local_rank)]
    return not any(each.parent == one.parent and _is_over(each, one) for each in same)


def _is_over(before: ProcessRecord, later: ProcessRecord) -> bool:
    """Whether a process is known to have ended before another one began; of two nodes as far as their clocks agree."""
    if before.ended is None or later.started is None:
        return False
    one, other = before.ended, later.started
    if before.node != later.node:
        return one.wall_ns <= other.wall_ns + CLOCKS_NS
    if one.mono_ns is not None and other.mono_ns is not None:
        return one.mono_ns <= other.mono_ns
    return one.wall_ns <= other.wall_ns


def _started(process: ProcessRecord) -> int:
    return process.started.wall_ns if process.started is not None else 0


def _renumber(row: Any, numbers: dict[Key, int]) -> Any:
    number = numbers.get((row.node, row.pid or 0))
    return row if number is None or number == row.attempt else dataclasses.replace(row, attempt=number)
