"""DDP005 and DDP006 as they stand in the source."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import Finding, Fix, check
from ddpdoctor_checks.lint.facts import LINT, facts_of, name_line, tell_fact
from ddpdoctor_checks.lint.rewriting import read_line


@check("DDP005", family="source", needs=("sources",), id="lint.wrapper_used", commands=LINT)
def find_bypassed(evidence: Evidence) -> Iterable[Finding]:
    """A loss is made by the model inside of the wrapper."""
    ways = {
        "module": "The model is called through .module",
        "bare": "The model is called, and not the DistributedDataParallel that wraps it,",
    }
    for fact in facts_of(evidence, "bypassed"):
        backward = name_line(fact.related[0].place)
        yield tell_fact(
            fact,
            f"{ways[fact.details['way']]} at {name_line(fact.place)}, and the backward at {backward} "
            "trains it: gradients are never reduced.",
            Fix(
                "call the wrapper in training; what else the step needs goes into the model's forward",
                code=_call_wrapper(fact.place.text),
            ),
            why="no forward of the wrapper is behind that loss, and nothing else in the program reduces gradients",
        )


def _call_wrapper(text: str) -> str:
    if ".module(" in text and read_line(text) is not None:
        return text.replace(".module(", "(")
    return "output = model(inputs)          # the DistributedDataParallel, not model.module"


@check("DDP006", family="source", needs=("sources",), id="lint.changed", commands=LINT)
def find_changed(evidence: Evidence) -> Iterable[Finding]:
    """Parameters are changed between the wrap and the training."""
    for fact in facts_of(evidence, "changed-after-wrap"):
        way, what = fact.details["way"], fact.details["what"]
        wrap = name_line(fact.related[0].place)
        words = {
            "replaced": f"gives {what} new parameters",
            "unfrozen": f"unfreezes {what}",
            "moved": f"gives the parameters of {what} another type",
        }
        yield tell_fact(
            fact,
            f"{name_line(fact.place)} {words[way]} after DistributedDataParallel was made at {wrap}: it does not "
            "reduce their gradients.",
            Fix(
                "change the model first and wrap it last",
                code=f"{fact.place.text}\n{fact.related[0].place.text}",
            ),
            why="the model is trained by the same wrapper afterwards",
        )
