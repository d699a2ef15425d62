"""COL002, COL003 and COL006 as they stand in the source: a collective that some ranks do not reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFile, SourcePlace, UnevenCall
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, diagnosis
from ddpdoctor_checks.common.places import in_source
from ddpdoctor_checks.common.wording import count_of
from ddpdoctor_checks.lint.common import LINT, name_line

GROUPS = ("new_group", "new_subgroups", "new_subgroups_by_enumeration")
FORWARD = "forward"
"""Operation of the forward of a wrapped model."""
MORE_SHOWN = 6
"""Further collectives below one test whose places are named."""
LEAVES = {
    "return": "return",
    "break": "leave the loop",
    "continue": "continue with the next iteration",
    "exit": "exit",
    "skip": "suppress an error",
}
"""What ranks do that do not come to the call."""


@diagnosis(
    "lint.calls", codes=("COL002", "COL006", "COL003"), family="source", needs=("sources",), commands=LINT
)
def tell_uneven_calls(evidence: Evidence) -> Iterable[Finding]:
    """A collective, or the making of a group, stands where only some ranks come, or others are called there."""
    if all(file.problem for file in evidence.sources):
        raise NotApplicable("no file could be read")
    for file in evidence.sources:
        pairs = _find_pairs(file)
        paired = {id(each) for pair in pairs for each in pair}
        for each in file.uneven:
            if id(each) not in paired:
                yield replace(_tell(each), code="COL006" if each.operation in GROUPS else "COL002")
        for left, right in pairs:
            yield replace(_tell_pair(left, right), code="COL003")


def _find_pairs(file: SourceFile) -> list[tuple[UnevenCall, UnevenCall]]:
    """Return what both sides of one test make and the other lacks: not missing calls but different ones."""
    sides: dict[SourcePlace, dict[str, UnevenCall]] = {}
    for each in file.uneven:
        if each.operation not in GROUPS and each.kind in ("if", "else"):
            sides.setdefault(each.guard, {})[each.kind] = each
    return [(pair["if"], pair["else"]) for pair in sides.values() if len(pair) == 2]


def _tell_pair(left: UnevenCall, right: UnevenCall) -> Finding:
    sure = all(each.certain and _known(each) for each in (left, right))
    places = [in_source(left.call, "culprit"), in_source(right.call, "culprit")]
    if left.guard.line != left.call.line:
        places.append(in_source(left.guard, "condition"))
    return Finding(
        message=(
            f"Where {left.test}, ranks issue {left.operation} at {name_line(left.call)}, and the others "
            f"{right.operation} at {name_line(right.call)}: these do not match."
        ),
        where=tuple(places),
        evidence=tuple(_items(left)),
        fix=(
            Fix(
                ("issue the same collective on all ranks, and branch on the rank afterwards"),
                code=left.call.text,
            ),
        ),
        details={
            "operation": left.operation,
            "other": right.operation,
            "test": left.test,
            "origin": left.origin,
            "proven": _proof(left if not left.certain else right),
        },
        confidence="high" if sure and left.traced else "medium",
        severity=None if sure else "warning",
    )


def _tell(each: UnevenCall) -> Finding:
    proven = each.certain and each.traced
    places = [in_source(each.call, "culprit"), *(in_source(inner, "noticed") for inner in each.inner)]
    places += [in_source(further, "culprit") for further in each.more[:MORE_SHOWN]]
    if each.guard.line != each.call.line or each.guard.cell != each.call.cell:
        places.append(in_source(each.guard, "condition"))
    return Finding(
        message=_describe(each),
        where=tuple(places),
        evidence=tuple(_items(each)),
        fix=(_correct(each),),
        details={
            "operation": each.operation,
            "test": each.test,
            "way": each.kind,
            "origin": each.origin,
            "proven": _proof(each),
            "more_lines": [place.line for place in each.more],
        },
        confidence="high" if proven else "medium" if each.certain or each.traced else "low",
        severity=None if each.certain and _known(each) else "warning",
    )


def _known(each: UnevenCall) -> bool:
    """Whether it is more than the name of a helper that says who comes there, and more than a small broadcast.

    A broadcast from rank 0 may come back there before the others take part: what it meets then, they call later.
    """
    return each.origin != "helper" and each.operation != FORWARD


def _proof(each: UnevenCall) -> str:
    if not each.certain:
        return "on some path"
    return "on every path" if each.traced else "by name"


def _describe(each: UnevenCall) -> str:
    what = each.operation if not each.inner else f"{each.operation} (below {_called(each.call)})"
    line = name_line(each.call)
    if each.kind in LEAVES:
        why = f"except {each.test}" if each.origin == "error" else f"test {each.test}"
        side = f"Some ranks {LEAVES[each.kind]} at {name_line(each.guard)} ({why})"
        return f"{side} and never reach {what} at {line}."
    if each.kind == "decorator":
        return f"{what} at {line} is in a function that {each.test} runs on one rank only."
    if each.kind in ("for", "while"):
        return f"{what} at {line} is in a loop whose iteration count differs across ranks ({each.test})."
    if each.kind == "except":
        return f"{what} at {line} is called only by a rank that hits {each.test} ({name_line(each.guard)})."
    words = "is called only where" if each.kind == "if" else "is called except where"
    return f"{what} at {line} {words} {each.test}: the other ranks never reach it."


def _has_no_block(each: UnevenCall) -> bool:
    """Whether the test is no statement with a block of its own: ``rank == 0 and barrier()``, or an elif or else."""
    return each.kind == "else" or not each.guard.text.startswith("if ") or not each.guard.text.endswith(":")


def _called(place: SourcePlace) -> str:
    return f"the call in {place.function}" if place.function else "the call"


def _items(each: UnevenCall) -> Iterable[EvidenceItem]:
    differs = {
        "rank": "the rank",
        "helper": "the rank",
        "host": "the host",
        "clock": "the clock of each rank",
        "loss": "the batch of each rank: it depends on the output of the wrapped model",
        "batch": "the batch of each rank: it depends on what its samples are",
        "random": "the rank: nothing seeds the generator, which starts differently in each process",
        "error": "the rank that hits it",
    }
    how = "followed to its source" if each.traced else "by the names in it"
    yield EvidenceItem("source", f"{each.test} differs with {differs.get(each.origin, each.origin)}: {how}")
    if each.operation == FORWARD:
        yield EvidenceItem(
            "source", "before a forward pass DDP broadcasts the buffers, those of BatchNorm here"
        )
    if not each.certain:
        yield EvidenceItem("source", "other conditions also decide whether a run gets there")
    if each.more:
        lines = ", ".join(str(place.line) for place in each.more[:MORE_SHOWN])
        yield EvidenceItem("source", f"{count_of(len(each.more), 'further collective')} there: line {lines}")


def _correct(each: UnevenCall) -> Fix:
    if each.operation in GROUPS:
        return Fix(
            "create the group on all ranks, with the same list, and branch on the rank afterwards",
            code=each.call.text,
        )
    alone = each.kind in LEAVES and each.guard.text.strip().startswith(each.kind)
    if each.origin == "clock" or alone:
        return Fix(
            "decide on rank 0 and broadcast the decision",
            code="stop = torch.tensor(int(over))\ndist.broadcast(stop, src=0)\nif stop.item():\n    ...",
        )
    if each.origin in ("loss", "batch", "random"):
        return Fix(
            "make the decision collectively",
            code=f"stop = torch.tensor(float({each.test}), device=device)\n"
            "dist.all_reduce(stop, op=dist.ReduceOp.MAX)\nif stop.item():\n    ...",
        )
    if each.origin == "error":
        return Fix(
            "record the error, and make the decision collectively afterwards",
            code="dist.all_reduce(failed, op=dist.ReduceOp.MAX)\nif failed.item():\n    ...",
        )
    if each.operation == FORWARD and each.kind not in LEAVES:
        words = "call the bare model where one rank alone evaluates: it issues no collectives"
        return Fix(words, code="with torch.no_grad():\n    output = model.module(batch)")
    if each.kind in LEAVES:
        code = f"{each.call.text}\n{each.guard.text}"
        return Fix(f"move the call before {name_line(each.guard)}, so that all ranks reach it", code=code)
    if each.kind in ("if", "else"):
        moved = f"{each.guard.text}\n    ...\n{each.call.text}"
        words = "move the call out of the `if` so that every rank executes it"
        return Fix(words, code=None if _has_no_block(each) else moved)
    return Fix("move the call to where all ranks reach it")
