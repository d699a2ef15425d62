"""DDP007, DDP015 and PRF005 as they stand in the source."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import Finding, Fix, check
from ddpdoctor_checks.lint.facts import LINT, facts_of, name_line, tell_fact


@check("DDP007", family="source", needs=("sources",), id="lint.no_sync_whole", commands=LINT)
def find_unenclosed(evidence: Evidence) -> Iterable[Finding]:
    """no_sync is around a backward, and its forward is before it."""
    for fact in facts_of(evidence, "no-sync-without-forward"):
        model = fact.details["model"]
        yield tell_fact(
            fact,
            f"no_sync() at {name_line(fact.place)} encloses the backward only; the forward at "
            f"{name_line(fact.related[0].place)} is before it: gradients are reduced all the same.",
            Fix(
                "enclose the forward too",
                code=f"{fact.place.text}\n    loss = criterion({model}(inputs), targets)\n    loss.backward()",
            ),
            why="DistributedDataParallel decides in the forward whether the backward reduces",
        )


@check("PRF005", family="source", needs=("sources",), id="lint.reductions", commands=LINT)
def find_redundant(evidence: Evidence) -> Iterable[Finding]:
    """Gradients accumulate, and each backward reduces them."""
    for fact in facts_of(evidence, "accumulation-reduced"):
        yield tell_fact(
            fact,
            f"Each backward at {name_line(fact.place)} reduces the gradients, and the optimizer steps only after "
            f"several ({fact.details['count']}): one reduction for each step is enough.",
            Fix(
                "reduce with the last micro-batch only",
                code="with contextlib.nullcontext() if last else model.no_sync():\n"
                "    loss = criterion(model(inputs), targets) / accumulate\n    loss.backward()",
            ),
            why="the model is wrapped, and nothing in the program mentions no_sync",
            severity=None if "known" in fact.details else "info",
            role="advice",
        )


@check("DDP015", family="source", needs=("sources",), id="lint.model_wrapped", commands=LINT)
def find_unwrapped(evidence: Evidence) -> Iterable[Finding]:
    """A program of several ranks trains a model, and nothing in it reduces gradients."""
    for fact in facts_of(evidence, "unwrapped"):
        way, model = fact.details["way"], fact.details["model"]
        kept = (
            f"the DistributedDataParallel at {name_line(fact.related[0].place)} is not kept"
            if way == "thrown away"
            else "no DistributedDataParallel wraps it"
        )
        yield tell_fact(
            fact,
            f"The optimizer steps at {name_line(fact.place)} with the gradients of one rank: {kept} ({model}).",
            Fix(
                "wrap the model before the loop and call the wrapper",
                code="model = DistributedDataParallel(model)",
            ),
            why="the program joins a process group, cuts its data up with a DistributedSampler and reduces nothing",
        )
