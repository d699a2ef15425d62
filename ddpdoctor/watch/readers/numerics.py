"""What ranks wrote down of losses, scales and buffers, folded to `ddpdoctor.evidence.training.numerics`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.training.numerics import (
    BufferLook,
    CompanionLook,
    LossCount,
    LossLook,
    Numerics,
    ScaleLook,
)
from ddpdoctor.facts.training_events import (
    Companion,
    Evaluation,
    Losses,
    NonFinite,
    NumberEvent,
    Numbers,
    Scale,
)
from ddpdoctor.watch.readers.agreement import Prints, note_print, order_shares
from ddpdoctor.watch.readers.records import Shortener

KINDS = frozenset({"nonfinite", "finite", "losses", "scale", "evaluation", "companion"})
"""Events that tell of it."""
KEPT = 20
"""Runs of losses that are not finite, of one rank: the first ones and the last."""
LISTED = 24
"""Buffers of one evaluation that are listed."""
SCALES = 200
"""Looks at scales, of one rank."""


LOSS, GRADIENT = "loss", "gradient"
"""Numbers that are looked at in each backward."""
_Kind = tuple[str, int, str]
"""What it is, and of a gradient of which wrapper and parameter."""
_LOSSES: _Kind = LOSS, 0, ""


@dataclass(slots=True)
class RankNumbers:
    """Events of one rank."""

    losses: list[NonFinite] = field(default_factory=list)
    healed: list[tuple[_Kind, int]] = field(default_factory=list)
    scales: list[Scale] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    companions: list[Companion] = field(default_factory=list)
    counts: dict[_Kind, Losses] = field(default_factory=dict)

    def take(self, event: NumberEvent) -> None:
        """Take one event of `KINDS`."""
        if event["event"] == "nonfinite":
            self.losses.append(event)
        elif event["event"] == "finite":
            self.healed.append((_read_kind(event), int(event["number"])))
        elif event["event"] == "evaluation":
            self.evaluations.append(event)
        elif event["event"] == "companion":
            self.companions.append(event)
        elif event["event"] == "losses":
            self.counts[_read_kind(event)] = event
        else:
            self.scales.append(event)

    @property
    def count(self) -> Losses | None:
        """What the rank wrote of its losses at its end."""
        return self.counts.get(_LOSSES)

    def lasts(self, kind: _Kind, number: int) -> bool:
        """Whether no number of a kind after a backward was finite, as far as is known."""
        if kind in self.counts:
            return int(self.counts[kind]["since"]) == number
        return not any(healed > number for what, healed in self.healed if what == kind)


def fold_numbers(
    ranks: dict[int, RankNumbers], shorten: Shortener, name_loader: Callable[[int, int], str]
) -> Numerics:
    """Return what the ranks of a node wrote.

    Args:
        ranks: Rank -> its events.
        shorten: Names files and reads source lines.
        name_loader: Gives the file and line of a rank's loader with a number.
    """
    losses, scales = [], []
    counts: dict[tuple[int, int, int], list[int]] = {}
    for rank, numbers in ranks.items():
        for kind in dict.fromkeys(map(_read_kind, numbers.losses)):
            own = [event for event in numbers.losses if _read_kind(event) == kind]
            kept = [*own[: KEPT - 1], *own[KEPT - 1 :][-1:]]
            losses += [_read_loss(rank, event, numbers, shorten, name_loader) for event in kept]
        scales += [
            ScaleLook(
                scaler=int(event["number"]),
                rank=rank,
                step=int(event["step"]),
                scale=float(event["value"]),
                final=bool(event.get("final")),
                frames=shorten.frames(event.get("frames")),
            )
            for event in [*numbers.scales[: SCALES - 1], *numbers.scales[SCALES - 1 :][-1:]]
        ]
        if numbers.count is not None:
            gradients = [int(each["checked"]) for kind, each in numbers.counts.items() if kind[0] == GRADIENT]
            key = int(numbers.count["count"]), int(numbers.count["checked"]), max(gradients, default=0)
            counts.setdefault(key, []).append(rank)
    return Numerics(
        losses=tuple(losses),
        counts=tuple(LossCount(RankSet(who), *key) for key, who in sorted(counts.items())),
        scales=tuple(scales),
        evaluations=tuple(_fold_evaluations(ranks, shorten)),
        companions=tuple(_fold_companions(ranks, shorten)),
    )


def _fold_evaluations(ranks: dict[int, RankNumbers], shorten: Shortener) -> list[BufferLook]:
    groups: dict[tuple[int, int, int, str], dict[int, Evaluation]] = {}
    for rank, numbers in ranks.items():
        for event in numbers.evaluations:
            key = int(event["number"]), int(event["index"]), int(event["step"]), str(event["door"])
            groups.setdefault(key, {})[rank] = event
    return [
        _fold_evaluation(key, events, shorten)
        for key, events in sorted(groups.items(), key=lambda group: group[0])
    ]


def _fold_companions(ranks: dict[int, RankNumbers], shorten: Shortener) -> list[CompanionLook]:
    groups: dict[tuple[int, str, int, int, int], dict[int, Companion]] = {}
    for rank, numbers in ranks.items():
        for event in numbers.companions:
            key = (
                int(event["number"]),
                str(event["class"]),
                int(event["optimizer"]),
                int(event["step"]),
                int(event["count"]),
            )
            groups.setdefault(key, {})[rank] = event
    found = []
    for key, events in sorted(groups.items()):
        values: Prints = {}
        for rank, event in events.items():
            note_print(values, [str(event["digest"]), float(event["norm"])], rank)
        frames = shorten.frames(next(iter(events.values())).get("frames"))
        found.append(CompanionLook(*key, values=order_shares(values), frames=frames))
    return found


def _fold_evaluation(
    key: tuple[int, int, int, str], events: dict[int, Evaluation], shorten: Shortener
) -> BufferLook:
    buffers: dict[str, Prints] = {}
    for rank, event in events.items():
        for name, print_ in zip(event["names"], event["each"], strict=True):
            note_print(buffers.setdefault(str(name), {}), print_, rank)
    differing = [name for name, values in buffers.items() if len(values) > 1]
    equal = [name for name, values in buffers.items() if len(values) == 1]
    first = next(iter(events.values()))
    return BufferLook(
        *key,
        ranks=RankSet(events),
        broadcasts=bool(first.get("broadcasts")),
        buffers={name: order_shares(buffers[name]) for name in [*differing[:LISTED], *equal[:LISTED]]},
        differing=len(differing),
        frames=shorten.frames(first.get("frames")),
    )


def _read_loss(
    rank: int,
    event: NonFinite,
    numbers: RankNumbers,
    shorten: Shortener,
    name_loader: Callable[[int, int], str],
) -> LossLook:
    number = int(event["number"])
    value = str(event["value"])
    return LossLook(
        rank=rank,
        backward=number,
        value=value if value in ("nan", "inf", "-inf") else "not finite",
        step=int(event.get("step") or 0),
        lasts=numbers.lasts(_read_kind(event), number),
        loader=name_loader(rank, int(event.get("loader") or 0)),
        epoch=int(event.get("epoch") or 0),
        index=int(event.get("index") or 0),
        samples=tuple(int(each) for each in event.get("indices") or ())[:32],
        frames=shorten.frames(event.get("frames")),
        what=_read_kind(event)[0],
        wrapper=_read_kind(event)[1],
        parameter=_read_kind(event)[2],
    )


def _read_kind(event: Numbers) -> _Kind:
    if event.get("what") != GRADIENT:
        return _LOSSES
    return GRADIENT, int(event.get("model") or 0), str(event.get("name") or "")
