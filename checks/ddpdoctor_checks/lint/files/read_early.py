"""CKP002: ranks read what rank 0 writes, and nothing makes them wait."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.names import Files
from ddpdoctor.source.resolve.traces import SIDES, Step, Trace
from ddpdoctor.source.resolve.walking import find_keyword
from ddpdoctor.source.sameness.apart import Ways, may_meet, ways_of
from ddpdoctor.source.training.writes import find_written
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

LOADS = frozenset({"torch.load", "safetensors.torch.load_file"})


@lint_rule("read-early", reads="program")
def find_early_reads(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield where other ranks read what rank 0 writes, with nothing in between that makes them wait (``read-early``).

    path: how it is written. The line that writes is beside it.
    """
    if not trace.has_peers:
        return
    ways = ways_of(files, trace)
    written: dict[str, Step] = {}
    for step in trace.steps:
        call = step.call
        if call is None:
            continue
        if step.name in LOADS:
            path = find_keyword(call, "f", 0) or find_keyword(call, "filename")
            writer = written.get(ways.spell(path, step)) if path is not None else None
            if (
                writer is not None
                and path is not None
                and ways.only_first(step) is None
                and not _excludes(writer, step, ways)
            ):
                beside = writer.scope.place(writer.node)
                yield SourceFact(
                    "read-early",
                    step.scope.place(call),
                    related=(RelatedPlace("noticed", beside),),
                    details={"path": ast.unparse(path)},
                    certain=_only_about_rank(writer, ways)
                    and (ways.without_first(step) or ways.is_sure(step)),
                )
            continue
        found = find_written(step, files)
        if found is not None and found[1] != "text" and ways.only_first(step) is not None:
            written[ways.spell(found[0], step)] = step
        elif written and (may_meet(step, files) or ways.is_foreign(step)):
            written.clear()


def _only_about_rank(step: Step, ways: Ways) -> bool:
    first = ways.only_first(step)
    return all(each is first or each.kind in ("main", "for", "with") for each in step.guards)


def _excludes(writer: Step, reader: Step, ways: Ways) -> bool:
    """Whether two steps are on different sides of one test that is not about the rank: no run comes to both."""
    sides = {each.test: each.positive for each in writer.guards if each is not ways.only_first(writer)}
    return any(
        sides.get(each.test, each.positive) != each.positive for each in reader.guards if each.kind in SIDES
    )


@check("CKP002", family="source", needs=NEEDS, id="lint.checkpoint_order", commands=LINT)
def tell_read_early(evidence: Evidence) -> Iterable[Finding]:
    """Ranks read what rank 0 writes, and nothing makes them wait."""
    for fact in facts_of(evidence, "read-early"):
        path = fact.details["path"]
        yield tell_fact(
            fact,
            f"{path} is read at {name_line(fact.place)} by ranks that do not wait until rank 0 has "
            f"written it at {name_line(fact.related[0].place)}.",
            Fix(
                ("synchronize all ranks between writing and reading"),
                code=f"dist.barrier()\n{fact.place.text}",
            ),
            why="no collective is between the two lines",
        )
