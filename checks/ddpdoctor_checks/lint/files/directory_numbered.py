"""CKP005: each rank numbers a directory by what it finds there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.properties import find_only_return
from ddpdoctor.source.resolve.traces import Frame, Step, Trace
from ddpdoctor.source.resolve.walking import find_keyword, names_in, own_nodes
from ddpdoctor.source.sameness.alike import follow_name
from ddpdoctor.source.sameness.apart import Ways, may_meet, ways_of
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

LISTS = frozenset({"os.listdir", "os.scandir", "glob.glob", "glob.iglob"})
"""Functions that look what is in a directory."""
ASKS = ("exists", "isdir", "is_dir")
OF_RANKS = re.compile(r"rank|proc|local|node|host|time|uuid|rand|temp", re.IGNORECASE)
"""Parts of a path by which each rank may have one of its own anyway."""
DEEPEST = 6
"""Values that are followed into one another."""

Part = tuple[ast.expr, Scope, tuple[Frame, ...]]


@lint_rule("directory-numbered", reads="program", classes=True)
def find_numbered_directories(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield directories that all ranks create under a number by what each finds there (``directory-numbered``).

    path: how it is written. The line that looks is beside it. Nothing where ranks meet in between.
    """
    if not trace.has_peers:
        return
    ways = ways_of(files, trace)
    looked = {
        step.node: place for place, step in enumerate(trace.steps) if _looks(step.node, step.scope, files)
    }
    for place, step in enumerate(trace.steps) if looked else ():
        path = _find_made(step)
        if path is None or ways.may_differ(step) or ways.is_single(step) or not ways.is_of_all(step):
            continue
        for call in _find_looks(path, step, ways):
            seen = looked.get(call, place)
            if seen < place and not any(may_meet(each, files) for each in trace.steps[seen:place]):
                yield ways.tell("directory-numbered", step, beside=trace.steps[seen], path=ast.unparse(path))
                break


def _looks(node: ast.AST, scope: Scope, files: Files) -> bool:
    """Whether it is a call that looks what is in a directory, or whether one is there."""
    if not isinstance(node, ast.Call):
        return False
    if files.dotted(node.func, scope) in LISTS:
        return True
    return isinstance(node.func, ast.Attribute) and node.func.attr in ("iterdir", "glob", *ASKS)


def _find_made(step: Step) -> ast.expr | None:
    call = step.call
    if call is None:
        return None
    if step.name in ("os.makedirs", "os.mkdir"):
        return find_keyword(call, "name" if step.name == "os.makedirs" else "path", 0)
    return call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir" else None


def _find_looks(path: ast.expr, step: Step, ways: Ways) -> Iterator[ast.Call]:
    """Yield the calls by whose result a path is numbered: ``len(os.listdir(folder))``, or a loop while it is there.

    Nothing where something in the path may be each rank's own.
    """
    values = list(_follow(path, step.scope, step.frames, ways.files, 0))
    wholes = [ways.values.spell(*each, 0) for each in values]
    if any(map(OF_RANKS.search, wholes)):
        return
    for value, scope, frames in values:
        for node in ast.walk(value):
            if isinstance(node, ast.Call) and ways.files.dotted(node.func, scope) == "len" and node.args:
                for call, listed in _list_listed(node.args[0], scope, ways.files):
                    folder = ways.values.spell(listed, scope, frames, 0).rstrip("*").rstrip("/")
                    if folder and any(each.startswith(folder) for each in wholes):
                        yield call
            elif isinstance(node, ast.Name):
                yield from _find_tries(node.id, scope, ways.files)


def _follow(
    node: ast.expr, scope: Scope, frames: tuple[Frame, ...], files: Files, depth: int
) -> Iterator[Part]:
    """Yield an expression, what its variables are, and what functions of the files return that it calls."""
    yield node, scope, frames
    for each in ast.walk(node) if depth < DEEPEST else ():
        if isinstance(each, ast.Name):
            for value, home, inside in follow_name(each, scope, frames):
                if value is not None:
                    yield from _follow(value, home, inside, files, depth + 1)
        elif isinstance(each, ast.Call):
            called = files.function(each.func, scope)
            only = find_only_return(called) if called is not None else None
            if called is not None and only is not None:
                yield from _follow(only, called, (*frames, Frame(each, scope, called)), files, depth + 1)


def _list_listed(node: ast.AST, scope: Scope, files: Files) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield the calls that look what is there, each with the directory or the pattern."""
    for call in ast.walk(node):
        if not isinstance(call, ast.Call):
            continue
        if files.dotted(call.func, scope) in LISTS and call.args:
            yield call, call.args[0]
        elif isinstance(call.func, ast.Attribute) and call.func.attr in ("iterdir", "glob"):
            yield call, call.func.value


def _find_tries(name: str, scope: Scope, files: Files) -> Iterator[ast.Call]:
    """Yield what a loop asks that counts up while a directory is there: ``while os.path.exists(path): ...``."""
    for loop in own_nodes(scope.node):
        if not isinstance(loop, ast.While) or not isinstance(loop.test, ast.Call):
            continue
        names = set(names_in(loop.test))
        bound = {
            each.id
            for inner in loop.body
            for each in ast.walk(inner)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        }
        if name in names & bound and _looks(loop.test, scope, files):
            yield loop.test


@check("CKP005", family="source", needs=NEEDS, id="lint.numbered_directories", commands=LINT)
def tell_directory_numbered(evidence: Evidence) -> Iterable[Finding]:
    """Each rank numbers a directory by what it finds there."""
    for fact in facts_of(evidence, "directory-numbered"):
        path, looks = fact.details["path"], fact.related[0].place
        yield tell_fact(
            fact,
            f"Each rank creates {path} at {name_line(fact.place)} under a number by what it finds there at "
            f"{name_line(looks)}: one that looks after another has created its directory takes the next number.",
            Fix(
                "choose the name on rank 0 and broadcast it",
                code="names = [path]\ndist.broadcast_object_list(names, src=0)\nos.makedirs(names[0], exist_ok=True)",
            ),
            why="no rank-dependent `if` guards it, and nothing between the two lines makes the ranks wait",
            severity="warning",
        )
