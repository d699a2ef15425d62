"""BKD004: the rank in the whole job is taken for the number of a GPU."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import JOINS
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.texts import fold
from ddpdoctor.source.resolve.traces import Step, Trace
from ddpdoctor.source.resolve.walking import find_keyword, keep, own_nodes
from ddpdoctor.source.sameness.apart import ways_of
from ddpdoctor.source.training.cuda import SETS
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact
from ddpdoctor_checks.lint.rewriting import SET_DEVICE

VARIABLES = frozenset({"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"})
"""Variables of launchers that hold the rank in the whole job."""
ONE_NODE = re.compile(r"localhost|127\.0\.0\.1|device_count|standalone")
"""What a script says that knows only one node, or how many GPUs there are."""


@lint_rule("device-by-rank", reads="program")
def find_devices_by_rank(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield where the rank in the whole job is taken for the number of a GPU (``device-by-rank``).

    rank: how it is written. Nothing where a script knows only one node.
    """
    if not trace.has_peers or ONE_NODE.search("\n".join(trace.start.script.lines)):
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
                yield ways.tell("device-by-rank", step, rank=ast.unparse(value))
                return


def joins_by_local_rank(call: ast.Call) -> bool:
    """Whether the rank in the node is given as that in the job: there is one node."""
    rank = find_keyword(call, "rank")
    return rank is not None and "local" in ast.unparse(rank).lower()


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
        if isinstance(value, ast.JoinedStr) and len(value.values) == 2:
            head, tail = value.values
            if (
                isinstance(head, ast.Constant)
                and head.value == "cuda:"
                and isinstance(tail, ast.FormattedValue)
            ):
                yield tail.value
        else:
            yield value


def _is_global_rank(node: ast.expr, scope: Scope, files: Files, depth: int = 0) -> bool:
    if depth > 4:
        return False
    if isinstance(node, ast.Call):
        name = files.dotted(node.func, scope)
        if name == "torch.distributed.get_rank":
            return not node.args and not node.keywords
        if name in ("os.environ.get", "os.getenv"):
            return bool(node.args) and fold(node.args[0], scope, files) in VARIABLES
        if name == "int" and len(node.args) == 1:
            return _is_global_rank(node.args[0], scope, files, depth + 1)
        return _returns_rank(node, scope, files, depth)
    if isinstance(node, ast.Subscript):
        return files.dotted(node.value, scope) == "os.environ" and fold(node.slice, scope, files) in VARIABLES
    if isinstance(node, ast.Name):
        found = scope.lookup(node.id)
        if found is None or len(found[1]) != 1:
            return False
        return _is_global_rank(found[1][0], found[0], files, depth + 1)
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
        rank = fact.details["rank"]
        yield tell_fact(
            fact,
            f"{name_line(fact.place)} uses {rank}, the global rank, as a GPU index: on the second node that "
            "GPU does not exist.",
            Fix("use the local rank", code=SET_DEVICE),
            why="the value was followed to RANK or get_rank()",
            severity="warning",
        )
