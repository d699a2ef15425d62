"""Which optimizers of several ranks are one: each rank numbers its own, and may have some that others have not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ddpdoctor.watch.readers.rank_steps import RankSteps

_Name = tuple[frozenset[int], int]
"""Numbers of the wrappers whose parameters it steps, and how-manyth with these it is on its rank."""


def match_optimizers(ranks: Sequence[RankSteps]) -> None:
    """Number optimizers of wrapped models first, so that one that a single rank has beside them shifts no other.

    Where ranks do not step the same wrappers, the numbers stay as the ranks gave them: in the order of first steps.

    Args:
        ranks: of one node; changed.
    """
    names = [_name_all(rank) for rank in ranks if rank.tables]
    wrapped = [{name for name in each.values() if name[0]} for each in names]
    if not wrapped or not wrapped[0] or any(each != wrapped[0] for each in wrapped):
        return
    for rank in ranks:
        known = _name_all(rank)
        order = sorted(known, key=lambda number: (not known[number][0], number))
        rank.renumber({number: place for place, number in enumerate(order, 1)})


def _name_all(rank: RankSteps) -> dict[int, _Name]:
    """Return the name of each optimizer of a rank that has a table, by its number."""
    stepped: dict[int, set[int]] = {}
    for (number, _), table in sorted(rank.tables.items()):
        stepped.setdefault(number, set()).update(
            int(model) for model in table["models"] if str(model).isdigit() and int(model)
        )
    seen: Counter[frozenset[int]] = Counter()
    names: dict[int, _Name] = {}
    for number, wrappers in sorted(stepped.items()):
        key = frozenset(wrappers)
        seen[key] += 1
        names[number] = key, seen[key]
    return names
