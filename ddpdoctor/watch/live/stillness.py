"""What nodes on which nothing moves tell each other, as files that their agents pass on.

The other half is ``ddpdoctor_watch/nodes/stillness.py``, in the elastic agent.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddpdoctor.evidence.codec import decode, encode
from ddpdoctor.evidence.ranks import LARGEST_RANK
from ddpdoctor.evidence.standstill import Standstill, join_nodes
from ddpdoctor.gather.regular import open_regular
from ddpdoctor.watch.keeping import write_below

UNPACKED = 16 << 20
"""Bytes of what another node tells."""


def read_node(environ: Mapping[str, str]) -> int:
    """Return the number of this node, where a launcher above us has said it; whatever else is written there is none."""
    text = environ.get("GROUP_RANK", "")
    return int(text) if text.isdecimal() and len(text) < 8 and int(text) <= LARGEST_RANK else 0


@dataclass(frozen=True, slots=True)
class Told:
    """What another node told."""

    checked: int
    """How often its supervisor has seen since its look that nothing has moved."""
    look: Standstill
    ended: bool = False
    """Whether its ranks have ended: nothing will move there any more."""


class Exchange:
    """The files of one run directory.

    Args:
        run: the directory.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._base: dict[int, tuple[float, int]] = {}

    def publish(self, look: Standstill, checked: int) -> None:
        """Tell that nothing has moved since a look.

        Raises:
            OSError: it cannot be written.
        """
        self._write("still", json.dumps({"checked": checked, "look": encode(look)}))

    def withdraw(self) -> None:
        """Tell that something moves."""
        self._base.clear()
        with contextlib.suppress(OSError):
            (self._run / "snapshots" / "still").unlink()

    def join(self, own: Standstill, *, ended: bool = False) -> Standstill | None:
        """Return how all nodes stand, where each of them has been seen not to move since the look of this one.

        No clock is compared: another node's look counts once its supervisor has looked again after it was first read
        here, and the own node has not moved since before that.

        Args:
            own: the look of this node, since which nothing has moved here.
            ended: another node has ended the job because nothing moves: what was told last holds, and nobody will look
                again.
        """
        told = self.read_others()
        seen = {stand.rank for stand in own.stands}
        looks = []
        for node, each in sorted(told.items()):
            if not ended and not each.ended and not self._is_seen_again(node, each):
                return None
            seen |= {stand.rank for stand in each.look.stands}
            looks.append((node, each.look))
        if not looks or not own.world_size or not seen >= set(range(own.world_size)):
            return None
        return self.combine(own, looks)

    def leads(self) -> bool:
        """Whether this side may speak for what it sees alone; each node of torchrun's may."""
        return True

    def leave(self, look: Callable[[], Standstill | None]) -> None:
        """Leave a last look behind, or none: on nodes of torchrun the agents tell how ranks ended.

        Args:
            look: takes it.
        """

    def read_others(self) -> dict[int, Told]:
        """Return what the others have told last, by number."""
        told: dict[int, Told] = {}
        for path in (self._run / "nodes").glob("still-*"):
            number = path.name.removeprefix("still-")
            found = self._read(path) if number.isdecimal() and len(number) < 8 else None
            if found is not None:
                told[int(number)] = found
        return told

    def combine(self, own: Standstill, others: Sequence[tuple[int, Standstill]]) -> Standstill:
        """Return the looks of all nodes as one."""
        known = {node for node, _ in others}
        mine = next(node for node in range(len(others) + 1) if node not in known)
        looks = [replace(own, node=mine), *(replace(look, node=node) for node, look in others)]
        return replace(join_nodes(looks), joined=True)

    def _is_seen_again(self, node: int, told: Told) -> bool:
        """Whether a node has been seen not to move since its look was first read here."""
        base = self._base.get(node)
        if base is None or base[0] != told.look.after_s:
            self._base[node] = (told.look.after_s, told.checked)
            return False
        return told.checked > base[1]

    def stop(self, text: str) -> None:
        """Let the other nodes know that the job is to be ended."""
        with contextlib.suppress(OSError):
            self._write("stop", text)

    def read_stop(self) -> str | None:
        """Return why another node ends the job; None while none does."""
        try:
            with open_regular(self._run / "nodes" / "stop") as file:
                return file.read(65536).decode(errors="replace")
        except OSError:
            return None

    def _write(self, name: str, text: str) -> None:
        write_below(self._run, f"snapshots/{name}", text.encode())

    def _read(self, path: Path) -> Told | None:
        try:
            with open_regular(path) as file:
                data = file.read(2 * UNPACKED)
            return decode_told(zlib.decompressobj().decompress(base64.b64decode(data), UNPACKED))
        except (OSError, ValueError, TypeError, zlib.error, binascii.Error):
            return None


def decode_told(data: bytes) -> Told | None:
    """Read what a supervisor wrote; None where it is damaged."""
    try:
        found = json.loads(data)
        look = decode(Standstill, found["look"])
        checked, ended = int(found["checked"]), bool(found.get("ended"))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if any(not 0 <= stand.rank < 1 << 20 for stand in look.stands):
        return None
    return Told(checked, look, ended)
