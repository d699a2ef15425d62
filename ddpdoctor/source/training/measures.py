"""Numbers that a rank measures on data of its own: what a model gives for them, and what is made of that.

A rank's own data are the batches of a loader with a DistributedSampler, and what is made with its rank in a sum or in a
slice (``sample(seed + rank)``, ``rows[rank::world]``) or drawn from what is seeded by it. A length says nothing of what
is measured. What may join the results of ranks is not known here: who asks has to look at the program
(`training.passes.joins_results`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.source.files.budget import spend
from ddpdoctor.source.resolve.calls import SAMPLERS
from ddpdoctor.source.resolve.kinds import Kinds
from ddpdoctor.source.resolve.names import Scope
from ddpdoctor.source.resolve.rank_tests import RankReader
from ddpdoctor.source.resolve.walking import find_argument, own_nodes
from ddpdoctor.source.sameness.losses import JOINING
from ddpdoctor.source.sameness.seeding import is_by_rank
from ddpdoctor.source.training.train_loops import MODELS, loaders_of, samplers_of

DATA = "data"
"""What differs across ranks because it is made for each."""
MEASURED = "measured"
"""What a model gave for such data, or a number made of that."""
MODEL = "model"
"""A parameter that is given a model: what it gives for such data is measured."""
SIZES = frozenset(
    {"len", "size", "shape", "numel", "dim", "batch_size", "range", "print", "isinstance", "hasattr"}
)
"""Names of what is about the same on each rank."""
PLACING = frozenset({"to", "cuda", "device"})
DRAWS = "<draws>"
"""Stands among variables where the generator that all draw from is seeded by the rank."""
SEEDS = frozenset({"torch.manual_seed", "torch.random.manual_seed"})
DRAWN = frozenset({"torch.randn", "torch.rand", "torch.randint", "torch.normal", "torch.randperm"})
DEEPEST = 4
"""Functions that are followed into one another."""
ROUNDS = 3
"""Passes over the statements of a function, so that what a loop adds up is known before the loop as well."""

Known = dict[str, str]
"""Variable -> `DATA` or `MEASURED`."""


class MeasureReader:
    """Finds what variables of functions hold of a rank's own.

    Args:
        kinds: what values are.
    """

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._ranks = RankReader(kinds.files)
        self._returned: dict[tuple[Scope, tuple[tuple[str, str], ...]], str | None] = {}
        self._attributes: dict[tuple[Scope, str], str | None] = {}
        self._known: dict[tuple[Scope, tuple[tuple[str, str], ...]], Known] = {}
        self._open = 0

    def find(self, scope: Scope, given: tuple[tuple[str, str], ...] = ()) -> Known:
        """Return which variables of a function are a rank's own.

        Args:
            scope: the function.
            given: what it is given for its parameters, of what is a rank's own.
        """
        key = scope, given
        if key not in self._known:
            self._known[key] = {}  # while it is followed
            self._known[key] = self._find(scope, dict(given))
        return self._known[key]

    def read(self, node: ast.expr, scope: Scope, known: Known) -> str | None:
        """Return `DATA` or `MEASURED` for a value that is a rank's own, None for every other.

        Args:
            node: the value.
            scope: where it stands.
            known: variables of that function that are a rank's own.
        """
        spend()
        if isinstance(node, ast.Name):
            return own if (own := known.get(node.id)) != MODEL else None
        if isinstance(node, ast.Call):
            return self._read_call(node, scope, known)
        if isinstance(node, ast.Attribute):
            if node.attr in SIZES:
                return None
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                return self._read_attribute(node.attr, scope)
            return self.read(node.value, scope, known)
        if isinstance(node, ast.Subscript):
            mine = self._has_rank(node.slice, scope)
            return self.read(node.value, scope, known) or (DATA if mine else None)
        if isinstance(node, ast.IfExp):
            return self._join((node.body, node.orelse), scope, known)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            inner = known | self._bind_loops(node, scope, known)
            return self.read(node.elt, scope, inner)
        if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List, ast.Starred, ast.Compare)):
            parts = (each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr))
            return self._join(parts, scope, known)
        return None

    def _join(
        self, parts: Iterator[ast.expr] | tuple[ast.expr, ...], scope: Scope, known: Known
    ) -> str | None:
        found = {self.read(each, scope, known) for each in parts}
        return MEASURED if MEASURED in found else DATA if DATA in found else None

    def _bind_loops(self, node: ast.ListComp | ast.GeneratorExp, scope: Scope, known: Known) -> Known:
        found: Known = {}
        for each in node.generators:
            own = self._read_iterated(each.iter, scope, known | found)
            if own is not None:
                found.update(dict.fromkeys(_list_bound(each.target), own))
        return found

    def _find(self, scope: Scope, known: Known) -> Known:
        for _ in range(ROUNDS):
            before = dict(known)
            known.pop(DRAWS, None)
            for statement, spot in self._kinds.flow(scope).statements:
                if spot.is_on:
                    self._note(statement, scope, known)
            if known == before:
                break
        return known

    def _note(self, statement: ast.stmt, scope: Scope, known: Known) -> None:
        """Note what a statement binds to a value of the rank's own."""
        if isinstance(statement, (ast.Assign, ast.AugAssign)):
            own = self.read(statement.value, scope, known)
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if own is not None:
                for target in targets:
                    known.update(dict.fromkeys(_list_bound(target), own))
        elif isinstance(statement, (ast.For, ast.AsyncFor)):
            own = self._read_iterated(statement.iter, scope, known)
            if own is not None:
                known.update({name: own for name in _list_bound(statement.target)})
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            if (self._kinds.files.dotted(call.func, scope) or "") in SEEDS and call.args:
                known.pop(DRAWS, None)
                known.update({DRAWS: DATA} if is_by_rank(call.args[0], scope, self._ranks) else {})
            elif isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
                # `losses.append(loss)`, `meter.add(loss, n)`: the object has it then
                own = self._join(tuple(call.args), scope, known)
                name = call.func.value.id
                if own is MEASURED and name in scope.bound and name not in scope.parameters:
                    known[name] = own

    def _read_iterated(self, node: ast.expr, scope: Scope, known: Known) -> str | None:
        """Return what the elements of what a loop goes over are."""
        loaders = loaders_of(node, scope, self._kinds)
        samplers = [samplers_of(each, self._kinds) for each in loaders]
        if samplers and all(own and all(each.name in SAMPLERS for each in own) for own in samplers):
            return DATA  # whichever loader a caller gives
        return self.read(node, scope, known)

    def _read_call(self, node: ast.Call, scope: Scope, known: Known) -> str | None:
        name = self._kinds.files.dotted(node.func, scope) or ""
        last = name.rpartition(".")[2] or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
        if last == "range" and len(node.args) > 1 and self._has_rank(node.args[0], scope):
            return DATA  # numbers of samples, from the rank on
        if last in SIZES or JOINING.search(last) or name.startswith("torch.distributed."):
            return None
        values = [*node.args, *(each.value for each in node.keywords)]
        if DRAWS in known and name in DRAWN and all(each.arg != "generator" for each in node.keywords):
            return DATA
        if last in PLACING and isinstance(node.func, ast.Attribute):
            return self.read(node.func.value, scope, known)
        given = self._join(tuple(values), scope, known)
        passed = isinstance(node.func, ast.Name) and known.get(node.func.id) == MODEL
        if given is not None and (passed or self._kinds.all_of(node.func, scope, *MODELS)):
            return MEASURED
        called = self._kinds.called(node, scope)
        if called is not None:
            return self._read_function(node, called, scope, known)
        if isinstance(node.func, ast.Attribute):
            given = given or self.read(node.func.value, scope, known)
        if given is None and any(self._has_sum(each, scope) for each in values):
            return DATA
        return given

    def _read_function(self, call: ast.Call, called: Scope, scope: Scope, known: Known) -> str | None:
        """Return what a function of the files gives for what it is given here."""
        if self._open >= DEEPEST or called.name is None or called.name.endswith("__init__"):
            return None
        pairs: dict[str, str] = {}
        starred = self._join(tuple(each for each in call.args if isinstance(each, ast.Starred)), scope, known)
        for each in called.parameters:
            argument = find_argument(call, called, each)
            own = self.read(argument, scope, known) if argument is not None else None
            if own is None and argument is not None and self._has_sum(argument, scope):
                own = DATA
            own = own or (starred if argument is None and each != "self" else None)
            if own is None and argument is not None and self._kinds.all_of(argument, scope, *MODELS):
                own = MODEL
            if own is not None:
                pairs[each] = own
        key = called, tuple(sorted(pairs.items()))
        if key not in self._returned:
            self._returned[key] = None
            self._open += 1
            inner = self.find(*key)
            values = (each.value for each in own_nodes(called.node) if isinstance(each, ast.Return))
            self._returned[key] = self._join(
                tuple(each for each in values if each is not None), called, inner
            )
            self._open -= 1
        return self._returned[key]

    def _read_attribute(self, name: str, scope: Scope) -> str | None:
        """Return what an attribute of ``self`` is, by what any method binds it to."""
        owner = scope.find_class()
        if owner is None:
            return None
        key = owner, name
        if key not in self._attributes:
            self._attributes[key] = None
            if self._open < DEEPEST:
                self._open += 1
                found = {
                    self.read(value, home, self.find(home))
                    for value in owner.attributes.get(name, ())
                    if (home := owner.makers.get(value)) is not None
                }
                self._open -= 1
                self._attributes[key] = MEASURED if MEASURED in found else DATA if DATA in found else None
        return self._attributes[key]

    def _has_sum(self, node: ast.AST, scope: Scope) -> bool:
        """Whether the rank is added to something, or multiplied, in an argument: a seed or a place of its own."""
        return any(
            isinstance(each, ast.BinOp)
            and isinstance(each.op, (ast.Add, ast.Sub, ast.Mult))
            and self._has_rank(each, scope)
            for each in (node, *own_nodes(node))
        )

    def _has_rank(self, node: ast.AST, scope: Scope) -> bool:
        named = (each for each in ast.walk(node) if isinstance(each, (ast.Name, ast.Attribute, ast.Call)))
        return any(self._ranks.rank(each, scope) is not None for each in named)


def _list_bound(target: ast.expr) -> Iterator[str]:
    """Yield the variables that an assignment binds."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, (ast.Tuple, ast.List)):
        for each in target.elts:
            yield from _list_bound(each)
    elif isinstance(target, ast.Starred):
        yield from _list_bound(target.value)
