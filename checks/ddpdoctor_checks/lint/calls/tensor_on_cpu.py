"""BKD008: a collective of NCCL is given a tensor on the CPU."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.facts.collectives import COLLECTIVES
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import name_collective
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.traces import Step, Trace
from ddpdoctor.source.resolve.walking import find_keyword, own_nodes
from ddpdoctor.source.sameness.apart import ways_of
from ddpdoctor.source.training.cuda import SETS, is_of_nccl
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

MADE = frozenset({"torch.zeros", "torch.ones", "torch.empty", "torch.full", "torch.arange", "torch.rand", "torch.randn",
                  "torch.tensor", "torch.Tensor", "torch.FloatTensor", "torch.LongTensor", "torch.IntTensor",
                  "torch.randint", "torch.linspace", "torch.eye"})  # fmt: skip
"""Functions that make a tensor on the CPU unless they are told otherwise."""
SENT = {row.name: row.given for row in COLLECTIVES.values() if row.given is not None}
"""Where the tensor stands that a rank gives."""


@lint_rule("tensor-on-cpu", reads="program")
def find_cpu_tensors(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield collectives of NCCL that are given a tensor on the CPU (``tensor-on-cpu``).

    operation: the collective. tensor: how it is written. Only tensors that the same function makes, once.
    """
    if not is_of_nccl(trace, files):
        return
    if any(step.name in SETS - {"torch.cuda.set_device", "torch.cuda.device"} for step in trace.steps):
        return
    ways = ways_of(files, trace)
    for step in trace.steps:
        call = step.call
        operation = name_collective(call, step.scope, files) if call is not None else None
        if call is None or operation not in SENT or any(_sets_device(each.test) for each in step.guards):
            continue
        value = find_keyword(call, "tensor" if SENT[operation] == 0 else "input_tensor", SENT[operation])
        if value is not None and _is_on_cpu(value, step, files):
            yield ways.tell("tensor-on-cpu", step, operation=operation, tensor=ast.unparse(value))


def _sets_device(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and "device" in ast.unparse(node.func)


def _is_moved(name: str, scope: Scope) -> bool:
    """Whether a variable's ``.data`` is set."""
    stored = (
        each for each in own_nodes(scope.node) if isinstance(each, ast.Attribute) and each.attr == "data"
    )
    return any(
        isinstance(each.ctx, ast.Store) and isinstance(each.value, ast.Name) and each.value.id == name
        for each in stored
    )


def _is_on_cpu(node: ast.expr, step: Step, files: Files) -> bool:
    if isinstance(node, ast.Name):
        values = step.scope.bound.get(node.id, [])
        if len(values) != 1 or _is_moved(node.id, step.scope):
            return False
        node = values[0]
    if not isinstance(node, ast.Call) or files.dotted(node.func, step.scope) not in MADE:
        return False
    if find_keyword(node, "device") is not None or any(each.arg is None for each in node.keywords):
        return False
    if files.dotted(node.func, step.scope) != "torch.tensor":
        return True
    # a tensor that is copied stays where it is
    inside = [each for value in node.args for each in ast.walk(value)]
    called = {id(each.func) for each in inside if isinstance(each, ast.Call)}
    return not any(isinstance(each, (ast.Name, ast.Attribute)) and id(each) not in called for each in inside)


@check("BKD008", family="source", needs=NEEDS, id="lint.tensor_device", commands=LINT)
def tell_tensor_on_cpu(evidence: Evidence) -> Iterable[Finding]:
    """A collective of NCCL is given a tensor on the CPU."""
    for fact in facts_of(evidence, "tensor-on-cpu"):
        operation, tensor = fact.details["operation"], fact.details["tensor"]
        yield tell_fact(
            fact,
            (
                f"{operation} at {name_line(fact.place)} receives {tensor}, a CPU tensor, but the group "
                "uses NCCL."
            ),
            Fix(
                "create the tensor on the rank's GPU, or the group for both device types",
                code='tensor = torch.tensor(values, device="cuda")\n'
                '# or: dist.init_process_group("cpu:gloo,cuda:nccl")',
            ),
            why="the tensor is created without a device, and nothing moves it",
        )
