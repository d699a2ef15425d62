"""Rules of which GPU a rank uses, and of tensors on the wrong kind of device."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.facts.collectives import COLLECTIVES
from ddpdoctor.source.apart import Ways
from ddpdoctor.source.calls import JOINS, name_collective
from ddpdoctor.source.names import Files, Scope
from ddpdoctor.source.texts import find_settings, fold
from ddpdoctor.source.traces import OTHER_JOINS, Step, Trace
from ddpdoctor.source.walking import find_keyword, own_nodes

SETS = frozenset({"torch.cuda.set_device", "torch.cuda.device", "torch.set_default_device",
                  "torch.set_default_tensor_type", "torch.accelerator.set_device_index"})  # fmt: skip
"""Functions that set the device of the rank, or of tensors."""
BY_CURRENT = frozenset({"barrier", *(row.name for row in COLLECTIVES.values() if row.objects)})
"""Collectives that take the current device, whatever they are given."""
MADE = frozenset({"torch.zeros", "torch.ones", "torch.empty", "torch.full", "torch.arange", "torch.rand", "torch.randn",
                  "torch.tensor", "torch.Tensor", "torch.FloatTensor", "torch.LongTensor", "torch.IntTensor",
                  "torch.randint", "torch.linspace", "torch.eye"})  # fmt: skip
"""Functions that make a tensor on the CPU unless they are told otherwise."""
SENT = {row.name: row.given for row in COLLECTIVES.values() if row.given is not None}
"""Where the tensor stands that a rank gives."""
ONE_NODE = re.compile(r"localhost|127\.0\.0\.1|device_count|standalone")
"""What a script says that knows only one node, or how many GPUs there are."""


def _is_nccl(trace: Trace, files: Files) -> bool:
    """Whether a program says that its group is NCCL's, without a device of its own."""
    joins = [step for step in trace.steps if step.name in JOINS and step.call is not None]
    if not joins or not trace.has_peers:
        return False
    return all(
        each.call is not None
        and fold(find_keyword(each.call, "backend", 0), each.scope, files) == "nccl"
        and find_keyword(each.call, "device_id") is None
        for each in joins
    )


def find_unset_devices(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield what needs the device before it is set (``device-unset``), or where all take GPU 0 (``device-shared``).

    function: what is called. Nothing behind a call of a function that was not given: it may set the device.
    """
    if not _is_nccl(trace, files):
        return
    ways = Ways(files, trace)
    later = any(step.name in SETS for step in trace.steps)
    for step in trace.steps:
        call = step.call
        names = [name for name, _ in find_settings(step.node, step.scope, files)]
        if "CUDA_VISIBLE_DEVICES" in names or step.name in SETS | OTHER_JOINS or ways.is_foreign(step):
            return
        if call is None:
            continue
        operation = step.name.removeprefix("torch.distributed.")
        given = find_keyword(call, "device_ids") is not None or find_keyword(call, "device") is not None
        if operation in BY_CURRENT and not given and name_collective(call, step.scope, files):
            yield ways.tell("device-unset", step, function=operation)
            return
        if not later and _takes_first_gpu(call, step, files) and not ways.may_differ(step):
            yield ways.tell("device-shared", step, function=ast.unparse(call.func).rpartition(".")[2])
            return


def _takes_first_gpu(call: ast.Call, step: Step, files: Files) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "cuda":
        return not call.args and not call.keywords and not step.name.startswith("torch.")
    if call.func.attr != "to":
        return False
    device = find_keyword(call, "device", 0)
    if isinstance(device, ast.Name):
        found = step.scope.lookup(device.id)
        made = found[1][0] if found and len(found[1]) == 1 else None
        if isinstance(made, ast.Call) and found and files.dotted(made.func, found[0]) == "torch.device":
            return len(made.args) == 1 and fold(made.args[0], found[0], files) == "cuda"
    return fold(device, step.scope, files) == "cuda"


def find_devices_by_rank(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield where the rank in the whole job is taken for the number of a GPU (``device-by-rank``).

    rank: how it is written. Nothing where a script knows only one node.
    """
    if not trace.has_peers or ONE_NODE.search("\n".join(trace.start.script.lines)):
        return
    ways = Ways(files, trace)
    for step in trace.steps:
        call = step.call
        if call is None or (step.known and step.name not in SETS):
            continue
        for value in _device_values(call, step):
            if _is_global_rank(value, step.scope, files):
                yield ways.tell("device-by-rank", step, rank=ast.unparse(value))
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
            return bool(node.args) and fold(node.args[0], scope, files) == "RANK"
        return (
            name == "int" and len(node.args) == 1 and _is_global_rank(node.args[0], scope, files, depth + 1)
        )
    if isinstance(node, ast.Subscript):
        return files.dotted(node.value, scope) == "os.environ" and fold(node.slice, scope, files) == "RANK"
    if isinstance(node, ast.Name):
        found = scope.lookup(node.id)
        if found is None or len(found[1]) != 1:
            return False
        return _is_global_rank(found[1][0], found[0], files, depth + 1)
    return False


def find_cpu_tensors(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield collectives of NCCL that are given a tensor on the CPU (``tensor-on-cpu``).

    operation: the collective. tensor: how it is written. Only tensors that the same function makes, once.
    """
    if not _is_nccl(trace, files):
        return
    if any(step.name in SETS - {"torch.cuda.set_device", "torch.cuda.device"} for step in trace.steps):
        return
    ways = Ways(files, trace)
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
