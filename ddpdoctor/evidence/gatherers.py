"""Gatherers of third parties: functions that look at a node and return plain data for checks of theirs.

What they return is kept in `Evidence.extra` as ``{"<distribution>/<gatherer>": {"<node>": data}}``.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ddpdoctor.evidence.bundle import Evidence
from ddpdoctor.evidence.facts import NodeFacts

GATHER_LIMIT_S = 5.0
"""A look at a few files takes milliseconds; every check would wait for one that takes longer than 5 s."""

Look = Callable[[NodeFacts], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Gatherer:
    """A function that looks at one node."""

    name: str
    look: Look
    source: str
    """Distribution that it comes from."""

    @property
    def key(self) -> str:
        """Key of its data in `Evidence.extra`."""
        return f"{self.source}/{self.name}"


@dataclass(frozen=True, slots=True)
class GathererFailure:
    """A gatherer that gave nothing usable."""

    source: str
    name: str
    text: str


class GathererRegistry:
    """All gatherers of this process; entry points fill it by ``register(registry)``."""

    def __init__(self) -> None:
        self._gatherers: dict[str, Gatherer] = {}
        self.source = "ddpdoctor"
        """Distribution that is registering now; set by the loader."""

    def add(self, name: str, look: Look) -> None:
        """Register a gatherer.

        Args:
            name: unique within its distribution.
            look: gets the facts of the node it runs on; returns a dictionary of plain JSON types.

        Raises:
            ValueError: the name is taken.
        """
        made = Gatherer(name, look, self.source)
        if made.key in self._gatherers:
            raise ValueError(f"gatherer {made.key} is already registered")
        self._gatherers[made.key] = made

    @property
    def gatherers(self) -> tuple[Gatherer, ...]:
        """All gatherers in order of registration."""
        return tuple(self._gatherers.values())


def run_gatherers(
    registry: GathererRegistry, facts: NodeFacts, *, limit_s: float = GATHER_LIMIT_S
) -> tuple[dict[str, dict[str, Any]], list[GathererFailure]]:
    """Let every gatherer look at this node; one that raises, hangs or returns nonsense harms no other.

    Args:
        registry: the gatherers.
        facts: the node on which this process runs.
        limit_s: seconds for each.

    Returns:
        What belongs into `Evidence.extra`, and the gatherers that failed.
    """
    extra: dict[str, dict[str, Any]] = {}
    failures: list[GathererFailure] = []
    for each in registry.gatherers:
        data, problem = _look(each, facts, limit_s)
        if problem is None:
            extra[each.key] = {str(facts.node): data}
        else:
            failures.append(GathererFailure(each.source, each.name, problem))
    return extra, failures


def _look(each: Gatherer, facts: NodeFacts, limit_s: float) -> tuple[Any, str | None]:
    outcome: list[tuple[Any, str | None]] = []

    def call() -> None:
        try:
            data = each.look(facts)
            if not isinstance(data, dict):
                raise TypeError(f"returned {type(data).__name__} instead of a dictionary")
            # The copy is proof that it is JSON, and cuts what a still running thread could change.
            outcome.append((json.loads(json.dumps(data, allow_nan=False)), None))
        except BaseException as problem:  # SystemExit of anyone's gatherer must not end the command
            outcome.append((None, f"{type(problem).__name__}: {problem}"))

    thread = threading.Thread(target=call, name=f"gatherer {each.key}", daemon=True)
    thread.start()
    thread.join(limit_s)
    return outcome[0] if outcome else (None, f"no answer within {limit_s:g} s")


def merge_extra(evidence: Evidence, extra: dict[str, dict[str, Any]]) -> Evidence:
    """Return the evidence with what gatherers saw on one more node."""
    joined = {key: dict(by_node) for key, by_node in evidence.extra.items()}
    for key, by_node in extra.items():
        joined.setdefault(key, {}).update(by_node)
    return dataclasses.replace(evidence, extra=joined)
