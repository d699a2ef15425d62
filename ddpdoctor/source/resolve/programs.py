"""Which files make one program, and whether it is distributed."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import compress

from ddpdoctor.source.resolve.calls import JOINS, MESHES
from ddpdoctor.source.resolve.known import SIZES
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.objects import WRAPPERS
from ddpdoctor.source.resolve.rank_tests import VARIABLES, RankReader
from ddpdoctor.source.resolve.walking import find_argument, find_calls, is_main_guard, own_nodes

ALL_JOINS = JOINS | MESHES | {"deepspeed.init_distributed", "horovod.torch.init"}
"""Functions by which a program becomes a rank, whichever library has them."""
FRAMEWORKS = frozenset({"accelerate.Accelerator", "lightning.Fabric", "lightning.fabric.Fabric",
                        "lightning_fabric.Fabric", "accelerate.PartialState"})  # fmt: skip
DISTRIBUTED = re.compile(
    r"(?:(?:is|use|using|with|run|enable)_)?(?:distributed|ddp)(?:_(?:run|train|training|mode|enabled|launch))?"
    r"|(?:is|use)_dist(?:_avail_and_initialized|_initialized)?|dist_(?:enabled|train|training|run)|is_initialized"
    r"|is_torchelastic_launched"
)
"""Names that say whether the job has several ranks."""
SYSTEM = {"os.name": "posix", "sys.platform": "linux", "platform.system": "Linux"}
"""What names the operating system, and what it is where jobs of several GPUs run: NCCL is for Linux alone."""
SEVERAL: frozenset[tuple[type[ast.cmpop], object]] = frozenset({(ast.Gt, 1), (ast.GtE, 2), (ast.NotEq, 1)})
ALONE: frozenset[tuple[type[ast.cmpop], object]] = frozenset({(ast.Eq, 1), (ast.LtE, 1), (ast.Lt, 2)})
"""Comparisons with a number of ranks that hold where there are several, and where there is one."""
RANKED: frozenset[tuple[type[ast.cmpop], object]] = frozenset(
    {(ast.NotEq, -1), (ast.GtE, 0), (ast.Gt, -1), (ast.IsNot, None)}
)
UNRANKED: frozenset[tuple[type[ast.cmpop], object]] = frozenset(
    {(ast.Eq, -1), (ast.Lt, 0), (ast.Is, None), (ast.LtE, -1)}
)
"""The same of a rank, which is -1 or None in a run without ranks."""
DEEPEST = 4
"""Values that are followed into one another."""


class Programs:
    """Knows which of the files belong together.

    Args:
        files: all that are read together.
        callers: returns the calls of a function, each with the scope in which it stands.
    """

    def __init__(self, files: Files, callers: Callable[[Scope], Iterable[tuple[ast.Call, Scope]]]) -> None:
        self._files = files
        self._callers = callers
        self._ranks = RankReader(files)
        numbers = {module: number for number, module in enumerate(files.modules)}
        imports = [{numbers[each] for each in files.imported(module)} for module in files.modules]
        importers: list[set[int]] = [set() for _ in imports]
        for number, own in enumerate(imports):
            for each in own:
                importers[each].add(number)
        self._numbers = numbers
        self._below, self._above = follow_all(imports), follow_all(importers)
        self._together: dict[int, int] = {}
        self._listed: dict[int, tuple[Scope, ...]] = {}
        self._joins: dict[Scope, bool] = {}
        self._distributed: dict[int, bool] = {}
        self._calls: dict[Scope, tuple[tuple[ast.Call, Scope, str], ...]] = {}
        self._named: dict[tuple[Scope, frozenset[str]], tuple[tuple[ast.Call, Scope, str], ...]] = {}
        self._answers: dict[Callable[..., bool], dict[Scope, bool]] = {}
        self._mentioning: dict[str, int] = {}

    def members(self, module: Scope) -> tuple[Scope, ...]:
        """Return the module, those that import it, and all that these import; further steps of either included."""
        return self._list(self._find_members(module))

    def _find_members(self, module: Scope) -> int:
        above = self._above[self._numbers[module]]
        if above not in self._together:
            found, missing = 0, above
            while missing:
                found |= self._below[missing.bit_length() - 1]
                missing &= ~found
            self._together[above] = found
        return self._together[above]

    def _list(self, members: int) -> tuple[Scope, ...]:
        """Return the modules of which the bits are set, in the order of the files."""
        if members not in self._listed:
            marks = (mark == "1" for mark in reversed(f"{members:b}"))
            self._listed[members] = tuple(compress(self._files.modules, marks))
        return self._listed[members]

    def with_importers(self, module: Scope) -> tuple[Scope, ...]:
        """Return a module, and those that import it, directly or not."""
        return self._list(self._above[self._numbers[module]])

    def of_script(self, module: Scope) -> tuple[Scope, ...]:
        """Return what runs with a script: all that it imports; of a module without a main guard, its `members`."""
        if not any(isinstance(each, ast.If) and is_main_guard(each.test) for each in module.node.body):
            return self.members(module)
        return self._list(self._below[self._numbers[module]])

    def is_distributed(self, module: Scope) -> bool:
        """Whether a program to which a module belongs becomes one rank of several."""
        above = self._above[self._numbers[module]]
        if above not in self._distributed:
            self._distributed[above] = any(map(self._joins_group, self._list(above)))
        return self._distributed[above]

    def _joins_group(self, module: Scope) -> bool:
        if module not in self._joins:
            self._joins[module] = self._reaches_join(module)
        return self._joins[module]

    def calls(
        self, module: Scope, names: frozenset[str] | None = None
    ) -> Iterator[tuple[ast.Call, Scope, str]]:
        """Yield the calls in all files of a program, with the dotted name of what is called.

        Args:
            module: one of the program.
            names: of what alone; all where they are not given.
        """
        for member in self.members(module):
            if names is None:
                yield from self.list_calls(member)
            elif (member, names) in self._named:
                yield from self._named[member, names]
            else:
                found = tuple(each for each in self.list_calls(member) if each[2] in names)
                self._named[member, names] = found
                yield from found

    def list_calls(self, member: Scope) -> tuple[tuple[ast.Call, Scope, str], ...]:
        """Return the calls in one file, in the same way."""
        if member not in self._calls:
            self._calls[member] = tuple(
                (call, scope, name) for scope in member.walk() for call, name in self._files.name_calls(scope)
            )
        return self._calls[member]

    @cached_property
    def _calling(self) -> dict[str, set[Scope]]:
        found: dict[str, set[Scope]] = {}
        for member in self._files.modules:
            for _, scope, name in self.list_calls(member):
                found.setdefault(name, set()).add(scope)
        return found

    def scopes_calling(self, asks: Iterable[str] | Callable[[str], bool]) -> set[Scope]:
        """Return the functions of all files, classes and modules in which something is called by its dotted name.

        Args:
            asks: the names, or what is asked of each.
        """
        names = filter(asks, self._calling) if callable(asks) else asks
        return set().union(*(self._calling.get(name, ()) for name in names))

    def any_file(self, module: Scope, asks: Callable[..., bool], *more: object) -> bool:
        """Whether something holds of any file of a program; each file is asked once, however many programs it is in.

        Args:
            module: one of the program.
            asks: a function of a module's scope; of a file alone, and not of the program.
            more: what it is given beside, the same each time.
        """
        answers = self._answers.setdefault(asks, {})
        for member in self.members(module):
            if member not in answers:
                answers[member] = asks(member, *more)
            if answers[member]:
                return True
        return False

    def mentions(self, module: Scope, word: str) -> bool:
        """Whether a word stands in any file of a program: without it, what it names need not be looked for.

        Args:
            module: one of the program.
            word: part of a line.
        """
        if word not in self._mentioning:
            self._mentioning[word] = sum(
                1 << number for number, each in enumerate(self._files.modules) if word in each.script.text
            )
        return self._mentioning[word] & self._find_members(module) != 0

    def side(self, test: ast.expr, scope: Scope, depth: int = 0) -> bool | None:
        """Return which side of a test a run of several ranks takes; None where both may be."""
        if depth > DEEPEST:
            return None
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.side(test.operand, scope, depth + 1)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            sides = [self.side(each, scope, depth + 1) for each in test.values]
            decided = isinstance(test.op, ast.Or)
            if decided in sides:
                return decided
            return None if None in sides else not decided
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            if self._compares_class(test, scope):
                return isinstance(test.ops[0], (ast.Eq, ast.Is))
            side = self._compare(test.left, test.ops[0], test.comparators[0], scope)
            return None if side and self._leaves_early(test, scope) else side
        if isinstance(test, ast.Call) and self._asks_for_wrapper(test, scope):
            return True
        call = test.func if isinstance(test, ast.Call) else test
        if self._files.dotted(call, scope) in ("torch.cuda.is_available", "torch.distributed.is_available"):
            return True  # the other side is for a machine to try it on
        last = (self._files.dotted(call, scope) or "").rpartition(".")[2].lower()
        if DISTRIBUTED.fullmatch(last):
            return None if "initialized" in last and self._leaves_early(test, scope) else True
        if isinstance(test, ast.Call) and not test.args and not test.keywords:
            side = self._side_of_function(test, scope, depth)
            return None if side and self._leaves_early(test, scope) else side
        if isinstance(test, ast.Name):
            found = scope.lookup(test.id)
            if found is not None and len(found[1]) == 1:
                return self.side(found[1][0], found[0], depth + 1)
        return None

    def _leaves_early(self, test: ast.expr, scope: Scope) -> bool:
        """Whether a function that makes the process group does so where a test does not hold, or goes on there only.

        So it is the test whether that was done before: the first time it does not hold.
        """
        joins = [call for call in find_calls(scope) if self._files.dotted(call.func, scope) in ALL_JOINS]
        return bool(joins) and any(
            isinstance(node, ast.If)
            and any(each is test for each in ast.walk(node.test))
            and (
                isinstance(node.body[-1], (ast.Return, ast.Raise))
                or any(inner in joins for each in node.orelse for inner in ast.walk(each))
                or (
                    any(
                        isinstance(each, ast.UnaryOp) and each.operand is test for each in ast.walk(node.test)
                    )
                    and any(inner in joins for each in node.body for inner in ast.walk(each))
                )
            )
            for node in own_nodes(scope.node)
        )

    def _side_of_function(self, call: ast.Call, scope: Scope, depth: int) -> bool | None:
        """Return the side of a test that a function of the files makes: ``return dist.is_initialized()``."""
        function = self._files.function(call.func, scope)
        body = getattr(function.node, "body", None) if function is not None else None
        last = body[-1] if isinstance(body, list) and body else None
        others = body[:-1] if isinstance(body, list) else []
        if function is None or not isinstance(last, ast.Return) or last.value is None:
            return None
        if not all(isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in others):
            return None
        return self.side(last.value, function, depth + 1)

    def _asks_for_wrapper(self, test: ast.Call, scope: Scope) -> bool:
        """Whether it is ``isinstance(model, DistributedDataParallel)`` or ``hasattr(model, "module")``."""
        if not isinstance(test.func, ast.Name) or len(test.args) != 2:
            return False
        second = test.args[1]
        if test.func.id == "hasattr":
            return isinstance(second, ast.Constant) and second.value == "module"
        classes = second.elts if isinstance(second, ast.Tuple) else [second]
        return test.func.id == "isinstance" and any(
            self._files.dotted(each, scope) in WRAPPERS for each in classes
        )

    def _compares_class(self, test: ast.Compare, scope: Scope) -> bool:
        """Whether it is ``type(model) == DistributedDataParallel``, or not that."""
        left = test.left
        return (
            isinstance(left, ast.Call)
            and isinstance(left.func, ast.Name)
            and left.func.id == "type"
            and isinstance(test.ops[0], (ast.Eq, ast.NotEq, ast.Is, ast.IsNot))
            and self._files.dotted(test.comparators[0], scope) in WRAPPERS
        )

    def _compare(self, left: ast.expr, operator: ast.cmpop, right: ast.expr, scope: Scope) -> bool | None:
        if isinstance(operator, (ast.In, ast.NotIn)):
            about = isinstance(left, ast.Constant) and left.value in (*VARIABLES, "WORLD_SIZE")
            environ = self._files.dotted(right, scope) == "os.environ"
            return isinstance(operator, ast.In) if about and environ else None
        value = _constant(right)
        called = left.func if isinstance(left, ast.Call) else left
        system = SYSTEM.get(self._files.dotted(called, scope) or "")
        if system and isinstance(value, str) and isinstance(operator, (ast.Eq, ast.NotEq)):
            return (value == system) is isinstance(operator, ast.Eq)
        if self._is_size(left, scope):
            several, alone = SEVERAL, ALONE
        elif self._ranks.rank(left, scope) is not None:
            several, alone = RANKED, UNRANKED
        else:
            return None
        key = type(operator), value
        return True if key in several else False if key in alone else None

    def _is_size(self, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
        """Whether it is the number of ranks: by its name, or because that is what it was set to."""
        if isinstance(node, ast.Call) and self._files.dotted(node.func, scope) == "int" and node.args:
            return self._is_size(node.args[0], scope, depth)
        if isinstance(node, ast.Name) and (found := scope.lookup(node.id)) is not None and depth < DEEPEST:
            home, values = found
            if len(values) == 1 and values[0] is not UNKNOWN and self._is_size(values[0], home, depth + 1):
                return True
            if (
                values == [UNKNOWN]
                and node.id in home.parameters
                and self._is_given_size(node.id, home, depth)
            ):
                return True
        if isinstance(node, ast.Call) and self._files.dotted(node.func, scope) in (
            "os.environ.get",
            "os.getenv",
        ):
            return (
                bool(node.args)
                and isinstance(node.args[0], ast.Constant)
                and node.args[0].value == "WORLD_SIZE"
            )
        if isinstance(node, ast.Subscript):
            return isinstance(node.slice, ast.Constant) and node.slice.value == "WORLD_SIZE"
        called = node.func if isinstance(node, ast.Call) else node
        return (self._files.dotted(called, scope) or "").rpartition(".")[2].lower() in SIZES

    def _is_given_size(self, parameter: str, function: Scope, depth: int) -> bool:
        """Whether each call of a function gives it the number of ranks for a parameter."""
        calls = list(self._callers(function))
        given = [(find_argument(call, function, parameter), home) for call, home in calls]
        return bool(calls) and all(
            value is not None and self._is_size(value, home, depth + 1) for value, home in given
        )

    def _reaches_join(self, module: Scope) -> bool:
        """Whether code of a module, or functions that it calls, make the process a rank."""
        waiting, seen = list(module.walk()), set(module.walk())
        while waiting:
            scope = waiting.pop()
            for call in find_calls(scope):
                if (self._files.dotted(call.func, scope) or "") in ALL_JOINS | FRAMEWORKS:
                    return True
                called = self._files.function(call.func, scope)
                if called is not None and called not in seen:
                    seen.add(called)
                    waiting.append(called)
        return False


def follow_all(steps: Sequence[Iterable[int]]) -> list[int]:
    """Return where any number of steps lead from each module, itself included, each as an integer with their bits.

    Modules that lead to each other have the same: the components of Tarjan's algorithm, which come after all that
    they lead to.

    Args:
        steps: of each module, the numbers of those to which one step leads.
    """
    found = [0] * len(steps)
    order = [0] * len(steps)
    """When each was met first, counted from 1; and of those that are open, when the first was that it leads to."""
    lowest = [0] * len(steps)
    opened: list[int] = []
    met = 0
    for start in range(len(steps)):
        if order[start]:
            continue
        met += 1
        order[start] = lowest[start] = met
        opened.append(start)
        way = [(start, iter(steps[start]))]
        while way:
            module, further = way[-1]
            for each in further:
                if not order[each]:
                    met += 1
                    order[each] = lowest[each] = met
                    opened.append(each)
                    way.append((each, iter(steps[each])))
                    break
                if not found[each]:  # open: it leads back to this one
                    lowest[module] = min(lowest[module], order[each])
            else:
                way.pop()
                if way:
                    lowest[way[-1][0]] = min(lowest[way[-1][0]], lowest[module])
                if lowest[module] == order[module]:
                    circle = [opened.pop()]
                    while circle[-1] != module:
                        circle.append(opened.pop())
                    bits = sum(1 << each for each in circle)
                    for each in {inner for one in circle for inner in steps[one]}:
                        bits |= found[each]
                    for each in circle:
                        found[each] = bits
    return found


def _constant(node: ast.expr) -> object:
    if (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
    ):
        value = node.operand.value
        return -value if isinstance(value, int) else ...
    return node.value if isinstance(node, ast.Constant) else ...
