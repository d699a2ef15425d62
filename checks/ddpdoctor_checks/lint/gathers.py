"""COL010 as it stands in the source."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import Finding, Fix, check
from ddpdoctor_checks.lint.facts import LINT, facts_of, name_line, tell_fact


@check("COL010", family="source", needs=("sources",), id="lint.gathers", commands=LINT)
def find_gathered(evidence: Evidence) -> Iterable[Finding]:
    """Outputs of a model are gathered, and the loss is made of what has no gradient."""
    for fact in facts_of(evidence, "gather-without-gradient"):
        into, what = fact.details["into"], fact.details["what"]
        yield tell_fact(
            fact,
            f"What all_gather at {name_line(fact.place)} gives has no gradient, and the loss of the backward at "
            f"{name_line(fact.related[0].place)} is computed from it.",
            Fix(
                "put this rank's own part back, with its gradient",
                code=f"{into} = torch.cat(torch.distributed.nn.functional.all_gather({what}))"
                if "into_tensor" in fact.place.text
                else f"{fact.place.text}\n{into}[dist.get_rank()] = {what}",
            ),
            why=f"{what} is an output of a DistributedDataParallel model; {into} is taken as it came",
        )
