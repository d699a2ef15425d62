"""DAT004, DAT005 and DAT006 as they stand in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import Finding, Fix, check
from ddpdoctor_checks.lint.facts import LINT, facts_of, name_line, tell_fact

_SEEDED = {
    "random.shuffle": "random.Random({seed}).shuffle({given})",
    "random.sample": "random.Random({seed}).sample({given})",
    "numpy.random.shuffle": "np.random.default_rng({seed}).shuffle({given})",
    "numpy.random.permutation": "np.random.default_rng({seed}).permutation({given})",
    "torch.randperm": "torch.randperm({given}, generator=torch.Generator().manual_seed({seed}))",
    "random_split": "generator = torch.Generator().manual_seed({seed})\nrandom_split({given}, generator=generator)",
    "train_test_split": "train_test_split({given}, random_state={seed})",
}
"""The same draw by one seed on all ranks, by the function; of those with several dotted names by the last part."""


def _tell_seeds(way: str) -> str:
    return "ranks are seeded by their number" if way == "seeded" else "nothing seeds the random numbers"


def _seed(function: str, given: str, seed: str = "0") -> str:
    code = _SEEDED.get(function) or _SEEDED[function.rpartition(".")[2]]
    call = f"f({given})"
    node = ast.parse(call, mode="eval").body
    devices = [each for each in node.keywords if each.arg == "device"] if isinstance(node, ast.Call) else []
    if isinstance(node, ast.Call) and devices:  # a generator is of one device
        node.keywords.remove(devices[0])
        given = ast.unparse(node)[2:-1]
    moved = f".to({ast.unparse(devices[0].value)})" if devices else ""
    return code.format(given=given, seed=seed) + moved


@check("DAT004", family="source", needs=("sources",), id="lint.splits", commands=LINT)
def find_splits(evidence: Evidence) -> Iterable[Finding]:
    """A split at random that each rank draws for itself."""
    for fact in facts_of(evidence, "split-by-rank"):
        way, function, given = (fact.details[name] for name in ("way", "function", "given"))
        yield tell_fact(
            fact,
            f"{function.rpartition('.')[2]} at {name_line(fact.place)} gives each rank another split, for "
            f"{_tell_seeds(way)}: what one validates on another trains on.",
            Fix("let all ranks draw the split by one seed", code=_seed(function, given)),
            why="a DistributedDataParallel model is trained in this program, and the call names no generator",
            severity=None if way == "seeded" else "warning",
        )


@check("DAT005", family="source", needs=("sources",), id="lint.shares", commands=LINT)
def find_shares(evidence: Evidence) -> Iterable[Finding]:
    """Ranks take parts of an order that each of them draws for itself."""
    for fact in facts_of(evidence, "shares-by-rank"):
        way, function, given = (fact.details[name] for name in ("way", "function", "given"))
        yield tell_fact(
            fact,
            f"{function.rpartition('.')[2]} at {name_line(fact.place)} gives each rank an order of its own, for "
            f"{_tell_seeds(way)}, and each takes its part of that: parts overlap, and some samples are in none.",
            Fix(
                "let all ranks draw the order by one seed",
                code=_seed(function, given, fact.details["seed"]),
            ),
            why=f"the part of a rank is taken at {name_line(fact.related[0].place)}, and nothing "
            "is done with the order before",
            severity=None if way == "seeded" else "warning",
        )


@check("DAT006", family="source", needs=("sources",), id="lint.workers", commands=LINT)
def find_workers(evidence: Evidence) -> Iterable[Finding]:
    """Loader workers are seeded by their own number, which is the same on all ranks."""
    for fact in facts_of(evidence, "workers-seeded-alike"):
        function = fact.details["function"]
        yield tell_fact(
            fact,
            f"{function} at {name_line(fact.place)} seeds each loader worker by its number alone: workers of "
            "different ranks draw the same random numbers, and in each epoch again.",
            Fix(
                "take torch's own seed of the worker, which differs over ranks that are seeded apart",
                code=f"{function}(torch.initial_seed() % 2**32)",
            ),
            why="neither the rank nor the epoch is part of the seed",
            role="advice",
        )
