"""What one rank wrote down of the steps of its optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ddpdoctor.facts.training_events import Step, StepEvent, Tensors
from ddpdoctor.facts.training_rows import TensorRow


@dataclass(slots=True)
class RankSteps:
    """Events of one rank; of steps without the numbers of each tensor, which are read once more where they tell."""

    rank: int
    path: Path
    tables: dict[tuple[int, int], Tensors] = field(default_factory=dict)
    """Optimizer and number of the list -> its tensors."""
    steps: dict[tuple[int, int], Step] = field(default_factory=dict)
    """Optimizer and step, those included that it has shadowed under Join -> the look at it."""

    def take(self, event: StepEvent) -> None:
        """Take one event of `KINDS`."""
        if event["event"] == "tensors":
            self.tables[int(event["optimizer"]), int(event["table"])] = event
        else:
            self.steps[int(event["optimizer"]), count_step(event)] = event

    def renumber(self, numbers: Mapping[int, int]) -> None:
        """Give optimizers other numbers; those that have none are left out."""
        self.tables = {(numbers[key], n): event for (key, n), event in self.tables.items() if key in numbers}
        self.steps = {(numbers[key], n): event for (key, n), event in self.steps.items() if key in numbers}

    def take_names(self, number: int, other: Tensors) -> None:
        """Name the tensors of one optimizer as another rank does, where they are of the same shapes and dtypes.

        A rank that ran parts of the model before names them by these parts.
        """
        shapes = _list_shapes(other)
        for key, table in self.tables.items():
            if key[0] == number and _list_shapes(table) == shapes:
                self.tables[key] = {**table, "rows": other["rows"], "models": other["models"]}

    def list_tables(self, number: int) -> list[Tensors]:
        """Return the tables of one optimizer as they changed; its models may be gone in the last one."""
        return [table for (optimizer, _), table in sorted(self.tables.items()) if optimizer == number]


def _list_shapes(table: Tensors) -> list[tuple[str, tuple[int, ...], str]]:
    return [(row.kind, tuple(row.shape), row.dtype) for row in list_rows(table)]


def list_rows(table: Tensors) -> list[TensorRow]:
    """Return the tensors of a list."""
    return [TensorRow._make(row) for row in table["rows"]]


def count_step(event: Step) -> int:
    """Return the number of a step among those of all ranks: under Join a rank goes along with steps of others."""
    return int(event["step"]) + int(event.get("shadowed") or 0)


def list_steps(rank: RankSteps, number: int) -> dict[int, Step]:
    """Return the steps of one optimizer that a rank looked at, by their numbers."""
    return {step: event for (optimizer, step), event in rank.steps.items() if optimizer == number}
