"""What a value is (a model, a wrapped one, a loader of data, a sampler …), followed to the call that made it.

Through variables, attributes of ``self``, parameters of functions whose calls are known, tuples, methods that return
their object and functions of the files. A value of which this cannot be told is ``unknown``; a rule that has to be sure
asks for all that a name may be.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from ddpdoctor.source.resolve.calls import APEX
from ddpdoctor.source.resolve.flow import Binding, Flow, Spot, list_kept, name_of
from ddpdoctor.source.resolve.makers import find_class_kind, find_kind
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.objects import FSDP2, PASSED, SAME, WRAPPERS
from ddpdoctor.source.resolve.once import once
from ddpdoctor.source.resolve.programs import Programs
from ddpdoctor.source.resolve.properties import find_property
from ddpdoctor.source.resolve.sequences import EACH, HOLD, VALUES, list_changed, read_key
from ddpdoctor.source.resolve.values import NONE, UNKNOWN, Index, Value, as_model, born, prepare, renew
from ddpdoctor.source.resolve.walking import find_argument, find_calls, own_nodes

DEEPEST = 16
"""Steps over which a value is followed."""
MOST_STEPS = 2_000
"""Steps for one value, over all ways: functions that call each other in circles have more than could be followed."""
ITERATES = frozenset({"iter", "enumerate", "tqdm", "tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.rich.tqdm", "itertools.islice",
                      "rich.progress.track", "tqdm.trange", "itertools.cycle"})  # fmt: skip
"""Functions whose result gives the elements of what they are given."""
COPIES = frozenset({"copy.deepcopy", "copy.copy"})
PREPARES = frozenset({"prepare", "prepare_model", "prepare_data_loader", "prepare_optimizer", "setup", "setup_module",
                      "setup_dataloaders", "setup_optimizers"})  # fmt: skip
"""Methods of Accelerate's and Fabric's objects that return what they are given, ready for several ranks."""


OF_CONTAINERS = frozenset(name for each in (dict, list, set, str) for name in dir(each))
"""Methods that an object which is not known may have because it is a container."""
MOST_METHODS = 8
"""Methods of one name, one of which an object that is not known may have."""


class Kinds:
    """Follows values through all files that are read together."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.kept: dict[object, Any] = {}
        self.programs = Programs(files, self.callers)
        self._flows: dict[Scope, Flow] = {}
        self._changed: dict[Scope, frozenset[str]] = {}
        self._methods: dict[str, list[Scope]] | None = None
        self._callers: dict[Scope, list[tuple[ast.Call, Scope]]] | None = None
        self._called: dict[ast.Call, Scope | None] = {}
        self._open: set[tuple[int, Index]] = set()
        self._steps = 0
        self._cut = 0
        """How often a value was not followed further; what is found meanwhile is not kept."""
        self._known: dict[tuple[ast.AST, Scope, Index], tuple[Value, ...]] = {}
        self._setting: dict[Scope, dict[str, list[Scope]]] = {}
        self._left: dict[Scope, tuple[list[ast.Yield | ast.YieldFrom], list[ast.expr | None]]] = {}
        """What each function yields, and what it returns."""

    @cached_property
    def sharded_in_place(self) -> frozenset[ast.AST]:
        """The calls that make models which ``fully_shard`` shards where they are."""
        return frozenset(
            value.made
            for module in self.files.modules
            for call, scope, name in self.programs.list_calls(module)
            if name in FSDP2 and call.args
            for value in self.find(call.args[0], scope)
            if value.kind == "model" and value.made is not None
        )

    def flow(self, scope: Scope) -> Flow:
        """Return the order of statements of a scope."""
        if scope not in self._flows:
            self._flows[scope] = Flow(scope, lambda test: self.programs.side(test, scope))
        return self._flows[scope]

    def find(self, node: ast.expr, scope: Scope, index: Index = None) -> tuple[Value, ...]:
        """Return all that an expression may be where it stands, without doubles; ``unknown`` is among it if so.

        Args:
            node: an expression of the scope itself.
            scope: the function, class or module in which it stands.
            index: which element of it is meant, where it is taken apart.
        """
        known = self._known.get((node, scope, index))
        if known is not None:
            return known
        key = id(node), index
        self._steps = self._steps + 1 if self._open else 0
        if key in self._open or len(self._open) > DEEPEST or self._steps > MOST_STEPS:
            self._cut += 1
            return (UNKNOWN,)
        cut = self._cut
        self._open.add(key)
        try:
            found = tuple(dict.fromkeys(self._find(node, scope, index)))
        finally:
            self._open.discard(key)
        if cut == self._cut or not self._open:
            self._known[node, scope, index] = found
        return found

    def all_of(self, node: ast.expr, scope: Scope, *kinds: str) -> tuple[Value, ...]:
        """Return what an expression may be where all of that is of some kinds, None left out; nothing otherwise."""
        found = tuple(each for each in self.find(node, scope) if each.kind != "none")
        return found if all(each.kind in kinds for each in found) else ()

    def called(self, call: ast.Call, scope: Scope) -> Scope | None:
        """Return the function of the files that a call runs; of a class that it makes, ``__init__``.

        ``optimizer.step(closure)`` runs the closure.
        """
        if call not in self._called:
            function = self.files.function(call.func, scope)
            if (
                function is None
                and isinstance(call.func, ast.Attribute)
                and call.func.attr == "step"
                and call.args
            ):
                function = self.files.function(call.args[0], scope)
            if function is None:
                made = self.files.find_class(call.func, scope)
                function = self.files.objects.method(made, "__init__") if made is not None else None
            self._called[call] = function
        return self._called[call]

    def callers(self, function: Scope) -> list[tuple[ast.Call, Scope]]:
        """Return the calls of a function, or of the class of which it is ``__init__``, in all files."""
        return self.list_callers().get(function, [])

    def list_callers(self) -> dict[Scope, list[tuple[ast.Call, Scope]]]:
        """Return the same of each function that is called."""
        if self._callers is None:
            found: dict[Scope, list[tuple[ast.Call, Scope]]] = {}
            for module in self.files.modules:
                for scope in module.walk():
                    for call in find_calls(scope):
                        called = self.called(call, scope)
                        if called is not None:
                            found.setdefault(called, []).append((call, scope))
            self._callers = found
        return self._callers

    def methods(self, name: str) -> list[Scope]:
        """Return the methods of a name in all classes of the files; none where many have it or containers do."""
        if self._methods is None:
            self._methods = {}
            for module in self.files.modules:
                for scope in module.walk():
                    if isinstance(scope.node, ast.ClassDef):
                        for own, method in scope.functions.items():
                            self._methods.setdefault(own, []).append(method)
        found = self._methods.get(name, [])
        return [] if name in OF_CONTAINERS or len(found) > MOST_METHODS else found

    def _find(self, node: ast.expr, scope: Scope, index: Index) -> Iterable[Value]:
        if isinstance(node, (ast.Tuple, ast.List)) and index is not None:
            return self._of_sequence(node.elts, scope, index)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)) and (isinstance(index, int) or index == EACH):
            return self.find(node.elt, scope)
        if isinstance(node, (ast.Dict, ast.DictComp)) and index == VALUES:
            values = [node.value] if isinstance(node, ast.DictComp) else node.values
            spread = isinstance(node, ast.Dict) and None in node.keys
            return self._of_sequence(values, scope, EACH) if not spread else (UNKNOWN,)
        if isinstance(node, (ast.Dict, ast.DictComp)) and isinstance(index, str) and index != EACH:
            return self._of_key(node, index, scope)
        if isinstance(node, ast.Subscript) and index is None:
            key = read_key(node.slice)
            kept = self.find(node.value, scope, key) if key is not None else ()
            return kept if kept and all(each.kind != "unknown" for each in kept) else (UNKNOWN,)
        if isinstance(node, ast.Constant) and node.value is None:
            return (NONE,)
        if isinstance(node, (ast.NamedExpr, ast.Await)):
            return self.find(node.value, scope, index)
        if isinstance(node, ast.IfExp):
            side = self.programs.side(node.test, scope)
            ways = [node.body] * (side is not False) + [node.orelse] * (side is not True)
            return [value for way in ways for value in self.find(way, scope, index)]
        if isinstance(node, ast.Attribute) and node.attr == "module":
            owners = self.find(node.value, scope)
            wrappers = [each for each in owners if each.inner]  # no other has that attribute
            below = [value for each in wrappers or owners for value in (each.inner or (UNKNOWN,))]
            if below != [UNKNOWN]:
                return below
        if name_of(node) is not None:
            return self._of_name(node, scope, index)
        if isinstance(node, ast.Call):
            return self._of_call(node, scope, index)
        if isinstance(node, ast.Attribute):  # of an object; parts of a model are another matter
            owner = self.files.find_made(node.value, scope)
            if owner is not None and find_class_kind(owner, self.files) is None:
                return self._of_class(owner, f"self.{node.attr}", index)
        return (UNKNOWN,)

    def _of_sequence(self, elements: list[ast.expr], scope: Scope, index: Index) -> Iterable[Value]:
        """Return what is at a place of a tuple or list that is spelled out, or what all of its elements are."""
        if any(isinstance(each, ast.Starred) for each in elements):
            return (UNKNOWN,)
        if index == EACH:
            return [value for each in elements for value in self.find(each, scope)] or (UNKNOWN,)
        inside = isinstance(index, int) and -len(elements) <= index < len(elements)
        return self.find(elements[int(index)], scope) if inside and index is not None else (UNKNOWN,)

    def _of_key(self, node: ast.Dict | ast.DictComp, key: str, scope: Scope) -> Iterable[Value]:
        """Return what a dictionary has under a key: where it is spelled out, and in assignments to that key there."""
        if isinstance(node, ast.DictComp):
            return self.find(node.value, scope)
        if None in node.keys:  # ``**others``
            return (UNKNOWN,)
        given = [
            value
            for name, value in zip(node.keys, node.values, strict=True)
            if isinstance(name, ast.Constant) and name.value == key
        ]
        holders = {
            ast.unparse(target)
            for each in own_nodes(scope.node)
            if isinstance(each, (ast.Assign, ast.AnnAssign)) and each.value is node
            for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
        }
        given += [
            each.value
            for each in own_nodes(scope.node)
            if isinstance(each, ast.Assign)
            for target in each.targets
            if isinstance(target, ast.Subscript) and ast.unparse(target.value) in holders
            if isinstance(target.slice, ast.Constant) and target.slice.value == key
        ]
        return [value for each in given for value in self.find(each, scope)] or (UNKNOWN,)

    def _of_name(self, node: ast.expr, scope: Scope, index: Index) -> Iterable[Value]:
        name = name_of(node) or ""
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node, name, scope, index)
        hidden = self.flow(scope).hidden(node) if isinstance(node, ast.Name) else None
        if hidden is not None:
            return self._of_loop(hidden, scope, index)
        below = scope
        for each in scope.visible():
            bindings = self._holding(name, node, each, below)
            if bindings is not None:
                spot = self.flow(scope).spot(node) if each is scope else None
                return self._of_bindings(name, bindings, each, index, spot)
            below = each
        return (UNKNOWN,)

    def _holding(self, name: str, node: ast.AST, scope: Scope, below: Scope) -> tuple[Binding, ...] | None:
        flow = self.flow(scope)
        if below is scope:
            spot = flow.spot(node)
            return flow.holding(name, spot) if spot is not None else flow.all_of(name)
        # a function sees what holds where it is called
        calls = [call for call, home in self.callers(below) if home is scope]
        spots = [spot for spot in (flow.spot(call) for call in calls) if spot is not None]
        made = flow.spot(below.node)
        if spots:
            found = [each for spot in spots for each in flow.holding(name, spot) or ()]
        elif made is not None:  # handed over: what holds where it is made, and what is bound later
            later = [each for each in flow.all_of(name) or () if each.spot.number > made.number]
            found = [*(flow.holding(name, made) or ()), *later]
        else:
            found = []
        return tuple(dict.fromkeys(found)) or flow.all_of(name)

    def _of_attribute(self, node: ast.Attribute, name: str, scope: Scope, index: Index) -> Iterable[Value]:
        flow = self.flow(scope)
        spot = flow.spot(node)
        here = flow.holding(name, spot) if spot is not None else None
        if here is not None and any(each.spot.surely_before(spot) for each in here if spot is not None):
            return self._of_bindings(name, here, scope, index, spot)
        owner = scope.find_class()
        if owner is None:
            return (UNKNOWN,)
        return self._of_class(owner, name, index)

    def _of_class(self, owner: Scope, name: str, index: Index) -> Iterable[Value]:
        """Return what methods of a class keep as ``self.name``: its own, or else of classes that inherit from it."""
        for classes in (self.files.objects.bases(owner), self.files.objects.heirs(owner)):
            found: list[Value] = []
            keepers = [each for each in classes if name.removeprefix("self.") in each.attributes]
            for method in [each for one in keepers for each in self._setters(one).get(name, ())]:
                bound = self.flow(method).holding(name, self.flow(method).end())
                if bound is not None:
                    found += self._of_bindings(name, bound, method, index)
            if found:
                return found
        for each in self.files.objects.bases(owner):
            given = find_property(each, name.removeprefix("self."))
            if given is not None:
                return self.find(given[0], given[1], index)
        return (UNKNOWN,)

    def _setters(self, owner: Scope) -> dict[str, list[Scope]]:
        """Return the methods of a class that may bind each ``self.name``."""
        if owner not in self._setting:
            found: dict[str, list[Scope]] = {}
            for method in owner.functions.values():
                for name in list_kept(method):
                    found.setdefault(name, []).append(method)
            self._setting[owner] = found
        return self._setting[owner]

    def _of_bindings(
        self,
        name: str,
        bindings: Iterable[Binding],
        scope: Scope,
        index: Index,
        spot: Spot | None = None,
    ) -> list[Value]:
        found: list[Value] = []
        for each in bindings:
            may_be_none, may_be_else = (
                self.flow(scope).narrow(name, each, spot) if spot is not None else (True, True)
            )
            if may_be_none or may_be_else:
                found += [
                    value
                    for value in self.of_binding(name, each, scope, index)
                    if value.kind == "unknown" or (may_be_none if value.kind == "none" else may_be_else)
                ]
        return found or [UNKNOWN]

    def of_binding(self, name: str, binding: Binding, scope: Scope, index: Index = None) -> Iterable[Value]:
        """Return what one assignment to a name gives it."""
        if binding.kind == "parameter":
            return self._of_parameter(name, scope, index)
        if binding.kind == "loop":
            return self._of_loop(binding, scope, index)
        if (
            binding.kind != "assign"
            or binding.value is None
            or (binding.index is not None and index is not None)
            or ((isinstance(index, int) or index in (EACH, VALUES)) and self._changes(name, scope))
        ):
            return (UNKNOWN,)
        return self.find(binding.value, scope, index if binding.index is None else binding.index)

    def _changes(self, name: str, scope: Scope) -> bool:
        """Whether elements of a list are put in, replaced or taken out after it was made."""
        owner = scope.find_class() if name.startswith("self.") else None
        classes = self.files.objects.heirs(owner) if owner is not None else ()
        scopes = [each for one in (owner, *classes) if one is not None for each in one.functions.values()]
        for each in scopes or [scope]:
            if each not in self._changed:
                self._changed[each] = frozenset(list_changed(each))
        return any(name in self._changed[each] for each in scopes or [scope])

    def _of_loop(self, binding: Binding, scope: Scope, index: Index) -> Iterable[Value]:
        """Return what a loop or a comprehension binds in its rounds: the elements of what it goes through."""
        iterable = binding.value
        if iterable is None or index is not None:
            return (UNKNOWN,)
        method = iterable.func if isinstance(iterable, ast.Call) else None
        if isinstance(method, ast.Attribute) and (method.attr, binding.index) in (
            ("values", None),
            ("items", 1),
        ):
            return self.find(method.value, scope, VALUES)
        if binding.index is None:
            return self.find(iterable, scope, EACH)
        name = self.files.dotted(iterable.func, scope) if isinstance(iterable, ast.Call) else None
        if isinstance(iterable, ast.Call) and isinstance(binding.index, int):
            if name == "zip" and binding.index < len(iterable.args):
                return self.find(iterable.args[binding.index], scope, EACH)
            if name == "enumerate" and iterable.args and binding.index == 1:
                return self.find(iterable.args[0], scope, EACH)
        return (UNKNOWN,)

    def _of_parameter(self, name: str, function: Scope, index: Index) -> list[Value]:
        found: list[Value] = []
        for call, scope in self.callers(function):
            given = find_argument(call, function, name)
            found += self.find(given, scope, index) if given is not None else [UNKNOWN]
        return found or [UNKNOWN]

    def _of_call(self, node: ast.Call, scope: Scope, index: Index) -> Iterable[Value]:
        name = self.files.dotted(node.func, scope) or ""
        if index in (EACH, VALUES):
            function = self.files.function(node.func, scope)
            if name in HOLD and node.args:
                return self.find(node.args[0], scope, index)
            if function is None:
                return (UNKNOWN,)
            return [born(each, function, node, scope) for each in self._of_returns(function, index)]
        if index is None:
            if name in (*WRAPPERS, APEX):
                given = (
                    node.args[0]
                    if node.args
                    else next((k.value for k in node.keywords if k.arg == "module"), None)
                )
                inner = self.find(given, scope) if given is not None else (UNKNOWN,)
                inside = tuple(dict.fromkeys(as_model(each, node, scope) for each in inner))
                return (Value("wrapped", node, scope, name, inner=inside),)
            if name in PASSED | ITERATES and node.args:
                return self.find(node.args[0], scope)
            if name == "zip":
                ways = [self.find(each, scope) for each in node.args]
                return [
                    value for way in ways if all(each.kind == "loader" for each in way) for value in way
                ] or (UNKNOWN,)
            if name in COPIES and node.args:
                return [renew(each, node, scope) for each in self.find(node.args[0], scope)]
        if name == "dict" and isinstance(index, str):
            value = next((each.value for each in node.keywords if each.arg == index), None)
            return self.find(value, scope) if value is not None else (UNKNOWN,)
        if isinstance(node.func, ast.Attribute):
            method = self._of_method(node, node.func, scope, index)
            if method is not None:
                return method
        kind = find_kind(node, scope, self.files)
        if kind == "split":
            return (Value("dataset", node, scope, name),)
        if kind is not None and index is None:
            return (Value(kind, node, scope, name, self.files.find_class(node.func, scope)),)
        function = self.files.function(node.func, scope)
        if function is None:
            return (
                Value("unknown", node, scope, name),
            )  # of what it is nothing is known, but which one it is
        return [born(each, function, node, scope) for each in self._of_returns(function, index)]

    def _of_method(
        self, node: ast.Call, func: ast.Attribute, scope: Scope, index: Index
    ) -> list[Value] | None:
        if func.attr in SAME and index is None:
            owners = self.find(func.value, scope)
            if any(each.kind in ("model", "wrapped", "loss") or each.made is not None for each in owners):
                return list(owners)
        if (
            func.attr == "log_every" and node.args and index is None
        ):  # of the loggers in torchvision's references
            return list(self.find(node.args[0], scope))
        if func.attr == "unwrap_model" and node.args and index is None:
            owners = self.find(func.value, scope)
            if owners and all(each.kind == "accelerator" for each in owners):
                given = self.find(node.args[0], scope)
                return [inner for each in given for inner in (_inside(each) or (each,))]
            return None
        if func.attr in PREPARES and all(not isinstance(each, ast.Starred) for each in node.args):
            owners = self.find(func.value, scope)
            if not owners or any(each.kind != "accelerator" for each in owners):
                return None
            if len(node.args) == 1 and index is None:
                return [prepare(each, node, scope) for each in self.find(node.args[0], scope)]
            if isinstance(index, int) and index < len(node.args):
                return [prepare(each, node, scope) for each in self.find(node.args[index], scope)]
            return [UNKNOWN]
        return None

    def _of_returns(self, function: Scope, index: Index) -> list[Value]:
        if function not in self._left:
            self._left[function] = (
                [each for each in own_nodes(function.node) if isinstance(each, (ast.Yield, ast.YieldFrom))],
                [
                    statement.value
                    for statement, spot in self.flow(function).statements
                    if isinstance(statement, ast.Return) and spot.is_on
                ],
            )
        yields, returned = self._left[function]
        if yields:
            return self._of_yields(yields, function) if index is None else [UNKNOWN]
        found: list[Value] = []
        for value in returned:
            found += self.find(value, function, index) if value is not None else [NONE]
        return found or [NONE]

    def _of_yields(self, yields: Iterable[ast.Yield | ast.YieldFrom], function: Scope) -> list[Value]:
        """Return the loaders whose batches a generator hands on as they are: ``for batch in loader: yield batch``."""
        loops = [each for each in own_nodes(function.node) if isinstance(each, (ast.For, ast.AsyncFor))]
        heads: dict[ast.expr, None] = {}
        for each in yields:
            if isinstance(each, ast.YieldFrom):
                heads[each.value] = None
                continue
            given = (
                {inner for inner in ast.walk(each.value) if isinstance(inner, ast.Name)}
                if each.value
                else set()
            )
            around = [
                loop for loop in loops if any(inner is each for part in loop.body for inner in ast.walk(part))
            ]
            taken = [
                loop.iter
                for loop in around
                if {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
                & {one.id for one in given}
            ]
            if not taken:
                return [UNKNOWN]
            heads.update(dict.fromkeys(taken))
        found = [value for head in heads for value in self.find(head, function)]
        return found if all(each.kind == "loader" for each in found) else [UNKNOWN]


def _inside(value: Value) -> tuple[Value, ...]:
    """Return the models in what Accelerate prepared, or in a wrapper; nothing for others."""
    return value.inner if value.kind in ("wrapped", "prepared model") else ()


@once
def kinds_of(files: Files) -> Kinds:
    """Return what follows values through these files; the same for all rules."""
    return Kinds(files)
