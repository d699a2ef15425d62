"""The wrappers of a training: which there are, and which ranks train one model with different data."""

from __future__ import annotations

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training import WrapperSetup


def list_wrappers(evidence: Evidence) -> list[WrapperSetup]:
    """Return the wrappers, once for each group of ranks that has one: groups may share its number."""
    found = (wrapper for node in evidence.training for setup in node.optimizers for wrapper in setup.wrappers)
    return list(dict.fromkeys(found))


def find_wrapper(evidence: Evidence, number: int) -> WrapperSetup | None:
    """Return a wrapper by its number, of the first group that has it."""
    return next((each for each in list_wrappers(evidence) if each.number == number), None)


def list_groups(evidence: Evidence, model: int | None = None) -> list[RankSet]:
    """Return the groups of ranks that train one model with different data: those of wrappers, else all.

    Args:
        evidence: of a training.
        model: only the groups of this wrapper.
    """
    groups = {
        wrapper.group: None
        for wrapper in list_wrappers(evidence)
        if wrapper.group and model in (None, wrapper.number)
    }
    everyone = RankSet().union(*(node.ranks for node in evidence.training))
    return list(groups) if groups else [everyone]


def name_model(wrapper: WrapperSetup | None) -> str:
    """Return the class of a wrapped model as a script names it."""
    return wrapper.model.removeprefix("__main__.") if wrapper is not None else "the model"
