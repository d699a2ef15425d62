"""What tasks on which nothing moves tell each other: each writes its look into its own run directory, the first reads.

The counterpart for several nodes of one torchrun, where agents carry, is ``ddpdoctor.watch.live.stillness``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ddpdoctor.evidence.codec import encode
from ddpdoctor.evidence.sockets import NodeNetwork
from ddpdoctor.evidence.standstill import STAGES, Standstill, join_nodes
from ddpdoctor.watch.keeping import write_below
from ddpdoctor.watch.live.stillness import UNPACKED, Exchange, Told, decode_told
from ddpdoctor.watch.tasks.folder import Folder, read_some


class TaskExchange(Exchange):
    """The looks of one job's tasks.

    Args:
        run: the run directory of this task.
        folder: of the job.
    """

    def __init__(self, run: Path, folder: Folder) -> None:
        super().__init__(run)
        self._folder = folder
        self._read_before: dict[int, tuple[tuple[int, int, int], Told]] = {}

    def leads(self) -> bool:
        """Whether this task judges what all of them tell: reading so much is one task's work."""
        return self._folder.leads()

    def join(self, own: Standstill, *, ended: bool = False) -> Standstill | None:
        """Return how all tasks stand (see `Exchange.join`); None for all tasks but the one that reads it."""
        return super().join(own, ended=ended) if self.leads() else None

    def leave(self, look: Callable[[], Standstill | None]) -> None:
        """Leave behind how the ranks of this task stood at their end, which nothing changes any more."""
        last = look()
        if last is None:
            self.withdraw()
            return
        with contextlib.suppress(OSError):
            self._write("still", json.dumps({"checked": 0, "ended": True, "look": encode(last)}))

    def read_others(self) -> dict[int, Told]:
        """Return what the other tasks have told last, by number."""
        self._folder.refresh()
        found = {}
        for number in self._folder.list_slots():
            told = self._read_task(number) if number != self._folder.task.number else None
            if told is not None:
                found[number] = told
        return found

    def _read_task(self, number: int) -> Told | None:
        path = self._folder.kept / f"task-{number}" / "snapshots" / "still"
        try:
            state = path.stat()
        except OSError:
            self._read_before.pop(number, None)
            return None
        mark = (state.st_mtime_ns, state.st_size, state.st_ino)
        known = self._read_before.get(number)
        if known is not None and known[0] == mark:
            return known[1]
        data = read_some(path, UNPACKED)
        told = decode_told(data) if data is not None else None
        if told is not None:
            self._read_before[number] = (mark, told)
        return told

    def combine(self, own: Standstill, others: Sequence[tuple[int, Standstill]]) -> Standstill:
        """Return the looks of all tasks as one; tasks of one host are of one node."""
        places = number_places(self._folder, [self._folder.task.number, *(number for number, _ in others)])
        mine = places[self._folder.task.number]
        return join_looks([(mine, own), *((places[number], look) for number, look in others)])

    def stop(self, text: str) -> None:
        """Let the other tasks know that the job is to be ended."""
        with contextlib.suppress(OSError):
            write_below(self._folder.kept, "stop", text.encode())

    def read_stop(self) -> str | None:
        """Return why another task ends the job; None while none does."""
        data = read_some(self._folder.kept / "stop", 65_536)
        return data.decode(errors="replace") if data is not None else None


def number_places(folder: Folder, tasks: Iterable[int]) -> dict[int, int]:
    """Return task -> number of its node; nodes are numbered in the order of their lowest tasks."""
    nodes: dict[str, int] = {}
    found = {}
    for number in sorted(tasks):
        place = folder.read_about(number).place or f"unknown {number}"
        found[number] = nodes.setdefault(place, len(nodes))
    return found


def join_looks(looks: Sequence[tuple[int, Standstill]]) -> Standstill:
    """Join looks of several tasks into one, in which each rank has the node of its task.

    Args:
        looks: node and look; at least one. The first gives times.
    """
    by_node: dict[int, list[Standstill]] = {}
    for node, look in looks:
        if not look.joined:
            by_node.setdefault(node, []).append(look)
    parts = [look for _, look in looks if look.joined]
    parts += [_join_host(node, each) for node, each in by_node.items()]
    parts.sort(key=lambda look: -STAGES.index(look.stage))
    joined = join_nodes(parts)
    return dataclasses.replace(joined, at=looks[0][1].at, after_s=looks[0][1].after_s, joined=True)


def _join_host(node: int, looks: Sequence[Standstill]) -> Standstill:
    first = looks[0]
    networks = [each for look in looks for each in look.network]
    return dataclasses.replace(
        first,
        node=node,
        stands=tuple(stand for look in looks for stand in look.stands),
        still_s=min(look.still_s for look in looks),
        interval_s=max(look.interval_s for look in looks),
        world_size=max((look.world_size or 0 for look in looks), default=0) or None,
        stage=max((look.stage for look in looks), key=STAGES.index),
        stopped=any(look.stopped for look in looks),
        network=(_join_networks(networks),) if networks else (),
        ras=tuple(dict.fromkeys(each for look in looks for each in look.ras)),
    )


def _join_networks(networks: Sequence[NodeNetwork]) -> NodeNetwork:
    best = next((each for each in networks if each.source == "sock_diag"), networks[0])
    return dataclasses.replace(
        best,
        connections=tuple(dict.fromkeys(each for network in networks for each in network.connections)),
        left_out=sum(each.left_out for each in networks),
        note=next((each.note for each in networks if each.note), None),
    )
