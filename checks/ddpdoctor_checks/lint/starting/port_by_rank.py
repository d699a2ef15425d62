"""ENV004: each rank sets a port of its own for the rendezvous."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import JOINS
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.rank_tests import RankReader
from ddpdoctor.source.resolve.texts import find_settings
from ddpdoctor.source.resolve.traces import Frame, Step, Trace
from ddpdoctor.source.resolve.walking import find_keyword, own_nodes
from ddpdoctor.source.sameness.alike import find_value
from ddpdoctor.source.sameness.apart import ways_of
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

FREE = frozenset({"getsockname", "find_free_port", "get_free_port", "pick_unused_port", "get_open_port"})
"""Functions and methods that give a port that was free when they were called: each process gets another one."""
DRAWS = frozenset({"random.randint", "random.randrange", "random.choice", "numpy.random.randint", "os.getpid",
                   "time.time"})  # fmt: skip
"""Functions whose result differs across processes that nothing seeds."""
JOINING = re.compile("bcast|broadcast|gather|reduce", re.IGNORECASE)
"""Parts of names of functions after which processes have the same, those of MPI among them."""
DEEPEST = 6
"""Values and functions that are followed into one another."""


@lint_rule("port-by-rank", reads="program")
def find_ports_by_rank(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield where each rank sets ``MASTER_PORT`` to a port of its own and then joins the group (``port-by-rank``).

    All ranks have to meet at one address and port, that of rank 0
    (https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization). Found are ports that
    were free when they were asked for, random numbers, process ids and sums with the rank, in the process that joins,
    which means in a function that is spawned or in a script that a launcher starts. The line that joins is beside it.
    """
    if not trace.has_peers:
        return
    ways, ranks = ways_of(files, trace), RankReader(files)
    for number, step in enumerate(trace.steps):
        values = [
            value for name, value in find_settings(step.node, step.scope, files) if name == "MASTER_PORT"
        ]
        given = find_keyword(step.call, "init_method", 1) if step.name in JOINS and step.call else None
        values += [given] if isinstance(given, (ast.JoinedStr, ast.BinOp)) else []
        if not values:
            continue
        joins = next((each for each in trace.steps[number:] if each.name in JOINS), None)
        if joins is None or ways.may_differ(step) or _is_default(step):
            continue
        if any(_differs(each, step.scope, step.frames, files, ranks, 0) for each in values):
            beside = RelatedPlace("noticed", joins.scope.place(joins.node))
            yield SourceFact(
                "port-by-rank", step.scope.place(step.node), (beside,), certain=ways.is_sure(step)
            )


def _is_default(step: Step) -> bool:
    """Whether it sets what the launcher has not set: ``os.environ.setdefault``."""
    return step.name.endswith("setdefault")


def _differs(
    node: ast.expr, scope: Scope, frames: tuple[Frame, ...], files: Files, ranks: RankReader, depth: int
) -> bool:
    """Whether a number is another one in each process."""
    if depth > DEEPEST or node is UNKNOWN:
        return False
    if isinstance(node, ast.Call):
        last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if files.dotted(node.func, scope) in DRAWS:
            return True
        function = files.function(node.func, scope)
        if function is not None:
            returned = [each.value for each in own_nodes(function.node) if isinstance(each, ast.Return)]
            inner = (*frames, Frame(node, scope, function))
            return bool(returned) and all(
                each is not None and _differs(each, function, inner, files, ranks, depth + 1)
                for each in returned
            )
        if last in FREE:
            return True
        if JOINING.search(last):
            return False
        return any(_differs(each, scope, frames, files, ranks, depth + 1) for each in node.args)
    if isinstance(node, ast.Name):
        home, values = scope.lookup(node.id) or (scope, [])
        if values == [UNKNOWN] and frames and frames[-1].callee is home:
            argument = find_value(frames[-1], node.id)
            return argument is not None and _differs(
                argument, frames[-1].scope, frames[:-1], files, ranks, depth + 1
            )
        return len(values) == 1 and _differs(
            values[0], home, frames if home is scope else (), files, ranks, depth + 1
        )
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Add) and any(ranks.rank(each, scope) for each in (node.left, node.right)):
            return True
        return any(_differs(each, scope, frames, files, ranks, depth + 1) for each in (node.left, node.right))
    if isinstance(node, ast.JoinedStr):
        return any(_differs(each, scope, frames, files, ranks, depth + 1) for each in node.values)
    if isinstance(node, (ast.FormattedValue, ast.Subscript)):
        return _differs(node.value, scope, frames, files, ranks, depth + 1)
    return False


@check("ENV004", family="source", needs=NEEDS, id="lint.port_by_rank", commands=LINT)
def tell_ports_by_rank(evidence: Evidence) -> Iterable[Finding]:
    """Each rank waits for the others at a port of its own."""
    for fact in facts_of(evidence, "port-by-rank"):
        yield tell_fact(
            fact,
            f"Each rank picks its own port at {name_line(fact.place)} and joins the group at "
            f"{name_line(fact.related[0].place)}: the ranks wait for each other at different addresses.",
            Fix(
                "pick the port once in the process that starts the ranks, or let torchrun set it",
                code="port = find_free_port()\nmp.spawn(worker, args=(port,), nprocs=world_size)",
            ),
            why="the value differs across processes, and the line runs in each rank",
            severity=None if fact.certain else "warning",
        )
