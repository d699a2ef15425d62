"""CKP001: all ranks write one path."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.names import Files
from ddpdoctor.source.resolve.traces import Trace
from ddpdoctor.source.sameness.apart import Ways
from ddpdoctor.source.training.writes import find_forwarded, find_written
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact
from ddpdoctor_checks.lint.rewriting import find_call, read_line

HARMLESS = ("/dev/null", ".lock")
_GUARD = (
    'if dist.get_rank() == 0:\n    torch.save(state, path + ".tmp")\n    os.replace(path + ".tmp", path)\n'
    "dist.barrier()"
)


@lint_rule("write-raced", reads="program")
def find_raced_writes(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield what each rank writes to one path (``write-raced``).

    kind: checkpoint, other or text. path: how it is written. Nothing where a test may be about ranks, where the
    path may differ, or where the directory is changed.
    """
    if not trace.has_peers or any(step.name == "os.chdir" for step in trace.steps):
        return
    ways = Ways(files, trace)
    for step in trace.steps:
        written, giver = find_written(step, files), step
        if written is None and (forwarded := find_forwarded(step)) is not None:
            giver = forwarded[1]
            written = find_written(replace(giver, node=forwarded[0], name=step.name), files)
        if written is None or ways.may_differ(step) or not ways.is_alike(written[0], giver):
            continue
        if any(each in ways.spell(written[0], giver) for each in HARMLESS):
            continue
        yield ways.tell("write-raced", step, kind=written[1], path=ast.unparse(written[0]))


@check("CKP001", family="source", needs=NEEDS, id="lint.checkpoints", commands=LINT)
def tell_write_raced(evidence: Evidence) -> Iterable[Finding]:
    """Each rank writes one path."""
    for fact in facts_of(evidence, "write-raced"):
        kind, path = fact.details["kind"], fact.details["path"]
        severity = {"checkpoint": None, "other": "warning"}.get(kind, "info")
        yield tell_fact(
            fact,
            f"All ranks write {path} at {name_line(fact.place)}: the file can be torn, or a mix of their data.",
            Fix("write on rank 0 only, to a temporary name first", code=_guard(fact.place.text, path)),
            why="no rank-dependent `if` guards it, and the path is the same on all ranks",
            severity=severity,
            role="advice" if severity == "info" else "cause",
        )


def _guard(text: str, path: str) -> str:
    """Return a save below a test on the rank, with the path of the place where it is short."""
    call = find_call(read_line(text), "save")
    if (
        call is None
        or len(call.args) < 2
        or not isinstance(call.args[1], (ast.Name, ast.Attribute, ast.Constant))
    ):
        return _GUARD
    fixed = call.args[1].value if isinstance(call.args[1], ast.Constant) else None
    part = repr(f"{fixed}.tmp") if isinstance(fixed, str) else f"{path} + '.tmp'"
    call.args[1] = ast.parse(part, mode="eval").body
    return (
        f"if dist.get_rank() == 0:\n    {ast.unparse(call)}\n    os.replace({part}, {path})\ndist.barrier()"
    )
