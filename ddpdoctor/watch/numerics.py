"""What ranks wrote down of losses and scales, folded to `ddpdoctor.evidence.numerics`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.numerics import LossCount, LossLook, Numerics, ScaleLook

KINDS = frozenset({"nonfinite", "finite", "losses", "scale"})
"""Events that tell of it."""
KEPT = 20
"""Runs of losses that are not finite, of one rank: the first ones and the last."""
SCALES = 200
"""Looks at scales, of one rank."""

Frames = Callable[[Any], tuple[Frame, ...]]


@dataclass(slots=True)
class RankNumbers:
    """Events of one rank."""

    losses: list[dict[str, Any]] = field(default_factory=list)
    healed: list[int] = field(default_factory=list)
    scales: list[dict[str, Any]] = field(default_factory=list)
    count: dict[str, Any] | None = None

    def take(self, event: dict[str, Any]) -> None:
        """Take one event of `KINDS`."""
        kind = event["event"]
        if kind == "nonfinite":
            self.losses.append(event)
        elif kind == "finite":
            self.healed.append(int(event["number"]))
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
