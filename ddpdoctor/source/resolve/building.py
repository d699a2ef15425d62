"""Functions that only build layers: nothing that a program of ranks is judged by happens in them.

Networks are made of hundreds of blocks, each of which makes others. A trace that went into all of them would be over
before the training begins.
"""

from __future__ import annotations

import ast
import builtins

from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.once import once
from ddpdoctor.source.resolve.walking import find_calls, own_nodes

LAYERS = ("torch.nn.", "math.", "itertools.", "functools.", "collections.", "typing.")
PARALLEL = ("parallel", "SyncBatchNorm")
"""Parts of the names of what is no mere layer."""
TENSORS = frozenset(f"torch.{name}" for name in """arange as_tensor cat chunk concat cos einsum empty exp eye
    flatten full linspace log meshgrid ones outer pow sin sqrt stack sum tensor tril triu zeros Size
    Tensor""".split())  # fmt: skip
METHODS = frozenset("""__init__ add_module append apply bias buffers children chunk clone constant_ contiguous copy
    copy_ data dim expand extend fill_ flatten float format get half index insert items join keys long modules mul_
    named_buffers named_children named_modules named_parameters normal_ numel parameters permute pop pow register_buffer
    register_module register_parameter repeat requires_grad_ reshape setdefault size split sqrt squeeze startswith sum
    t tolist transpose trunc_normal_ uniform_ unsqueeze update values view zero_""".split())  # fmt: skip
"""Methods of layers, tensors, lists and texts."""
LOUD = frozenset({"print", "open", "exec", "eval", "exit", "quit", "input", "__import__"})
"""Functions of Python's own that a program may be judged by."""
DEEPEST = 12


@once
def _known_of(files: Files) -> tuple[dict[Scope, bool], list[Scope]]:
    """Return what is known of functions, and those of which it is believed, in the order in which they were asked."""
    return {}, []


def only_builds(function: Scope, files: Files, depth: int = 0) -> bool:
    """Return whether a function calls nothing but what makes and initializes layers, by itself or through others."""
    known, believed = _known_of(files)
    if function in known:
        return known[function]
    known[function] = True  # of itself, where it calls itself
    believed.append(function)
    builds = depth < DEEPEST and not any(map(_sets_item, own_nodes(function.node)))
    builds = builds and all(_builds(call, function, files, depth) for call in find_calls(function))
    if not builds:
        while believed[-1] is not function:  # that may have rested on this one
            del known[believed.pop()]
        believed.pop()
        known[function] = False
    return builds


def _sets_item(node: ast.AST) -> bool:
    """Whether it is a step of a program: ``os.environ["MASTER_PORT"] = "29500"``."""
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)


def _builds(call: ast.Call, scope: Scope, files: Files, depth: int) -> bool:
    called = files.function(call.func, scope)
    made = files.find_class(call.func, scope) if called is None else None
    if made is not None:
        called = files.objects.method(made, "__init__")
        if called is None:
            return True
    if called is not None:
        return only_builds(called, files, depth + 1)
    name = files.dotted(call.func, scope) or ""
    if name.startswith(LAYERS) or name in TENSORS:
        return not any(part in name for part in PARALLEL)
    if isinstance(call.func, ast.Name):
        if hasattr(builtins, call.func.id):
            return call.func.id not in LOUD
        return scope.lookup(call.func.id) is not None  # a kind of layer that it was given
    if isinstance(call.func, ast.Attribute):
        root = name.partition(".")[0]
        return call.func.attr in METHODS and root not in ("torch", "os", "sys", "shutil", "random", "numpy")
    return False
