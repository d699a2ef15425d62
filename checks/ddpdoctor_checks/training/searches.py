"""DDP011 in a live job: searches for unused parameters that find nothing, or the same each time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import WrapperSetup
from ddpdoctor.evidence.training.syncs import SearchLook
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import choose_form, count_of, format_milliseconds
from ddpdoctor_checks.training.wrappers import find_wrapper, name_model

FEWEST_SEARCHES = 4
"""Iterations in which nothing was unused."""
FEWEST_ALIKE = 5
"""Iterations in which the same was unused, before static_graph is said to do."""
FEWEST_TIMED = 8
"""Searches whose mean says what one takes."""
TELLING = 0.01
"""Share of a step from which on a search that finds something is worth a word."""


@check("DDP011", family="training", needs=TRAINING, id="training.search", required=False, commands=JOB)
def find_search(evidence: Evidence) -> Iterable[Finding]:
    """The search for unused parameters has found none, or the same ones, in the iterations that were looked at."""
    joined: dict[int, list[SearchLook]] = {}
    for node in evidence.training:
        for look in node.syncs.searches:
            joined.setdefault(look.wrapper, []).append(look)
    if not joined:
        raise NotApplicable("no DistributedDataParallel that searches for unused parameters was seen")
    for number, looks in sorted(joined.items()):
        wrapper = find_wrapper(evidence, number)
        fewest = min(look.looks for look in looks)
        found = any(look.found for look in looks)
        if not found and fewest >= FEWEST_SEARCHES:
            yield _tell_needless(wrapper, looks, fewest)
        elif found and fewest >= FEWEST_ALIKE and _is_alike(looks) and _measure_share(looks) >= TELLING:
            yield _tell_alike(wrapper, looks, fewest)


def _is_alike(looks: Sequence[SearchLook]) -> bool:
    return all(look.steady and look.found == look.looks for look in looks)


def _find_slowest(looks: Sequence[SearchLook]) -> tuple[float, float] | None:
    """Return what a search takes and how far apart they are, on the rank where they take longest."""
    timed = [
        (look.search_s, look.apart_s)
        for look in looks
        if look.timed >= FEWEST_TIMED and look.search_s is not None and look.apart_s
    ]
    return max(timed, default=None)


def _measure_share(looks: Sequence[SearchLook]) -> float:
    slowest = _find_slowest(looks)
    return slowest[0] / slowest[1] if slowest is not None else 0.0


def _tell_cost(looks: Sequence[SearchLook]) -> str:
    slowest = _find_slowest(looks)
    if slowest is None:
        return ""
    search, apart = (format_milliseconds(each) for each in slowest)
    share = f"{_measure_share(looks):.1%}"
    return (
        f" A search takes {search} ms of the {apart} ms from one to the next ({share}); the reduction of "
        "its result is extra."
    )


def _make(
    wrapper: WrapperSetup | None,
    looks: Sequence[SearchLook],
    text: str,
    fixes: tuple[Fix, ...],
    confidence: str,
) -> Finding:
    ranks = RankSet().union(*(look.ranks for look in looks))
    line = user_line(wrapper.frames) if wrapper is not None else None
    slowest = _find_slowest(looks)
    return Finding(
        message=f"DistributedDataParallel searches for unused parameters of {name_model(wrapper)} in each step, and "
        f"{text}{_tell_cost(looks)}",
        ranks=ranks,
        where=in_line(line, ranks, "culprit"),
        evidence=(
            EvidenceItem("search", f"sampled up to iteration {max(look.last for look in looks)}", ranks),
        ),
        fix=fixes,
        details={
            "iterations": min(look.looks for look in looks),
            "search_s": slowest[0] if slowest is not None else None,
            "step_s": slowest[1] if slowest is not None else None,
        },
        severity="info",
        role="advice",
        confidence=confidence,
    )


def _tell_needless(wrapper: WrapperSetup | None, looks: Sequence[SearchLook], fewest: int) -> Finding:
    many = f"{count_of(fewest, 'iteration')} that {choose_form(fewest, 'was', 'were')} sampled"
    fix = Fix(
        "disable the search, unless some batches take another path through the model",
        code="model = DistributedDataParallel(model)",
    )
    return _make(wrapper, looks, f"in {many} none was unused.", (fix,), "medium")


def _tell_alike(wrapper: WrapperSetup | None, looks: Sequence[SearchLook], fewest: int) -> Finding:
    fix = Fix(
        "if each step takes the same path through the model, search only once",
        code="model = DistributedDataParallel(model, static_graph=True)",
    )
    text = f"in each of {count_of(fewest, 'iteration')} that were sampled the same number was unused."
    return _make(wrapper, looks, text, (fix, Fix("or freeze what is never used, before wrapping")), "low")
