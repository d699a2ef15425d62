"""Making what ranks wrote of their training small as soon as it is read: many ranks are kept side by side."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from ddpdoctor.facts.training_events import AnyEvent, Step

MOST = {
    "tensors": 60, "step": 4000, "batch": 1000, "epoch": 4000, "loader": 4000, "abstained": 100, "watching": 10,
}  # fmt: skip
"""Events of one process by kind: twice what the hook writes and more. What a file has beyond is not its."""
ROWS = 4000
"""Tensors of one list."""
WRAPPERS = 64
TABLES = 64
"""Different lists that are looked for among ranks: mostly all ranks have the same."""


class Slimmer:
    """Makes events small; ranks whose lists of tensors are equal share one."""

    def __init__(self) -> None:
        self._tables: dict[str, list[Any]] = {}

    def open(self) -> Slim:
        """Return what takes the events of one process."""
        return Slim(self._share)

    def _share(self, rows: list[Any]) -> list[Any]:
        text = json.dumps(rows)
        if len(self._tables) >= TABLES:
            return self._tables.get(text, rows)
        return self._tables.setdefault(text, rows)


class Slim:
    """Makes the events of one process small.

    Args:
        share: gives for a list of tensors an equal one that is there already.
    """

    def __init__(self, share: Any) -> None:
        self._share = share
        self._counts: Counter[str] = Counter()

    def take(self, event: AnyEvent) -> AnyEvent:
        """Return an event without the numbers of each tensor: `whole` says whether it has them.

        Raises:
            ValueError: there are more of its kind than the hook writes, or it has more in it.
        """
        kind = event["event"]
        self._counts[kind] += 1
        if self._counts[kind] > MOST.get(kind, 10_000):
            raise ValueError(f"more than {MOST.get(kind, 10_000)} events {kind}")
        if event["event"] == "tensors":
            rows: object = event["rows"]
            if not isinstance(rows, list) or len(rows) > ROWS:
                raise ValueError("a list of tensors that the hook does not write")
            return {**event, "rows": self._share(rows)}
        if event["event"] != "step":
            return event
        if len(event.get("wrappers") or ()) > WRAPPERS or len(event.get("missing") or ()) > ROWS:
            raise ValueError("a step that the hook does not write")
        kept: Any = {
            name: value
            for name, value in event.items()
            if name not in ("each", "each_gradient", "each_state", "idle")
        }
        kept.update(missing=bool(event.get("missing")), whole=bool(event.get("each")))
        small: Step = kept
        return small
