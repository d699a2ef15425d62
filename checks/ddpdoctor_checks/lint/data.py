"""DAT001 and DAT002 as they stand in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check
from ddpdoctor_checks.lint.facts import LINT, facts_of, name_line, tell_fact
from ddpdoctor_checks.lint.rewriting import find_call, name_target, read_line, set_keyword

_SAMPLER = (
    "sampler = DistributedSampler(dataset, shuffle=True)\n"
    "loader = DataLoader(dataset, batch_size, sampler=sampler)\n"
    "for epoch in range(epochs):\n    sampler.set_epoch(epoch)"
)


@check("DAT001", family="source", needs=("sources",), id="lint.sharded", commands=LINT)
def find_unsharded(evidence: Evidence) -> Iterable[Finding]:
    """The loader of a training that is wrapped gives each rank all data."""
    for fact in facts_of(evidence, "loader-unsharded"):
        orders = {"shuffled": ", in an order of its own", "in order": ", in the same order"}
        order = fact.details["order"]
        yield tell_fact(
            fact,
            f"The DataLoader at {name_line(fact.place)} has no DistributedSampler: each rank trains on the whole "
            f"data set{orders.get(order, '')}.",
            Fix(
                "give each rank its own part of the data",
                code=_shard(fact.place.text, shuffled=order != "in order"),
            ),
            why="the loop that trains a DistributedDataParallel model goes through it, and nothing splits the data "
            "set by rank",
            severity=None if order == "in order" else "warning",
        )


@check("DAT002", family="source", needs=("sources",), id="lint.epoch", commands=LINT)
def find_epoch_unset(evidence: Evidence) -> Iterable[Finding]:
    """A sampler that shuffles is not told the epoch, or takes no notice of it."""
    ways = {
        "never": "nobody calls its set_epoch",
        "once": "its set_epoch is called outside of the loop over epochs",
        "other": "set_epoch of another sampler is called",
    }
    for fact in facts_of(evidence, "epoch-unset"):
        yield tell_fact(
            fact,
            f"The DistributedSampler at {name_line(fact.place)} shuffles each epoch in the same way: "
            f"{ways[fact.details['way']]}.",
            Fix("tell it the epoch before each pass", code=_tell_epoch(fact)),
            why="its order hangs on its seed and the epoch alone, and the loop goes through it more than once",
        )
    for fact in facts_of(evidence, "epoch-ignored"):
        yield tell_fact(
            fact,
            f"{fact.details['sampler']} shuffles by its seed and does not use the epoch that set_epoch gives "
            f"({name_line(fact.place)}): every epoch has the same order.",
            Fix(
                "let the seed of the order hang on the epoch",
                code="generator.manual_seed(self.seed + self.epoch)",
            ),
            why="no method of the class reads what set_epoch keeps",
        )


def _shard(text: str, *, shuffled: bool) -> str:
    """Return the loader of a line with a sampler."""
    statement = read_line(text)
    call = find_call(statement, "DataLoader")
    if statement is None or call is None or not call.args:
        return _SAMPLER
    data = ast.unparse(call.args[0])
    set_keyword(call, "shuffle", None)
    set_keyword(call, "sampler", "sampler")
    line = ast.unparse(statement) if name_target(statement) else f"loader = {ast.unparse(call)}"
    return (
        f"sampler = DistributedSampler({data}, shuffle={shuffled})\n{line}\n"
        "for epoch in range(epochs):\n    sampler.set_epoch(epoch)"
    )


def _tell_epoch(fact: SourceFact) -> str:
    """Return the loop over epochs with the sampler and the loop of the place."""
    statement = read_line(fact.place.text)
    sampler = name_target(statement) or "sampler"
    if sampler != "sampler" and find_call(statement, "DataLoader") is not None:
        sampler += ".sampler"
    texts = (each.place.text for each in fact.related)
    loop = next((text for text in texts if isinstance(read_line(text), ast.For)), "for batch in loader:")
    return f"for epoch in range(epochs):\n    {sampler}.set_epoch(epoch)\n    {loop}"
