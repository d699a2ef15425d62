"""Whether a model is moved to a device before it is wrapped."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

from ddpdoctor.source.resolve.flow import Spot, name_of
from ddpdoctor.source.resolve.kinds import COPIES, Kinds
from ddpdoctor.source.resolve.known import KNOWN_ROOTS
from ddpdoctor.source.resolve.makers import find_class_kind
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.objects import PASSED
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import find_argument, find_calls, own_nodes
from ddpdoctor.source.training.wraps import Wrap

STAYS, UNSURE, MOVED = range(3)
"""What is known of a model: it stays on the CPU, that cannot be told, or it is, or may well be, moved."""
MOVES = frozenset({"to", "cuda", "xpu", "npu", "hpu", "mps", "to_empty", "to_device", "ipu"})
"""Methods that move a module, which they do in place."""
STAY = frozenset({"apply", "bfloat16", "buffers", "children", "double", "eval", "float", "forward", "half",
                  "load_state_dict",
                  "modules", "named_buffers", "named_children", "named_modules", "named_parameters", "parameters",
                  "_load_from_state_dict", "register_buffer", "requires_grad_", "share_memory",
                  "state_dict", "train", "type", "zero_grad",
                  "add_module", "register_forward_hook", "set_grad_checkpointing", "no_weight_decay",
                  "no_weight_decay_keywords", "flops"})  # fmt: skip
"""Methods of modules that leave them where they are."""
ELSEWHERE = re.compile(r"\.(?:to|cuda|xpu|npu|to_empty)\(|device|cuda|gpu", re.IGNORECASE)
"""What a maker of models says that may put them onto a device."""
OF_DTYPES = re.compile(r"^torch\.(?:b?float\d*|half|double)$|dtype$")
"""Expressions that name a type of numbers."""
OF_MODELS = re.compile(rf"(?:model|net|coder|backbone|\bself)\w*\.(?:{'|'.join(MOVES)})\(", re.IGNORECASE)
"""A line that moves what is named like a model."""
APEX_AMP = "apex.amp.initialize"
"""Gives back the model that it is given, and leaves it where it is."""
DEFAULTS = re.compile(
    r"set_default_device|set_default_tensor_type|with torch\.device\(|device_map|init_empty_weights|deepspeed"
)
"""What puts models onto devices in all of a program."""
LIBRARIES = KNOWN_ROOTS | {"timm", "thop", "fvcore", "torchinfo", "torchsummary", "logging", "logger"}
MOVERS = (
    "prepare",
    "initialize",
    "setup",
    "dispatch",
    "parallel",
    "distribute",
    "accelerat",
    "place",
    "device",
)
"""Parts of the names of what moves a module that it is given."""
DEEPEST = 3


def follow_moves(wrap: Wrap, kinds: Kinds) -> int:
    """Return whether a wrapped model has been moved from the CPU, as far as that can be told."""
    call, scope = wrap.value.call, wrap.scope
    name = name_of(call.args[0]) if call.args else None
    if name is None:
        return MOVED
    if kinds.programs.any_file(scope.module, _puts_all):
        return MOVED
    if name.startswith("self."):
        moved = re.compile(rf"\.{re.escape(name[5:])}\.(?:{'|'.join(MOVES)})\(")
        members = kinds.programs.members(scope.module)
        if any(moved.search(line) for each in members for line in each.script.lines):
            return MOVED
        if _is_set_moved(name, scope):
            return MOVED
    made = max((_judge_maker(each, kinds) for each in wrap.value.inner), default=UNSURE)
    return max(made, _judge_name(name, scope, kinds, 0, call), _judge_callers(name, scope, kinds))


def is_move(call: ast.Call) -> bool:
    """Whether a call moves a module to a device: ``model.to(memory_format=…)`` and ``model.to(dtype)`` do not."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in MOVES:
        return False
    kinds_only = all(each.arg in ("dtype", "memory_format", "non_blocking") for each in call.keywords)
    return not (
        call.func.attr == "to"
        and (call.args or call.keywords)
        and kinds_only
        and all(OF_DTYPES.search(ast.unparse(each)) for each in call.args)
    )


def _has_move(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) and is_move(each) for each in ast.walk(node))


def _is_set_moved(name: str, scope: Scope) -> bool:
    """Whether a method of the class sets the attribute to what is moved: ``self.net, self.lr = net.to(device), lr``."""
    owner = scope.find_class()
    return any(
        isinstance(node, ast.Assign)
        and any(
            name_of(each) == name for target in node.targets for each in getattr(target, "elts", [target])
        )
        and _has_move(node.value)
        for method in (owner.functions.values() if owner is not None else ())
        for node in own_nodes(method.node)
    )


def _puts_all(member: Scope) -> bool:
    return any(map(DEFAULTS.search, member.script.lines))


def _judge_maker(value: Value, kinds: Kinds) -> int:
    """Return what is known of a model when it has just been made."""
    if value.kind not in ("model", "unknown"):
        return MOVED
    # each function on the way from where it is made holds it until it returns it
    calls = [*((call, home) for call, home in value.via[1:]), (value.made, value.scope)] if value.via else []
    known = max((_judge_holding(node, home, kinds) for node, home in calls), default=STAYS)
    if known == MOVED:
        return MOVED
    if isinstance(value.made, ast.Call) and ELSEWHERE.search(ast.unparse(value.made)):
        return MOVED
    first = value.owner.functions.get("__init__") if value.owner is not None else None
    if first is not None and ELSEWHERE.search(ast.unparse(first.node)):
        return UNSURE
    if value.name == APEX_AMP:
        return STAYS  # the model that it was given, whose other makers are looked at too
    if value.guessed and value.scope is not None and _is_chosen_by_name(value.made, value.scope, kinds.files):
        return UNSURE if kinds.programs.any_file(value.scope.module, _makes_elsewhere, kinds) else known
    return UNSURE if value.guessed or value.kind == "unknown" else known


def _is_chosen_by_name(made: ast.AST | None, scope: Scope, files: Files) -> bool:
    """Whether a model is made by what a table or a function gives for its name: ``models.__dict__[name](n)``.

    Not where that is of a package that was not read.
    """
    if not isinstance(made, ast.Call) or not isinstance(made.func, (ast.Call, ast.Subscript)):
        return False
    held = made.func.func if isinstance(made.func, ast.Call) else made.func.value
    held = held.func if isinstance(held, ast.Call) else held  # ``globals()[name]``
    name = files.dotted(held, scope)
    return name is not None and (
        name.split(".")[0] in LIBRARIES or name in dir(builtins) or files.was_read(name, scope)
    )


def _makes_elsewhere(member: Scope, kinds: Kinds) -> bool:
    """Whether a file moves a model, by the name of what is moved, or makes one that speaks of devices."""
    if any(OF_MODELS.search(line) for line in member.script.lines):
        return True
    return any(
        find_class_kind(scope, kinds.files) == "model"
        and (first := scope.functions.get("__init__")) is not None
        and ELSEWHERE.search(ast.unparse(first.node)) is not None
        for scope in member.walk()
        if isinstance(scope.node, ast.ClassDef)
    )


def _judge_holding(made: ast.AST | None, scope: Scope | None, kinds: Kinds) -> int:
    """Return what a function does with a model between making and returning it."""
    for node in own_nodes(scope.node) if scope is not None else ():
        if isinstance(node, ast.Return) and node.value is made:
            return STAYS
        if isinstance(node, ast.Return | ast.Assign) and _is_part(made, node.value):
            return MOVED if _has_move(node) else UNSURE
        if isinstance(node, ast.Assign) and node.value is made and scope is not None:
            ends = [one for each in node.targets for one in getattr(each, "elts", [each])]
            return max(
                _judge_name(name, scope, kinds, DEEPEST - 1) if name else UNSURE
                for name in map(name_of, ends)
            )
    return UNSURE


def _is_part(node: ast.AST | None, whole: ast.AST | None) -> bool:
    return whole is not None and whole is not node and any(each is node for each in ast.walk(whole))


def _judge_callers(name: str, scope: Scope, kinds: Kinds, depth: int = 0) -> int:
    """Return what callers do with a model that they give for a parameter, and theirs where they were given it."""
    if name not in scope.parameters:
        return STAYS
    calls = kinds.callers(scope) if depth < DEEPEST else ()
    known = STAYS if calls else UNSURE
    for call, home in calls:
        given = find_argument(call, scope, name)
        own = name_of(given) if given is not None else None
        known = max(known, MOVED if own is None else _judge_name(own, home, kinds, DEEPEST - 1))
        if own is not None:
            known = max(known, _judge_callers(own, home, kinds, depth + 1))
    return known


def _judge_name(name: str, scope: Scope, kinds: Kinds, depth: int, end: ast.Call | None = None) -> int:
    """Return what a function does with a model of a name, and with its other names there, before a line of it."""
    known, names = STAYS, _find_aliases(name, scope, kinds.files)
    last = kinds.flow(scope).spot(end) if end is not None else None
    if any(
        each.value is not None and _has_move(each.value)
        for own in names
        for each in kinds.flow(scope).bindings.get(own or "", ())
    ):
        return MOVED
    for call in (one for each in _scopes(name, scope) for one in find_calls(each)):
        if last is not None and _is_later(kinds.flow(scope).spot(call), last):
            continue
        if isinstance(call.func, ast.Attribute) and name_of(call.func.value) in names:
            if is_move(call):
                return MOVED
            if call.func.attr not in STAY | MOVES:
                known = max(known, _judge_method(call, scope, kinds))
        given = [*call.args, *(each.value for each in call.keywords)]
        if any(name_of(each) in names for each in given):
            known = max(known, _judge_call(call, names, scope, kinds, depth))
    return known


def _is_later(spot: Spot | None, last: Spot) -> bool:
    """Whether a line comes after another one, and not before it in the next round of a loop around both."""
    return spot is not None and spot.number > last.number and set(last.loops).isdisjoint(spot.loops)


def _scopes(name: str, scope: Scope) -> Iterator[Scope]:
    """Yield where a variable may be used: its function with those in it; of an attribute all methods of the class."""
    owner = scope.find_class() if name.startswith("self.") else None
    yield from (owner or scope).walk()


def _find_aliases(name: str, scope: Scope, files: Files) -> set[str | None]:
    """Return the names that a model has in a function."""
    names: set[str | None] = {name}
    size = 0
    while size < len(names):
        size = len(names)
        for node in own_nodes(scope.node):
            if isinstance(node, ast.Assign):
                value = node.value
                while (
                    isinstance(value, ast.Call)
                    and value.args
                    and (files.dotted(value.func, scope) or "") in PASSED
                ):
                    value = value.args[0]
                ends = [name_of(value), *map(name_of, node.targets)]
                if name_of(value) is not None and not names.isdisjoint(ends):
                    names.update(each for each in ends if each is not None)
    return names


def _judge_method(call: ast.Call, scope: Scope, kinds: Kinds) -> int:
    """Return what a method of the model does with it that is none of torch's."""
    method = kinds.called(call, scope)
    return UNSURE if method is None or ELSEWHERE.search(ast.unparse(method.node)) else STAYS


def _judge_call(call: ast.Call, names: set[str | None], scope: Scope, kinds: Kinds, depth: int) -> int:
    """Return what a function does with a model that it is given."""
    called = kinds.called(call, scope)
    if called is not None:
        if depth >= DEEPEST:
            return UNSURE
        own = [each for each in called.parameters if _is_given(call, called, each, names)]
        return max((_judge_name(each, called, kinds, depth + 1) for each in own), default=UNSURE)
    name = kinds.files.dotted(call.func, scope) or ast.unparse(call.func)
    if name.endswith("DistributedDataParallel") or name in PASSED | COPIES | {APEX_AMP}:
        return STAYS
    if name.split(".")[0] in LIBRARIES and not name.startswith("accelerate."):
        return STAYS
    return MOVED if any(part in name.lower() for part in MOVERS) else UNSURE


def _is_given(call: ast.Call, called: Scope, parameter: str, names: set[str | None]) -> bool:
    given = find_argument(call, called, parameter)
    return given is not None and name_of(given) in names
