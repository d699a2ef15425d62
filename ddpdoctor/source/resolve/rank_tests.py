"""Rank dependence: which tests come out differently on different ranks, and how that is known."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ddpdoctor.source.files.statements import walk_statements
from ddpdoctor.source.resolve.assigned import list_given
from ddpdoctor.source.resolve.known import SIZES
from ddpdoctor.source.resolve.local_ranks import is_local_rank
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.properties import find_property
from ddpdoctor.source.resolve.texts import read_number, read_text
from ddpdoctor.source.resolve.walking import find_argument, is_none, keep

VARIABLES = frozenset({"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK",
                       "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "GROUP_RANK"})  # fmt: skip
RANKS = frozenset({"rank", "local_rank", "global_rank", "world_rank", "dist_rank", "ddp_rank", "ddp_local_rank",
                   "proc_id", "process_index", "local_process_index"})  # fmt: skip
"""Names that mean the rank wherever distributed training is written."""
RANK_CALLS = frozenset({"get_rank", "get_local_rank", "get_global_rank"})
FIRST = frozenset({"is_main_process", "is_local_main_process", "is_main", "is_master", "is_master_process",
                   "master_process", "main_process", "is_rank_zero", "is_rank_0", "is_rank0", "rank_zero",
                   "is_global_zero", "is_first_rank", "is_primary", "is_chief"})  # fmt: skip
"""Names that mean "this is rank 0"."""
FIRST_ONLY = frozenset({"rank_zero_only", "rank0_only", "master_only", "main_process_only", "on_main_process",
                        "on_local_main_process", "only_on_master", "run_on_rank_zero"})  # fmt: skip
"""Names of decorators whose function runs on rank 0 only."""
CLOCKS = frozenset({"time.time", "time.perf_counter", "time.monotonic", "time.time_ns", "time.monotonic_ns",
                    "time.perf_counter_ns"})  # fmt: skip
HOSTS = frozenset({"socket.gethostname", "socket.getfqdn", "platform.node"})
OF_TENSORS = frozenset({"dim", "size", "ndimension", "numel", "item", "argmax", "index", "matrix_rank"})
"""Methods that give numbers which are no ranks."""
CONVERSIONS = frozenset({"int", "str", "float"})
DEEPEST = 8
"""Assignments that are followed to the source of a value."""
ZERO = "zero"
HELPER = "helper"
MEMBER = "member"
"""Whether the rank is one of some that are listed elsewhere: what such ranks do in a group of their own is theirs, but
a group is made by all ranks."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What makes a test come out differently."""

    origin: str
    """rank, host, clock, member, or helper for what is by its name true on rank 0 only."""
    traced: bool
    """Whether it was followed to its source, not only known by a name."""
    key: str
    """What is asked; tests of one key are the same question."""
    positive: bool = True
    """Whether the test asks it as the key has it, or the opposite."""
    certain: bool = True
    """Whether nothing else decides as well."""
    local: bool = False
    """Whether the rank in the node is asked for: each node has one that is 0."""

    def negate(self) -> Difference:
        """Return the difference of the opposite test."""
        return replace(self, positive=not self.positive)


class RankReader:
    """Says of tests whether ranks differ in them."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._read: dict[tuple[ast.expr, Scope], Difference | None] = {}
        self._rank: dict[tuple[ast.expr, Scope], bool | None] = {}
        self._decorators: dict[Scope, Difference | None] = {}

    def read(self, test: ast.expr, scope: Scope, depth: int = 0) -> Difference | None:
        """Return how ranks differ in a test; None where they agree or it cannot be told."""
        key = test, scope
        if depth > DEEPEST or key in self._read:
            return self._read.get(key)
        self._read[key] = None  # what is asked again while it is followed leads in a circle
        found = self._read[key] = self._read_test(test, scope, depth)
        return found

    def _read_test(self, test: ast.expr, scope: Scope, depth: int) -> Difference | None:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.read(test.operand, scope, depth + 1)
            return inner.negate() if inner else None
        if isinstance(test, ast.BoolOp):
            return self._read_both(test, scope, depth)
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return self._compare(test, scope, depth)
        if isinstance(test, ast.NamedExpr):
            return self.read(test.value, scope, depth + 1)
        if isinstance(test, (ast.Name, ast.Attribute)):
            return self._read_name(test, scope, depth)
        if isinstance(test, ast.Call):
            return self._read_call(test, scope, depth)
        return None

    def read_decorator(self, node: ast.expr, scope: Scope) -> Difference | None:
        """Return how ranks differ in whether a decorated function runs; None where they agree or it cannot be told."""
        name = node.func if isinstance(node, ast.Call) else node
        decorator = self.files.function(name, scope)
        if decorator is None:
            last = (self.files.dotted(name, scope) or "").rpartition(".")[2]
            return Difference(HELPER, False, ZERO) if last in FIRST_ONLY else None
        if decorator not in self._decorators:
            self._decorators[decorator] = self._read_wrapper(decorator)
        return self._decorators[decorator]

    def _read_wrapper(self, decorator: Scope) -> Difference | None:
        """Return how ranks differ in whether what a decorator makes calls the function that it is given."""
        for wrapper in decorator.functions.values() if decorator.parameters else ():
            total = _count_calls([wrapper.node], decorator.parameters[0])
            for test in ast.walk(wrapper.node):
                if isinstance(test, ast.If) and not test.orelse:
                    below = _count_calls(test.body, decorator.parameters[0])
                    difference = self.read(test.test, wrapper) if below else None
                    if difference is not None:
                        return difference if below == total else None
        return None

    def is_about_launch(self, test: ast.expr, scope: Scope) -> bool:
        """Whether a test only asks if the job is distributed at all, which it is where anything can hang."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self.is_about_launch(test.operand, scope)
        if isinstance(test, ast.BoolOp):
            return all(self.is_about_launch(each, scope) for each in test.values)
        if isinstance(test, ast.Compare):
            sides = [test.left, *test.comparators]
            return any(self._last(each, scope) in _WORLD for each in sides) or (
                any((read_number(each) or 0) < 0 or is_none(each) for each in sides)
                and any(
                    self.rank(each, scope) is not None
                    for each in sides
                    if isinstance(each, ast.Call) or self._last(each, scope) in RANKS
                )
            )
        last = self._last(test, scope)
        return last in _LAUNCH or last in _WORLD

    def _last(self, node: ast.expr, scope: Scope) -> str:
        call = node.func if isinstance(node, ast.Call) else node
        return (self.files.dotted(call, scope) or "").rpartition(".")[2].lower()

    def _read_both(self, test: ast.BoolOp, scope: Scope, depth: int) -> Difference | None:
        read = [(each, self.read(each, scope, depth + 1)) for each in test.values]
        found = [inner for _, inner in read if inner is not None]
        if not found:
            return None
        others = [each for each, inner in read if inner is None and not self.is_about_launch(each, scope)]
        certain = not others and all(each.certain for each in found)
        if len(found) == 1:
            return replace(found[0], certain=certain)
        return Difference(
            found[0].origin, all(each.traced for each in found), ast.dump(test), certain=certain
        )

    def _compare(self, test: ast.Compare, scope: Scope, depth: int) -> Difference | None:
        left, operator, right = test.left, test.ops[0], test.comparators[0]
        if isinstance(operator, (ast.Is, ast.IsNot)) and is_none(right):
            present = self._read_presence(left, scope, depth)
            if present is not None:
                return present if isinstance(operator, ast.IsNot) else present.negate()
        rank = self.rank(left, scope, depth)
        if rank is None and isinstance(operator, (ast.Eq, ast.NotEq)):
            left, right = right, left
            rank = self.rank(left, scope, depth)
        if rank is not None:
            found = self._compare_rank(rank, left, operator, right, scope)
            return replace(found, local=is_local_rank(left, scope, self.files)) if found else None
        for origin, names in (("clock", CLOCKS), ("host", HOSTS)):
            if any(self._mentions(each, names, scope) for each in (left, right)):
                return Difference(origin, True, ast.dump(test), certain=False)
        return None

    def _compare_rank(
        self, traced: bool, left: ast.expr, operator: ast.cmpop, right: ast.expr, scope: Scope
    ) -> Difference | None:
        positive = not isinstance(operator, (ast.NotEq, ast.NotIn))
        key = f"{ast.dump(left)} {ast.dump(right)}"
        if isinstance(operator, (ast.Eq, ast.NotEq)):
            value = read_number(right)
            if value is None:
                fixed = (
                    isinstance(right, ast.Call) or self._is_size(right, scope) or self._is_block(right, scope)
                )
                return Difference("rank", traced, key, positive) if fixed else None
            return None if value < 0 else Difference("rank", traced, _key(left, value), positive)
        if isinstance(operator, (ast.In, ast.NotIn)) and isinstance(right, (ast.List, ast.Tuple, ast.Set)):
            values = [read_number(each) for each in right.elts]
            known = sorted({value for value in values if value is not None and value >= 0})
            if not known or None in values:
                return None
            return Difference("rank", traced, _key(left, known[0]) if len(known) == 1 else key, positive)
        if isinstance(operator, (ast.In, ast.NotIn)):
            return Difference(MEMBER, traced, key, positive, certain=False)
        value = read_number(right)
        zero = {(ast.Gt, 0): False, (ast.GtE, 1): False, (ast.Lt, 1): True, (ast.LtE, 0): True}
        if value is not None and (type(operator), value) in zero:
            return Difference("rank", traced, _key(left, 0), zero[type(operator), value])
        if value is not None and value > 0 and isinstance(operator, (ast.Gt, ast.GtE, ast.Lt, ast.LtE)):
            least = value + isinstance(operator, (ast.Gt, ast.LtE))
            up = isinstance(operator, (ast.Gt, ast.GtE))
            return Difference("rank", traced, f"{ast.dump(left)} >= {least}", up)
        if value is None and isinstance(operator, (ast.Lt, ast.LtE)) and self._is_part(right, scope):
            return Difference(MEMBER, traced, key, certain=False)
        return None

    def _is_part(self, node: ast.expr, scope: Scope) -> bool:
        """Whether it is a number of some of the ranks, as ``cfg.learners`` is, and not that of all."""
        return isinstance(node, (ast.Name, ast.Attribute)) and self._last(node, scope) not in _WORLD

    def _is_size(self, node: ast.expr, scope: Scope) -> bool:
        """Whether it is ``world_size - 1`` or the like."""
        return (
            isinstance(node, ast.BinOp)
            and self._last(node.left, scope) in _WORLD
            and read_number(node.right) is not None
        )

    def _is_block(self, node: ast.expr, scope: Scope) -> bool:
        """Whether it is the first rank of a block, ``rank // size * size``: that of some ranks alone."""
        found = self._values(node, scope) if isinstance(node, (ast.Name, ast.Attribute)) else None
        if found is not None and len(found[1]) == 1:
            node, scope = found[1][0], found[0].makers.get(found[1][0], found[0])
        return (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Mult)
            and any(
                isinstance(each, ast.BinOp)
                and isinstance(each.op, ast.FloorDiv)
                and self.rank(each.left, scope) is not None
                for each in (node.left, node.right)
            )
        )

    def _mentions(self, node: ast.expr, names: frozenset[str], scope: Scope) -> bool:
        """Whether a value comes from a call of one of ``names``, by arithmetic and assignments alone."""
        waiting = [(node, scope)]
        seen: set[ast.expr] = (
            set()
        )  # a variable that is bound anew again and again leads to all of its values
        for each, home in waiting:
            if isinstance(each, ast.Call):
                if self.files.dotted(each.func, home) in names:
                    return True
            elif isinstance(each, ast.BinOp):
                waiting += [(each.left, home), (each.right, home)]
            elif isinstance(each, ast.Name) and each.id not in self.files.find_reduced(home):
                where, values = home.lookup(each.id) or (home, [])
                waiting += [(value, where) for value in values if value not in seen]
                seen.update(values)
        return False

    def _read_name(self, node: ast.Name | ast.Attribute, scope: Scope, depth: int) -> Difference | None:
        if isinstance(node, ast.Name) and node.id in self.files.find_reduced(scope):
            return None
        present = self._read_presence(node, scope, depth)
        if present is not None:
            return replace(present, certain=False)  # what is bound may be empty or zero
        found = self._values(node, scope)
        if found and found[1] == [UNKNOWN] and isinstance(node, ast.Name) and node.id in found[0].parameters:
            given = self._read_given(node.id, found[0], depth)
            if given is not None:
                return given
        home, values = found if found is not None else (scope, [])
        reads = [self.read(each, home.makers.get(each, home), depth + 1) for each in _known(values)]
        for read in reads:
            if read is not None:
                # what is bound to something else as well may have been agreed on
                return read if found and _all_read(_known(found[1]), reads) else None
        if found and any(self._is_text(value, found[0]) for value in found[1]):
            return None  # of a text only whether it is there is asked
        last = node.id if isinstance(node, ast.Name) else node.attr
        if last in FIRST and (
            found is None or all(v is UNKNOWN or isinstance(v, ast.Call) for v in found[1])
        ):
            return Difference(HELPER, False, ZERO, local="local" in last)
        rank = self.rank(node, scope, depth)
        return Difference("rank", True, ZERO, positive=False) if rank else None

    def _read_given(self, parameter: str, function: Scope, depth: int) -> Difference | None:
        """Return how ranks differ in a parameter: where all calls of the function ask ranks for it, and in one way."""
        kept: Difference | None = None
        for call, home in self.files.objects.callers(function):
            given = find_argument(call, function, parameter)
            read = self.read(given, home, depth + 1) if given is not None else None
            if read is None or (kept is not None and (read.key, read.positive) != (kept.key, kept.positive)):
                return None
            kept = read if kept is None else replace(kept, certain=kept.certain and read.certain)
        return kept

    def _read_presence(self, node: ast.expr, scope: Scope, depth: int) -> Difference | None:
        """Return how ranks differ in whether a variable is None: it is bound to more below a test on the rank alone."""
        found = scope.lookup(node.id) if isinstance(node, ast.Name) else None
        if not isinstance(node, ast.Name) or found is None:
            return None
        if any(node.id in self.files.find_reduced(each) for each in (scope, found[0])):
            return None
        home, values = found
        if (
            not any(is_none(each) for each in values)
            or len(values) < 2
            or isinstance(home.node, ast.ClassDef)
        ):
            return None
        given = list(list_given(home.node.body, node.id, ()))
        if len(given) != len(values):
            return None  # bound by a loop, a ``with`` or another function as well
        kept: Difference | None = None
        for value, tests in given:
            if is_none(value):
                continue
            reads = [(self.read(test, home, depth + 1), positive) for test, positive in tests]
            own = next(((each, positive) for each, positive in reads if each is not None), None)
            if own is None or own[0].origin not in ("rank", HELPER):
                return None
            side = own[0] if own[1] else own[0].negate()
            certain = side.certain and len(tests) == 1
            if kept is not None and (kept.key, kept.positive) != (side.key, side.positive):
                return None
            kept = replace(side, certain=certain and (kept is None or kept.certain))
        return kept

    def _read_call(self, call: ast.Call, scope: Scope, depth: int) -> Difference | None:
        if isinstance(call.func, ast.Name) and call.func.id == "bool" and len(call.args) == 1:
            return self.read(call.args[0], scope, depth + 1)
        function = self.files.function(call.func, scope)
        if function is not None:
            for value in _returned(function):
                read = self.read(value, function, depth + 1)
                if read is not None:
                    return read
            return Difference("rank", True, ZERO, positive=False) if self.rank(call, scope, depth) else None
        last = self._last(call, scope)
        if last in FIRST:
            return Difference(HELPER, False, ZERO, local="local" in last)
        if self._is_text(call, scope):
            return None
        return Difference("rank", True, ZERO, positive=False) if self.rank(call, scope, depth) else None

    def _is_text(self, node: ast.expr, scope: Scope) -> bool:
        """Whether it is a variable of the environment as it stands there."""
        if isinstance(node, ast.Call):
            return self.files.dotted(node.func, scope) in ("os.environ.get", "os.getenv")
        return isinstance(node, ast.Subscript) and self.files.dotted(node.value, scope) == "os.environ"

    def rank(self, node: ast.expr, scope: Scope, depth: int = 0) -> bool | None:
        """Whether a value is a rank: True traced to its source, False by its name only, None where it is none."""
        key = node, scope
        if depth > DEEPEST or key in self._rank:
            return self._rank.get(key)
        self._rank[key] = None
        found = self._rank[key] = self._find_rank(node, scope, depth)
        return found

    def _find_rank(self, node: ast.expr, scope: Scope, depth: int) -> bool | None:
        if isinstance(node, ast.Call):
            return self._rank_of_call(node, scope, depth)
        if isinstance(node, ast.Subscript):
            environ = self.files.dotted(node.value, scope) == "os.environ"
            return True if environ and read_text(node.slice) in VARIABLES else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mod, ast.FloorDiv, ast.Add, ast.Sub)):
            return self.rank(node.left, scope, depth + 1)
        if isinstance(node, ast.IfExp):
            sides = [self.rank(each, scope, depth + 1) for each in (node.body, node.orelse)]
            return next((each for each in sides if each is not None), None)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._rank_of_name(node, scope, depth)
        return None

    def _rank_of_call(self, node: ast.Call, scope: Scope, depth: int) -> bool | None:
        name = self.files.dotted(node.func, scope) or ""
        if name in ("torch.distributed.get_rank", "torch.distributed.get_node_local_rank"):
            return True
        if name in ("os.environ.get", "os.getenv"):
            return True if node.args and read_text(node.args[0]) in VARIABLES else None
        if name in CONVERSIONS and len(node.args) == 1:
            return self.rank(node.args[0], scope, depth + 1)
        function = self.files.function(node.func, scope)
        if function is not None:
            found = [self.rank(value, function, depth + 1) for value in _returned(function)]
            return next((each for each in found if each is not None), None)
        return False if name.rpartition(".")[2] in RANK_CALLS else None

    def _rank_of_name(self, node: ast.Name | ast.Attribute, scope: Scope, depth: int) -> bool | None:
        found = self._values(node, scope)
        if isinstance(node, ast.Name) and found is not None:
            home = found[0]
            if node.id in home.loops:
                return None
            if home.spawned and home.parameters and home.parameters[0] == node.id:
                return True
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = scope.lookup(node.value.id)
            if owner is not None and node.value.id in owner[0].loops:
                return None  # of one of several things
        last = node.id if isinstance(node, ast.Name) else node.attr
        values = found[1] if found is not None else []
        read = (
            [self.rank(v, found[0].makers.get(v, found[0]), depth + 1) for v in _known(values)]
            if found
            else []
        )
        known = [each for each in read if each is not None]
        if known:
            return any(known) if _all_read(_known(values), read) else None
        computed = any(
            not isinstance(value, (ast.Constant, ast.Name, ast.Attribute, ast.Call)) or _is_size(value)
            for value in values
        )
        if last in RANKS and not computed:
            return False
        parameter = values == [UNKNOWN] and found is not None and last in found[0].parameters
        return self._rank_of_given(last, found[0], depth) if found and parameter else None

    def _rank_of_given(self, parameter: str, function: Scope, depth: int) -> bool | None:
        """Whether all calls of a function give it a rank for a parameter."""
        found: list[bool] = []
        for call, home in self.files.objects.callers(function):
            given = find_argument(call, function, parameter)
            traced = self.rank(given, home, depth + 1) if given else None
            if traced is None:
                return None
            found.append(traced)
        return all(found) if found else None

    def _values(self, node: ast.Name | ast.Attribute, scope: Scope) -> tuple[Scope, list[ast.expr]] | None:
        if isinstance(node, ast.Name):
            return scope.lookup(node.id)
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            owner = scope.find_class()
            if owner is not None and node.attr in owner.attributes:
                return owner, owner.attributes[node.attr]
            given = (
                (find_property(each, node.attr) for each in self.files.objects.bases(owner))
                if owner is not None
                else ()
            )
            found = next((each for each in given if each is not None), None)
            return (found[1], [found[0]]) if found is not None else None
        made = self.files.find_made(node.value, scope)
        return (made, made.attributes[node.attr]) if made and node.attr in made.attributes else None


def _known(values: Iterable[ast.expr]) -> list[ast.expr]:
    return [each for each in values if each is not UNKNOWN]


def _all_read(values: Iterable[ast.expr], reads: Iterable[object]) -> bool:
    """Whether each value that is no constant was read."""
    pairs = zip(values, reads, strict=True)
    return all(read is not None or isinstance(value, ast.Constant) for value, read in pairs)


def _is_size(value: ast.expr) -> bool:
    """Whether it is a number that is no rank's: spelled out, or that of a tensor."""
    if isinstance(value, ast.Constant):
        return type(value.value) is int and value.value > 0
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in OF_TENSORS
    )


_WORLD = SIZES | {"n_gpu", "ngpus", "num_gpus"}
_LAUNCH = frozenset({"is_initialized", "is_available", "distributed", "ddp", "is_distributed", "use_ddp", "multi_gpu",
                     "is_dist_avail_and_initialized", "is_dist_initialized", "is_torchelastic_launched"})  # fmt: skip


def _key(left: ast.expr, value: int) -> str:
    """The question "is this rank 0" is one, whatever the rank is called; others are by their text."""
    return ZERO if value == 0 and not isinstance(left, ast.BinOp) else f"{ast.dump(left)} {value}"


def _returned(function: Scope) -> list[ast.expr]:
    return list(keep(function.node, "_returned", _list_returned))


def _list_returned(function: ast.AST) -> Iterator[ast.expr]:
    return (
        each.value
        for each in walk_statements(function)
        if isinstance(each, ast.Return) and each.value is not None
    )


def _count_calls(nodes: Iterable[ast.AST], name: str) -> int:
    return sum(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == name
        for node in nodes
        for each in ast.walk(node)
    )
