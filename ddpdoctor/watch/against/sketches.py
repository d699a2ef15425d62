"""Reading what the ranks of one run wrote down to be compared with another run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpdoctor.facts.training_events import Compared
from ddpdoctor.watch.readers.collect import EVENTS_LIMIT
from ddpdoctor.watch.readers.events import DAMAGED, read_events

Sketch = tuple[float, ...]
APART = "ranks hold different ones"
UNKNOWN = "which part of it a rank holds is not known"
SAME = 0.02
"""Part of its size by which a tensor may differ between ranks that hold the same: on a device each of them may sum up
in an order of its own, in 16 bits too. What is not reduced, or begins with other random numbers, differs by more."""
INCOMPLETE = "not all parts of it were recorded"


@dataclass(slots=True)
class Tensor:
    """A parameter of one run, put together from what its ranks hold."""

    place: int
    shape: tuple[int, ...]
    dtype: str
    value: Sketch | None
    gradient: Sketch | None
    problem: str | None = None
    """Why it has no value."""
    gradient_problem: str | None = None


@dataclass(slots=True)
class RunStep:
    """One step of one optimizer of one run."""

    optimizer: int
    kind: str
    step: int
    tensors: dict[str, Tensor] = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)
    cut: bool = False
    elements: int = 0
    losses: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    drawn: bool | None = None
    precision: str = ""
    batch_norms: int = 0


def read_steps(processes: Path) -> dict[tuple[int, int], RunStep]:
    """Return the steps that the ranks of a run wrote down: optimizer and number of the step -> what it was.

    Args:
        processes: the folder of its processes' events.
    """
    found: dict[tuple[int, int], dict[int, Compared]] = {}
    for event in _list_events(processes):
        try:
            key = int(event["optimizer"]), int(event["step"])
            found.setdefault(key, {})[int(event["rank"])] = event
        except DAMAGED:
            continue
    steps: dict[tuple[int, int], RunStep] = {}
    for key in sorted(found):
        try:
            steps[key] = _join(*key, [event for _, event in sorted(found[key].items())])
        except DAMAGED:
            continue
    return steps


def _list_events(processes: Path) -> Iterator[Compared]:
    for file in sorted(processes.glob("*.jsonl")):
        try:
            with file.open("rb") as stream:
                data = stream.read(EVENTS_LIMIT)
        except OSError:
            continue
        for event in read_events(data):
            if event["event"] == "compared":
                yield event


def _join(optimizer: int, number: int, ranks: list[Compared]) -> RunStep:
    step = RunStep(optimizer, str(ranks[0]["class"])[:200], number)
    names = {str(row[0]): place for event in ranks for place, row in enumerate(event["rows"])}
    for name, place in names.items():
        rows = [row for event in ranks for row in event["rows"] if str(row[0]) == name]
        step.tensors[name] = _join_tensor(place, rows)
    step.samples = [str(each) for event in ranks for each in event["digests"]]
    step.cut = any(event.get("cut") for event in ranks)
    step.elements = sum(int(event.get("elements") or 0) for event in ranks)
    losses = [[float(each) for each in event["losses"]] for event in ranks]
    step.losses = tuple(math.fsum(each) / len(each) for each in losses) if all(losses) else ()
    step.rates = tuple(float(each) for each in ranks[0]["rates"] if each is not None)
    drawn = [event.get("drawn") for event in ranks]
    step.drawn = True if True in drawn else False if False in drawn else None
    step.precision = next((str(event["precision"]) for event in ranks if event.get("precision")), "")
    step.batch_norms = max(int(event.get("batch_norms") or 0) for event in ranks)
    return step


def _join_tensor(place: int, rows: list[list[Any]]) -> Tensor:
    _, shape, dtype, *_ = rows[0]
    sizes = tuple(int(each) for each in shape)
    value, problem = _join_sketches([(row[3], row[4]) for row in rows], sizes)
    gradient, gradient_problem = _join_sketches([(row[3], row[5]) for row in rows], sizes)
    if any(row[1] != shape for row in rows):
        return Tensor(place, sizes, str(dtype), None, None, APART, APART)
    return Tensor(place, sizes, str(dtype), value, gradient, problem, gradient_problem)


def _join_sketches(
    rows: Iterable[tuple[Any, Any]], shape: tuple[int, ...]
) -> tuple[Sketch | None, str | None]:
    """Return the sketch of a whole tensor, from those of its pieces; or why there is none."""
    pieces: dict[str, tuple[int, Sketch]] = {}
    for piece, told in rows:
        if piece is None:
            return None, UNKNOWN
        if told is None:
            return None, "it has none on some ranks"
        sketch = tuple(float(each) for each in told)
        before = pieces.setdefault(str(piece), (math.prod(int(each) for each in piece[0]), sketch))[1]
        if not _is_same(before, sketch):
            return None, APART
    if sum(size for size, _ in pieces.values()) != math.prod(shape):
        return None, INCOMPLETE
    return tuple(math.fsum(each) for each in zip(*[one for _, one in pieces.values()], strict=True)), None


def _is_same(one: Sketch, other: Sketch) -> bool:
    """Whether two ranks hold the same, but for how each of them rounded its sums."""
    size = math.sqrt(math.fsum(each * each for each in one))
    return math.dist(one, other) <= SAME * size
