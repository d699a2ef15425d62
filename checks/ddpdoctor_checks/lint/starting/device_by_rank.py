"""BKD004: the rank in the whole job is taken for the number of a GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import JOINS
from ddpdoctor.source.resolve.local_ranks import ONE_NODE, STANDALONE, joins_by_local_rank
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.texts import fold
from ddpdoctor.source.resolve.traces import Step, Trace
from ddpdoctor.source.resolve.walking import find_keyword, keep, own_nodes
from ddpdoctor.source.sameness.apart import ways_of
from ddpdoctor.source.training.cuda import SETS
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact, tell_question
from ddpdoctor_checks.lint.rewriting import SET_DEVICE

VARIABLES = frozenset({"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"})
"""Variables of launchers that hold the rank in the whole job."""


@lint_rule("device-by-rank", reads="program")
def find_devices_by_rank(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield where the rank in the whole job is taken for the number of a GPU (``device-by-rank``).

    rank: how it is written; standalone: not empty where the script says that it is started on one node. Nothing where a
    script knows only one node.
    """
    text = trace.start.script.text
    if not trace.has_peers or ONE_NODE.search(text):
        return
    joins = (step.call for step in trace.steps if step.name in JOINS and step.call is not None)
    if any(map(joins_by_local_rank, joins)):
        return
    ways = ways_of(files, trace)
    for step in trace.steps:
        call = step.call
        if call is None or (step.known and step.name not in SETS):
            continue
        for value in _device_values(call, step):
            if _is_global_rank(value, step.scope, files):
                standalone = "yes" if STANDALONE.search(text) else ""
                yield ways.tell("device-by-rank", step, rank=ast.unparse(value), standalone=standalone)
                return


def _device_values(call: ast.Call, step: Step) -> Iterator[ast.expr]:
    """Yield what a call gives as the number of a GPU."""
    values = [each.value for each in call.keywords if each.arg in ("device", "map_location", "output_device")]
    listed = find_keyword(call, "device_ids")
    if isinstance(listed, (ast.List, ast.Tuple)):
        values += listed.elts
    if step.name == "torch.device":
        if len(call.args) == 2 and isinstance(call.args[0], ast.Constant) and call.args[0].value == "cuda":
            values.append(call.args[1])
        values += call.args[:1]
    elif step.name == "torch.cuda.set_device" or (
        isinstance(call.func, ast.Attribute) and call.func.attr in ("cuda", "to")
    ):
        values += call.args[:1]
    for value in values:
        yield _read_number(value) or value


def _read_number(value: ast.expr) -> ast.expr | None:
    """Return what follows ``cuda:`` in a text: ``f"cuda:{n}"``, ``"cuda:" + str(n)``, ``"cuda:%d" % n``."""
    if isinstance(value, ast.JoinedStr) and len(value.values) == 2:
        head, tail = value.values
        return tail.value if _is_text(head, "cuda:") and isinstance(tail, ast.FormattedValue) else None
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and _is_text(value.left, "cuda:"):
        return value.right
    if (
        isinstance(value, ast.BinOp)
        and isinstance(value.op, ast.Mod)
        and _is_text(value.left, "cuda:%d", "cuda:%s")
    ):
        return value.right
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "format":
        filled = _is_text(value.func.value, "cuda:{}", "cuda:{0}") and len(value.args) == 1
        return value.args[0] if filled else None
    return None


def _is_text(node: ast.expr, *texts: str) -> bool:
    return isinstance(node, ast.Constant) and node.value in texts


def _is_global_rank(node: ast.expr, scope: Scope, files: Files, depth: int = 0) -> bool:
    if depth > 6:
        return False
    number = _read_number(node)
    if number is not None:
        return _is_global_rank(number, scope, files, depth + 1)
    if isinstance(node, ast.Call):
        name = files.dotted(node.func, scope)
        if name == "torch.distributed.get_rank":
            return not node.args and not node.keywords
        if name in ("os.environ.get", "os.getenv"):
            return bool(node.args) and fold(node.args[0], scope, files) in VARIABLES
        if name in ("int", "str") and len(node.args) == 1:
            return _is_global_rank(node.args[0], scope, files, depth + 1)
        if name == "torch.device" and node.args:
            return _is_global_rank(node.args[-1], scope, files, depth + 1)
        return _returns_rank(node, scope, files, depth)
    if isinstance(node, ast.Subscript):
        return files.dotted(node.value, scope) == "os.environ" and fold(node.slice, scope, files) in VARIABLES
    if isinstance(node, ast.Name):
        found = scope.lookup(node.id)
        # the constants beside it are those of a single process
        values = [each for each in found[1] if not isinstance(each, ast.Constant)] if found else []
        return (
            found is not None and len(values) == 1 and _is_global_rank(values[0], found[0], files, depth + 1)
        )
    if isinstance(node, ast.Attribute):
        given = _list_set(node, scope)
        if len(given) == 1:
            return _is_global_rank(given[0], scope, files, depth + 1)
        owner = files.find_made(node.value, scope)
        values = owner.attributes.get(node.attr, []) if owner is not None else []
        if owner is None or len(values) != 1:
            return False
        return _is_global_rank(values[0], owner.makers.get(values[0], owner), files, depth + 1)
    return False


def _list_set(node: ast.Attribute, scope: Scope) -> list[ast.expr]:
    """Return what a function sets an attribute of an object to, as ``args.gpu = args.rank`` does."""
    text = ast.unparse(node)
    return [
        value for target, value in keep(scope.node, "_set_attributes", _list_attributes) if target == text
    ]


def _list_attributes(function: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for each in own_nodes(function):
        if isinstance(each, ast.Assign):
            names = [target for target in each.targets if isinstance(target, ast.Attribute)]
            yield from ((ast.unparse(name), each.value) for name in names)


def _returns_rank(call: ast.Call, scope: Scope, files: Files, depth: int) -> bool:
    """Whether a function of the files gives the rank in all that it returns but numbers."""
    function = files.function(call.func, scope)
    if function is None:
        return False
    given = [each.value for each in own_nodes(function.node) if isinstance(each, ast.Return) and each.value]
    given = [each for each in given if not isinstance(each, ast.Constant)]
    return bool(given) and all(_is_global_rank(each, function, files, depth + 1) for each in given)


@check("BKD004", family="source", needs=NEEDS, id="lint.device_range", commands=LINT)
def tell_device_by_rank(evidence: Evidence) -> Iterable[Finding]:
    """The rank in the whole job is taken for the number of a GPU."""
    for fact in facts_of(evidence, "device-by-rank"):
        used = f"{name_line(fact.place)} uses {fact.details['rank']}, the global rank, as a GPU index"
        fix = Fix("use the local rank", code=SET_DEVICE)
        why = "the value was followed to RANK or get_rank()"
        if fact.details["standalone"]:
            yield tell_question(fact, f"{used}: is the job ever started on several nodes?", fix, why=why)
            continue
        words = f"{used}: on the second node that GPU does not exist."
        yield tell_fact(fact, words, fix, why=why, severity="warning")
