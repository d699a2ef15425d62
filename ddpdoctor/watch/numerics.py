"""What ranks wrote down of losses, scales and buffers, folded to `ddpdoctor.evidence.numerics`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.numerics import BufferLook, BufferShare, LossCount, LossLook, Numerics, ScaleLook

KINDS = frozenset({"nonfinite", "finite", "losses", "scale", "evaluation"})
"""Events that tell of it."""
KEPT = 20
"""Runs of losses that are not finite, of one rank: the first ones and the last."""
LISTED = 24
"""Buffers of one evaluation that are listed."""
SCALES = 200
"""Looks at scales, of one rank."""

Frames = Callable[[Any], tuple[Frame, ...]]


@dataclass(slots=True)
class RankNumbers:
    """Events of one rank."""

    losses: list[dict[str, Any]] = field(default_factory=list)
    healed: list[int] = field(default_factory=list)
    scales: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    count: dict[str, Any] | None = None

    def take(self, event: dict[str, Any]) -> None:
        """Take one event of `KINDS`."""
        kind = event["event"]
        if kind == "nonfinite":
            self.losses.append(event)
        elif kind == "finite":
            self.healed.append(int(event["number"]))
        elif kind == "evaluation":
            self.evaluations.append(event)
        elif kind == "losses":
            self.count = event
        else:
            self.scales.append(event)

    def lasts(self, number: int) -> bool:
        """Whether no loss after a backward was finite, as far as is known."""
        if self.count is not None:
            return int(self.count["since"]) == number
        return not any(healed > number for healed in self.healed)


def fold_numbers(
    ranks: dict[int, RankNumbers], frames: Frames, name_loader: Callable[[int, int], str]
) -> Numerics:
    """Return what the ranks of a node wrote.

    Args:
        ranks: Rank -> its events.
        frames: Names files and reads source lines.
        name_loader: Gives the file and line of a rank's loader with a number.
    """
    losses, scales = [], []
    counts: dict[tuple[int, int], list[int]] = {}
    for rank, numbers in ranks.items():
        kept = [*numbers.losses[: KEPT - 1], *numbers.losses[KEPT - 1 :][-1:]]
        losses += [_read_loss(rank, event, numbers, frames, name_loader) for event in kept]
        scales += [
            ScaleLook(
                scaler=int(event["number"]),
                rank=rank,
                step=int(event["step"]),
                scale=float(event["value"]),
                final=bool(event.get("final")),
                frames=frames(event.get("frames")),
            )
            for event in [*numbers.scales[: SCALES - 1], *numbers.scales[SCALES - 1 :][-1:]]
        ]
        if numbers.count is not None:
            key = int(numbers.count["count"]), int(numbers.count["checked"])
            counts.setdefault(key, []).append(rank)
    return Numerics(
        losses=tuple(losses),
        counts=tuple(LossCount(RankSet(who), *key) for key, who in sorted(counts.items())),
        scales=tuple(scales),
        evaluations=tuple(_fold_evaluations(ranks, frames)),
    )


def _fold_evaluations(ranks: dict[int, RankNumbers], frames: Frames) -> list[BufferLook]:
    groups: dict[tuple[int, int, int, str], dict[int, dict[str, Any]]] = {}
    for rank, numbers in ranks.items():
        for event in numbers.evaluations:
            key = int(event["number"]), int(event["index"]), int(event["step"]), str(event["door"])
            groups.setdefault(key, {})[rank] = event
    return [
        _fold_evaluation(key, events, frames)
        for key, events in sorted(groups.items(), key=lambda group: group[0])
    ]


def _fold_evaluation(
    key: tuple[int, int, int, str], events: dict[int, dict[str, Any]], frames: Frames
) -> BufferLook:
    buffers: dict[str, dict[str, tuple[list[int], float | None]]] = {}
    for rank, event in events.items():
        for name, print_ in zip(event["names"], event["each"], strict=True):
            if print_ is not None:
                norm = float(print_[1]) if print_[1] is not None else None
                buffers.setdefault(str(name), {}).setdefault(str(print_[0]), ([], norm))[0].append(rank)
    differing = [name for name, values in buffers.items() if len(values) > 1]
    equal = [name for name, values in buffers.items() if len(values) == 1]
    first = next(iter(events.values()))
    return BufferLook(
        *key,
        ranks=RankSet(events),
        broadcasts=bool(first.get("broadcasts")),
        buffers={
            name: tuple(
                sorted(
                    (
                        BufferShare(digest, RankSet(who), norm)
                        for digest, (who, norm) in buffers[name].items()
                    ),
                    key=lambda share: (-len(share.ranks), share.ranks.ranges),
                )
            )
            for name in [*differing[:LISTED], *equal[:LISTED]]
        },
        differing=len(differing),
        frames=frames(first.get("frames")),
    )


def _read_loss(
    rank: int,
    event: dict[str, Any],
    numbers: RankNumbers,
    frames: Frames,
    name_loader: Callable[[int, int], str],
) -> LossLook:
    number = int(event["number"])
    value = str(event["value"])
    return LossLook(
        rank=rank,
        backward=number,
        value=value if value in ("nan", "inf", "-inf") else "not finite",
        step=int(event.get("step") or 0),
        lasts=numbers.lasts(number),
        loader=name_loader(rank, int(event.get("loader") or 0)),
        epoch=int(event.get("epoch") or 0),
        index=int(event.get("index") or 0),
        samples=tuple(int(each) for each in event.get("indices") or ())[:32],
        frames=frames(event.get("frames")),
    )
