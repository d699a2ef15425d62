"""What the program's own collectives carry between two steps: which steps come after an averaging of parameters.

A loss that is reduced carries next to nothing; gradients or parameters that are averaged by hand carry all of them.
Rounds of different weight are counted each for itself, so that the first parameters that are averaged are noticed
among many losses that are reduced. What is carried is the same on every rank.
"""

from __future__ import annotations

from ..calls import ring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PARTS = 2
"""Parts into which the parameters are divided to tell kinds of rounds apart: rounds of one kind differ by at most half
of the parameters."""
_ALL = 0.9
"""Share of the parameters that is all of them: some may have no gradient."""
_NEAR = 0.05
"""Relative difference up to which what was reduced is a multiple of the parameters: losses are reduced beside them."""
_MULTIPLES = 3
"""Parameters, or the two parts of Adam's state, or all three."""
_KINDS = 16
_MOST = 64
"""Rounds of a kind after which the following step is no more looked at."""


class Rounds:
    """Rounds of the program's own collectives between the steps of one optimizer.

    Args:
        parameters: Those that the optimizer steps.
    """

    def __init__(self, parameters: list[Any]) -> None:
        self.elements = max(1, sum(int(each.numel()) for each in parameters))
        self.calls, self.carried, self.summed, _ = ring.take_counts()
        self.told = ring.count_elements()
        self.averagings = 0
        """Times that as many elements were reduced between two steps as there are parameters, or twice or three times
        as many."""
        self.place: list[list[object]] = []
        """Frames of the largest collective of the last of them."""
        self.kinds: dict[int, int] = {}

    def is_telling(self) -> bool:
        """Whether collectives were called since the last step of which there were 1, 2, 4, 8 … alike."""
        count, carried, summed, site = ring.take_counts()
        if count == self.calls:
            return False
        if summed != self.summed:
            share = (summed - self.summed) / self.elements
            whole, self.summed = round(share), summed
            if 0 < whole <= _MULTIPLES and abs(share - whole) <= _NEAR * whole:
                self.averagings += 1
                self.place = ring.list_frames(site)
        kind = _PARTS * (carried - self.carried) // self.elements
        if kind > _KINDS:
            kind = _KINDS
        self.calls, self.carried = count, carried
        seen = self.kinds[kind] = self.kinds.get(kind, 0) + 1
        return not seen & (seen - 1) and seen <= _MOST

    def list_averaged(self) -> list[list[int]]:
        """Return the groups over which nearly all gradients were carried between the backward and this step."""
        told = [
            ring.list_members(group) for group, count in ring.list_carried() if count >= _ALL * self.elements
        ]
        return [list(ranks) for ranks in told if len(ranks) > 1]

    def covers_all(self) -> bool:
        """Whether nearly all gradients were carried between the backward and this step, over whichever groups."""
        counts = [count for group, count in ring.list_carried() if len(ring.list_members(group)) > 1]
        return sum(counts) >= _ALL * self.elements

    def tell(self) -> tuple[float, float]:
        """Return how often all parameters were carried, and sent or received, since this was asked last."""
        before, self.told = self.told, ring.count_elements()
        carried, exchanged = (now - then for now, then in zip(self.told, before))
        return round(carried / self.elements, 3), round(exchanged / self.elements, 3)
