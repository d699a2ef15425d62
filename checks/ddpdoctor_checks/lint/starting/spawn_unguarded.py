"""ENV017: processes are started when the file is imported, which its children do as well."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.names import Files
from ddpdoctor.source.resolve.texts import fold
from ddpdoctor.source.resolve.traces import SPAWNS, Step, Trace
from ddpdoctor.source.resolve.walking import find_keyword
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

OWN_QUESTION = re.compile(r"__name__|(?<!multi)process|environ|getenv|parent|spawn|child", re.IGNORECASE)
"""Tests that may be about whether this is a child."""


@lint_rule("spawn-unguarded", "spawn-in-notebook", reads="program")
def find_unguarded_spawns(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield what starts processes when the file is imported (``spawn-unguarded``; in notebooks ``spawn-in-notebook``).

    function: what starts them. The place is the line of the module that leads there. Children of the start method spawn
    import the file again; those of fork do not, so that a plain Process is told only after spawn was chosen.
    """
    if not isinstance(trace.start.node, ast.Module):
        return
    if trace.start.script.name.rpartition("/")[2] == "__main__.py":
        return  # children do not import it again (multiprocessing.spawn)
    chosen = ""
    for step in trace.steps:
        call = step.call
        if call is None:
            continue
        if step.name.endswith("multiprocessing.set_start_method") and call.args:
            chosen = fold(call.args[0], step.scope, files) or ""
        if not _starts(step, chosen, files):
            continue
        if trace.start.script.cells:
            target = call.args[0] if call.args else find_keyword(call, "target")
            function = files.function(target, step.scope) if target is not None else None
            if function is not None and function.script is trace.start.script:
                yield SourceFact(
                    "spawn-in-notebook", step.scope.script.place(call), details={"function": step.name}
                )
            continue
        kinds = {each.kind for each in step.guards}
        asked = any(OWN_QUESTION.search(ast.unparse(each.test)) for each in step.guards if each.kind != "for")
        if kinds & {"main", "try", "except"} or asked:
            continue
        first = step.frames[0].call if step.frames else call
        related = (RelatedPlace("noticed", step.scope.place(call)),)
        yield SourceFact(
            "spawn-unguarded",
            trace.start.place(first),
            related=related if step.frames else (),
            details={"function": step.name.rpartition(".")[2] or "Process"},
            certain=not kinds - {"for", "with"},
        )
        return


def _starts(step: Step, chosen: str, files: Files) -> bool:
    call = step.call
    if call is None:
        return False
    if step.name in SPAWNS:
        method = find_keyword(call, "start_method", 5)
        return method is None or fold(method, step.scope, files) in ("spawn", "forkserver")
    if step.name in ("multiprocessing.Process", "torch.multiprocessing.Process"):
        return chosen in ("spawn", "forkserver")
    if (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "Process"
        and isinstance(call.func.value, ast.Name)
    ):
        found = step.scope.lookup(call.func.value.id)
        made = found[1][0] if found and len(found[1]) == 1 else None
        if found and isinstance(made, ast.Call) and made.args:
            name = files.dotted(made.func, found[0]) or ""
            return name.endswith("multiprocessing.get_context") and (
                fold(made.args[0], found[0], files) in ("spawn", "forkserver")
            )
    return False


@check("ENV017", family="source", needs=NEEDS, id="lint.spawn_guard", commands=LINT)
def tell_spawn_unguarded(evidence: Evidence) -> Iterable[Finding]:
    """Processes are started while the file is imported, which its children do as well."""
    for fact in facts_of(evidence, "spawn-unguarded"):
        function = fact.details["function"]
        yield tell_fact(
            fact,
            f"{name_line(fact.place)} starts processes with {function} whenever the file is imported: each "
            "child imports it first and fails there.",
            Fix("put it under a main guard", code=f'if __name__ == "__main__":\n    {fact.place.text}'),
            why="no check of __name__ guards it, and the start method is spawn",
        )
    for fact in facts_of(evidence, "spawn-in-notebook"):
        function = fact.details["function"]
        yield tell_fact(
            fact,
            f"{function} at {name_line(fact.place)} starts a function of the notebook: children cannot "
            "import it.",
            Fix(
                "move the function into a file and import it, or start the script with torchrun",
                code="from train import work\nmp.spawn(work, args=(world_size,), nprocs=world_size)",
            ),
            why="the function is defined in a cell",
        )
