"""Which collectives some ranks reach and others do not: the two sides of each test are compared, call by call.

Blocks are read from their end, so that at each test it is known what a rank misses that leaves there. What cannot be
told is passed over: a call with a group of its own, a test that is not followed to a rank, a side that calls functions
that were not given.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ddpdoctor.evidence.sources import UnevenCall
from ddpdoctor.source.files.budget import spend
from ddpdoctor.source.reach.expressions import ExpressionReader
from ddpdoctor.source.reach.opaque import Unknowns
from ddpdoctor.source.reach.sides import (
    Call,
    Found,
    doubt,
    drop_pairs,
    find_common,
    find_surplus,
    is_met_outside,
    join_sides,
    tell_uneven,
)
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.rank_tests import Difference, RankReader
from ddpdoctor.source.resolve.tree_nodes import children
from ddpdoctor.source.resolve.walking import TRIES, find_calls, name_last, own_nodes
from ddpdoctor.source.sameness.contents import BatchReader
from ddpdoctor.source.sameness.handlers import Handlers
from ddpdoctor.source.sameness.losses import LossReader
from ddpdoctor.source.sameness.reduced import ReducedReader

MOST_CALLS = 64
"""Collectives of one block that are kept; further ones would change nothing."""
DEEPEST_CALLS = 12
"""Functions that are followed into one another."""
JOINS_GROUP = frozenset({"torch.distributed.init_process_group"})
DESTROYS = "torch.distributed.destroy_process_group"
EXITS: dict[type[ast.stmt], str] = {
    ast.Return: "return",
    ast.Break: "break",
    ast.Continue: "continue",
    ast.Raise: "raise",
}
FORKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.IfExp, ast.BoolOp, *TRIES)
"""What may lead ranks different ways."""
JOINS = ("join", "Join")
RAISES = ("assertRaises", "assertRaisesRegex", "raises")


@dataclass(frozen=True, slots=True)
class _After:
    """What comes after a block, by the way in which it may be left."""

    ends: tuple[Call, ...] = ()
    """To the end of the function."""
    loop: tuple[Call, ...] = ()
    """To the end of the loop around, with its further rounds."""
    turn: tuple[Call, ...] = ()
    """To the end of this round."""


class PathReader:
    """Reads the functions of all files."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._ranks = RankReader(files)
        self._summaries: dict[Scope, tuple[Call, ...]] = {}
        self._in_turn: dict[Scope, bool] = {}
        self._open: list[Scope] = []
        self._found: dict[Scope, list[Found]] = {}
        self._ways: list[list[Found]] = []
        self._losses = LossReader(files)
        self._batches = BatchReader(files)
        files.find_reduced = ReducedReader(files).find_all
        self._handlers = Handlers(files, self._differs, self._ranks.rank)
        self._unknowns = Unknowns(files, self.summarise)
        self._reader = ExpressionReader(
            files, self._ranks, self._losses, self._unknowns, self.summarise, self._note
        )
        for module in files.modules:
            for scope in module.walk():
                self._mark_spawned(scope)

    def _note(self, found: Iterable[Found]) -> None:
        self._ways[-1] += found

    def find(self, module: Scope) -> tuple[UnevenCall, ...]:
        """Return the uneven calls of one module, in order of their lines."""
        told: list[UnevenCall] = []
        parting = [scope for scope in module.walk() if self._may_part(scope)]
        for scope in parting:
            self.summarise(scope)
        every = [each for scope in parting for each in self._found.get(scope, [])]
        # one half of "rank 0 first" may stand in another function, such as __enter__ and __exit__
        met = set(map(id, drop_pairs([each for each in every if each.call.operation == "barrier"])))
        for scope in parting:
            found = [
                each
                for each in self._found.get(scope, [])
                if (each.call.operation != "barrier" or id(each) in met)
                and not is_met_outside(each, scope, self._ranks)
            ]
            told += tell_uneven(drop_pairs(found))
        return tuple(sorted(told, key=lambda each: (each.call.cell or 0, each.call.line, each.call.column)))

    def _may_part(self, scope: Scope) -> bool:
        """Whether ranks may go different ways in a function: in most none can, and nothing there is compared."""
        decorators = getattr(scope.node, "decorator_list", ())
        return any(self._ranks.read_decorator(each, scope.outer or scope) for each in decorators) or any(
            self._parts(node, scope) for node in own_nodes(scope.node) if isinstance(node, FORKS)
        )

    def _parts(self, node: ast.AST, scope: Scope) -> bool:
        if isinstance(node, ast.If):
            return self._differs(node.test, scope) is not None
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            head = node.test if isinstance(node, ast.While) else node.iter
            return self._rounds(head, node, scope) is not None
        if isinstance(node, ast.IfExp):
            return self._ranks.read(node.test, scope) is not None
        if isinstance(node, ast.BoolOp):
            return any(self._ranks.read(each, scope) for each in node.values[:-1])
        return any(
            self._handlers.is_of_one_rank(each, getattr(node, "body", []), scope, trains=True)
            for each in getattr(node, "handlers", ())
        )

    def _mark_spawned(self, scope: Scope) -> None:
        """Note what mp.spawn starts."""
        for node in find_calls(scope):
            name = self.files.dotted(node.func, scope) or ""
            if name in ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes") and node.args:
                function = self.files.function(node.args[0], scope)
                if function is not None:
                    function.spawned = True

    def summarise(self, scope: Scope) -> tuple[Call, ...]:
        """Return the collectives that each rank makes which calls a function (or runs a module)."""
        if scope in self._summaries:
            return self._summaries[scope]
        if scope in self._open or len(self._open) > DEEPEST_CALLS:
            return ()
        self._open.append(scope)
        self._ways.append([])
        try:
            calls = self._block(scope.node.body, scope, _After())
            calls = self._decorate(scope, calls)
        finally:
            self._open.pop()
            found = self._ways.pop()
        self._found[scope] = found
        self._summaries[scope] = calls
        return calls

    def _decorate(self, scope: Scope, calls: tuple[Call, ...]) -> tuple[Call, ...]:
        """A function that a decorator runs on some ranks only gives its callers no call; its own are uneven."""
        for decorator in getattr(scope.node, "decorator_list", ()):
            difference = self._ranks.read_decorator(decorator, scope.outer or scope)
            if difference is not None:
                name = decorator.func if isinstance(decorator, ast.Call) else decorator
                self._ways[-1] += [Found(call, difference, "decorator", decorator, name) for call in calls]
                return ()
        return calls

    def _block(self, body: Sequence[ast.stmt], scope: Scope, after: _After) -> tuple[Call, ...]:
        """Return the calls of a block."""
        tail: tuple[Call, ...] = ()
        start = len(self._ways[-1])
        for statement in reversed(body):
            name = self._name_statement(statement, scope)
            if name in JOINS_GROUP:
                # before there is a group, nothing is a collective, and who leaves there is not in it
                self._ways.append([])
                self._statement(statement, scope, _After())
                self._ways.pop()
                return tail
            if name == DESTROYS and not self._destroys_one(statement):
                tail = ()
                del self._ways[-1][start:]
            further = _After(tail + after.ends, tail + after.loop, tail + after.turn)
            spend(1 + len(further.ends) + len(further.loop) + len(further.turn))
            if isinstance(statement, ast.If):
                own, sure = self._if(statement, scope, further)
                # who leaves in it does not make what comes after
                tail = own + (tail if sure else doubt(find_surplus(tail, own)))
            else:
                tail = self._statement(statement, scope, further) + tail
            tail = tail[:MOST_CALLS]
        return tail

    def _name_statement(self, statement: ast.stmt, scope: Scope) -> str:
        """Return what a statement calls, where it is one call and nothing else."""
        call = statement.value if isinstance(statement, ast.Expr) else None
        return (self.files.dotted(call.func, scope) or "") if isinstance(call, ast.Call) else ""

    @staticmethod
    def _destroys_one(statement: ast.stmt) -> bool:
        """Whether it destroys a group that is named."""
        call = statement.value if isinstance(statement, ast.Expr) else None
        return isinstance(call, ast.Call) and bool(call.args or call.keywords)

    def _statement(self, node: ast.stmt, scope: Scope, after: _After) -> tuple[Call, ...]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return ()
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            return self._loop(node, scope, after)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            calls = self._reader.read_all((each.context_expr for each in node.items), scope)
            managers = [each.context_expr for each in node.items if isinstance(each.context_expr, ast.Call)]
            if any(name_last(each.func) in RAISES for each in managers):
                return calls
            if any(name_last(each.func) in JOINS for each in managers):
                self._ways.append([])  # within it ranks may differ in their rounds
                self._block(node.body, scope, after)
                self._ways.pop()
                return calls
            if any(name_last(each.func) == "no_sync" for each in managers):
                return calls + self._unsynchronised(node, scope, after)
            return calls + self._block(node.body, scope, after)
        if isinstance(node, TRIES):
            return self._try(node, scope, after)
        if isinstance(node, ast.Match):
            sides = [self._block(case.body, scope, after) for case in node.cases]
            return self._reader.read_all([node.subject], scope) + doubt(join_sides(sides))
        return self._reader.read_all(children(node), scope)

    def _unsynchronised(
        self, node: ast.With | ast.AsyncWith, scope: Scope, after: _After
    ) -> tuple[Call, ...]:
        """Read a ``no_sync``: a backward within it is no collective."""
        self._ways.append([])
        calls = self._block(node.body, scope, after)
        found = self._ways.pop()
        self._ways[-1] += [each for each in found if each.call.operation != "backward"]
        return tuple(each for each in calls if each.operation != "backward")

    def _try(self, node: ast.stmt, scope: Scope, after: _After) -> tuple[Call, ...]:
        last = self._block(getattr(node, "finalbody", []), scope, after)
        further = _After(last + after.ends, last + after.loop, last + after.turn)
        body = self._block(getattr(node, "body", []), scope, further)
        rest = self._block(getattr(node, "orelse", []), scope, further)
        trains = any(each.operation == "backward" for each in body)
        quiet = not body and not self._unknowns.may_call(getattr(node, "body", []), scope)
        for handler in getattr(node, "handlers", []):
            own = self._block(handler.body, scope, further)
            alone = self._handlers.is_of_one_rank(handler, getattr(node, "body", []), scope, trains=trains)
            if quiet and alone:
                self._compare_handler(handler, own, rest, further, scope)
            elif alone and not self._unknowns.may_call(handler.body, scope):
                self._skip_backward(handler, own, body, scope)
        return body + rest + last

    def _compare_handler(
        self,
        handler: ast.ExceptHandler,
        own: tuple[Call, ...],
        rest: tuple[Call, ...],
        after: _After,
        scope: Scope,
    ) -> None:
        """Note what only the rank makes that an error brings to a handler, or what it misses by leaving there."""
        difference = Difference("error", True, ast.dump(handler), certain=False)
        test = handler.type or ast.Name("BaseException")
        way = self._exit(handler.body, scope)
        if way not in ("raise", "exit"):
            others = rest + (_rest(way, after) if way else ())
            surplus = [(call, "except") for call in find_surplus(own, others)]
            surplus += [(call, way) for call in find_surplus(others, own) if way]
            self._ways[-1] += [Found(call, difference, kind, handler, test) for call, kind in surplus]

    def _skip_backward(
        self, handler: ast.ExceptHandler, own: tuple[Call, ...], body: tuple[Call, ...], scope: Scope
    ) -> None:
        """Note the backward that a rank misses which passes over an error in its forward."""
        way = self._exit(handler.body, scope)
        if way in ("raise", "exit") or any(isinstance(each, ast.Raise) for each in own_nodes(handler)):
            return
        difference = Difference("error", True, ast.dump(handler), certain=False)
        test = handler.type or ast.Name("BaseException")
        missed = [each for each in find_surplus(body, own) if each.operation == "backward"]
        self._ways[-1] += [Found(each, difference, way or "skip", handler, test) for each in missed]

    def _loop(
        self, node: ast.For | ast.AsyncFor | ast.While, scope: Scope, after: _After
    ) -> tuple[Call, ...]:
        again = tuple(self._reader.list_plain(node.body, scope))
        inside = _After(again + after.ends, again, ())
        body = self._block(node.body, scope, inside)
        head: ast.expr = node.test if isinstance(node, ast.While) else node.iter
        calls = self._reader.read_all([head], scope)
        difference = self._rounds(head, node, scope)
        if difference is not None:
            kind = "while" if isinstance(node, ast.While) else "for"
            self._ways[-1] += [Found(call, difference, kind, node, head) for call in body]
            body = ()
        body = tuple(replace(each, repeated=True) for each in body)
        return calls + body + self._block(node.orelse, scope, after)

    def _is_in_turn(self, scope: Scope) -> bool:
        """Whether another loop of the function makes up for the rounds: ``range(world_size - rank)``."""
        if scope not in self._in_turn:
            self._in_turn[scope] = self._finds_turn(scope)
        return self._in_turn[scope]

    def _finds_turn(self, scope: Scope) -> bool:
        ends = [
            each.args[-1]
            for each in find_calls(scope)
            if each.args and self.files.dotted(each.func, scope) == "range"
        ]
        return any(
            isinstance(end, ast.BinOp)
            and isinstance(end.op, ast.Sub)
            and self._ranks.rank(end.right, scope) is not None
            for end in ends
        )

    def _rounds(self, head: ast.expr, node: ast.stmt, scope: Scope) -> Difference | None:
        """Return how ranks differ in the number of rounds of a loop."""
        if isinstance(node, ast.While):
            return self._differs(head, scope)
        if (
            not isinstance(head, ast.Call)
            or self.files.dotted(head.func, scope) != "range"
            or len(head.args) != 1
        ):
            return None
        traced = self._ranks.rank(head.args[0], scope)
        return (
            None if traced is None or self._is_in_turn(scope) else Difference("rank", traced, ast.dump(head))
        )

    def _if(self, node: ast.If, scope: Scope, after: _After) -> tuple[tuple[Call, ...], bool]:
        """Return the calls of a test, and whether all that comes after it is reached as surely as before."""
        head = self._reader.read_all([node.test], scope)
        start = len(self._ways[-1])
        left = self._block(node.body, scope, after)
        right = self._block(node.orelse, scope, after)
        exits = (self._exit(node.body, scope), self._exit(node.orelse, scope))
        difference = self._differs(node.test, scope)
        if difference is None:
            launch = self._ranks.is_about_launch(node.test, scope)
            both = left + find_surplus(right, left)
            leaves = any(exits) and not launch
            if not launch:  # not each run comes to what was found inside
                inside = self._ways[-1][start:]
                self._ways[-1][start:] = [replace(each, call=doubt((each.call,))[0]) for each in inside]
            return head + (both if launch else doubt(both)), not leaves
        if "raise" in exits:
            return head + (right if exits[0] == "raise" else left), True
        left_all = left if exits[0] else left + (_rest(exits[1], after) if exits[1] else ())
        right_all = right if exits[1] else right + (_rest(exits[0], after) if exits[0] else ())
        if exits[0] and exits[1]:
            return head + left, True
        self._compare(node, scope, difference, (left_all, right_all), exits)
        if not any(exits) and difference.origin in ("rank", "helper"):
            self._leave_alone(node, scope, difference, (left, right), after)
        return head + find_common(left, right) + (right if exits[0] else left if exits[1] else ()), True

    def _differs(self, test: ast.expr, scope: Scope) -> Difference | None:
        """Return how ranks differ in a test, by who they are or by what each alone has computed."""
        return (
            self._ranks.read(test, scope) or self._losses.read(test, scope) or self._batches.read(test, scope)
        )

    def _compare(
        self,
        node: ast.If,
        scope: Scope,
        difference: Difference,
        sides: tuple[tuple[Call, ...], tuple[Call, ...]],
        exits: tuple[str, str],
    ) -> None:
        left, right = sides
        decided = right if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or) else left
        for own, other, side, way in (
            (left, right, difference, exits[1]),
            (right, left, difference.negate(), exits[0]),
        ):
            lacking = node.orelse if own is left else node.body
            surplus = find_surplus(own, other)
            if isinstance(node.test, ast.BoolOp) and not difference.certain and own is not decided:
                # `if a and first: … elif b: barrier()`: whether b goes with a cannot be told
                surplus = tuple(call for call in surplus if call.certain)
            if surplus and not self._unknowns.may_call(lacking, scope):
                kind = way or ("if" if own is left else "else")
                self._ways[-1] += [Found(call, side, kind, node, node.test) for call in surplus]

    def _leave_alone(
        self,
        node: ast.If,
        scope: Scope,
        difference: Difference,
        sides: tuple[tuple[Call, ...], tuple[Call, ...]],
        after: _After,
    ) -> None:
        """Note what the ranks of one side miss where they leave by what they find there, and the others do not."""
        for body, other, side, own in (
            (node.body, node.orelse, difference.negate(), sides[0]),
            (node.orelse, node.body, difference, sides[1]),
        ):
            if own or list(_find_exits(other)):
                continue  # the sides may tell each other
            for leaving, way, before, tests in _find_exits(body):
                missed = doubt(_rest(way, after))
                shared = any(
                    self._differs(test, scope) is not None or self._ranks.is_about_launch(test, scope)
                    for test in tests
                )
                if missed and not shared and not self._unknowns.may_call(before, scope):
                    self._ways[-1] += [Found(call, side, way, leaving, node.test) for call in missed]
                    break  # further exits of this side miss the same

    def _exit(self, body: Sequence[ast.stmt], scope: Scope) -> str:
        """Return how a block always leaves, or an empty text."""
        if not body:
            return ""
        last = body[-1]
        if type(last) in EXITS:
            return EXITS[type(last)]
        if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
            name = self.files.dotted(last.value.func, scope)
            if name in ("sys.exit", "exit", "quit", "os._exit"):
                return "raise" if _fails(last.value) else "exit"
        return ""


def _find_exits(
    body: Sequence[ast.stmt], before: tuple[ast.stmt, ...] = (), tests: tuple[ast.expr, ...] = ()
) -> Iterator[tuple[ast.stmt, str, tuple[ast.stmt, ...], tuple[ast.expr, ...]]]:
    """Yield where a block may be left below further tests: how, what is done before, and the tests."""
    for number, statement in enumerate(body):
        done = (*before, *body[:number])
        if isinstance(statement, ast.If):
            for side in (statement.body, statement.orelse):
                yield from _find_exits(side, done, (*tests, statement.test))
        elif isinstance(statement, (ast.Return, ast.Break, ast.Continue)) and tests:
            yield statement, EXITS[type(statement)], done, tests


def _fails(call: ast.Call) -> bool:
    """Whether an exit says that it failed: the launcher then ends the other ranks, as after an error."""
    status = call.args[0] if call.args else None
    if isinstance(status, ast.UnaryOp):  # -1
        status = status.operand
    return isinstance(status, ast.JoinedStr) or (isinstance(status, ast.Constant) and bool(status.value))


def _rest(way: str, after: _After) -> tuple[Call, ...]:
    return after.loop if way == "break" else after.turn if way == "continue" else after.ends
