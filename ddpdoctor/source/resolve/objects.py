"""The class of an object: by the call that made it, by an annotation, or by what all callers give."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from ddpdoctor.source.resolve.scopes import UNKNOWN, Scope
from ddpdoctor.source.resolve.walking import find_argument, find_calls, own_nodes

DEEPEST = 5
"""Values and classes over which an object is followed."""
MOST_CALLERS = 24
"""Most callers of one function that are asked what they give it; of one with more nothing is said."""

SAME = frozenset({"to", "cuda", "cpu", "half", "float", "double", "bfloat16", "train", "eval", "requires_grad_",
                  "apply", "to_empty", "share_memory", "xpu", "type"})  # fmt: skip
"""Methods of a module that return the module."""
PASSED = frozenset({"torch.compile", "torch.nn.SyncBatchNorm.convert_sync_batchnorm", "torch.jit.script",
                    "apex.parallel.convert_syncbn_model"})  # fmt: skip
"""Functions that return the model that they are given, with other parts of it."""
WRAPPERS = (
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel",
)
"""Classes whose call is that of the model that they are given."""
FSDP1 = frozenset({"torch.distributed.fsdp.FullyShardedDataParallel",
                   "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel"})  # fmt: skip
"""The class that shards a model by flat parameters."""
FSDP2 = frozenset({"torch.distributed.fsdp.fully_shard", "torch.distributed._composable.fsdp.fully_shard",
                   "torch.distributed._composable.fsdp.fully_shard.fully_shard"})  # fmt: skip
"""The function that shards the parameters of a model where they are."""

Namer = Callable[[ast.expr, Scope], Scope | None]
"""Finds the function, or the class, that an expression names."""


class Objects:
    """Finds classes of objects among all files that are read together.

    Args:
        modules: the files.
        find_class: returns the class that an expression names.
        find_function: returns the function that a name means, without asking for objects.
        dotted: returns the dotted name of what a name means.
        find_bound: returns where a variable is bound, in whichever file, and to what.
    """

    def __init__(
        self,
        modules: Iterable[Scope],
        find_class: Namer,
        find_function: Namer,
        dotted: Callable[[ast.expr, Scope], str | None],
        find_bound: Callable[[ast.expr, Scope], tuple[Scope, list[ast.expr]] | None],
    ) -> None:
        self._modules = list(modules)
        self._find_class = find_class
        self._find_function = find_function
        self._dotted = dotted
        self._find_bound = find_bound
        self._callers: dict[Scope, list[tuple[ast.Call, Scope]]] | None = None
        self._known: dict[tuple[ast.expr, Scope], Scope | None] = {}
        self._bases: dict[Scope, tuple[Scope, ...]] = {}
        self._heirs: dict[Scope, list[Scope]] | None = None

    def bases(self, owner: Scope) -> tuple[Scope, ...]:
        """Return a class and those that it inherits from, in the order in which a method is looked for."""
        if owner not in self._bases:
            self._bases[owner] = tuple(self._list_bases(owner, 0))
        return self._bases[owner]

    def _list_bases(self, owner: Scope, depth: int) -> Iterator[Scope]:
        yield owner
        if depth < DEEPEST and isinstance(owner.node, ast.ClassDef) and owner.outer is not None:
            for base in owner.node.bases:
                above = self._find_class(base, owner.outer)
                if above is not None and above is not owner:
                    yield from self._list_bases(above, depth + 1)

    def method(self, owner: Scope, name: str) -> Scope | None:
        """Return a method of a class, its own or inherited."""
        return next((each.functions[name] for each in self.bases(owner) if name in each.functions), None)

    def heirs(self, owner: Scope) -> list[Scope]:
        """Return the classes of all files that inherit from a class."""
        if self._heirs is None:
            self._heirs = {}
            for module in self._modules:
                for scope in module.walk():
                    for above in self.bases(scope) if isinstance(scope.node, ast.ClassDef) else ():
                        if above is not scope:
                            self._heirs.setdefault(above, []).append(scope)
        return self._heirs.get(owner, [])

    def own_method(self, owner: Scope, name: str) -> Scope | None:
        """Return a method that an object calls of itself, in code of a class that others may inherit from.

        What the class leaves to them is theirs: a method that it has not, or that raises NotImplementedError, where all
        of them have the same one.
        """
        found = self.method(owner, name)
        if found is not None and not _is_left_open(found):
            return found
        theirs = {self.method(each, name) for each in self.heirs(owner)} - {found, None}
        return theirs.pop() if len(theirs) == 1 else found

    def super_method(self, call: ast.expr, scope: Scope) -> Scope | None:
        """Return what ``super().save`` is."""
        if not isinstance(call, ast.Attribute) or not isinstance(call.value, ast.Call):
            return None
        inner, owner = call.value.func, scope.find_class()
        if not isinstance(inner, ast.Name) or inner.id != "super" or owner is None:
            return None
        above = [each for each in self.bases(owner) if each is not owner]
        return next((each.functions[call.attr] for each in above if call.attr in each.functions), None)

    def find_made(self, node: ast.expr, scope: Scope, depth: int = 0) -> Scope | None:
        """Return the class of an object, where it can be of one only and that stands in one of the files."""
        key = node, scope
        if key not in self._known:
            if depth > DEEPEST:
                return None
            self._known[key] = None  # while it is followed: what is made of itself is nothing
            self._known[key] = self._find_made(node, scope, depth)
        return self._known[key]

    def _find_made(self, node: ast.expr, scope: Scope, depth: int) -> Scope | None:
        if isinstance(node, ast.Name):
            if node.id == "self":
                return scope.find_class()
            home, values = scope.lookup(node.id) or (None, [])
            if home is None:
                return self._of_import(node, scope, depth)
            if node.id in home.loops:
                return self._of_loop(node.id, home, depth)
            if values == [UNKNOWN]:
                given = node.id in home.parameters
                return (self._of_parameter if given else self._of_element)(node.id, home, depth)
            # ``net = DDP(net)`` and ``net = net.to(device)`` leave it of its class
            others = [value for value in values if not _is_named(self._unwrap(value, home), node.id)]
            return self._only(((value, home) for value in others), depth)
        if isinstance(node, ast.Attribute):
            owner = self.find_made(node.value, scope, depth + 1)
            for each in self.bases(owner) if owner is not None else ():
                if node.attr in each.attributes:
                    pairs = [(value, each.makers.get(value, each)) for value in each.attributes[node.attr]]
                    return self._only((p for p in pairs if not _is_own(self._unwrap(*p), node.attr)), depth)
            theirs = [
                (value, each.makers.get(value, each))
                for each in (self.heirs(owner) if owner is not None else ())
                for value in each.attributes.get(node.attr, [])
            ]
            return self._only(theirs, depth) if theirs else self._of_import(node, scope, depth)
        if isinstance(node, ast.Call):
            inner = self._unwrap(node, scope)
            if inner is not node:
                return self.find_made(inner, scope, depth + 1)
            own = self._find_class(node.func, scope)
            if own is not None:
                return own
            function = self._find_function(node.func, scope)
            return self._of_returns(function, depth) if function is not None else None
        return None

    def _of_import(self, node: ast.expr, scope: Scope, depth: int) -> Scope | None:
        """Return the class of an object that another file makes: ``from utils.comm import comm``."""
        home, values = self._find_bound(node, scope) or (None, [])
        return self._only(((value, home) for value in values), depth) if home is not None else None

    def _unwrap(self, node: ast.expr, scope: Scope) -> ast.expr:
        """Return ``net`` for ``DDP(net.to(device))``: what stays of its class, whatever it is put into."""
        while isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in SAME:
                node = node.func.value
            elif node.args and self._dotted(node.func, scope) in (*WRAPPERS, *PASSED):
                node = node.args[0]
            else:
                break
        return node

    def _only(self, values: Iterable[tuple[ast.expr, Scope]], depth: int) -> Scope | None:
        """Return the class of all values but ``None``; None where they are of several, or one is not known."""
        found: Scope | None = None
        for value, scope in values:
            if isinstance(value, ast.Constant) and value.value is None:
                continue
            own = self.find_made(value, scope, depth + 1)
            if own is None or found not in (None, own):
                return None
            found = own
        return found

    def _of_parameter(self, name: str, function: Scope, depth: int) -> Scope | None:
        node = function.node
        if isinstance(node, (ast.Module, ast.ClassDef)):
            return None
        every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        own = next((each for each in every if each.arg == name), None)
        if own is None:
            return None
        if own.annotation is not None:
            named = self._of_annotation(own.annotation, function.outer or function)
            if named is not None:
                return named
        calls = self.callers(function)
        if not calls or len(calls) > MOST_CALLERS:
            return None
        given = [(find_argument(call, function, name), scope) for call, scope in calls]
        if any(argument is None for argument, _ in given):
            return None
        return self._only(((a, scope) for a, scope in given if a is not None), depth)

    def _of_element(self, name: str, home: Scope, depth: int) -> Scope | None:
        """Return the class of a variable that takes one place of what a function of the files returns."""
        found: list[tuple[ast.expr, Scope]] = []
        for node in own_nodes(home.node):
            value = node.value if isinstance(node, ast.Assign) else None
            function = self._find_function(value.func, home) if isinstance(value, ast.Call) else None
            for target in node.targets if isinstance(node, ast.Assign) else ():
                elements = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
                places = [place for place, each in enumerate(elements) if getattr(each, "id", None) == name]
                if not places:
                    continue
                if function is None or any(isinstance(each, ast.Starred) for each in elements):
                    return None
                for each in own_nodes(function.node):
                    if isinstance(each, ast.Return) and each.value is not None:
                        row = each.value.elts if isinstance(each.value, ast.Tuple) else []
                        if len(row) != len(elements):
                            return None
                        found.append((row[places[0]], function))
        return self._only(found, depth)

    def _of_loop(self, name: str, home: Scope, depth: int) -> Scope | None:
        """Return the class of what loops go over whose variable has a name: all of one class, in containers of it."""
        found: Scope | None = None
        for node in own_nodes(home.node):
            if not isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
                continue
            named = [each for each in ast.walk(node.target) if isinstance(each, ast.Name) and each.id == name]
            if not named:
                continue
            held = _find_container(node.target, node.iter, name)
            own = self._of_elements(*held, home, depth + 1) if held is not None else None
            if own is None or found not in (None, own):
                return None
            found = own
        return found

    def _of_elements(self, node: ast.expr, keyed: bool, scope: Scope, depth: int) -> Scope | None:
        """Return the class of all that a dictionary (keyed) or a list holds: ``defaultdict(Meter)``, ``[Meter()]``."""
        if depth > DEEPEST:
            return None
        if isinstance(node, ast.Attribute):
            owner = self.find_made(node.value, scope, depth + 1)
            for each in self.bases(owner) if owner is not None else ():
                values = each.attributes.get(node.attr, [])
                if len(values) == 1:
                    return self._of_elements(values[0], keyed, each.makers.get(values[0], each), depth + 1)
        elif isinstance(node, ast.Name):
            home, values = scope.lookup(node.id) or (scope, [])
            if len(values) == 1 and values[0] is not UNKNOWN:
                return self._of_elements(values[0], keyed, home, depth + 1)
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith("defaultdict"):
            return self._find_class(node.args[0], scope) if keyed else None
        elif isinstance(node, (ast.List, ast.Tuple)) and node.elts and not keyed:
            return self._only(((each, scope) for each in node.elts), depth)
        elif isinstance(node, ast.ListComp) and not keyed:
            return self.find_made(node.elt, scope, depth + 1)
        elif isinstance(node, ast.Dict) and node.values and keyed:
            return self._only(((each, scope) for each in node.values), depth)
        return None

    def _of_annotation(self, node: ast.expr, scope: Scope) -> Scope | None:
        """Return the class that an annotation names: ``Trainer``, ``"Trainer"``, ``Trainer | None``."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                node = ast.parse(node.value, mode="eval").body
            except (SyntaxError, ValueError):
                return None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            sides = [each for each in (node.left, node.right) if not isinstance(each, ast.Constant)]
            return self._of_annotation(sides[0], scope) if len(sides) == 1 else None
        if isinstance(node, ast.Subscript):
            optional = isinstance(node.value, (ast.Name, ast.Attribute))
            last = ast.unparse(node.value).rpartition(".")[2] if optional else ""
            return self._of_annotation(node.slice, scope) if last == "Optional" else None
        return self._find_class(node, scope) if isinstance(node, (ast.Name, ast.Attribute)) else None

    def _of_returns(self, function: Scope, depth: int) -> Scope | None:
        if isinstance(function.node, (ast.Module, ast.ClassDef)) or depth > DEEPEST:
            return None
        if function.node.returns is not None:
            named = self._of_annotation(function.node.returns, function.outer or function)
            if named is not None:
                return named
        values = [
            (each.value, function)
            for each in own_nodes(function.node)
            if isinstance(each, ast.Return) and each.value is not None
        ]
        return self._only(values, depth)

    def callers(self, function: Scope) -> list[tuple[ast.Call, Scope]]:
        """Return the calls of a function by its name, or of the class of which it is ``__init__``."""
        if self._callers is None:
            self._callers = {}
            for module in self._modules:
                for scope in module.walk():
                    for call in find_calls(scope):
                        called = self._find_called(call, scope)
                        if called is not None:
                            self._callers.setdefault(called, []).append((call, scope))
        return self._callers.get(function, [])

    def _find_called(self, call: ast.Call, scope: Scope) -> Scope | None:
        found = self._find_function(call.func, scope)
        if found is not None:
            return found
        made = self._find_class(call.func, scope)
        if made is not None:
            return self.method(made, "__init__")
        if not isinstance(call.func, ast.Attribute):
            return None
        owner = self._made_here(call.func.value, scope)
        return self.method(owner, call.func.attr) if owner is not None else None

    def _made_here(self, node: ast.expr, scope: Scope) -> Scope | None:
        """Return the class of ``Runner()`` and of a variable bound to that alone; callers are asked for nothing."""
        home = scope
        if isinstance(node, ast.Name):
            home, values = scope.lookup(node.id) or (scope, [])
            if len(values) != 1:
                return None
            node = values[0]
        return self._find_class(node.func, home) if isinstance(node, ast.Call) else None


def _is_named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_own(node: ast.expr, name: str) -> bool:
    """Whether it is ``self.name``."""
    return isinstance(node, ast.Attribute) and node.attr == name and _is_named(node.value, "self")


def _is_left_open(function: Scope) -> bool:
    """Whether a method does nothing, or raises NotImplementedError: classes that inherit from its own define it."""
    body = getattr(function.node, "body", [])
    rest = [
        each for each in body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
    ]
    only = rest[0] if len(rest) == 1 else None
    raised = only.exc if isinstance(only, ast.Raise) else None
    called = raised.func if isinstance(raised, ast.Call) else raised
    return not rest or isinstance(only, ast.Pass) or getattr(called, "id", "") == "NotImplementedError"


def _find_container(target: ast.expr, head: ast.expr, name: str) -> tuple[ast.expr, bool] | None:
    """Return what a loop goes over, where its variable of some name is an element of that; and whether it has keys."""
    if isinstance(head, ast.Call) and isinstance(head.func, ast.Attribute) and not head.args:
        second = isinstance(target, ast.Tuple) and len(target.elts) == 2
        last = target.elts[1] if isinstance(target, ast.Tuple) and second else target
        wanted = "items" if second else "values"
        is_it = isinstance(last, ast.Name) and last.id == name
        return (head.func.value, True) if is_it and head.func.attr == wanted else None
    if isinstance(head, ast.Call) and isinstance(head.func, ast.Name) and head.func.id == "enumerate":
        if isinstance(target, ast.Tuple) and len(target.elts) == 2 and head.args:
            return _find_container(target.elts[1], head.args[0], name)
        return None
    return (head, False) if isinstance(target, ast.Name) and target.id == name else None
