"""DDP012 as it stands in the source."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import Finding, Fix, check
from ddpdoctor_checks.lint.facts import LINT, facts_of, name_line, tell_fact


@check("DDP012", family="source", needs=("sources",), id="lint.data_parallel", commands=LINT)
def find_data_parallel(evidence: Evidence) -> Iterable[Finding]:
    """nn.DataParallel is made where the process has just become a rank."""
    for fact in facts_of(evidence, "data-parallel"):
        yield tell_fact(
            fact,
            f"nn.DataParallel at {name_line(fact.place)} is made in a process that is one rank of several.",
            Fix(
                "wrap the model in DistributedDataParallel instead",
                code="model = DistributedDataParallel(model, device_ids=[local_rank])",
            ),
            why="the same function calls init_process_group",
            role="advice",
        )
