"""The wrappers of a training: which there are, and which ranks train one model with different data."""

from __future__ import annotations

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.layout import Layout, join_layouts
from ddpdoctor.evidence.training import WrapperSetup
from ddpdoctor.facts import strategies


def list_wrappers(evidence: Evidence) -> list[WrapperSetup]:
    """Return the wrappers, once for each group of ranks that has one: groups may share its number."""
    found = (wrapper for node in evidence.training for setup in node.optimizers for wrapper in setup.wrappers)
    return list(dict.fromkeys(found))


def find_wrapper(evidence: Evidence, number: int) -> WrapperSetup | None:
    """Return a wrapper by its number, of the first group that has it."""
    return next((each for each in list_wrappers(evidence) if each.number == number), None)


def find_layout(evidence: Evidence) -> Layout:
    """Return how the ranks of a training share out model and data, over all nodes."""
    return join_layouts(node.layout for node in evidence.training)


def list_groups(evidence: Evidence, model: int | None = None) -> list[RankSet]:
    """Return the groups of ranks that train one model with different data.

    Those of wrappers; else those that the layout tells of; all ranks where none is smaller. None where ranks work in
    smaller groups and what these are for is not known.

    Args:
        evidence: of a training.
        model: only the groups of this wrapper.
    """
    groups = {
        wrapper.group: None
        for wrapper in list_wrappers(evidence)
        if wrapper.group and model in (None, wrapper.number)
    }
    if groups:
        return list(groups)
    everyone = RankSet().union(*(node.ranks for node in evidence.training))
    layout = find_layout(evidence)
    if not layout.axes:
        return [everyone]
    if not layout.is_known(everyone):
        return []
    return layout.list_groups(strategies.DATA) or ([] if layout.list_groups(*NOT_DATA) else [everyone])


NOT_DATA = (strategies.TENSOR, strategies.PIPELINE, strategies.EXPERT, strategies.CONTEXT)
"""Roles of ranks that do not train the same part of one model with different data."""


def name_model(wrapper: WrapperSetup | None) -> str:
    """Return the class of a wrapped model as a script names it."""
    return wrapper.model.removeprefix("__main__.") if wrapper is not None else "the model"
