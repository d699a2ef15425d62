"""What goes wrong with numbers: results of one rank that stand for all, sums that are no means."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from tests.mutants.operators.base import operator
from tests.mutants.syntax import Edit, File, dotted, last_name

MEASURED = re.compile(r"loss|acc|top1|top5|metric|correct|hits", re.I)
EVALUATES = re.compile(r"eval|val|test", re.I)
OF_TRAINING = "a rank's own loss while training is also what many programs log on purpose"


def _doubt(file: File, node: cst.CSTNode) -> str:
    """Return why it does not count that a value of this function is not reduced."""
    scope = file.scope(node)
    name = scope.name.value if isinstance(scope, cst.FunctionDef) else ""
    return "" if EVALUATES.search(name) else OF_TRAINING


@operator("metric-not-reduced", "NUM005", words="the all-reduce of a logged value is gone")
def metric_not_reduced(file: File) -> Iterator[Edit]:
    for call in file.calls("all_reduce", "reduce"):
        line = file.statement(call)
        base = dotted(call.func).rpartition(".")[0]
        if (
            line is None
            or not call.args
            or base not in ("dist", "torch.distributed", file.dist)
            or file.by_rank(call)
        ):
            continue
        name = file.code(call.args[0].value)
        scope = file.scope(call)
        if not MEASURED.search(name) or "backward" in file.code(scope).partition(file.code(line))[2][:200]:
            continue
        alone = len(line.body) == 1 and isinstance(line.body[0], cst.Expr)
        if alone and re.search(r"print|log|writer|return|item\(\)", file.code(scope)):
            shown = [
                each
                for each in file.inside(scope, cst.Call)
                if last_name(each.func) in ("print", "log", "info", "add_scalar", "item", "write")
            ]
            returns = list(file.inside(scope, cst.Return))
            yield Edit({line: cst.RemoveFromParent()}, (*shown, *returns), _doubt(file, call))


@operator(
    "helper-not-called", "NUM005", words="the helper that averages a logged value across ranks is not called"
)
def helper_not_called(file: File) -> Iterator[Edit]:
    for call in file.calls(
        "reduce_tensor", "reduce_mean", "reduce_value", "all_reduce_mean", "average_tensor"
    ):
        if not call.args or isinstance(file.parents[call], cst.Expr) or file.by_rank(call):
            continue
        if re.search(rf"def {last_name(call.func)}\(", file.program):
            scope = file.scope(call)
            shown = [
                each
                for each in file.inside(scope, cst.Call)
                if last_name(each.func) in ("print", "log", "info", "add_scalar", "item", "update", "write")
            ]
            yield Edit(
                {call: call.args[0].value}, (*shown, *file.inside(scope, cst.Return)), _doubt(file, call)
            )


@operator("meters-not-synchronized", "NUM005", words="meters are not synchronized across ranks")
def meters_not_synchronized(file: File) -> Iterator[Edit]:
    for call in file.calls("synchronize_between_processes", "all_reduce"):
        line = file.statement(call)
        meter = not call.args and isinstance(call.func, cst.Attribute)
        if line is None or not meter or not isinstance(line.body[0], cst.Expr):
            continue
        if file.dist and dotted(call.func).startswith(file.dist):
            continue
        if len(re.findall(rf"\.{last_name(call.func)}\(\)", file.code(file.scope(call)))) != 1:
            continue
        scope = file.scope(call)
        shown = [
            c for c in file.inside(scope, cst.Call) if last_name(c.func) in ("print", "log", "info", "write")
        ]
        yield Edit(
            {line: cst.RemoveFromParent()}, (*shown, *file.inside(scope, cst.Return)), _doubt(file, call)
        )


@operator(
    "sum-not-divided",
    "NUM009",
    "DDP015",
    words="summed gradients are not divided by the number of ranks",
    undecided="the catalogue has no code for it that reading gives: a sum can be what the learning rate was made for",
)
def sum_not_divided(file: File) -> Iterator[Edit]:
    for line in file.all(cst.SimpleStatementLine):
        text = file.code(line)
        if re.search(r"\.grad\b.*(/=|\.div_\(|/ ).*(world|size|n_gpu)", text) and re.search(
            r"all_reduce\(.*grad", file.code(file.scope(line))
        ):
            yield Edit({line: cst.RemoveFromParent()}, ())
