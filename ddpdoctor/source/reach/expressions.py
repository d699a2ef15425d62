"""The collectives of expressions: calls, short cuts and choices in which ranks may part."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from ddpdoctor.source.reach.opaque import Unknowns
from ddpdoctor.source.reach.sides import Call, Found, doubt, find_common, find_surplus
from ddpdoctor.source.resolve.calls import is_wrapper, name_collective
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.known import KNOWN_ROOTS
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.rank_tests import RankReader
from ddpdoctor.source.resolve.traces import Frame, find_callee
from ddpdoctor.source.resolve.tree_nodes import children
from ddpdoctor.source.resolve.walking import own_nodes
from ddpdoctor.source.sameness.alike import find_value
from ddpdoctor.source.sameness.losses import LossReader
from ddpdoctor.source.training.norms import sends_buffers
from ddpdoctor.source.training.train_loops import MODELS

SWITCHES = ("dist", "sync", "ddp", "reduce", "gather", "parallel", "all_ranks")
"""Parts of names of parameters by which a function is told whether other ranks call it as well."""
WRAPPER = "DistributedDataParallel"


class ExpressionReader:
    """Reads the expressions of all files.

    Args:
        files: all that are read together.
        ranks: what is about ranks in them.
        losses: what each rank alone has computed.
        unknowns: whether what was not given may be called.
        summarise: returns the collectives of a function.
        note: takes what only some ranks come to.
    """

    def __init__(
        self,
        files: Files,
        ranks: RankReader,
        losses: LossReader,
        unknowns: Unknowns,
        summarise: Callable[[Scope], tuple[Call, ...]],
        note: Callable[[Iterable[Found]], None],
    ) -> None:
        self.files = files
        self._ranks = ranks
        self._losses = losses
        self._unknowns = unknowns
        self._summarise = summarise
        self._note = note
        named = [each for each in files.modules if WRAPPER in each.script.text]
        self._wrapping = {each for one in named for each in files.find_related(one)}
        """Modules of programs in which a wrapper is named: elsewhere calls are not followed to what they call."""

    def list_plain(self, body: Iterable[ast.AST], scope: Scope) -> Iterator[Call]:
        """Yield the collectives that stand in a block itself, whatever the tests around them."""
        for statement in body:
            for node in (statement, *own_nodes(statement)):
                if isinstance(node, ast.Call):
                    operation = name_collective(node, scope, self.files) or self._name_backward(node, scope)
                    if operation is not None:
                        yield Call(operation, node, scope, certain=False)

    def read_all(self, nodes: Iterable[ast.AST], scope: Scope) -> tuple[Call, ...]:
        """Return the collectives of expressions of a scope, in order."""
        calls: tuple[Call, ...] = ()
        for node in nodes:
            calls += self.read(node, scope)
        return calls

    def read(self, node: ast.AST, scope: Scope) -> tuple[Call, ...]:
        """Return the collectives of an expression of a scope."""
        if isinstance(node, ast.Lambda):
            return ()
        if isinstance(node, ast.IfExp):
            return self.read(node.test, scope) + self._choice(node, scope)
        if isinstance(node, ast.BoolOp):
            return self._shortcut(node, scope)
        calls = self.read_all(children(node), scope)
        return calls + self._call(node, scope) if isinstance(node, ast.Call) else calls

    def _shortcut(self, node: ast.BoolOp, scope: Scope) -> tuple[Call, ...]:
        """``rank == 0 and barrier()``: what follows a test on the rank is below it."""
        calls = self.read(node.values[0], scope)
        for place, value in enumerate(node.values[1:], 1):
            own = self.read(value, scope)
            for before in node.values[:place] if own else ():
                difference = self._ranks.read(before, scope)
                if difference is not None:
                    side = difference if isinstance(node.op, ast.And) else difference.negate()
                    self._note([Found(call, side, "if", before, before) for call in own])
                    own = ()
            calls += doubt(own)
        return calls

    def _choice(self, node: ast.IfExp, scope: Scope) -> tuple[Call, ...]:
        """Read ``barrier() if rank == 0 else None``; return the calls of both sides where ranks do not part there."""
        left, right = self.read(node.body, scope), self.read(node.orelse, scope)
        difference = self._ranks.read(node.test, scope)
        if difference is None:
            both = left + find_surplus(right, left)
            return both if self._ranks.is_about_launch(node.test, scope) else doubt(both)
        for own, other, side, kind, lacking in (
            (left, right, difference, "if", node.orelse),
            (right, left, difference.negate(), "else", node.body),
        ):
            surplus = find_surplus(own, other) if not self._unknowns.may_call([lacking], scope) else ()
            self._note([Found(call, side, kind, node, node.test) for call in surplus])
        return find_common(left, right)

    def _call(self, node: ast.Call, scope: Scope) -> tuple[Call, ...]:
        operation = name_collective(node, scope, self.files) or self._name_backward(node, scope)
        if operation is not None:
            return (Call(operation, node, scope),)
        if is_wrapper(node, scope, self.files):
            return (Call(WRAPPER, node, scope),)
        if self._prepares_model(node, scope):
            return (Call("prepare", node, scope),)
        function = find_callee(node, scope, self.files)
        if function is not None and any(map(_switches_off, node.keywords)):
            return ()
        sent = (Call("forward", node, scope),) if self._is_forward(node, scope) else ()
        if function is None:
            return sent
        return sent + tuple(
            Call(each.operation, node, scope, each.certain, ((each.node, each.scope), *each.inner)[-1:])
            for each in self._summarise(function)
            if each.scope is not function or not _is_off(each.node, Frame(node, scope, function))
        )

    def _prepares_model(self, node: ast.Call, scope: Scope) -> bool:
        """Whether it hands a model to ``Accelerator.prepare``, which wraps it on each rank."""
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "prepare":
            return False
        kinds = kinds_of(self.files)
        given = (value for each in node.args for value in kinds.find(each, scope))
        accelerators = kinds.all_of(node.func.value, scope, "accelerator")
        return bool(accelerators) and any(each.kind in MODELS for each in given)

    def _name_backward(self, node: ast.Call, scope: Scope) -> str | None:
        """Return ``backward`` for that of a loss that a wrapped model of the same function gave."""
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "backward":
            return None
        return "backward" if self._losses.is_output(node.func.value, scope) else None

    def _is_forward(self, node: ast.Call, scope: Scope) -> bool:
        """Whether it is the call of what is a wrapped model on each way, with buffers to send."""
        if not isinstance(node.func, (ast.Name, ast.Attribute)) or scope.module not in self._wrapping:
            return False
        if (self.files.dotted(node.func, scope) or "").split(".")[0] in KNOWN_ROOTS:
            return False
        values = kinds_of(self.files).all_of(node.func, scope, "wrapped")
        return bool(values) and all(map(sends_buffers, values))


def _is_off(inner: ast.AST, entry: Frame) -> bool:
    """Whether a function comes to what stands in it only where a parameter is true that a call leaves at False."""
    function = entry.callee
    around = [
        each.test
        for each in own_nodes(function.node)
        if isinstance(each, ast.If)
        and any(node is inner for statement in each.body for node in ast.walk(statement))
    ]
    return any(
        isinstance(value := find_value(entry, name), ast.Constant)
        and value.value is False
        and all(each is UNKNOWN for each in function.bound.get(name, ()))
        and any(_needs(test, name) for test in around)
        for name in (function.parameters if around else ())
    )


def _needs(test: ast.expr, name: str) -> bool:
    """Whether a test holds only where a variable is true."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_needs(each, name) for each in test.values)
    return isinstance(test, ast.Name) and test.id == name


def _switches_off(keyword: ast.keyword) -> bool:
    """Whether ``distributed=False`` or the like tells a function that this time only one process calls it."""
    off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
    return off and any(word in (keyword.arg or "").lower() for word in SWITCHES)
