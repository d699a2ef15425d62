"""Programs as rows of steps: what a script does from its first line on, through its functions, and under which tests.

A step is a call or the setting of an item, in the order in which a run comes to it; loops are passed once, and of a
test both sides are told, each below its guard, but for the side that a run of several ranks never takes. A function
that `mp.spawn` starts is a program of its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ddpdoctor.source.resolve.building import only_builds
from ddpdoctor.source.resolve.calls import JOINS, MESHES, is_any_collective, is_wrapper
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.listed import ListReader
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.once import once
from ddpdoctor.source.resolve.texts import fold
from ddpdoctor.source.resolve.tree_nodes import children
from ddpdoctor.source.resolve.walking import TRIES, find_calls, find_keyword, is_main_guard, own_nodes

MOST_STEPS = 6_000
"""Most steps of one program; what comes later is not judged."""
MOST_GUARDS = 300
"""Before one step; a program that has more of them is not judged from there on."""
DEEPEST_CALLS = 12
"""Functions that are followed into one another."""
DEEPEST_SETUP = 2
"""Functions that are followed into one another from one that makes the group: it is short, or has a whole program
behind it that is judged anyway."""
DEEPEST_METHODS = 3
"""The same from a method of a class whose objects make ranks."""
OTHER_JOINS = MESHES | {"accelerate.Accelerator", "deepspeed.init_distributed"}
SPAWNS = frozenset({"torch.multiprocessing.spawn", "torch.multiprocessing.start_processes",
                    "torch.multiprocessing.spawn.spawn"})  # fmt: skip
RUNNERS = frozenset({"fire.Fire", "absl.app.run", "tyro.cli", "typer.run", "jsonargparse.CLI"})
"""Functions that call the function which they are given."""
ABOUT = ("__main__", "multiprocessing", "torch.distributed", "import distributed", "DistributedDataParallel",
         "ccelerat", "deepspeed")  # fmt: skip
"""What a module mentions that starts a program of ranks, here or in the files that it imports."""
DOUBTS = frozenset({"if", "else", "unless", "case", "try", "except"})
"""Kinds of guards below which a line may never run."""
SIDES = frozenset({"if", "else", "unless"})
"""Kinds of guards that are one side of a test."""
LEAVES = (ast.Return, ast.Break, ast.Continue)
OF_RANKS = re.compile(r"rank|main_proc|is_main|is_master|\bme\b", re.IGNORECASE)
"""Tests behind which a ``raise`` lets some ranks leave; other ones complain of what is wrong for all."""


@once
def _exits_of(files: Files) -> dict[ast.stmt, tuple[Guard, ...]]:
    """Return the table of what `find_exits` said of statements: a function is followed from each of its calls."""
    return {}


@once
def _acts_of(files: Files) -> dict[ast.AST, tuple[_Act, ...]]:
    """Return the table of the steps in an expression or a simple statement, for the same reason."""
    return {}


@dataclass(frozen=True, slots=True)
class Guard:
    """What decides whether a run comes to a step."""

    kind: str
    """main (``__name__``), if, else, unless (an earlier test whose side leaves), for, while, with, try, except, case
    or decorator."""
    test: ast.AST
    """The test, or the expression of a loop, manager or decorator."""
    scope: Scope
    positive: bool = True
    raises: bool = False
    """The other side raises: whoever takes it ends the job instead of going on without the step."""

    def __hash__(self) -> int:
        """Hash what differs most often."""
        return hash((self.test, self.positive))


class Frame(NamedTuple):
    """A call of a function of the files, inside of which a step is."""

    call: ast.Call
    scope: Scope
    """Where the call stands."""
    callee: Scope


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a program does."""

    node: ast.Call | ast.Assign
    name: str
    """Dotted name of what is called; empty where that is no name, and for assignments."""
    scope: Scope
    guards: tuple[Guard, ...]
    frames: tuple[Frame, ...]
    """The calls through which it is reached, the outermost first."""
    known: bool
    """Whether the function that is called is one of the files, into which the next steps lead."""

    @property
    def call(self) -> ast.Call | None:
        """The call, where it is one."""
        return self.node if isinstance(self.node, ast.Call) else None


@dataclass(slots=True)
class Trace:
    """What one program does."""

    start: Scope
    """The module, or the function that is spawned."""
    steps: list[Step] = field(default_factory=list)
    whole: bool = True
    """False where it was cut off."""
    joins: bool = False
    """Whether it is a rank: makes the process group, a collective, a wrapped model or an Accelerator."""
    setup: bool = False
    """Whether it is no program but a function that makes the process group: what ran before is not known."""
    owner: Scope | None = None
    """The class whose methods it is, as anybody may call them: first what makes an object, then each in turn."""
    alone: bool = False
    """Whether its process group is made for one rank, or it is one by its number: the others run another script."""
    ways: object = None
    """What `ddpdoctor.source.sameness.apart.ways_of` keeps with it."""

    @property
    def has_peers(self) -> bool:
        """Whether it is one of several ranks, as far as can be told."""
        return self.joins and not self.alone


def trace_programs(module: Scope, files: Files) -> tuple[Trace, ...]:
    """Return the programs that begin in a module: itself from its first line on, and what is spawned of it."""
    begins = _is_about_ranks(module)
    traces = []
    for scope in module.walk():
        if (scope is module and begins) or scope.spawned:
            trace = Trace(scope)
            walker = _Walker(files, trace)
            walker.block(scope.node.body, scope, _Way())
            # Where it starts the ranks, on the other side of a test, it is none of them.
            launches = any(step.name in SPAWNS for step in trace.steps)
            trace.joins = trace.joins or (walker.may_join and not launches)
            traces.append(trace)
    return tuple(traces)


def _is_about_ranks(module: Scope) -> bool:
    return any(word in module.script.text for word in ABOUT)


def trace_setups(module: Scope, files: Files) -> tuple[Trace, ...]:
    """Return what the functions of a module do that make the process group themselves, whoever calls them.

    Those of tests are left out: there a second group may be what has to fail.
    """
    if "init_process_group" not in module.script.text:
        return ()
    traces = []
    for scope in module.walk():
        function = isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if not function or scope.spawned or "test" in (scope.name or "").lower():
            continue
        if any(files.dotted(call.func, scope) in JOINS for call in find_calls(scope)):
            trace = Trace(scope, joins=True, setup=True)
            _Walker(files, trace, DEEPEST_SETUP).block(scope.node.body, scope, _Way())
            traces.append(trace)
    return tuple(traces)


def trace_classes(module: Scope, files: Files) -> tuple[Trace, ...]:
    """Return what the objects of a module's classes do that make ranks of the processes in which they are made.

    Libraries have them for scripts that are not read: a trainer that makes an Accelerator, or wraps its model. Methods
    that others of the class call are told where these do.
    """
    if not _is_about_ranks(module):
        return ()
    traces = []
    for scope in module.walk():
        if not isinstance(scope.node, ast.ClassDef) or "test" in (scope.name or "").lower():
            continue
        methods = scope.functions.values()
        if any(_makes_rank(call, each, files) for each in methods for call in find_calls(each)):
            trace = Trace(scope, joins=True, owner=scope)
            walker = _Walker(files, trace, DEEPEST_METHODS)
            for each in _list_entries(scope, files):
                walker.enter(each)
            traces.append(trace)
    return tuple(traces)


def _makes_rank(call: ast.Call, scope: Scope, files: Files) -> bool:
    """Whether a call makes a rank of the process, itself or in the function of the files that it runs."""
    name = files.dotted(call.func, scope)
    if name in JOINS or name in OTHER_JOINS or is_wrapper(call, scope, files):
        return True
    called = kinds_of(files).called(call, scope)
    return called is not None and any(files.dotted(each.func, called) in JOINS for each in find_calls(called))


def _list_entries(owner: Scope, files: Files) -> Iterator[Scope]:
    """Yield the methods of a class by which others come in, ``__init__`` first, and those that make the group."""
    start = files.objects.method(owner, "__init__")
    if start is not None:
        yield start
    family = {owner, *files.objects.bases(owner), *files.objects.heirs(owner)}
    for each in owner.functions.values():
        callers = kinds_of(files).callers(each)
        if each is not start and (
            all(home.find_class() not in family for _, home in callers)
            or any(files.dotted(call.func, each) in JOINS for call in find_calls(each))
        ):
            yield each


@dataclass(frozen=True, slots=True)
class _Act:
    """A call or the setting of an item, as it stands in an expression."""

    node: ast.Call | ast.Assign
    guards: tuple[Guard, ...]
    """The tests within the expression that decide about it."""
    name: str = ""
    callee: Scope | None = None
    """The function of the files that is called."""


@dataclass(frozen=True, slots=True)
class _Way:
    """How a run comes to a block."""

    guards: tuple[Guard, ...] = ()
    frames: tuple[Frame, ...] = ()
    never: bool = False
    """Whether only a process that is alone goes it."""


class _Walker:
    """Writes the steps of one program."""

    def __init__(self, files: Files, trace: Trace, deepest: int = DEEPEST_CALLS) -> None:
        self.files = files
        self.trace = trace
        self._deepest = deepest
        self._lists = ListReader(files)
        self._acts = _acts_of(files)
        self._exits = _exits_of(files)
        self._sides: dict[ast.AST, bool | None] = {}
        """Which side of each test so far a run of several ranks takes."""
        self.may_join = False
        """Whether it makes a process group below a test."""

    def block(self, body: Sequence[ast.stmt], scope: Scope, way: _Way) -> None:
        """Write the steps of a block; a test one side of which leaves guards what comes after it."""
        for statement in body:
            if not self.trace.whole:
                return
            self._statement(statement, scope, way)
            way = self._go_on(way, *self._list_exits(statement, scope))

    def enter(self, method: Scope) -> None:
        """Write the steps of a method, whoever calls it."""
        decorators = getattr(method.node, "decorator_list", ())
        way = self._go_on(_Way(), *(Guard("decorator", each, method.outer or method) for each in decorators))
        self.block(method.node.body, method, way)

    def _go_on(self, way: _Way, *guards: Guard) -> _Way:
        """Return the way behind further guards."""
        if not guards:
            return way
        never = way.never or any(each.kind in SIDES and self._never_takes(each) for each in guards)
        return _Way(way.guards + guards, way.frames, never)

    def _list_exits(self, statement: ast.stmt, scope: Scope) -> tuple[Guard, ...]:
        if statement not in self._exits:
            self._exits[statement] = tuple(find_exits(statement, scope))
        return self._exits[statement]

    def _statement(self, node: ast.stmt, scope: Scope, way: _Way) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._each(node.decorator_list, scope, way)
        elif isinstance(node, ast.ClassDef):
            self._each(node.decorator_list, scope, way)
            inner = scope.classes.get(node.name)
            if inner is not None:
                self.block(node.body, inner, way)
        elif isinstance(node, ast.If):
            self._expression(node.test, scope, way)
            kind = "main" if is_main_guard(node.test) else "if"
            self.block(node.body, scope, self._go_on(way, Guard(kind, node.test, scope)))
            self.block(node.orelse, scope, self._go_on(way, Guard("else", node.test, scope, False)))
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            head, kind = (node.test, "while") if isinstance(node, ast.While) else (node.iter, "for")
            self._expression(head, scope, way)
            self.block(node.body, scope, self._go_on(way, Guard(kind, head, scope)))
            self.block(node.orelse, scope, way)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self._expression(item.context_expr, scope, way)
                way = self._go_on(way, Guard("with", item.context_expr, scope))
            self.block(node.body, scope, way)
        elif isinstance(node, ast.Match):
            self._expression(node.subject, scope, way)
            for case in node.cases:
                self.block(case.body, scope, self._go_on(way, Guard("case", node.subject, scope)))
        elif isinstance(node, TRIES):
            self._try(node, scope, way)
        else:
            self._expression(node, scope, way)

    def _try(self, node: ast.stmt, scope: Scope, way: _Way) -> None:
        handlers = getattr(node, "handlers", [])
        inside = self._go_on(way, Guard("try", node, scope)) if handlers else way
        self.block(getattr(node, "body", []), scope, inside)
        for handler in handlers:
            self.block(handler.body, scope, self._go_on(way, Guard("except", handler, scope)))
        self.block(getattr(node, "orelse", []), scope, inside)
        self.block(getattr(node, "finalbody", []), scope, way)

    def _each(self, nodes: Iterable[ast.AST], scope: Scope, way: _Way) -> None:
        for node in nodes:
            self._expression(node, scope, way)

    def _expression(self, node: ast.AST, scope: Scope, way: _Way) -> None:
        """Write the calls of an expression or a simple statement, the inner ones first."""
        if node not in self._acts:
            self._acts[node] = tuple(self._list_acts(node, scope, ()))
        for act in self._acts[node]:
            if not self.trace.whole:
                return
            own = self._go_on(way, *act.guards)
            if isinstance(act.node, ast.Call):
                self._call(act.node, act, scope, own)
            else:
                self._write(Step(act.node, "", scope, own.guards, own.frames, False), own)

    def _list_acts(self, node: ast.AST, scope: Scope, guards: tuple[Guard, ...]) -> Iterator[_Act]:
        if isinstance(node, (ast.Constant, ast.Name, ast.Lambda)):
            return
        if isinstance(node, ast.IfExp):
            yield from self._list_acts(node.test, scope, guards)
            yield from self._list_acts(node.body, scope, (*guards, Guard("if", node.test, scope)))
            yield from self._list_acts(node.orelse, scope, (*guards, Guard("else", node.test, scope, False)))
            return
        if isinstance(node, ast.BoolOp):
            kind = "if" if isinstance(node.op, ast.And) else "else"
            for value in node.values:
                yield from self._list_acts(value, scope, guards)
                guards = (*guards, Guard(kind, value, scope, kind == "if"))
            return
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            yield from self._list_acts(node.generators[0].iter, scope, guards)
            guards = (*guards, Guard("for", node.generators[0].iter, scope))
            guards += tuple(Guard("if", test, scope) for each in node.generators for test in each.ifs)
            for element in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
                yield from self._list_acts(element, scope, guards)
            return
        for child in children(node):
            yield from self._list_acts(child, scope, guards)
        if isinstance(node, ast.Call):
            name = self.files.dotted(node.func, scope) or ""
            callee = find_callee(node, scope, self.files)
            if callee is None and name in RUNNERS and node.args:
                callee = self.files.function(node.args[0], scope)
            yield _Act(node, guards, name, callee)
        elif isinstance(node, ast.Assign) and any(isinstance(each, ast.Subscript) for each in node.targets):
            yield _Act(node, guards)

    def _call(self, node: ast.Call, act: _Act, scope: Scope, way: _Way) -> None:
        name = act.name
        callees = [act.callee] if act.callee is not None else self._lists.methods(node, scope, way.frames)
        self._write(Step(node, name, scope, way.guards, way.frames, bool(callees)), way)
        if name in JOINS:
            size, rank = (
                fold(find_keyword(node, word), scope, self.files) for word in ("world_size", "rank")
            )
            self.trace.alone = self.trace.alone or size == "1" or (rank or "").isdecimal()
        if not self.trace.joins:
            # Libraries make collectives where a test says that there is a group: that is no sign of one.
            sure = not any(each.kind in DOUBTS for each in way.guards)
            makes = name in JOINS or name in OTHER_JOINS
            self.may_join = self.may_join or makes
            self.trace.joins = sure and (
                makes or is_wrapper(node, scope, self.files) or is_any_collective(node, scope, self.files)
            )
        for each in callees:
            self._enter(each, node, scope, way)

    def _enter(self, callee: Scope, call: ast.Call, scope: Scope, way: _Way) -> None:
        """Write the steps of a function that a call runs."""
        if len(way.frames) >= self._deepest or any(each.callee is callee for each in way.frames):
            return
        if only_builds(callee, self.files):
            return
        decorators = getattr(callee.node, "decorator_list", ())
        way = self._go_on(way, *(Guard("decorator", each, callee.outer or callee) for each in decorators))
        frames = (*way.frames, Frame(call, scope, callee))
        self.block(callee.node.body, callee, _Way(way.guards, frames, way.never))

    def _write(self, step: Step, way: _Way) -> None:
        if len(self.trace.steps) >= MOST_STEPS or len(step.guards) > MOST_GUARDS:
            self.trace.whole = False
        elif not way.never:
            self.trace.steps.append(step)

    def _never_takes(self, guard: Guard) -> bool:
        """Whether what is behind a guard is for a process that is alone."""
        if guard.test not in self._sides:
            test = guard.test
            programs = kinds_of(self.files).programs
            self._sides[test] = programs.side(test, guard.scope) if isinstance(test, ast.expr) else None
        return self._sides[guard.test] not in (None, guard.positive)


def find_callee(call: ast.Call, scope: Scope, files: Files) -> Scope | None:
    """Return the function of the files that a call runs: of a class, its ``__init__``."""
    function = files.function(call.func, scope)
    if function is not None:
        return function
    made = files.find_class(call.func, scope)
    if made is not None:
        return files.objects.method(made, "__init__")
    return None


def find_exits(statement: ast.stmt, scope: Scope) -> Iterator[Guard]:
    """Yield the tests in a statement one side of which leaves the block around it."""
    if isinstance(statement, ast.If):
        apart = OF_RANKS.search(ast.unparse(statement.test)) is not None
        for side, positive in ((statement.body, False), (statement.orelse, True)):
            if any(map(_leaves, side)):
                yield Guard("unless", statement.test, scope, positive)
            elif apart and any(isinstance(each, ast.Raise) for each in side):
                yield Guard("unless", statement.test, scope, positive, raises=True)
        for each in (*statement.body, *statement.orelse):
            yield from find_exits(each, scope)
    elif isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
        head = statement.test if isinstance(statement, ast.While) else statement.iter
        if any(isinstance(each, ast.Return) for each in own_nodes(statement)):
            yield Guard("unless", head, scope, False)
            for node in own_nodes(statement):
                if isinstance(node, ast.If) and any(isinstance(each, ast.Return) for each in node.body):
                    yield Guard("unless", node.test, scope, False)
    elif isinstance(statement, (ast.With, ast.AsyncWith, ast.Try)):
        for each in statement.body:
            yield from find_exits(each, scope)


def _leaves(statement: ast.stmt) -> bool:
    if isinstance(statement, LEAVES):
        return True
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func) in ("sys.exit", "exit", "quit", "os._exit")
    return False
