"""Which optimizers of several ranks are one: each rank numbers its own, and may have some that others have not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ddpdoctor.facts.training_events import Tensors
from ddpdoctor.watch.readers.rank_steps import RankSteps

_Name = tuple[frozenset[int], int]
"""Numbers of the wrappers whose parameters it steps, and how-manyth with these it is on its rank."""
_Place = tuple[str, str]
"""Class, and stack of the first step."""


def match_optimizers(ranks: Sequence[RankSteps]) -> None:
    """Number optimizers of wrapped models first, so that one that a single rank has beside them shifts no other.

    Without wrapped models those come first that all ranks step at one line. Where ranks do not step the same, the
    numbers stay as the ranks gave them: in the order of first steps.

    Args:
        ranks: of one node; changed.
    """
    names = [_name_all(rank) for rank in ranks if rank.tables]
    wrapped = [{name for name in each.values() if name[0]} for each in names]
    if not any(wrapped):
        _match_bare(ranks)
        return
    if not wrapped[0] or any(each != wrapped[0] for each in wrapped):
        return
    for rank in ranks:
        known = _name_all(rank)
        order = sorted(known, key=lambda number: (not known[number][0], number))
        rank.renumber({number: place for place, number in enumerate(order, 1)})


def _match_bare(ranks: Sequence[RankSteps]) -> None:
    """Number optimizers of models that nothing wraps by their class and where they were first stepped.

    Nothing is changed where each rank has one that others have not, for these may be the same; nor where one line
    steps several: of the clients of a federated job not each trains in each round.
    """
    places = {rank.rank: _place_all(rank) for rank in ranks if rank.tables}
    if any(len(set(each.values())) < len(each) for each in places.values()):
        return
    known_all = list(places.values())
    if all(each == known_all[0] for each in known_all):
        return  # each has the same number on all ranks
    shared = set.intersection(*(set(each.values()) for each in places.values())) if places else set()
    if not shared or all(set(each.values()) != shared for each in places.values()):
        return
    order: dict[_Place, int] = {}
    for known in sorted(places.values(), key=len):  # one that has none but the shared ones comes first
        for _, place in sorted(known.items()):
            order.setdefault(place, len(order) + 1)
    for rank in ranks:
        if rank.rank in places:
            rank.renumber({number: order[place] for number, place in places[rank.rank].items()})
    first = next(rank for rank in ranks if len(places.get(rank.rank, ())) == len(shared))
    for number in sorted(order[place] for place in shared):
        for rank in ranks:
            rank.take_names(number, _find_named(first.list_tables(number)))


def _find_named(tables: Sequence[Tensors]) -> Tensors:
    """Return the first list of tensors that knows their models: at the first step these may not have been seen yet."""
    return next((each for each in tables if each["models"]), tables[0])


def _place_all(rank: RankSteps) -> dict[int, _Place]:
    """Return the class of each optimizer and the stack of its first step."""
    places: dict[int, _Place] = {}
    for number in sorted({number for number, _ in rank.tables}):
        table = rank.list_tables(number)[0]
        places[number] = str(table["class"]), str(table.get("frames"))
    return places


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
