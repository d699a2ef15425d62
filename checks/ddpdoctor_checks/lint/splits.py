"""DAT004 and DAT006 as they stand in the source."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import Finding, Fix, check_also
from ddpdoctor_checks.lint.facts import LINT, facts_of, name_line, tell_fact
from ddpdoctor_checks.training import draws, sampling


@check_also(sampling.find_split_differs, id="lint.splits", family="source", needs=("sources",), commands=LINT)
def find_splits(evidence: Evidence) -> Iterable[Finding]:
    """A split at random that each rank draws for itself."""
    for fact in facts_of(evidence, "split-by-rank"):
        way, function = fact.names
        seeds = "ranks are seeded by their number" if way == "seeded" else "nothing seeds the random numbers"
        codes = {
            "random_split": "generator = torch.Generator().manual_seed(0)\n"
            "train, validation = random_split(dataset, lengths, generator=generator)",
            "train_test_split": "train, validation = train_test_split(samples, random_state=0)",
        }
        yield tell_fact(
            fact,
            f"{function} at {name_line(fact.place)} gives each rank another split, for {seeds}: what one validates "
            "on another trains on.",
            Fix("let all ranks draw the split by one seed", code=codes[function]),
            why="a DistributedDataParallel model is trained in this program, and the call names no generator",
            severity=None if way == "seeded" else "warning",
        )


@check_also(draws.find_draws_repeated, id="lint.workers", family="source", needs=("sources",), commands=LINT)
def find_workers(evidence: Evidence) -> Iterable[Finding]:
    """Loader workers are seeded by their own number, which is the same on all ranks."""
    for fact in facts_of(evidence, "workers-seeded-alike"):
        yield tell_fact(
            fact,
            f"{fact.names[0]} at {name_line(fact.place)} seeds each loader worker by its number alone: workers of "
            "different ranks draw the same random numbers, and in each epoch again.",
            Fix(
                "take torch's own seed of the worker, which differs over ranks that are seeded apart",
                code=f"{fact.names[0]}(torch.initial_seed() % 2**32)",
            ),
            why="neither the rank nor the epoch is part of the seed",
            role="advice",
        )
