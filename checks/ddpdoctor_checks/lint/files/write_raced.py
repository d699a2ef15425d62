"""CKP001: all ranks write one path."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import JOINS
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.known import HARMLESS as HARMLESS_METHODS
from ddpdoctor.source.resolve.known import KNOWN_ROOTS
from ddpdoctor.source.resolve.local_ranks import joins_by_local_rank
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.rank_tests import ZERO, RankReader
from ddpdoctor.source.resolve.traces import SIDES, Guard, Step, Trace
from ddpdoctor.source.resolve.walking import find_calls, own_nodes
from ddpdoctor.source.sameness.alike import JOINING, TEXT_METHODS, find_value
from ddpdoctor.source.sameness.apart import Ways, ways_of
from ddpdoctor.source.training.writes import SAVES, find_forwarded, find_written
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact, tell_question
from ddpdoctor_checks.lint.rewriting import find_call, read_line

HARMLESS = ("/dev/null", ".lock")
OF_MASTER = re.compile(r"(on|by|if)_?(the_)?(master|main|rank_?(0|zero)|global_zero|chief)", re.IGNORECASE)
"""Names of functions that promise to write on one rank."""
_GUARD = (
    'if dist.get_rank() == 0:\n    torch.save(state, path + ".tmp")\n    os.replace(path + ".tmp", path)\n'
    "dist.barrier()"
)


ONE_NODE = re.compile(
    r"localhost|127\.0\.0\.1|standalone|\blocal_rank\s*=\s*(torch\.)?(dist\w*\.)?(get_rank\(\)|(args\.)?rank)\s*$",
    re.MULTILINE,
)
"""What a script says that knows only one node, or in which the rank in the node is that in the job."""
OF_NODES = re.compile(r"rank|node|host|local", re.IGNORECASE)
"""Parts of a path that may be another one on each node."""


@lint_rule("write-raced", "write-doubted", "write-given", reads="program", classes=True)
def find_raced_writes(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield what each rank writes to one path (``write-raced``).

    kind: checkpoint, other or text. path: how it is written. name: a variable of a checkpoint's call to which only
    rank 0 assigns. Nothing where a test may be about ranks, where the path may differ, or where the directory is
    changed. Where one process may be what is run there, that is asked (``write-doubted``).
    """
    if not trace.has_peers or any(step.name == "os.chdir" for step in trace.steps):
        return
    ways = ways_of(files, trace)
    for step in trace.steps:
        written, giver = find_written(step, files), step
        if written is None and (forwarded := find_forwarded(step)) is not None:
            giver = forwarded[1]
            written = find_written(replace(giver, node=forwarded[0], name=step.name), files)
        if written is None or ways.may_leave_out(step) or not ways.is_of_all(step):
            continue
        path, kind = written
        rule = "write-doubted" if ways.is_single(step) else "write-raced"
        fact = ways.tell(rule, step, kind=kind, path=ast.unparse(path))
        of_first = ways.find_of_first(giver) if kind == "checkpoint" else None
        if of_first is not None:
            name, value = of_first
            related = (RelatedPlace("noticed", giver.scope.place(value)),)
            yield replace(fact, related=related, details={**fact.details, "name": name})
        elif any(each in ways.spell(path, giver) for each in HARMLESS):
            continue
        elif ways.is_alike(path, giver):
            yield fact
        elif kind == "checkpoint" and rule == "write-raced" and giver is step:
            other = _find_guarded(step, trace, ways)
            if other is not None and _is_of_same_parts(path, step, other, ways):
                yield replace(
                    fact,
                    related=(RelatedPlace("noticed", other.frames[-1].scope.place(other.frames[-1].call)),),
                    details={**fact.details, "beside": "yes"},
                    certain=False,
                )
            elif not ways.is_given_ranks and ways.is_alike_if_given(path, step):
                yield ways.tell("write-given", step, path=ast.unparse(path))


def _find_guarded(step: Step, trace: Trace, ways: Ways) -> Step | None:
    """Return the step of another call of the same save, in the same function, that a test lets rank 0 alone come to."""
    for other in trace.steps if step.frames else ():
        if other.node is not step.node or not other.frames or other.frames[:-1] != step.frames[:-1]:
            continue
        own, its = step.frames[-1], other.frames[-1]
        guard = ways.only_first(other) if (own.scope, own.callee) == (its.scope, its.callee) else None
        if guard is not None and guard.scope is own.scope:
            return other
    return None


def _is_of_same_parts(path: ast.expr, step: Step, other: Step, ways: Ways) -> bool:
    """Whether two calls of one save give it paths in which all is the same on all ranks, or stands in both."""
    frame = step.frames[-1]
    for part in _list_parts(path, step.scope, ways.files):
        if ways.is_alike(part, step):
            continue
        name = part.id if isinstance(part, ast.Name) else ""
        own, its = (find_value(each.frames[-1], name) for each in (step, other))
        if own is None or its is None or name not in frame.callee.parameters:
            return False
        shared = {ast.unparse(each) for each in _list_parts(its, frame.scope, ways.files)}
        for each in _list_parts(own, frame.scope, ways.files):
            text = ast.unparse(each)
            with ways.values.assuming():
                alike = ways.values.alike(each, frame.scope, step.frames[:-1], 0)
            if OF_NODES.search(text) or not (text in shared or alike):
                return False
    return True


def _list_parts(node: ast.expr, scope: Scope, files: Files) -> Iterator[ast.expr]:
    """Yield the variables, attributes and calls of unknown functions that a path is made of."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        yield node
    elif isinstance(node, ast.Call):
        method = node.func if isinstance(node.func, ast.Attribute) else None
        if files.dotted(node.func, scope) in JOINING:
            inner = [*node.args]
        elif method is not None and method.attr in TEXT_METHODS:
            inner = [method.value, *node.args]
        else:
            yield node
            return
        for each in inner:
            yield from _list_parts(each, scope, files)
    else:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from _list_parts(child, scope, files)


@lint_rule("write-by-nodes", reads="program", classes=True)
def find_writes_by_nodes(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield checkpoints that rank 0 of each node writes to one path, as far as can be told (``write-by-nodes``).

    test: what lets these ranks come there. Nothing where a script knows only one node.
    """
    if not trace.has_peers or ONE_NODE.search(trace.start.script.text):
        return
    if any(
        step.name in JOINS and step.call is not None and joins_by_local_rank(step.call)
        for step in trace.steps
    ):
        return
    ways = ways_of(files, trace)
    for step in trace.steps:
        written = find_written(step, files)
        if written is None or written[1] != "checkpoint" or ways.is_single(step):
            continue
        guard = _find_local_guard(step, ways)
        if guard is not None and not OF_NODES.search(ways.spell(written[0], step)):
            path, test = ast.unparse(written[0]), ast.unparse(guard.test)
            yield ways.tell("write-by-nodes", step, path=path, test=test)


def _find_local_guard(step: Step, ways: Ways) -> Guard | None:
    """Return the test by which rank 0 of each node comes to a step, where no other one asks for the rank."""
    found = None
    for guard in step.guards:
        if guard.kind in SIDES and isinstance(guard.test, ast.expr):
            read = ways.ranks.read(guard.test, guard.scope)
            if read is None:
                continue
            if not read.local or read.key != ZERO or read.positive != guard.positive:
                return None
            found = guard
    return found


@lint_rule("master-writes-by-all", reads="module")
def find_unguarded_helpers(module: Scope, files: Files) -> Iterator[SourceFact]:
    """Yield helpers that are called after the master and save on every rank (``master-writes-by-all``).

    The name is a promise to whoever calls: ``save_on_master``. name: the function. Nothing where any test or decorator
    stands in it or before it, where it calls what may test the rank, or where it gets the rank.
    """
    for scope in module.walk():
        node = scope.node
        if not isinstance(node, ast.FunctionDef) or not OF_MASTER.search(node.name) or node.decorator_list:
            continue
        if not kinds_of(files).programs.is_distributed(module) or _has_test(scope):
            continue
        calls = list(find_calls(scope))
        saved = [each for each in calls if files.dotted(each.func, scope) in SAVES]
        if any(_is_guarded(*each, files) for each in kinds_of(files).callers(scope)):
            continue
        if saved and all(each in saved or _is_harmless(each, scope, files) for each in calls):
            details = {"name": node.name}
            yield SourceFact("master-writes-by-all", scope.place(saved[0]), details=details, traced=False)


def _has_test(scope: Scope) -> bool:
    tests = (ast.If, ast.IfExp, ast.BoolOp, ast.With, ast.Match, ast.Try)
    return any(isinstance(each, tests) or "rank" in getattr(each, "id", "") for each in own_nodes(scope.node))


def _is_guarded(call: ast.Call, scope: Scope, files: Files) -> bool:
    """Whether a test on the rank stands around a call in its function."""
    ranks = RankReader(files)
    return any(
        isinstance(each, ast.If)
        and ranks.read(each.test, scope) is not None
        and any(inner is call for inner in ast.walk(each))
        for each in own_nodes(scope.node)
    )


def _is_harmless(call: ast.Call, scope: Scope, files: Files) -> bool:
    root = (files.dotted(call.func, scope) or "").split(".")[0]
    return root in KNOWN_ROOTS or (
        isinstance(call.func, ast.Attribute) and call.func.attr in HARMLESS_METHODS
    )


@check("CKP001", family="source", needs=NEEDS, id="lint.checkpoints", commands=LINT)
def tell_write_raced(evidence: Evidence) -> Iterable[Finding]:
    """Each rank writes one path."""
    for fact in facts_of(evidence, "write-raced"):
        kind, path = fact.details["kind"], fact.details["path"]
        severity = {"checkpoint": None, "other": "warning"}.get(kind, "info")
        if name := fact.details.get("name"):
            yield tell_fact(
                fact,
                f"All ranks save at {name_line(fact.place)}, but only rank 0 assigns {name}: the others raise "
                "NameError.",
                Fix("write on rank 0 only, to a temporary name first", code=_guard(fact.place.text, path)),
                why=f"no rank-dependent `if` guards the save, and each assignment to {name} is under one",
            )
            continue
        beside = (
            fact.details.get("beside")
            and f"; its call at {name_line(fact.related[0].place)} is for rank 0 alone"
        )
        yield tell_fact(
            fact,
            f"All ranks write {path} at {name_line(fact.place)}: the file can be torn, or a mix of their data"
            f"{beside or ''}.",
            Fix("write on rank 0 only, to a temporary name first", code=_guard(fact.place.text, path))
            if kind == "checkpoint"
            else Fix("write on rank 0 only", code=f"if dist.get_rank() == 0:\n    {fact.place.text}"),
            why="no rank-dependent `if` guards it, and the path is the same on all ranks",
            severity=severity,
            role="advice" if severity == "info" else "cause",
        )
    for fact in facts_of(evidence, "write-doubted"):
        path = fact.details["path"]
        if fact.details["kind"] != "text":
            yield tell_question(
                fact,
                f"All ranks of this program would write {path} at {name_line(fact.place)}: is it run with one process?",
                Fix("write on rank 0 only", code=f"if dist.get_rank() == 0:\n    {fact.place.text}"),
                why="the names around it are those of what one process is run for",
            )
    for fact in facts_of(evidence, "write-given"):
        path = fact.details["path"]
        yield tell_question(
            fact,
            f"All ranks that use this class write {path} at {name_line(fact.place)}: are they given one path?",
            Fix("write on rank 0 only", code=f"if dist.get_rank() == 0:\n    {fact.place.text}"),
            why="no rank-dependent `if` guards it, and the path is made of what the class is given",
        )
    for fact in facts_of(evidence, "write-by-nodes"):
        path = fact.details["path"]
        yield tell_question(
            fact,
            f"Rank 0 of each node writes {path} at {name_line(fact.place)} (test {fact.details['test']}): is it one "
            "file of a disk that several nodes share?",
            Fix("write on rank 0 of the job", code=f"if dist.get_rank() == 0:\n    {fact.place.text}"),
            why="the rank in the node is asked for, and each node has one that is 0",
        )
    known = {fact.place for fact in facts_of(evidence, "write-raced")}
    for fact in facts_of(evidence, "master-writes-by-all"):
        if fact.place in known:
            continue
        name = fact.details["name"]
        yield tell_fact(
            fact,
            f"{name} saves on every rank at {name_line(fact.place)}: nothing in it tests the rank, although its name "
            "promises that one rank writes.",
            Fix("write on rank 0 only", code=f"if dist.get_rank() == 0:\n    {fact.place.text}"),
            why=f"no `if` and no decorator of {name} depends on the rank",
            severity="warning",
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
