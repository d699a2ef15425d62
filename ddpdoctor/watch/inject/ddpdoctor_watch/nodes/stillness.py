"""How nodes on which nothing moves tell the head where their ranks stand, while the job still lives.

The supervisor of each node writes ``snapshots/still`` below its run directory as long as nothing moves there, and
removes it when something does. Its agent passes it on through the store: the head's agent puts what others wrote into
``nodes/still-<node>``. What a supervisor says when it ends the job (``snapshots/stop``) comes into ``nodes/stop`` of
all others on which nothing moves. While there is no such file, nothing is asked of the store.
"""

from __future__ import annotations

import os
import time

from ..core import journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

STEP_S = 0.5
ANSWER_S = 1.0
"""How long the store may take to answer."""
LARGEST = 1 << 20
"""Bytes that are passed on, compressed."""
PIECE, PIECES = 400, 256
"""Bytes of a piece, and about how many there are where it is more than fits into as many: where packets above some size
vanish between two hosts, small ones pass, and so does what is told of that. Every host takes 576 (RFC 1122)."""

JOINED = "pieces"
"""Before turn and number of the pieces of which a value is made; no value that is base64 has a blank."""


class Stillness:
    """This node's part.

    Args:
        store: of the rendezvous.
        node: which one this is.
        others: the other nodes.
        leads: this is the head.
    """

    def __init__(self, store: Any, node: int, others: list[int], leads: bool) -> None:
        self._store, self._node, self._others, self._leads = store, node, others, leads
        self._run = os.path.dirname(journal.folder())
        self._next = 0.0
        self._told: object = None
        self._kept: dict[int, bytes] = {}
        self._turn = 0
        self._stopped = False

    def look(self, within: Callable[[float, str, Callable[[], None]], bool]) -> None:
        """Pass on what is new; called now and then by the agent's own thread.

        Args:
            within: does something that may never end, with a limit.
        """
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + STEP_S
        mark = self._mark()
        if mark is None and self._told is None:
            return
        if not within(ANSWER_S, "stillness", lambda: self._try(mark)):
            self._next = now + 20 * STEP_S  # it does not answer; asked again later

    def _try(self, mark: object) -> None:
        try:
            self._exchange(mark)
        except RuntimeError:
            # The store is gone: each further call would print a warning into the job's output.
            self._next = float("inf")

    def _exchange(self, mark: object) -> None:
        if self._leads:
            self._told = mark
            self._gather()
        elif mark != self._told:
            self._put(key_of("still", self._node), self._read() if mark is not None else "-")
            self._told = mark
        if not self._stopped:
            self._pass_stop()

    def _gather(self) -> None:
        for node in self._others:
            key = key_of("still", node)
            data = self._get(key) if self._store.check([key]) else b"-"
            if self._kept.get(node) == data:
                continue
            self._kept[node] = data
            self._write(f"still-{node}", data)

    def _put(self, key: str, text: str) -> None:
        """Set a key, in pieces of which each waits for the one before: together they would be one large packet."""
        if len(text) <= PIECE:
            self._store.set(key, text)
            return
        size = max(PIECE, -(-len(text) // PIECES))
        self._turn = 1 - self._turn  # the pieces that somebody reads are not overwritten meanwhile
        starts = range(0, len(text), size)
        for number, start in enumerate(starts):
            name = f"{key}/{self._turn}/{number}"
            self._store.set(name, text[start : start + size])
            self._store.check([name])
        self._store.set(key, f"{JOINED} {self._turn} {len(starts)}")

    def _get(self, key: str) -> bytes:
        data = bytes(self._store.get(key))[: 2 * LARGEST]
        words = data.split()
        if len(words) != 3 or words[0] != JOINED.encode() or not (words[1] + words[2]).isdigit():
            return data
        turn, count = int(words[1]), min(int(words[2]), 2 * LARGEST // PIECE)
        names = [f"{key}/{turn}/{number}" for number in range(count)]
        if not self._store.check(names):
            return b"-"
        return b"".join(bytes(self._store.get(name))[:LARGEST] for name in names)[: 2 * LARGEST]

    def _pass_stop(self) -> None:
        """Tell the others that the job is ended here, or hear it."""
        path = os.path.join(self._run, "snapshots", "stop")
        if os.path.exists(path):
            self._stopped = True
            with open(path, "rb") as file:
                self._store.set(key_of("stop"), file.read(65536).decode("utf-8", "replace"))
        elif self._store.check([key_of("stop")]):
            self._stopped = True
            self._write("stop", bytes(self._store.get(key_of("stop")))[:65536])

    def _mark(self) -> object:
        try:
            found = os.stat(os.path.join(self._run, "snapshots", "still"))
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> str:
        """Return the file compressed; ``-`` where it is gone or too long."""
        import base64
        import zlib

        try:
            with open(os.path.join(self._run, "snapshots", "still"), "rb") as file:
                data = zlib.compress(file.read(16 * LARGEST), 6)
        except OSError:
            return "-"
        return base64.b64encode(data).decode("ascii") if len(data) <= LARGEST else "-"

    def _write(self, name: str, data: bytes) -> None:
        folder = os.path.join(self._run, "nodes")
        if not os.path.isdir(folder):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        path = os.path.join(folder, name)
        descriptor = os.open(path + "~", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(path + "~", path)


def key_of(kind: str, node: int | None = None) -> str:
    """Return how a key is called in the store."""
    return f"ddpdoctor/{kind}" if node is None else f"ddpdoctor/{kind}/{node}"
