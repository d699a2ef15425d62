"""What the words of all rules share: the facts that were read, and a finding made of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact, SourcePlace
from ddpdoctor.judge import QUESTION, EvidenceItem, Finding, Fix, NotApplicable
from ddpdoctor_checks.common.places import in_source

LINT = ("lint",)
NEEDS = ("sources",)


def facts_of(evidence: Evidence, *rules: str) -> Iterator[SourceFact]:
    """Yield what some rules have read in all files; what several programs come to once.

    Raises:
        NotApplicable: no file could be read.
    """
    if all(file.problem for file in evidence.sources):
        raise NotApplicable("no file could be read")
    known = set()
    for file in evidence.sources:
        for fact in file.facts:
            if fact.rule in rules and (fact.rule, fact.place) not in known:
                known.add((fact.rule, fact.place))
                yield fact


def name_line(place: SourcePlace) -> str:
    """Return ``train.py:12``, with the cell of a notebook."""
    cell = f" (cell {place.cell})" if place.cell is not None else ""
    return f"{place.file}:{place.line}{cell}"


def tell_fact(
    fact: SourceFact, message: str, fix: Fix, *, why: str, severity: str | None = None, role: str = "cause"
) -> Finding:
    """Return the finding of a fact.

    Args:
        fact: what was read.
        message: what is wrong, with the line.
        fix: the correction, as code for this place where there is one.
        why: how it was told, for the finding's evidence.
        severity: where it is lower than the code's; at most a warning is told of what not each run comes to.
        role: cause or advice.
    """
    proof = "on some path" if not fact.certain else "on every path" if fact.traced else "by name"
    return Finding(
        message=message,
        where=(
            in_source(fact.place, "culprit"),
            *(in_source(each.place, each.role) for each in fact.related),
        ),
        evidence=(EvidenceItem("source", why),),
        fix=(fix,),
        details={"rule": fact.rule, **fact.details, "proven": proof},
        confidence="high" if proof == "on every path" else "medium" if fact.certain or fact.traced else "low",
        severity=severity if severity is not None or proof == "on every path" else "warning",
        role=role,
    )


def tell_question(fact: SourceFact, message: str, fix: Fix, *, why: str) -> Finding:
    """Return what is likely and not decided by the files: a finding of severity info that asks.

    Args:
        fact: what was read.
        message: what is seen, with the line, and what has to be known.
        fix: the correction, where the answer is that it is wrong.
        why: what is not known.
    """
    found = tell_fact(fact, message, fix, why=why, severity="info", role=QUESTION)
    return replace(found, confidence="low")
