"""NUM005 and DAT007 as they stand in the source."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import Finding, Fix, check
from ddpdoctor_checks.lint.facts import LINT, facts_of, name_line, tell_fact


@check("NUM005", family="source", needs=("sources",), id="lint.metrics", commands=LINT)
def find_unreduced(evidence: Evidence) -> Iterable[Finding]:
    """A rank counts over the part of the data that it is given, and nothing joins the counts."""
    for fact in facts_of(evidence, "metric-unreduced"):
        way, name = fact.details["way"], fact.details["name"]
        verb = "decides" if way == "decides" else "is told"
        yield tell_fact(
            fact,
            f"{name} {verb} at {name_line(fact.place)} and is that of one rank's part of the data: the loop at "
            f"{name_line(fact.related[0].place)} goes over what a DistributedSampler gives, and nothing is reduced.",
            Fix(
                "reduce the sums and counts first",
                code="sums = torch.tensor([correct, count], dtype=torch.float64, device=device)\n"
                "dist.all_reduce(sums)\naccuracy = (sums[0] / sums[1]).item()",
            ),
            why="no name in the program speaks of reducing, gathering or metrics",
            severity=None if way == "decides" else "info",
            role="cause" if way == "decides" else "advice",
        )


@check("DAT007", family="source", needs=("sources",), id="lint.evaluation", commands=LINT)
def find_evaluation_padded(evidence: Evidence) -> Iterable[Finding]:
    """A DistributedSampler shares out the data of an evaluation whose counts are joined."""
    for fact in facts_of(evidence, "evaluation-padded"):
        yield tell_fact(
            fact,
            f"The sampler at {name_line(fact.place)} fills up with samples that it has given already where their "
            f"number is no multiple of the ranks; the loop at {name_line(fact.related[0].place)} counts these twice.",
            Fix(
                "let each rank evaluate its own part, without further samples",
                code="part = Subset(dataset, range(rank, len(dataset), world_size))",
            ),
            why="the counts are joined over ranks, and nothing cuts them to the length of the data set",
            severity="info",
            role="advice",
        )
