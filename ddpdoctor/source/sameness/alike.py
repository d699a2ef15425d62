"""Whether a value is the same on all ranks, and a text that is equal for equal values."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from ddpdoctor.source.resolve.assigned import list_added
from ddpdoctor.source.resolve.flow import Binding, Spot
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.once import once
from ddpdoctor.source.resolve.properties import find_only_return, find_property
from ddpdoctor.source.resolve.rank_tests import RankReader
from ddpdoctor.source.resolve.traces import Frame, Trace
from ddpdoctor.source.resolve.walking import find_argument, find_calls, is_spelled_out, own_nodes

RANKLIKE = re.compile(
    r"rank|main|master|primary|chief|zero|first(?!_?(?:epoch|step|iter|batch))|leader|proc|pid|node|worker|gpu|device"
    r"|host|coord|local|shard|uniq|uuid|rand|time|temp|tmp|lock|turn|slurm",
    re.IGNORECASE,
)
"""Names that may differ over ranks, or put them in an order."""
SETTINGS = frozenset({"args", "arg", "cfg", "config", "conf", "opt", "opts", "options", "hparams", "flags", "FLAGS",
                      "params", "settings", "configuration", "C", "hps", "argv"})  # fmt: skip
"""Names of what is read from the command line or a file, alike on all ranks."""
JOINING = frozenset({"os.path.join", "os.path.abspath", "os.path.expanduser", "os.path.realpath", "os.path.basename",
                     "os.path.dirname", "os.path.normpath", "os.path.splitext", "os.path.split", "str", "int",
                     "float", "pathlib.Path", "pathlib.PurePath",
                     "os.fspath", "len", "min", "max", "round", "isinstance", "hasattr", "getattr", "bool",
                     "os.path.exists",
                     "os.path.isfile", "os.path.isdir", "os.listdir", "range", "any", "all", "torch.cuda.is_available",
                     "os.getcwd", "itertools.count", "torch.distributed.get_world_size", "trange", "tqdm.trange",
                     "tqdm.auto.trange", "sorted", "reversed", "list", "torch.load"})  # fmt: skip
"""Functions whose result is alike where their arguments are. A file is taken to be the same for all ranks."""
TEXT_METHODS = frozenset({"format", "joinpath", "with_suffix", "as_posix", "resolve", "replace", "strip", "lower",
                          "exists", "is_dir", "is_file", "get", "item", "startswith", "endswith", "split", "rsplit",
                          "lstrip", "rstrip", "upper", "title", "removeprefix", "removesuffix", "with_name",
                          "absolute", "expanduser"})  # fmt: skip
PATH_PARTS = frozenset({"stem", "name", "suffix", "parent"})
"""Attributes of a path, alike where it is."""
DEEPEST = 14
"""Values that are followed into one another, with the parts of expressions: a path over three functions has ten."""


@once
def _own_settings_of(files: Files) -> list[tuple[str, ...]]:
    """Return a list that gets one item: the settings to which something is assigned that is about ranks."""
    return []


class Values:
    """Answers for the values of one program.

    Args:
        files: all that are read together.
        trace: the program.
        ranks: what is about ranks in them.
    """

    def __init__(self, files: Files, trace: Trace, ranks: RankReader) -> None:
        self.files = files
        self.trace = trace
        self.ranks = ranks
        self._makings: dict[Scope, tuple[tuple[Frame, ...], ...]] = {}
        self._asking: set[tuple[Scope, str]] = set()
        """Attributes that are followed now: what one is made of itself adds nothing."""
        self._assumes = False

    def alike(self, node: ast.expr, scope: Scope, frames: tuple[Frame, ...], depth: int) -> bool:
        """Whether an expression is known to be the same on all ranks.

        Args:
            node: the expression.
            scope: where it stands.
            frames: the calls through which a program comes there.
            depth: values that were followed so far.
        """
        if depth > DEEPEST:
            return False
        if isinstance(node, ast.Constant):
            return node is not UNKNOWN
        if isinstance(node, ast.JoinedStr):
            return self._all_alike(node.values, scope, frames, depth)
        if isinstance(node, ast.FormattedValue):
            return self.alike(node.value, scope, frames, depth)
        if isinstance(
            node, (ast.BinOp, ast.IfExp, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Tuple, ast.List)
        ):
            children = (each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr))
            return self._all_alike(children, scope, frames, depth)
        if isinstance(node, ast.Subscript):
            if self._is_broadcast(node.value, scope):
                return True
            if RANKLIKE.search(ast.unparse(node)):
                return False
            return self._is_setting(node.value) or self._all_alike(
                [node.value, node.slice], scope, frames, depth
            )
        if isinstance(node, ast.Call):
            return self._call_alike(node, scope, frames, depth)
        if isinstance(node, ast.Attribute):
            return self._attribute_alike(node, scope, frames, depth)
        if isinstance(node, ast.Name):
            return self._name_alike(node, scope, frames, depth)
        return False

    @contextmanager
    def assuming(self) -> Iterator[None]:
        """Let what whoever uses a class gives its methods count as the same on all ranks, where a class is read."""
        self._assumes = self.trace.owner is not None
        try:
            yield
        finally:
            self._assumes = False

    def _all_alike(
        self, nodes: Iterable[ast.expr], scope: Scope, frames: tuple[Frame, ...], depth: int
    ) -> bool:
        return all(self.alike(each, scope, frames, depth + 1) for each in nodes)

    def _call_alike(self, node: ast.Call, scope: Scope, frames: tuple[Frame, ...], depth: int) -> bool:
        values = [*node.args, *(each.value for each in node.keywords)]
        name = self.files.dotted(node.func, scope)
        if name == "torch.load":  # where it is loaded to changes nothing in it
            values = values[:1]
        if name in JOINING:
            return self._all_alike(values, scope, frames, depth)
        if self._assumes and ast.unparse(node.func) in ("kwargs.pop", "kwargs.get"):
            return not RANKLIKE.search(ast.unparse(node))
        if isinstance(node.func, ast.Attribute) and node.func.attr in TEXT_METHODS:
            return self._all_alike([node.func.value, *values], scope, frames, depth)
        called = self.files.function(node.func, scope)
        only = find_only_return(called) if called is not None else None
        if called is None or only is None:
            return False
        return self.alike(only, called, (*frames, Frame(node, scope, called)), depth + 1)

    def _is_broadcast(self, node: ast.expr, scope: Scope) -> bool:
        """Whether it is a list into which `broadcast_object_list` puts what one rank has, in the same function."""
        return isinstance(node, ast.Name) and any(
            self.files.dotted(call.func, scope) == "torch.distributed.broadcast_object_list"
            and bool(call.args)
            and isinstance(call.args[0], ast.Name)
            and call.args[0].id == node.id
            for call in find_calls(scope)
        )

    def is_none_alike(self, node: ast.expr, scope: Scope, frames: tuple[Frame, ...], depth: int = 0) -> bool:
        """Whether a variable is an object of a class on all ranks, or None on all.

        Args:
            node: the variable.
            scope: where it stands.
            frames: the calls through which a program comes there.
            depth: values that were followed so far.
        """
        found = scope.lookup(node.id) if isinstance(node, ast.Name) else None
        if not isinstance(node, ast.Name) or found is None or depth > DEEPEST:
            return self._is_made(node, scope) or (isinstance(node, ast.Constant) and node.value is None)
        home, values = found
        if RANKLIKE.search(node.id) or node.id in home.loops:
            return False
        if values[0] is UNKNOWN and len(values) == 1 and frames and frames[-1].callee is home:
            argument = find_value(frames[-1], node.id)
            return argument is not None and self.is_none_alike(
                argument, frames[-1].scope, frames[:-1], depth + 1
            )
        return all(self._is_made(each, home) for each in values)

    def _is_made(self, node: ast.expr, scope: Scope) -> bool:
        """Whether it is a new object of a class, which is never None."""
        if not isinstance(node, ast.Call) or self.files.function(node.func, scope) is not None:
            return False
        name = (self.files.dotted(node.func, scope) or "").rpartition(".")[2]
        return self.files.find_class(node.func, scope) is not None or name[:1].isupper()

    def speaks_of_ranks(self, node: ast.AST, scope: Scope) -> bool:
        """Whether a rank stands in an expression, by whatever name."""
        named = (each for each in ast.walk(node) if isinstance(each, (ast.Name, ast.Attribute, ast.Call)))
        return any(self.ranks.rank(each, scope) is not None for each in named)

    def _is_setting(self, node: ast.expr) -> bool:
        """Whether it is read from the command line or a file, and no rank sets it for itself."""
        return self._is_of_settings(node) and not any(
            ast.unparse(node).startswith(each) for each in self._list_own_settings()
        )

    def _list_own_settings(self) -> tuple[str, ...]:
        """Return the settings to which something is assigned that is about ranks, such as ``args.out``."""
        known = _own_settings_of(self.files)
        if not known:
            known.append(
                tuple(
                    ast.unparse(target)
                    for module in self.files.modules
                    for scope in module.walk()
                    for node in own_nodes(scope.node)
                    if isinstance(node, ast.Assign)
                    for target in node.targets
                    if isinstance(target, (ast.Attribute, ast.Subscript)) and self._is_of_settings(target)
                    if RANKLIKE.search(ast.unparse(node.value)) or self.speaks_of_ranks(node.value, scope)
                )
            )
        return known[0]

    @staticmethod
    def _is_of_settings(node: ast.expr) -> bool:
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            if isinstance(node, ast.Attribute) and node.attr in SETTINGS:
                return True
            node = node.value
        return isinstance(node, ast.Name) and node.id in SETTINGS

    def _attribute_alike(
        self, node: ast.Attribute, scope: Scope, frames: tuple[Frame, ...], depth: int
    ) -> bool:
        if RANKLIKE.search(node.attr):
            return False
        if node.attr == "sync_gradients":  # of an Accelerator
            return True
        if self._is_setting(node):
            return not RANKLIKE.search(ast.unparse(node))
        own = isinstance(node.value, ast.Name) and node.value.id == "self"
        owner = scope.find_class() if own else self.files.find_made(node.value, scope)
        if owner is None:
            return node.attr in PATH_PARTS and self.alike(node.value, scope, frames, depth + 1)
        given = find_property(owner, node.attr)
        if given is not None:
            return self.alike(*given, (), depth + 1)
        if (owner, node.attr) in self._asking:
            return True
        self._asking.add((owner, node.attr))
        try:
            return self._kept_alike(node, owner, depth)
        finally:
            self._asking.discard((owner, node.attr))

    def _kept_alike(self, node: ast.Attribute, owner: Scope, depth: int) -> bool:
        """Whether what objects of a class keep in an attribute is the same on all ranks."""
        start = owner.functions.get("__init__")
        values = owner.attributes.get(node.attr, [])
        added = [(each, home) for name, each, home in list_added(owner) if name == node.attr]
        if not values or start is None or sum(each is UNKNOWN for each in values) != len(added):
            return False
        ways = self._list_makings(owner, start)
        return (
            bool(ways)
            and all(self._set_alike(each, owner, ways, depth) for each in values if each is not UNKNOWN)
            and all(
                self.alike(each.value, home, (), depth + 1)
                and not self._is_of_some(kinds_of(self.files).flow(home).spot(each), home)
                for each, home in added
            )
        )

    def _set_alike(
        self, value: ast.expr, owner: Scope, ways: Iterable[tuple[Frame, ...]], depth: int
    ) -> bool:
        """Whether what a method sets an attribute to is the same on all ranks, for each object of a class."""
        home = owner.makers.get(value)
        if home is None or home is not owner.functions.get("__init__"):
            return home is not None and self.alike(value, home, (), depth + 1)
        return all(self.alike(value, home, frames, depth + 1) for frames in ways)

    def _is_of_some(self, spot: Spot | None, scope: Scope) -> bool:
        """Whether a test on the rank stands around a place of a function; other tests let all ranks pass in time."""
        around = dict(spot.blocks) if spot is not None else {}
        return any(
            isinstance(statement, ast.If)
            and each.number in around
            and (
                self.ranks.read(statement.test, scope) is not None
                or self.speaks_of_ranks(statement.test, scope)
            )
            for statement, each in (kinds_of(self.files).flow(scope).statements if around else ())
        )

    def _list_makings(self, owner: Scope, start: Scope) -> tuple[tuple[Frame, ...], ...]:
        """Return the calls through which the program comes into ``__init__`` of a class, one row for each object."""
        if owner in self._makings:
            return self._makings[owner]
        ways: dict[Frame, tuple[Frame, ...]] = {}
        if owner is self.trace.owner:
            return ((),)  # whoever makes it
        for step in self.trace.steps:
            if step.frames and step.frames[-1].callee is start:
                ways.setdefault(step.frames[-1], step.frames)
            elif step.call is not None and self.files.find_class(step.call.func, step.scope) is owner:
                entry = Frame(step.call, step.scope, start)  # what makes no call in it is no step
                ways.setdefault(entry, (*step.frames, entry))
        self._makings[owner] = tuple(ways.values())
        return self._makings[owner]

    def _name_alike(self, node: ast.Name, scope: Scope, frames: tuple[Frame, ...], depth: int) -> bool:
        if RANKLIKE.search(node.id):
            return False
        found = scope.lookup(node.id)
        if found is None:
            return node.id in SETTINGS
        home, values = found
        if node.id in home.loops:
            heads = _list_heads(node.id, home)
            return bool(heads) and self._all_alike(heads, home, frames if home is scope else (), depth)
        inside = frames if home is scope else ()
        held = self._list_held(node, home, values) if home is scope else None
        if held is None:
            if node.id in home.parameters and frames and frames[-1].callee is home:
                return self._given_alike(node.id, frames, depth) and self._all_alike(
                    values[1:], scope, frames, depth
                )
            if self._is_assumed(node.id, home, inside):
                return self._all_alike(values[1:], home, inside, depth)
            return node.id in SETTINGS or self._all_alike(values, home, inside, depth)
        if node.id in SETTINGS and not (frames and node.id in home.parameters):
            return True
        return all(self._held_alike(node.id, each, home, inside, depth) for each in held)

    def _is_assumed(self, parameter: str, scope: Scope, frames: tuple[Frame, ...]) -> bool:
        """Whether it is what a method of the class is given by whoever uses it, and that is taken to be alike."""
        return (
            self._assumes
            and not frames
            and parameter in scope.parameters
            and scope.find_class() is self.trace.owner
        )

    def _given_alike(self, parameter: str, frames: tuple[Frame, ...], depth: int) -> bool:
        """Whether what the last call gives for a parameter is known to be the same on all ranks."""
        argument = find_value(frames[-1], parameter)
        if argument is None:
            return parameter in SETTINGS
        return self.alike(argument, frames[-1].scope, frames[:-1], depth + 1)

    def _list_held(
        self, node: ast.Name, scope: Scope, values: Sequence[ast.expr]
    ) -> tuple[Binding, ...] | None:
        """Return the bindings of which a variable has one where it stands; None where that is not known."""
        flow = kinds_of(self.files).flow(scope)
        known = flow.bindings.get(node.id, [])
        without = sum(each.index is not None or each.kind in ("parameter", "added") for each in known)
        if sum(each is UNKNOWN for each in values) > without or not (
            {id(each) for each in values if each is not UNKNOWN} <= {id(each.value) for each in known}
        ):
            return None  # other functions assign to it as well
        spot = flow.spot(node)
        held = flow.holding(node.id, spot) if spot is not None else None
        if not held or any(each.kind not in ("assign", "parameter", "added") for each in held):
            return None
        return held

    def _held_alike(
        self, name: str, binding: Binding, scope: Scope, frames: tuple[Frame, ...], depth: int
    ) -> bool:
        """Whether what one binding gives is known to be the same on all ranks."""
        if binding.kind == "parameter":
            if not frames or frames[-1].callee is not scope:
                return name in SETTINGS or self._is_assumed(name, scope, frames)
            return self._given_alike(name, frames, depth)
        if binding.value is None or (binding.kind == "added" and self._is_of_some(binding.spot, scope)):
            return False
        if binding.index is None:
            return self.alike(binding.value, scope, frames, depth + 1)
        return self._element_alike(binding.value, binding.index, scope, frames, depth)

    def _element_alike(
        self, node: ast.expr, index: int, scope: Scope, frames: tuple[Frame, ...], depth: int
    ) -> bool:
        """Whether one element of a tuple is known to be the same on all ranks: of what a call of the files returns."""
        called = self.files.function(node.func, scope) if isinstance(node, ast.Call) else None
        only = find_only_return(called) if called is not None else None
        if called is None or not isinstance(node, ast.Call):
            return self.alike(node, scope, frames, depth + 1)
        if not isinstance(only, ast.Tuple) or index >= len(only.elts):
            return False
        return self.alike(only.elts[index], called, (*frames, Frame(node, scope, called)), depth + 1)

    def spell(self, node: ast.expr, scope: Scope, frames: tuple[Frame, ...], depth: int) -> str:
        """Return a text that is equal for equal values; the arguments are those of `alike`."""
        if depth > DEEPEST:
            return self._text(node, scope)
        if isinstance(node, ast.Name):
            found = scope.lookup(node.id)
            if found is None:
                return node.id
            home, values = found
            if len(values) == 1 and values[0] is UNKNOWN and frames and frames[-1].callee is home:
                argument = find_value(frames[-1], node.id)
                if argument is not None:
                    return self.spell(argument, frames[-1].scope, frames[:-1], depth + 1)
            if len(values) == 1 and values[0] is not UNKNOWN:
                return self.spell(values[0], home, frames if home is scope else (), depth + 1)
            return f"{node.id}@{id(home)}"
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.Attribute):
            return self._spell_attribute(node, scope, frames, depth)
        if isinstance(node, ast.Call) and self.files.dotted(node.func, scope) in ("str", "pathlib.Path"):
            return "/".join(self.spell(each, scope, frames, depth + 1) for each in node.args)
        if isinstance(node, ast.Call) and self.files.dotted(node.func, scope) == "os.path.join":
            return "/".join(self.spell(each, scope, frames, depth + 1) for each in node.args)
        if isinstance(node, ast.JoinedStr):
            return "".join(
                self.spell(
                    each.value if isinstance(each, ast.FormattedValue) else each, scope, frames, depth + 1
                )
                for each in node.values
            )
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
            middle = "/" if isinstance(node.op, ast.Div) else ""
            sides = [self.spell(each, scope, frames, depth + 1) for each in (node.left, node.right)]
            return middle.join(sides)
        return self._text(node, scope)

    def _spell_attribute(
        self, node: ast.Attribute, scope: Scope, frames: tuple[Frame, ...], depth: int
    ) -> str:
        """Spell ``self.path`` as the attribute of the object whose method is called, where it is set only once."""
        owner = scope.find_class() if isinstance(node.value, ast.Name) and node.value.id == "self" else None
        given = find_property(owner, node.attr) if owner is not None else None
        if given is not None:
            return self.spell(*given, (), depth + 1)
        if owner is None or len(owner.attributes.get(node.attr, ())) != 1 or not frames:
            return self._text(node, scope)
        frame = frames[-1]
        called = frame.call.func
        if frame.callee is not scope or not isinstance(called, ast.Attribute):
            return self._text(node, scope)
        if isinstance(called.value, ast.Name) and called.value.id == "self":
            moved = ast.copy_location(ast.Attribute(called.value, node.attr, ast.Load()), node)
            return self.spell(moved, frame.scope, frames[:-1], depth + 1)
        return f"{self.spell(called.value, frame.scope, frames[:-1], depth + 1)}.{node.attr}"

    def _text(self, node: ast.expr, scope: Scope) -> str:
        """Return the text of what is not followed; what other functions call the same is not the same."""
        text = ast.unparse(node)
        return text if self._is_setting(node) else f"{text}@{id(scope)}"


def find_value(frame: Frame, parameter: str) -> ast.expr | None:
    """Return what a parameter is in a call: its argument, or the default; None where it cannot be told."""
    given, node = find_argument(frame.call, frame.callee, parameter), frame.callee.node
    if given is not None or isinstance(node, (ast.Module, ast.ClassDef)) or not is_spelled_out(frame.call):
        return given
    every = [*node.args.posonlyargs, *node.args.args]
    defaults = dict(zip((each.arg for each in every[::-1]), node.args.defaults[::-1], strict=False))
    keyed = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    defaults.update({each.arg: value for each, value in keyed if value is not None})
    return defaults.get(parameter)


def follow_name(
    node: ast.Name, scope: Scope, frames: tuple[Frame, ...]
) -> list[tuple[ast.expr | None, Scope, tuple[Frame, ...]]]:
    """Return what is bound to a variable, each with where it stands and the calls by which the program came there.

    A parameter is what the last call gives; None where that cannot be told.
    """
    found = scope.lookup(node.id)
    if found is None:
        return []
    home, values = found
    inside = frames if home is scope else ()
    if values == [UNKNOWN] and inside and inside[-1].callee is home:
        return [(find_value(inside[-1], node.id), inside[-1].scope, inside[:-1])]
    return [(None if each is UNKNOWN else each, home, inside) for each in values]


def _list_heads(name: str, home: Scope) -> list[ast.expr]:
    """Return what the loops go over whose variable has a name; of ``enumerate`` a number, for its counter."""
    heads: list[ast.expr] = []
    for node in own_nodes(home.node):
        if not isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            continue
        if not any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node.target)):
            continue
        head = without_bar(node.iter)
        counts = (
            isinstance(head, ast.Call) and isinstance(head.func, ast.Name) and head.func.id == "enumerate"
        )
        first = node.target.elts[0] if isinstance(node.target, ast.Tuple) else None
        counter = isinstance(first, ast.Name) and first.id == name
        heads.append(
            ast.Constant(0) if counts and counter else head if isinstance(head, ast.expr) else UNKNOWN
        )
    return heads


def without_bar(head: ast.AST) -> ast.AST:
    """Return what a progress bar goes over: that it is shown on one rank says nothing of the loop."""
    if isinstance(head, ast.Call) and head.args and "tqdm" in ast.unparse(head.func):
        return head.args[0]
    return head
