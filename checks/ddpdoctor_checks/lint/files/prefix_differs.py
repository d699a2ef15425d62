"""CKP004: the state of a wrapped model is loaded into one that is not wrapped, or the reverse."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.traces import Step, Trace
from ddpdoctor.source.resolve.walking import find_keyword, own_nodes
from ddpdoctor.source.sameness.apart import Ways, ways_of
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

CHANGES = frozenset({"pop", "popitem", "update", "clear", "setdefault"})
"""Methods of a state by which its keys become others."""
KEEPS = frozenset(
    {"load_state_dict", "save", "save_file", "print", "len", "sorted", "list", "set", "type", "isinstance"}
)
"""Functions to which it may be given and stays as it is."""
PREFIXED = ("wrapped",)
BARE = ("model",)


@lint_rule("prefix-differs", reads="program")
def find_prefixes(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield where the state of a wrapped model is loaded into one that is not, or the reverse (``prefix-differs``).

    saved: ``wrapped`` or ``bare``. silent: there where ``strict=False`` lets it pass. The line that saves is beside it.
    """
    if not trace.joins:
        return
    ways = ways_of(files, trace)
    saved: dict[tuple[str, str | None], list[tuple[str, Step]]] = {}
    for step in trace.steps:
        if step.call is not None and step.name == "torch.save" and len(step.call.args) == 2:
            for key, state in _states(step.call.args[0], step.scope):
                kind = _kind_of(state, step.scope, files)
                saved.setdefault((ways.spell(step.call.args[1], step), key), []).append((kind, step))
    for step in trace.steps if saved else ():
        call = step.call
        if call is None or not isinstance(call.func, ast.Attribute) or call.func.attr != "load_state_dict":
            continue
        if not call.args:
            continue
        strict = find_keyword(call, "strict", 1)
        lax = {"silent": "yes"} if isinstance(strict, ast.Constant) and not strict.value else {}
        source = _find_source(call.args[0], step, ways)
        kinds = {kind for kind, _ in saved.get(source, ())} if source is not None else set()
        own = _kind_of(call.func.value, step.scope, files)
        if (
            len(kinds) == 1
            and own
            and kinds <= {"wrapped", "bare"}
            and own not in kinds
            and source is not None
        ):
            what, writer = saved[source][0]
            yield ways.tell("prefix-differs", step, saved=what, beside=writer, **lax)


def _states(node: ast.expr, scope: Scope) -> Iterator[tuple[str | None, ast.expr]]:
    """Yield the models whose state is saved, with their key where it is a dict of several."""
    if isinstance(node, ast.Name):
        found = scope.lookup(node.id)
        if found is None or len(found[1]) != 1 or found[0] is not scope or _may_change(node.id, scope):
            return
        node = found[1][0]
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield from ((key.value, state) for _, state in _states(value, scope))
    elif (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "state_dict"
    ):
        yield None, node.func.value


def _may_change(name: str, scope: Scope) -> bool:
    """Whether the keys of a state may be changed in place: it is given to a function, or its items are set or taken."""
    for node in own_nodes(scope.node):
        stored = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        if (
            isinstance(node, ast.Subscript)
            and stored
            and isinstance(node.value, ast.Name)
            and node.value.id == name
        ):
            return True
        if not isinstance(node, ast.Call):
            continue
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if isinstance(owner, ast.Name) and owner.id == name and getattr(node.func, "attr", "") in CHANGES:
            return True
        last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if last not in KEEPS and any(isinstance(each, ast.Name) and each.id == name for each in node.args):
            return True
    return False


def _kind_of(node: ast.expr, scope: Scope, files: Files) -> str:
    kinds = kinds_of(files)
    if kinds.all_of(node, scope, *PREFIXED):
        return "wrapped"
    return "bare" if kinds.all_of(node, scope, *BARE) else ""


def _find_source(node: ast.expr, step: Step, ways: Ways) -> tuple[str, str | None] | None:
    """Return the path and the key from which a state comes; None where that cannot be told."""
    key = None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        key, node = str(node.slice.value), node.value
    if isinstance(node, ast.Name):
        found = step.scope.lookup(node.id)
        if (
            found is None
            or len(found[1]) != 1
            or found[0] is not step.scope
            or _may_change(node.id, step.scope)
        ):
            return None
        node = found[1][0]
    if (
        not isinstance(node, ast.Call)
        or ways.files.dotted(node.func, step.scope) != "torch.load"
        or not node.args
    ):
        return None
    return ways.spell(node.args[0], step), key


@check("CKP004", family="source", needs=NEEDS, id="lint.checkpoint_prefix", commands=LINT)
def tell_prefix(evidence: Evidence) -> Iterable[Finding]:
    """The state of a wrapped model is loaded into one that is not wrapped, or the reverse."""
    for fact in facts_of(evidence, "prefix-differs"):
        line, saved = name_line(fact.place), name_line(fact.related[0].place)
        if fact.details["saved"] == "wrapped":
            message = f"{line} loads into a bare model what {saved} saved from the wrapper: each key "
            message += "begins with module."
        else:
            message = (
                f"{line} loads into the wrapper what {saved} saved from the bare model: no key begins with "
            )
            message += "module."
        if "silent" in fact.details:
            message += " Nothing is loaded, and with strict=False no error reports it."
        yield tell_fact(
            fact,
            message,
            Fix(
                "save and load the model inside the wrapper",
                code="torch.save(model.module.state_dict(), path)\nmodel.module.load_state_dict(torch.load(path))",
            ),
            why="both lines name one path, and what is saved and loaded was followed to where it was created",
        )
