"""Rules of what is saved and loaded again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.source.apart import Ways
from ddpdoctor.source.calls import is_any_collective, is_wrapper
from ddpdoctor.source.cuda import uses_gpu
from ddpdoctor.source.kinds import kinds_of
from ddpdoctor.source.names import Files, Scope
from ddpdoctor.source.rules.files import find_written
from ddpdoctor.source.texts import find_settings
from ddpdoctor.source.traces import SIDES, Step, Trace
from ddpdoctor.source.walking import find_calls, find_keyword, is_true, own_nodes

LOADS = frozenset({"torch.load", "safetensors.torch.load_file"})
MEETS = frozenset({"backward", "wait_for_everyone", "barrier", "gather", "reduce", "step", "wait", "recv", "irecv",
                   "recv_object_list"})  # fmt: skip
"""Methods in which ranks wait for each other, or may."""
PUBLISHED = re.compile("pretrain|backbone|imagenet", re.IGNORECASE)
"""Checkpoints that others have published, whose tensors mostly are on the CPU."""
CHANGES = frozenset({"pop", "popitem", "update", "clear", "setdefault"})
"""Methods of a state by which its keys become others."""
KEEPS = frozenset(
    {"load_state_dict", "save", "save_file", "print", "len", "sorted", "list", "set", "type", "isinstance"}
)
"""Functions to which it may be given and stays as it is."""
PREFIXED = ("wrapped",)
BARE = ("model",)


def find_early_reads(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield where other ranks read what rank 0 writes, with nothing in between that makes them wait (``read-early``).

    path: how it is written. The line that writes is beside it.
    """
    if not trace.has_peers:
        return
    ways = Ways(files, trace)
    written: dict[str, Step] = {}
    for step in trace.steps:
        call = step.call
        if call is None:
            continue
        if step.name in LOADS:
            path = find_keyword(call, "f", 0) or find_keyword(call, "filename")
            writer = written.get(ways.spell(path, step)) if path is not None else None
            if (
                writer is not None
                and path is not None
                and ways.only_first(step) is None
                and not _excludes(writer, step, ways)
            ):
                beside = writer.scope.place(writer.node)
                yield SourceFact(
                    "read-early",
                    step.scope.place(call),
                    related=(RelatedPlace("noticed", beside),),
                    details={"path": ast.unparse(path)},
                    certain=_only_about_rank(writer, ways)
                    and (ways.without_first(step) or ways.is_sure(step)),
                )
            continue
        found = find_written(step, files)
        if found is not None and found[1] != "text" and ways.only_first(step) is not None:
            written[ways.spell(found[0], step)] = step
        elif written and _makes_wait(step, call, ways, files):
            written.clear()


def _only_about_rank(step: Step, ways: Ways) -> bool:
    first = ways.only_first(step)
    return all(each is first or each.kind in ("main", "for", "with") for each in step.guards)


def _excludes(writer: Step, reader: Step, ways: Ways) -> bool:
    """Whether two steps are on different sides of one test that is not about the rank: no run comes to both."""
    sides = {each.test: each.positive for each in writer.guards if each is not ways.only_first(writer)}
    return any(
        sides.get(each.test, each.positive) != each.positive for each in reader.guards if each.kind in SIDES
    )


def _makes_wait(step: Step, call: ast.Call, ways: Ways, files: Files) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr in MEETS:
        return True
    return (
        is_any_collective(call, step.scope, files)
        or is_wrapper(call, step.scope, files)
        or ways.is_foreign(step)
    )


def find_loads_on_one_device(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield where each rank loads a checkpoint onto the device from which it was saved (``load-unmapped``).

    Only what is given to ``load_state_dict``, in programs that use GPUs.
    """
    if not trace.has_peers or not uses_gpu(trace, files):
        return
    settings = (name for s in trace.steps for name, _ in find_settings(s.node, s.scope, files))
    if "CUDA_VISIBLE_DEVICES" in settings:
        return
    ways = Ways(files, trace)
    for step in trace.steps:
        call = step.call
        if call is None or step.name != "torch.load" or any(each.arg is None for each in call.keywords):
            continue
        if find_keyword(call, "map_location", 1) is not None or is_true(find_keyword(call, "mmap")):
            continue
        path = find_keyword(call, "f", 0)
        if path is None or PUBLISHED.search(ways.spell(path, step)):
            continue
        if not ways.may_differ(step) and _is_restored(call, step.scope):
            yield ways.tell("load-unmapped", step)


def _is_restored(load: ast.Call, scope: Scope) -> bool:
    """Whether what is loaded is given to ``load_state_dict`` in the same function."""
    names = {name for name, values in scope.bound.items() if load in values}
    for call in find_calls(scope):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "load_state_dict":
            inside = [each for value in call.args for each in ast.walk(value)]
            if load in inside or any(isinstance(each, ast.Name) and each.id in names for each in inside):
                return True
    return False


def find_prefixes(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield where the state of a wrapped model is loaded into one that is not, or the reverse (``prefix-differs``).

    saved: ``wrapped`` or ``bare``. The line that saves is beside it.
    """
    if not trace.joins:
        return
    ways = Ways(files, trace)
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
        strict = find_keyword(call, "strict", 1)
        if not call.args or (isinstance(strict, ast.Constant) and not strict.value):
            continue
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
            yield ways.tell("prefix-differs", step, saved=what, beside=writer)


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
