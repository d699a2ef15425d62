"""Whether all ranks come to a step of a program, and whether a value is the same on all of them.

Both are said only where they are known: a name that could be about ranks, a function that was not given, or a
parameter whose argument cannot be found make it unknown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.source.calls import JOINS
from ddpdoctor.source.known import HARMLESS, KNOWN_ROOTS
from ddpdoctor.source.names import UNKNOWN, Files, Scope
from ddpdoctor.source.ranks import ZERO, RankReader
from ddpdoctor.source.traces import Frame, Guard, Step, Trace
from ddpdoctor.source.walking import find_argument, is_spelled_out, own_nodes

RANKLIKE = re.compile(
    r"rank|main|master|primary|chief|zero|first|leader|proc|pid|node|worker|gpu|device|host|coord|local|shard"
    r"|uniq|uuid|rand|time|temp|tmp|lock|turn|slurm",
    re.IGNORECASE,
)
"""Names that may differ over ranks, or put them in an order."""
OF_RANKS = re.compile("rank|proc_id", re.IGNORECASE)
SETTINGS = frozenset({"args", "arg", "cfg", "config", "conf", "opt", "opts", "options", "hparams", "flags", "FLAGS",
                      "params", "settings", "configuration", "C", "hps", "argv"})  # fmt: skip
"""Names of what is read from the command line or a file, alike on all ranks."""
JOINING = frozenset({"os.path.join", "os.path.abspath", "os.path.expanduser", "os.path.realpath", "os.path.basename",
                     "os.path.dirname", "os.path.normpath", "str", "int", "float", "pathlib.Path", "pathlib.PurePath",
                     "os.fspath", "len", "min", "max", "round", "isinstance", "hasattr", "getattr", "bool",
                     "os.path.exists",
                     "os.path.isfile", "os.path.isdir", "os.listdir", "range", "any", "all", "torch.cuda.is_available",
                     "os.getcwd", "itertools.count", "trange", "tqdm.trange",
                     "tqdm.auto.trange", "sorted", "reversed", "list"})  # fmt: skip
"""Functions whose result is alike where their arguments are."""
TEXT_METHODS = frozenset({"format", "joinpath", "with_suffix", "as_posix", "resolve", "replace", "strip", "lower",
                          "exists", "is_dir", "is_file", "get", "item", "startswith", "endswith"})  # fmt: skip
DEEPEST = 8
_OWN_SETTINGS: WeakKeyDictionary[Files, tuple[str, ...]] = WeakKeyDictionary()


class Ways:
    """Answers for the steps of one program."""

    def __init__(self, files: Files, trace: Trace) -> None:
        self.files = files
        self.trace = trace
        self.ranks = RankReader(files)

    def may_differ(self, step: Step) -> bool:
        """Whether some ranks may not come to a step, or not at the same time."""
        return any(self._guard_differs(each, step.frames) for each in step.guards)

    def is_sure(self, step: Step) -> bool:
        """Whether each run of the program comes to a step."""
        return all(
            each.kind in ("main", "for", "with")
            or (each.kind == "decorator" and self._is_plain_decorator(each))
            or (isinstance(each.test, ast.expr) and self.ranks.is_about_launch(each.test, each.scope))
            for each in step.guards
        )

    def _is_plain_decorator(self, guard: Guard) -> bool:
        """Whether a decorator is none of the files', which may decide whether the function runs."""
        node = guard.test.func if isinstance(guard.test, ast.Call) else guard.test
        return not isinstance(node, ast.expr) or self.files.function(node, guard.scope) is None

    def only_first(self, step: Step) -> Guard | None:
        """Return the guard that lets rank 0 alone come to a step."""
        for guard in step.guards:
            if guard.kind in ("if", "else", "unless") and isinstance(guard.test, ast.expr):
                read = self.ranks.read(guard.test, guard.scope)
                if read is not None and read.key == ZERO and read.positive == guard.positive:
                    return guard
        return None

    def without_first(self, step: Step) -> bool:
        """Whether rank 0 never comes to a step."""
        for guard in step.guards:
            if guard.kind in ("if", "else", "unless") and isinstance(guard.test, ast.expr):
                read = self.ranks.read(guard.test, guard.scope)
                if read is not None and read.key == ZERO and read.positive != guard.positive:
                    return True
        return False

    @staticmethod
    def is_straight(step: Step) -> bool:
        """Whether no test at all stands before a step."""
        return all(each.kind in ("main", "for") for each in step.guards)

    def is_on_ranks(self, step: Step) -> bool:
        """Whether each run that becomes a rank comes to a step.

        No test stands before it but those before the rank joins its group: ``if args.distributed`` before both.
        """
        tests = {each for each in step.guards if each.kind not in ("main", "for")}
        return not tests or any(tests <= set(each.guards) for each in self.trace.steps if each.name in JOINS)

    def is_foreign(self, step: Step) -> bool:
        """Whether a step calls what may do anything: a function or method that was not given and is none of torch's."""
        if step.known or step.call is None:
            return False
        function = step.call.func
        last = function.attr if isinstance(function, ast.Attribute) else step.name
        if last in HARMLESS or step.name.split(".")[0] in KNOWN_ROOTS:
            return False
        if self.files.find_class(function, step.scope) is not None:
            return False  # one without an __init__ of its own
        while isinstance(function, ast.Attribute):
            function = function.value
        if isinstance(function, ast.Call):
            return False  # a method of what a call gave, which is a step of its own
        if not isinstance(function, ast.Name):
            return True
        found = step.scope.lookup(function.id)
        if found is None or function is step.call.func:
            return True
        return not all(self._is_tame(value, found[0]) for value in found[1])

    def _is_tame(self, value: ast.expr, scope: Scope) -> bool:
        """Whether a value was made by one of the packages that make no groups of the user's."""
        if isinstance(value, ast.Call):
            return (self.files.dotted(value.func, scope) or "").split(".")[0] in KNOWN_ROOTS
        return isinstance(value, (ast.Dict, ast.List, ast.Set, ast.Tuple, ast.JoinedStr)) or (
            isinstance(value, ast.Constant) and value is not UNKNOWN
        )

    def tell(self, rule: str, step: Step, *, beside: Step | None = None, **details: str) -> SourceFact:
        """Return what a rule sees in a step.

        Args:
            rule: what is seen.
            step: where the line stands that has to change.
            beside: another step that belongs to it.
            details: what the words of the finding need.
        """
        related = () if beside is None else (RelatedPlace("noticed", beside.scope.place(beside.node)),)
        return SourceFact(
            rule, step.scope.place(step.node), related=related, details=details, certain=self.is_sure(step)
        )

    def is_alike(self, value: ast.expr, step: Step) -> bool:
        """Whether a value is known to be the same on all ranks."""
        return self._alike(value, step.scope, step.frames, 0)

    def spell(self, value: ast.expr, step: Step) -> str:
        """Return a text that is equal for equal values, with variables and parameters replaced by what they are."""
        return self._spell(value, step.scope, step.frames, 0)

    def _guard_differs(self, guard: Guard, frames: tuple[Frame, ...]) -> bool:
        if guard.kind in ("main", "try"):
            return False
        if guard.kind in ("except", "case"):
            return True
        if guard.kind == "for":
            return bool(OF_RANKS.search(ast.unparse(_without_bar(guard.test))))
        decorator = guard.test if guard.kind == "decorator" and isinstance(guard.test, ast.expr) else None
        if decorator is not None and self.ranks.read_decorator(decorator, guard.scope) is not None:
            return True
        if guard.kind in ("with", "decorator"):
            call = guard.test.func if isinstance(guard.test, ast.Call) else guard.test
            name = self.files.dotted(call, guard.scope) if isinstance(call, ast.expr) else None
            return not (name or "").startswith("torch.") and bool(RANKLIKE.search(ast.unparse(guard.test)))
        test = guard.test
        if not isinstance(test, ast.expr) or self.ranks.read(test, guard.scope) is not None:
            return True
        if self.ranks.is_about_launch(test, guard.scope):
            return False
        if self._speaks_of_ranks(test, guard.scope):
            return True
        return not self._plain(test, guard.scope, frames, 0)

    def _plain(self, test: ast.expr, scope: Scope, frames: tuple[Frame, ...], depth: int) -> bool:
        """Whether a test is about nothing that could make ranks differ."""
        if isinstance(test, ast.BoolOp):
            return all(
                self.ranks.is_about_launch(each, scope) or self._plain(each, scope, frames, depth)
                for each in test.values
            )
        if isinstance(test, ast.UnaryOp):
            return self._plain(test.operand, scope, frames, depth)
        if isinstance(test, ast.Compare):
            # numbers that were computed decide for each rank, but mean no rank
            return all(self._number_or_alike(each, scope, frames) for each in (test.left, *test.comparators))
        return self._alike(test, scope, frames, depth)

    def _number_or_alike(self, node: ast.expr, scope: Scope, frames: tuple[Frame, ...]) -> bool:
        if RANKLIKE.search(ast.unparse(node)):
            return False
        if isinstance(node, ast.BinOp):
            return all(self._number_or_alike(each, scope, frames) for each in (node.left, node.right))
        if isinstance(node, (ast.Name, ast.Constant)):
            return not (isinstance(node, ast.Name) and self._is_parameter(node, scope)) or self._alike(
                node, scope, frames, 0
            )
        return self._alike(node, scope, frames, 0)

    @staticmethod
    def _is_parameter(node: ast.Name, scope: Scope) -> bool:
        found = scope.lookup(node.id)
        return found is not None and found[1][:1] == [UNKNOWN] and node.id not in found[0].loops

    def _alike(self, node: ast.expr, scope: Scope, frames: tuple[Frame, ...], depth: int) -> bool:
        if depth > DEEPEST:
            return False
        if isinstance(node, ast.Constant):
            return node is not UNKNOWN
        if isinstance(node, ast.JoinedStr):
            return self._all_alike(node.values, scope, frames, depth)
        if isinstance(node, ast.FormattedValue):
            return self._alike(node.value, scope, frames, depth)
        if isinstance(
            node, (ast.BinOp, ast.IfExp, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Tuple, ast.List)
        ):
            children = (each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr))
            return self._all_alike(children, scope, frames, depth)
        if isinstance(node, ast.Subscript):
            return self._is_setting(node.value) and not RANKLIKE.search(ast.unparse(node))
        if isinstance(node, ast.Call):
            return self._call_alike(node, scope, frames, depth)
        if isinstance(node, ast.Attribute):
            return self._attribute_alike(node, scope, frames, depth)
        if isinstance(node, ast.Name):
            return self._name_alike(node, scope, frames, depth)
        return False

    def _all_alike(
        self, nodes: Iterable[ast.expr], scope: Scope, frames: tuple[Frame, ...], depth: int
    ) -> bool:
        return all(self._alike(each, scope, frames, depth + 1) for each in nodes)

    def _call_alike(self, node: ast.Call, scope: Scope, frames: tuple[Frame, ...], depth: int) -> bool:
        values = [*node.args, *(each.value for each in node.keywords)]
        name = self.files.dotted(node.func, scope)
        if name in JOINING:
            return self._all_alike(values, scope, frames, depth)
        if isinstance(node.func, ast.Attribute) and node.func.attr in TEXT_METHODS:
            return self._all_alike([node.func.value, *values], scope, frames, depth)
        return False

    def _speaks_of_ranks(self, node: ast.AST, scope: Scope) -> bool:
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
        if self.files not in _OWN_SETTINGS:
            _OWN_SETTINGS[self.files] = tuple(
                ast.unparse(target)
                for module in self.files.modules
                for scope in module.walk()
                for node in own_nodes(scope.node)
                if isinstance(node, ast.Assign)
                for target in node.targets
                if isinstance(target, (ast.Attribute, ast.Subscript)) and self._is_of_settings(target)
                if RANKLIKE.search(ast.unparse(node.value)) or self._speaks_of_ranks(node.value, scope)
            )
        return _OWN_SETTINGS[self.files]

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
        if self._is_setting(node):
            return not RANKLIKE.search(ast.unparse(node))
        owner = scope.find_class() if isinstance(node.value, ast.Name) and node.value.id == "self" else None
        if owner is None:
            return False
        start = owner.functions.get("__init__")
        values = owner.attributes.get(node.attr, [])
        if not values or start is None:
            return False
        made = [each for step in self.trace.steps for each in step.frames[-1:] if each.callee is start]
        entries = dict.fromkeys(made)
        if not entries:
            return False
        return all(
            self._alike(value, start, (*_frames_to(self.trace, entry), entry), depth + 1)
            for value in values
            for entry in entries
        )

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
        if values[0] is UNKNOWN and frames and frames[-1].callee is home:
            argument = find_value(frames[-1], node.id)
            if argument is None:
                return node.id in SETTINGS
            if len(values) > 1 and not self._all_alike(values[1:], scope, frames, depth):
                return False
            return self._alike(argument, frames[-1].scope, frames[:-1], depth + 1)
        if node.id in SETTINGS:
            return True
        inside = frames if home is scope else ()
        return self._all_alike(values, home, inside, depth)

    def _spell(self, node: ast.expr, scope: Scope, frames: tuple[Frame, ...], depth: int) -> str:
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
                    return self._spell(argument, frames[-1].scope, frames[:-1], depth + 1)
            if len(values) == 1 and values[0] is not UNKNOWN:
                return self._spell(values[0], home, frames if home is scope else (), depth + 1)
            return f"{node.id}@{id(home)}"
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.Call) and self.files.dotted(node.func, scope) in ("str", "pathlib.Path"):
            return "/".join(self._spell(each, scope, frames, depth + 1) for each in node.args)
        if isinstance(node, ast.Call) and self.files.dotted(node.func, scope) == "os.path.join":
            return "/".join(self._spell(each, scope, frames, depth + 1) for each in node.args)
        if isinstance(node, ast.JoinedStr):
            return "".join(
                self._spell(
                    each.value if isinstance(each, ast.FormattedValue) else each, scope, frames, depth + 1
                )
                for each in node.values
            )
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
            middle = "/" if isinstance(node.op, ast.Div) else ""
            sides = [self._spell(each, scope, frames, depth + 1) for each in (node.left, node.right)]
            return middle.join(sides)
        return self._text(node, scope)

    def _text(self, node: ast.expr, scope: Scope) -> str:
        """Return the text of what is not followed; what other functions call the same is not the same."""
        text = ast.unparse(node)
        return text if self._is_setting(node) else f"{text}@{id(scope)}"


def _frames_to(trace: Trace, entry: Frame) -> tuple[Frame, ...]:
    """Return the calls through which a program comes to a call."""
    return next((step.frames[:-1] for step in trace.steps if step.frames[-1:] == (entry,)), ())


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


def _list_heads(name: str, home: Scope) -> list[ast.expr]:
    """Return what the loops go over whose variable has a name; of ``enumerate`` a number, for its counter."""
    heads: list[ast.expr] = []
    for node in own_nodes(home.node):
        if not isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            continue
        if not any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node.target)):
            continue
        head = _without_bar(node.iter)
        counts = (
            isinstance(head, ast.Call) and isinstance(head.func, ast.Name) and head.func.id == "enumerate"
        )
        first = node.target.elts[0] if isinstance(node.target, ast.Tuple) else None
        counter = isinstance(first, ast.Name) and first.id == name
        heads.append(
            ast.Constant(0) if counts and counter else head if isinstance(head, ast.expr) else UNKNOWN
        )
    return heads


def _without_bar(head: ast.AST) -> ast.AST:
    """Return what a progress bar goes over: that it is shown on one rank says nothing of the loop."""
    if isinstance(head, ast.Call) and head.args and "tqdm" in ast.unparse(head.func):
        return head.args[0]
    return head
