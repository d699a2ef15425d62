"""DDP006: parameters are changed between the wrap and the training."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.files.budget import spend
from ddpdoctor.source.resolve.flow import Flow, Spot
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.once import once
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import find_argument, find_keyword, is_false, is_spelled_out, names_in
from ddpdoctor.source.training.freezing import freezes, read_switch
from ddpdoctor.source.training.train_loops import HOLDERS, TrainingLoop, training_loops
from ddpdoctor.source.training.wraps import DEEPEST, Wrap, goes_through_module, is_certain, wraps_of
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact

WITHOUT = re.compile(
    r"(Dropout|AlphaDropout|FeatureAlphaDropout|Identity$|ReLU|LeakyReLU|ELU|SELU|CELU|GELU|SiLU|Mish|Sigmoid|Tanh|Softmax"
    r"|LogSoftmax|Softplus|Hard|Flatten|Unflatten|Upsample|(Adaptive)?(Max|Avg)Pool|ZeroPad|ReflectionPad|.*Loss$)"
)
"""Modules of torch.nn that have no parameters."""


@lint_rule("changed-after-wrap", reads="files")
def find_changed(files: Files) -> Iterator[SourceFact]:
    """Yield changes of parameters between the wrap and the training (``changed-after-wrap``).

    way: ``replaced``, ``unfrozen``, ``frozen`` or ``moved``. what: the text of what is changed.
    """
    kinds = kinds_of(files)
    wraps = wraps_of(kinds)
    users = _list_users(kinds) if wraps else {}
    later = _Later(kinds)
    told: set[ast.AST] = set()
    for wrap in wraps:
        if any("params_and_buffers_to_ignore" in name for name in names_in(wrap.scope.node)):
            continue  # it is told of parameters that it shall not reduce
        trained = [loop for loop, value in users.get(wrap.value.made, ()) if value.may_be(wrap.value)]
        again = [other for other in wraps if other is not wrap and _wraps_same(other, wrap)]
        for scope in _scopes_after(wrap, kinds):
            for statement, spot in kinds.flow(scope).statements:
                surely = wrap.before(statement, scope, kinds) or _is_through_module(statement, scope, kinds)
                if not spot.is_on or not (surely or wrap.may_precede(statement, scope, kinds)):
                    continue
                if not any(later.comes(loop, statement, scope) for loop in trained):
                    continue
                if any(_stands_behind(other.value.call, statement, scope, kinds) for other in again):
                    continue  # wrapped anew after the change
                if _is_run_again(wrap, statement, scope, kinds):
                    continue
                change, line, home = _read_change(statement, scope, wrap, kinds), statement, scope
                if change is None:
                    given = _find_change_within(statement, scope, wrap, kinds)
                    if given is None:
                        continue
                    change, line, home = given
                if line not in told:
                    told.add(line)
                    noticed = RelatedPlace("noticed", wrap.scope.place(wrap.value.call))
                    place = home.place(line)
                    certain = surely and line is statement and is_certain(statement, scope, kinds)
                    details = dict(zip(("way", "what"), change, strict=True))
                    yield SourceFact("changed-after-wrap", place, (noticed,), details, certain=certain)


def _wraps_same(one: Wrap, other: Wrap) -> bool:
    spend()
    return bool({each.identity for each in one.value.inner} & {each.identity for each in other.value.inner})


def _stands_behind(call: ast.Call, statement: ast.stmt, scope: Scope, kinds: Kinds) -> bool:
    """Whether a call comes after a statement, or may: in another function, or in the next round of a loop."""
    own, other = kinds.flow(scope).spot(statement), kinds.flow(scope).spot(call)
    return (
        own is None or other is None or other.number > own.number or bool(set(own.loops) & set(other.loops))
    )


def _is_run_again(wrap: Wrap, statement: ast.stmt, scope: Scope, kinds: Kinds) -> bool:
    """Whether the function that wraps may run once more after a statement: of several calls, from elsewhere."""
    calls = kinds.callers(wrap.scope)
    if wrap.scope is not scope and len(calls) > 1:
        return any(_stands_behind(call, statement, scope, kinds) for call, _ in calls)
    found = dict.fromkeys([wrap.scope])
    for _ in range(DEEPEST):
        found |= dict.fromkeys(home for each in found for _, home in kinds.callers(each) if home is not scope)
    return any(
        home is scope and _stands_behind(call, statement, scope, kinds)
        for each in found
        if each is not scope
        for call, home in kinds.callers(each)
    )


def _is_through_module(statement: ast.stmt, scope: Scope, kinds: Kinds) -> bool:
    return isinstance(statement, (ast.Assign, ast.Expr)) and goes_through_module(statement, scope, kinds)


def _list_users(kinds: Kinds) -> dict[ast.AST | None, list[tuple[TrainingLoop, Value]]]:
    """Return, by what made it, each value that a loop calls, or gives to what is not known: a method of a diffusion."""
    found: dict[ast.AST | None, list[tuple[TrainingLoop, Value]]] = {}
    for loop in training_loops(kinds):
        called = [value for forward in loop.wrapped for value in forward.values]
        called += (
            value
            for call, scope in loop.calls
            if kinds.called(call, scope) is None
            for given in (*call.args, *(each.value for each in call.keywords))
            if isinstance(given, HOLDERS)
            for value in kinds.find(given, scope)
        )
        for value in called:
            found.setdefault(value.made, []).append((loop, value))
    return found


def _scopes_after(wrap: Wrap, kinds: Kinds) -> Iterable[Scope]:
    """Return the functions in which the model may be changed: the wrap's own, those that call it, all of its class."""
    found = dict.fromkeys([wrap.scope])
    for _ in range(DEEPEST):
        found |= dict.fromkeys(home for each in found for _, home in kinds.callers(each))
    makers = [each for each in found if (each.name or "").endswith("__init__")]
    owners = [owner for each in makers if (owner := each.find_class()) is not None]
    return found | dict.fromkeys(each for owner in owners for each in owner.functions.values())


class _Later:
    """Tells whether training loops come after a statement.

    Args:
        kinds: of all files.
    """

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._above: dict[tuple[ast.AST, Scope], bool] = {}

    def comes(self, loop: TrainingLoop, statement: ast.stmt, scope: Scope) -> bool:
        """Whether a loop comes after a statement, also of a function that the loop's, or one above it, calls."""
        if self._kinds.flow(scope).spot(statement) is None:
            return False
        here = self._comes_here(loop, statement, scope)
        return self._comes_above(loop, scope) if here is None else here

    def _comes_above(self, loop: TrainingLoop, scope: Scope) -> bool:
        """Whether a loop comes after a call of a function, or of one that calls it: each call is asked about once."""
        if (loop.node, scope) not in self._above:
            known, waiting, later = {scope}, [scope], False
            for _ in range(DEEPEST):
                further: list[Scope] = []
                for call, home in (each for function in waiting for each in self._kinds.callers(function)):
                    spend()
                    here = self._comes_here(loop, call, home)
                    later = later or bool(here)
                    if here is None and home not in known:
                        known.add(home)
                        further.append(home)
                waiting = further
                if later or not waiting:
                    break
            self._above[loop.node, scope] = later
        return self._above[loop.node, scope]

    def _comes_here(self, loop: TrainingLoop, node: ast.AST, scope: Scope) -> bool | None:
        """Whether a loop comes after a statement or call; None where what calls the function decides it."""
        flow = self._kinds.flow(scope)
        own = flow.spot(node)
        if own is None:
            return False
        if loop.scope is scope:
            other = flow.spot(loop.node)
            inside = any(each is node for each in ast.walk(loop.node))
            return inside or (
                other is not None and own.number < other.number and not _is_left(own, other, flow)
            )
        spots = [flow.spot(call) for call, home in self._kinds.callers(loop.scope) if home is scope]
        if spots:
            return any(spot is not None and own.number < spot.number for spot in spots)
        owner = loop.scope.find_class()
        return True if owner is not None and owner is scope.find_class() else None


def _is_left(own: Spot, other: Spot, flow: Flow) -> bool:
    """Whether a side of a test on which a statement stands ends by leaving the function, before another place."""
    sides = dict(block for block in own.blocks if block not in other.blocks)
    bodies = [
        each.body if sides[spot.number] == "body" else each.orelse
        for each, spot in flow.statements
        if isinstance(each, ast.If) and spot.number in sides
    ]
    return any(body and isinstance(body[-1], (ast.Return, ast.Raise)) for body in bodies)


def _read_change(statement: ast.stmt, scope: Scope, wrap: Wrap, kinds: Kinds) -> tuple[str, str] | None:
    switch = read_switch(statement, scope, kinds)
    if switch is not None:
        way = "unfrozen" if switch[1] else "frozen"
        changes = _was_frozen if switch[1] else _is_awaited
        return (way, ast.unparse(switch[0])) if changes(switch[0], scope, wrap, kinds) else None
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            if not isinstance(target, ast.Attribute):
                continue
            if (
                _belongs(target.value, scope, wrap, kinds)
                and kinds.all_of(statement.value, scope, "model", "parameter")
                and _has_parameters(statement.value, scope, kinds)
            ):
                return "replaced", ast.unparse(target)
        return None
    call = statement.value if isinstance(statement, ast.Expr) else None
    return _read_call(call, scope, wrap, kinds) if isinstance(call, ast.Call) else None


def _has_parameters(node: ast.expr, scope: Scope, kinds: Kinds) -> bool:
    """Whether a new part may have parameters that are trained: no dropout or the like, and not frozen as it is made."""
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    if any(freezes(each) for each in calls):
        return False
    name = kinds.files.dotted(calls[0].func, scope) if calls and calls[0] is node else None
    return name is None or not (name.startswith("torch.nn.") and WITHOUT.match(name.rpartition(".")[2]))


def _find_change_within(
    statement: ast.stmt, scope: Scope, wrap: Wrap, kinds: Kinds
) -> tuple[tuple[str, str], ast.stmt, Scope] | None:
    """Return what a function or a callback changes of the wrapped model that it is given or keeps, on some way in it.

    Of an object that is not known, such as one of a list of callbacks, it is a method of that name.
    """
    call = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    if not isinstance(call, ast.Call):
        return None
    called = kinds.called(call, scope)
    callback = (
        call.func.attr if isinstance(statement, ast.Expr) and isinstance(call.func, ast.Attribute) else ""
    )
    named = kinds.methods(callback) if called is None and callback else []
    for function in [called] if called is not None else named:
        for inner, spot in kinds.flow(function).statements:
            if not spot.is_on:
                continue
            switch = read_switch(inner, function, kinds)
            parts = (
                [switch[0]] if switch is not None and switch[1] else _list_replaced(inner, function, kinds)
            )
            for part in parts:
                root, path = _root(part)
                parameter = _find_parameter(root, function)
                # What the call gives for it, or what its object was given and keeps.
                given = find_argument(call, function, parameter) if parameter is not None else root
                home = scope if parameter is not None else function
                if parameter is None and (called is None or (switch is None and not path)):
                    continue  # an object is of that class by the name of a method alone, or keeps another model
                if given is None or not _belongs(given, home, wrap, kinds):
                    continue
                if switch is None:
                    return ("replaced", ast.unparse(part)), inner, function
                if _was_frozen_at((*_root(given)[1], *path), wrap, kinds):
                    return ("unfrozen", ast.unparse(part)), inner, function
    return None


def _list_replaced(statement: ast.stmt, scope: Scope, kinds: Kinds) -> list[ast.expr]:
    """Return the parts of modules that a statement replaces by ones with parameters that are trained."""
    if not isinstance(statement, ast.Assign):
        return []
    parts = [each for each in statement.targets if isinstance(each, ast.Attribute)]
    made = parts and kinds.all_of(statement.value, scope, "model", "parameter")
    return list(parts) if made and _has_parameters(statement.value, scope, kinds) else []


def _find_parameter(node: ast.expr, function: Scope) -> str | None:
    """Return the parameter that a variable is, or is the inside of: ``net = model.module if wrapped else model``."""
    while isinstance(node, ast.Attribute) and node.attr == "module":
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    if node.id in function.parameters:
        return node.id
    found = set()
    for value in function.bound.get(node.id, [UNKNOWN]):
        for each in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
            inner, path = _root(each)
            while isinstance(inner, ast.Attribute) and inner.attr == "module":
                inner = inner.value
            given = isinstance(inner, ast.Name) and inner.id in function.parameters and not path
            found.add(inner.id if given and isinstance(inner, ast.Name) else None)
    return found.pop() if len(found) == 1 else None


def _read_call(call: ast.Call, scope: Scope, wrap: Wrap, kinds: Kinds) -> tuple[str, str] | None:
    name = kinds.files.dotted(call.func, scope)
    if name == "setattr" and len(call.args) == 3 and _belongs(call.args[0], scope, wrap, kinds):
        made = kinds.all_of(call.args[2], scope, "model", "parameter")
        return ("replaced", ast.unparse(call.args[0])) if made else None
    if not isinstance(call.func, ast.Attribute):
        return None
    owner, method = call.func.value, call.func.attr
    if not _belongs(owner, scope, wrap, kinds):
        return None
    if method in ("add_module", "register_parameter", "register_module"):
        return "replaced", ast.unparse(owner)
    if method in ("half", "double", "bfloat16"):
        return "moved", ast.unparse(owner)
    for inner in wrap.value.inner:
        own = inner.owner.functions.get(method) if inner.owner is not None else None
        whole = any(each.may_be(inner) for each in kinds.find(owner, scope))
        if own is not None and whole and method not in ("__init__", "forward") and _sets_layers(own, kinds):
            return "replaced", f"{ast.unparse(owner)}.{method}"
    return None


def _sets_layers(method: Scope, kinds: Kinds) -> bool:
    """Whether a method gives its module new layers, whatever the way that it takes."""
    return any(
        isinstance(statement, ast.Assign)
        and not spot.blocks
        and any(
            isinstance(t, ast.Attribute) and isinstance(t.value, ast.Name) and t.value.id == "self"
            for t in statement.targets
        )
        and bool(kinds.all_of(statement.value, method, "model", "parameter"))
        for statement, spot in kinds.flow(method).statements
    )


def _root(node: ast.expr) -> tuple[ast.expr, tuple[str, ...]]:
    """Take ``model.module.encoder.fc`` apart into its root, with ``.module``, and the path below."""
    path: list[str] = []
    while True:
        if isinstance(node, ast.Attribute) and node.attr != "module":
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                break
            path.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Subscript):
            path.append(ast.unparse(node.slice))
            node = node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and len(node.args) > 1:
            path.append(ast.unparse(node.args[1]).strip("'"))
            node = node.args[0]
        else:
            break
    return node, tuple(reversed(path))


def _belongs(node: ast.expr, scope: Scope, wrap: Wrap, kinds: Kinds) -> bool:
    """Whether an expression is the wrapped model, the wrapper, or a part of it."""
    root, _ = _root(node)
    found = kinds.all_of(root, scope, "model", "wrapped", "unknown")
    others = [each for each in wraps_of(kinds) if _wraps_same(each, wrap)]  # on the other sides of tests
    made = (wrap, *others)
    return bool(found) and all(any(one.holds(each) for one in made) for each in found)


def _was_frozen(node: ast.expr, scope: Scope, wrap: Wrap, kinds: Kinds) -> bool:
    """Whether the same part was frozen before the wrap."""
    if not _belongs(node, scope, wrap, kinds):
        return False
    return _was_frozen_at(_root(node)[1], wrap, kinds)


def _is_awaited(node: ast.expr, scope: Scope, wrap: Wrap, kinds: Kinds) -> bool:
    """Whether the wrapper waits for the gradients of a part that is frozen: it was trained, and is for good no longer.

    A wrapper that looks for unused parameters does not, and parts that take turns, as those of a GAN do, are others.
    """
    path = _root(node)[1]
    settings = [find_keyword(wrap.value.call, name) for name in ("find_unused_parameters", "static_graph")]
    if not path or any(each is not None and not is_false(each) for each in settings):
        return False
    if not is_spelled_out(wrap.value.call) or _was_frozen(node, scope, wrap, kinds):
        return False
    return _belongs(node, scope, wrap, kinds) and not any(
        set(path) & set(other) or not other for other in _list_freed(kinds)
    )


@once
def _list_freed(kinds: Kinds) -> tuple[tuple[str, ...], ...]:
    """Return the paths of the parts that any statement trains, by itself or by a value that is not known."""
    found: dict[tuple[str, ...], None] = {}
    for module in kinds.files.modules:
        if "requires_grad" not in module.script.text:
            continue
        for scope in module.walk():
            for statement, _ in kinds.flow(scope).statements:
                switch = read_switch(statement, scope, kinds)
                if switch is not None and switch[1]:
                    found[_root(switch[0])[1]] = None
                elif switch is None and _switches_unread(statement):
                    found[()] = None
    return tuple(found)


def _switches_unread(statement: ast.stmt) -> bool:
    """Whether a statement sets the switch of parameters to what is no constant."""
    if isinstance(statement, ast.Assign):
        return any(
            isinstance(each, ast.Attribute) and each.attr == "requires_grad" for each in statement.targets
        ) and not is_false(statement.value)
    call = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "requires_grad_"
        and not freezes(call)
    )


def _was_frozen_at(path: tuple[str, ...], wrap: Wrap, kinds: Kinds) -> bool:
    """Whether a part of the model was frozen before the wrap: in the function that wraps, or by one that calls that."""
    if _is_made_frozen(path, wrap, kinds):
        return True
    calls = kinds.callers(wrap.scope)
    ends = [(wrap.scope, wrap.value.call), *((home, call) for call, home in calls)]
    return any(_is_frozen_before(path, home, call, wrap, kinds) for home, call in ends)


def _is_frozen_before(path: tuple[str, ...], scope: Scope, call: ast.Call, wrap: Wrap, kinds: Kinds) -> bool:
    """Whether a statement of a function freezes a part of the model before a call of that function."""
    flow = kinds.flow(scope)
    own = flow.spot(call)
    for statement, spot in flow.statements:
        switch = read_switch(statement, scope, kinds)
        frozen = switch[0] if switch is not None and not switch[1] else None
        if frozen is None or own is None or spot.number >= own.number or not spot.is_on:
            continue
        root, other = _root(frozen)
        found = kinds.all_of(root, scope, "model", "unknown")
        if found and all(wrap.holds(each) for each in found):
            short = min(len(path), len(other))
            if path[:short] == other[:short]:
                return not _is_freed_again(path, statement, wrap, kinds)
    return False


def _is_made_frozen(path: tuple[str, ...], wrap: Wrap, kinds: Kinds) -> bool:
    """Whether the class of the model freezes a part as it makes it, whatever the way that it takes."""
    for inner in wrap.value.inner:
        maker = inner.owner.functions.get("__init__") if inner.owner is not None else None
        for statement, spot in kinds.flow(maker).statements if maker is not None and path else ():
            switch = read_switch(statement, maker, kinds) if maker is not None and spot.is_on else None
            if switch is not None and not switch[1] and ast.unparse(switch[0]) == f"self.{'.'.join(path)}":
                return True
    return False


def _is_freed_again(path: tuple[str, ...], freeze: ast.stmt, wrap: Wrap, kinds: Kinds) -> bool:
    """Whether that part was unfrozen again between the freeze and the wrap."""
    flow = kinds.flow(wrap.scope)
    frozen, own = flow.spot(freeze), flow.spot(wrap.value.call)
    for statement, spot in flow.statements:
        if frozen is None or own is None or not frozen.number < spot.number < own.number:
            continue
        switch = read_switch(statement, wrap.scope, kinds)
        freed = switch[0] if switch is not None and switch[1] else None
        if freed is not None and _root(freed)[1] == path[: len(_root(freed)[1])]:
            return True
    return False


@check("DDP006", family="source", needs=("sources",), id="lint.changed", commands=LINT)
def tell_changed(evidence: Evidence) -> Iterable[Finding]:
    """Parameters are changed between the wrap and the training."""
    for fact in facts_of(evidence, "changed-after-wrap"):
        way, what = fact.details["way"], fact.details["what"]
        wrap = name_line(fact.related[0].place)
        words = {
            "replaced": f"gives {what} new parameters",
            "unfrozen": f"unfreezes {what}",
            "frozen": f"freezes {what}",
            "moved": f"changes the dtype of the parameters of {what}",
        }
        follows = (
            "it waits for their gradients, and its next forward pass but one raises RuntimeError."
            if way == "frozen"
            else "it does not reduce their gradients."
        )
        yield tell_fact(
            fact,
            f"{name_line(fact.place)} {words[way]} after DistributedDataParallel was created at {wrap}: {follows}",
            Fix(
                "change the model first and wrap it last",
                code=f"{fact.place.text}\n{fact.related[0].place.text}",
            ),
            why="the model is trained by the same wrapper afterwards",
        )
