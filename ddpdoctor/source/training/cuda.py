"""What programs do with GPUs."""

from __future__ import annotations

import ast

from ddpdoctor.source.resolve.calls import JOINS
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.texts import find_settings, fold
from ddpdoctor.source.resolve.traces import Frame, Step, Trace
from ddpdoctor.source.resolve.walking import find_keyword, names_in, own_nodes
from ddpdoctor.source.sameness.alike import follow_name
from ddpdoctor.source.training.options import find_setting

SETS = frozenset({"torch.cuda.set_device", "torch.cuda.device", "torch.set_default_device",
                  "torch.set_default_tensor_type", "torch.accelerator.set_device_index"})  # fmt: skip
"""Functions that set the device of the rank, or of tensors."""

ONLY_ASK = frozenset({"torch.cuda.is_available", "torch.cuda.device_count", "torch.cuda.is_initialized",
                      "torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "torch.cuda.Event",
                      "torch.cuda.is_bf16_supported"})  # fmt: skip
"""Functions of torch.cuda that do not start CUDA, or not always."""
HIDES = "CUDA_VISIBLE_DEVICES"
"""Variable that hides the other GPUs from a process."""
DEEPEST = 6
"""Values that are followed into one another."""


def uses_gpu(trace: Trace, files: Files) -> bool:
    """Whether a program computes on GPUs, as far as it says so."""
    for step in trace.steps:
        if step.call is not None and step.name in JOINS:
            backend = find_keyword(step.call, "backend", 0)
            text = fold(backend, step.scope, files)
            if backend is None or "nccl" in (text or ""):
                return True
        if step.call is not None and step.name == "accelerate.Accelerator":
            cpu = find_keyword(step.call, "cpu")
            if cpu is None or (isinstance(cpu, ast.Constant) and not cpu.value):
                return True  # it takes the GPU of each rank by itself
        if starts_cuda(step, files):
            return True
    return False


def starts_cuda(step: Step, files: Files) -> bool:
    """Whether a step puts something onto a GPU, or sets one."""
    call = step.call
    if call is None:
        return False
    if step.name.startswith("torch.cuda."):
        return step.name not in ONLY_ASK and not step.name.startswith("torch.cuda.amp")
    if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda":
        return True
    values = [find_keyword(call, "device")]
    if isinstance(call.func, ast.Attribute) and call.func.attr == "to":
        values += call.args[:1]
    return any((fold(each, step.scope, files) or "").startswith("cuda") for each in values)


def saves_from_cpu(trace: Trace) -> bool:
    """Whether a program saves files, and moves to the CPU first what it saves: in the call, or before it."""
    saves = [step for step in trace.steps if step.name == "torch.save" and step.call is not None]
    return bool(saves) and all(_is_from_cpu(step) for step in saves)


def _is_from_cpu(save: Step) -> bool:
    """Whether what is saved is moved: each of its values in the call, or before it the model whose state it is."""
    call = save.call
    saved = find_keyword(call, "obj", 0) if call is not None else None
    if saved is None:
        return False
    if isinstance(saved, ast.DictComp) and isinstance(saved.value, ast.Call) and _moves_to_cpu(saved.value):
        return True
    names = set(names_in(saved))
    for node in own_nodes(save.scope.node):
        if isinstance(node, ast.Assign) and any(
            isinstance(each, ast.Name) and each.id in names for each in node.targets
        ):
            names.update(names_in(node.value))
    return any(
        isinstance(node, ast.Expr | ast.Assign)
        and isinstance(node.value, ast.Call)
        and _moves_to_cpu(node.value)
        and node.lineno < save.node.lineno
        and not names.isdisjoint(names_in(node.value))
        for node in own_nodes(save.scope.node)
    )


def _moves_to_cpu(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "cpu":
        return not call.args
    first = next(iter(call.args), find_keyword(call, "device"))
    return call.func.attr == "to" and isinstance(first, ast.Constant) and first.value == "cpu"


def is_of_nccl(trace: Trace, files: Files) -> bool:
    """Whether a program says that its group is NCCL's, without a device of its own."""
    joins = [step for step in trace.steps if step.name in JOINS and step.call is not None]
    if not joins or not trace.has_peers:
        return False
    return all(
        each.call is not None
        and find_keyword(each.call, "device_id") is None
        and _find_text(find_keyword(each.call, "backend", 0), each.scope, each.frames, files) == "nccl"
        for each in joins
    )


def makes_nccl(call: ast.Call, scope: Scope, files: Files) -> bool:
    """Whether a call makes a group of NCCL, for all that call the function in which it stands.

    Args:
        call: of ``init_process_group``, or what does the same.
        scope: where it stands.
        files: all that are read together.
    """
    plain = ast.copy_location(ast.Call(ast.Name(scope.name or "", ast.Load()), [], []), call)
    calls = kinds_of(files).callers(scope) or [(plain, scope)]
    backend = find_keyword(call, "backend", 0)
    return all(
        _find_text(backend, scope, (Frame(each, home, scope),), files) == "nccl" for each, home in calls
    )


def _find_text(
    node: ast.expr | None, scope: Scope, frames: tuple[Frame, ...], files: Files, depth: int = 0
) -> str | None:
    """Return the text that an expression has on several ranks, through the calls by which the program comes there."""
    text = find_setting(node, scope, files)
    if text is not None or node is None or depth > DEEPEST:
        return text
    if isinstance(node, ast.IfExp):
        side = kinds_of(files).programs.side(node.test, scope)
        taken = None if side is None else node.body if side else node.orelse
        return _find_text(taken, scope, frames, files, depth + 1)
    sides = follow_name(node, scope, frames) if isinstance(node, ast.Name) else []
    return _find_text(*sides[0], files, depth + 1) if len(sides) == 1 else None


def hides_others(node: ast.AST, scope: Scope, files: Files) -> bool:
    """Whether a step may make one GPU the only one of its rank; a list of several, which is the same for all, does not.

    Args:
        node: a call or an assignment.
        scope: where it stands.
        files: all that are read together.
    """
    return any(_hides(name, value, scope, files) for name, value in find_settings(node, scope, files))


def gives_device(node: ast.AST, scope: Scope, files: Files) -> bool:
    """Whether it may be the environment of another process, to which it gives one GPU.

    ``dict(os.environ, CUDA_VISIBLE_DEVICES=str(i))``, ``{"CUDA_VISIBLE_DEVICES": str(i)}`` or an entry of one; what a
    process gives itself is a step of a trace.
    """
    pairs: list[tuple[ast.expr | None, ast.expr]] = []
    if isinstance(node, ast.Dict):
        pairs = list(zip(node.keys, node.values, strict=True))
    elif isinstance(node, ast.Assign) and not find_settings(node, scope, files):
        pairs = [(each.slice, node.value) for each in node.targets if isinstance(each, ast.Subscript)]
    elif isinstance(node, ast.Call):
        pairs = [(ast.Constant(each.arg), each.value) for each in node.keywords if each.arg]
    return any(_hides(fold(name, scope, files), value, scope, files) for name, value in pairs if name)


def _hides(name: str | None, value: ast.expr, scope: Scope, files: Files) -> bool:
    return name == HIDES and "," not in (find_setting(value, scope, files) or "")
