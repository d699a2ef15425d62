"""The tensors of one step, read once more where a step tells something: which ranks hold the same of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.training.fingerprints import StateLook, StepLook, TensorLook
from ddpdoctor.facts.training_events import Step, Tensors
from ddpdoctor.gather.regular import open_regular
from ddpdoctor.watch.readers.agreement import Prints, note_print, order_shares
from ddpdoctor.watch.readers.events import LONGEST, read_events
from ddpdoctor.watch.readers.layouts import list_peers, read_pieces, tell_apart
from ddpdoctor.watch.readers.rank_steps import RankSteps, list_rows

LISTED = 48
"""Tensors of one step that are listed."""
TRAVELLING = 24
"""Tensors of one step that are listed, though this node's ranks agree in them, where other nodes have ranks too."""
FILE_LIMIT = 64 << 20

_Key = tuple[int, str]
"""Number of the model, and name of the tensor."""


def drill(look: StepLook, ranks: Sequence[RankSteps], *, alone: bool) -> StepLook:
    """List the tensors that differ, or that have no gradient somewhere.

    Args:
        look: at the step.
        ranks: of this node.
        alone: no other node has ranks of the job.
    """
    tensors: dict[_Key, _Tensor] = {}
    items: dict[tuple[str, _Key], Prints] = {}
    for rank, event, table in _read_all(look, ranks):
        _spread(rank.rank, event, table, tensors)
        _spread_states(
            rank.rank, event, table, [each.item for each in look.states if not each.setting], items
        )
    for each in tensors.values():
        each.compare()
    telling = [each.fold(key) for key, each in tensors.items() if each.tells(look.final)]
    if not alone:  # of another node's ranks nothing is known here
        agreed = [each.fold(key) for key, each in tensors.items() if not each.tells(look.final)]
        telling += agreed[: max(0, TRAVELLING - len(telling))]
    differing = sum(len(each.values) > 1 or len(each.gradients) > 1 for each in telling)
    states = tuple(_find_state(each, items) for each in look.states)
    return replace(look, tensors=tuple(telling[:LISTED]), differing=differing, states=states)


def list_buffers(look: StepLook, ranks: Sequence[RankSteps]) -> StepLook:
    """List the floating-point numbers that models have beside the optimizer's parameters and ranks here differ in.

    Args:
        look: at the step.
        ranks: of this node.
    """
    tensors: dict[_Key, _Tensor] = {}
    for rank, event, table in _read_all(look, ranks):
        _spread(rank.rank, event, table, tensors)
    others = {key: each for key, each in tensors.items() if each.is_state and len(each.values) > 1}
    return replace(look, buffers=tuple(each.fold(key) for key, each in others.items())[:LISTED])


def _read_all(look: StepLook, ranks: Sequence[RankSteps]) -> Iterator[tuple[RankSteps, Step, Tensors]]:
    """Yield the ranks that wrote down the numbers of each tensor of a step, with these and the tensors' names."""
    for rank in ranks:
        known = rank.steps.get((look.optimizer, look.step))
        event = _read_step(rank.path, int(known["optimizer"]), int(known["step"])) if known else None
        table = rank.tables.get((look.optimizer, int(event["table"]))) if event is not None else None
        if event is not None and table is not None:
            yield rank, event, table


def _spread_states(
    rank: int,
    event: Step,
    table: Tensors,
    names: Sequence[str],
    items: dict[tuple[str, _Key], Prints],
) -> None:
    """Put one rank's numbers of its optimizer's state to their parameters; all of them where it has none."""
    if event.get("each_state") is None:
        return
    own = {str(name): each for (name, _), each in zip(event["states"], event["each_state"], strict=True)}
    rows = list_rows(table)[: int(event["count"])]
    for name in names:
        for place, row in enumerate(rows):
            found = _pick(own.get(name, ()), place)
            note_print(
                items.setdefault((name, (int(row.model), str(row.name))), {}), found or ("", None), rank
            )


def _find_state(look: StateLook, items: Mapping[tuple[str, _Key], Prints]) -> StateLook:
    """Return the first parameter in which a part of the state differs."""
    for (item, key), values in items.items():
        if item == look.item and len(values) > 1 and not look.setting:
            return replace(look, parameter=key[1], model=key[0], values=order_shares(values))
    return look


@dataclass(slots=True)
class _Tensor:
    """One tensor of one step over the ranks."""

    kind: str
    shape: tuple[int, ...]
    dtype: str
    values: Prints = field(default_factory=dict)
    gradients: Prints = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    trainable: list[int] = field(default_factory=list)
    known: dict[int, list[int]] = field(default_factory=dict)
    idle: list[int] = field(default_factory=list)
    pieces: dict[int, str] = field(default_factory=dict)
    """Rank -> the piece that it holds, where that is not the whole."""

    peers: tuple[RankSet, ...] = ()

    def compare(self) -> None:
        """Compare what ranks hold among those that hold the same piece, once that of all ranks is known."""
        held = {rank: self.pieces.get(rank, "") for ranks, _ in self.values.values() for rank in ranks}
        self.peers = list_peers(held)
        self.values, self.gradients = (
            tell_apart(self.values, self.peers),
            tell_apart(self.gradients, self.peers),
        )

    def tells(self, final: bool) -> bool:
        lacking = not final and self.kind == "parameter" and set(self.missing) & set(self.trainable)
        return len(self.values) > 1 or len(self.gradients) > 1 or bool(lacking)

    @property
    def is_state(self) -> bool:
        """Whether the optimizer has it not, and it holds numbers that are no counts."""
        return self.kind == "other" and "float" in self.dtype

    def fold(self, key: _Key) -> TensorLook:
        return TensorLook(
            name=key[1],
            model=key[0],
            kind=self.kind,
            shape=self.shape,
            trainable=RankSet(self.trainable),
            values=order_shares(self.values),
            gradients=order_shares(self.gradients),
            missing=RankSet(self.missing),
            reduced=RankSet(self.known.get(1, ())),
            ignored=RankSet(self.known.get(2, ())),
            idle=RankSet(self.idle),
            peers=self.peers,
        )


def _spread(rank: int, event: Step, table: Tensors, tensors: dict[_Key, _Tensor]) -> None:
    """Put one rank's numbers of a step to their tensors."""
    values, gradients = event.get("each") or (), event.get("each_gradient")
    idle = set(event.get("idle") or ())
    missing = set(event.get("missing") or ())
    pieces = read_pieces(table)
    for place, row in enumerate(list_rows(table)):
        key = int(row.model), str(row.name)
        tensor = tensors.get(key)
        if tensor is None:
            tensor = tensors[key] = _Tensor(
                str(row.kind), tuple(int(size) for size in row.shape), str(row.dtype)
            )
        if row.trainable:
            tensor.trainable.append(rank)
        tensor.known.setdefault(int(row.known), []).append(rank)
        note_print(tensor.values, _pick(values, place), rank)
        if gradients is not None and place < int(event["count"]):
            note_print(tensor.gradients, _pick(gradients, place), rank)
            if place in missing:
                tensor.missing.append(rank)
        if place in idle:
            tensor.idle.append(rank)
        if place in pieces:
            tensor.pieces[rank] = pieces[place]


def _pick(prints: Any, place: int) -> Any:
    return prints[place] if place < len(prints) else None


def _read_step(path: Path, optimizer: int, step: int) -> Step | None:
    """Read one event of a step once more, with the numbers of each tensor."""
    try:
        with open_regular(path) as file:
            for line in _find_lines(file, b'"event":"step"', f'"optimizer":{optimizer},', f'"step":{step},'):
                for event in read_events(line):
                    if event["event"] == "step" and (event.get("optimizer"), event.get("step")) == (
                        optimizer,
                        step,
                    ):
                        return event
    except OSError:
        return None
    return None


def _find_lines(file: BinaryIO, kind: bytes, *marks: str) -> Iterator[bytes]:
    """Yield the lines that have all marks; the file may be long, and so may a line."""
    wanted = [kind, *(mark.encode() for mark in marks)]
    left = FILE_LIMIT
    while left > 0 and (line := file.readline(LONGEST)):
        left -= len(line)
        if all(mark in line for mark in wanted):
            yield line
