"""Loops that train: what they go through, and which models they call."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.facts.collectives import POINT_TO_POINT
from ddpdoctor.source.resolve.calls import APEX, GROUPS, MESHES
from ddpdoctor.source.resolve.kinds import Kinds
from ddpdoctor.source.resolve.names import UNKNOWN, Scope
from ddpdoctor.source.resolve.objects import WRAPPERS
from ddpdoctor.source.resolve.once import once
from ddpdoctor.source.resolve.tables import may_give
from ddpdoctor.source.resolve.values import Value, born_with
from ddpdoctor.source.resolve.walking import (
    find_argument,
    find_calls,
    find_keyword,
    name_last,
    names_in,
    own_nodes,
)
from ddpdoctor.source.training.mesh_roles import find_meshes

MODELS = ("model", "wrapped", "prepared model")
"""Kinds of values that are one."""
DEEPEST = 4
"""Functions that are followed into one another from the body of a loop."""
HOLDERS = (ast.Name, ast.Attribute, ast.Subscript)
"""Expressions that hold an object: a variable, an attribute, an element."""
LOOPS = (ast.For, ast.AsyncFor, ast.While)
SHARDING = ("rank", "world_size", "num_replicas", "shard", "process_index", "num_processes")
"""Parts of names that show that data is split by hand."""
NO_GRAD = frozenset({"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad"})
"""Managers, which are decorators too, below which no gradient is computed."""
ADDS = frozenset({"append", "extend", "insert", "update", "add"})
"""Methods that put something into a container."""
RANDOM = frozenset({"rand", "randn", "randint", "rand_like", "randn_like", "normal", "uniform", "random", "FakeData",
                    "RandomDataset", "arange"})  # fmt: skip
"""Functions that make data up."""
SPLITS = GROUPS.union(POINT_TO_POINT, {
    "all_to_all", "all_to_all_single", "batch_isend_irecv", "context_parallel", "distribute_module",
    "distribute_tensor", "parallelize_module", "PipelineStage"})  # fmt: skip
"""Functions by which ranks may have parts of one layer, sequence or batch."""
OF_DATA = re.compile(
    r"(?:d|data|dp|ddp|fsdp|hsdp|replicas?|replicate|shard|data_parallel)(?:_\w+)?", re.IGNORECASE
)
"""Names of the dimensions of a mesh along which ranks read data of their own."""
BATCHES = frozenset({"torch.utils.data.BatchSampler", "torch.utils.data.sampler.BatchSampler"})
"""What takes batches out of the order of a sampler, and is given to a loader in its place."""

Place = tuple[ast.Call, Scope]


@dataclass(frozen=True, slots=True)
class Forward:
    """A call of a model, wrapped or not."""

    call: ast.Call
    scope: Scope
    values: tuple[Value, ...]
    """All that is called may be; all of them models."""


@dataclass(frozen=True, slots=True)
class TrainingLoop:
    """A loop in which a ``backward`` is called, by itself or in functions that it calls."""

    node: ast.For | ast.AsyncFor | ast.While
    scope: Scope
    calls: tuple[Place, ...]
    """All calls in its body, with those in the functions of the files that it calls."""
    forwards: tuple[Forward, ...]

    @property
    def wrapped(self) -> tuple[Forward, ...]:
        """The forwards that go through DistributedDataParallel, whichever way a run takes."""
        return tuple(each for each in self.forwards if all(v.kind == "wrapped" for v in each.values))


@once
def training_loops(kinds: Kinds) -> tuple[TrainingLoop, ...]:
    """Return the loops of all files that train, outer ones as well as those inside of them."""
    return tuple(_find_loops(kinds))


def _find_loops(kinds: Kinds) -> Iterator[TrainingLoop]:
    reaching = _find_reaching(kinds)
    for scope in reaching:
        flow = kinds.flow(scope)
        for statement, spot in (*flow.statements, *flow.comprehensions):
            if not isinstance(statement, LOOPS) or not spot.is_on:
                continue
            calls = tuple(reach(statement.body, scope, kinds))
            if any(is_backward(call) for call, _ in reach(statement.body, scope, kinds, graded=True)):
                yield TrainingLoop(statement, scope, calls, tuple(find_forwards(calls, kinds)))


def _find_reaching(kinds: Kinds) -> list[Scope]:
    """Return the scopes of all files that call a ``backward``, by themselves or over functions of the files."""
    every = [scope for module in kinds.files.modules for scope in module.walk()]
    found = {scope for scope in every if any(is_backward(call) for call in find_calls(scope))}
    waiting = list(found)
    givers: dict[Scope, set[Scope]] = {}
    for scope in every:
        for call in find_calls(scope) if scope.functions else ():
            for closure in _closures_of(call, scope):
                givers.setdefault(closure, set()).add(scope)
    while waiting:
        function = waiting.pop()
        for caller in (*(home for _, home in kinds.callers(function)), *givers.get(function, ())):
            if caller not in found:
                found.add(caller)
                waiting.append(caller)
    return [scope for scope in every if scope in found]


def reach(body: Iterable[ast.AST], scope: Scope, kinds: Kinds, *, graded: bool = False) -> Iterator[Place]:
    """Yield the calls in statements, with those in the functions of the files that these call, each function once.

    Args:
        body: the statements.
        scope: where they stand.
        kinds: what values are.
        graded: leave out what is below ``torch.no_grad()``, where no backward can be.
    """
    seen: set[Scope] = set()
    body = tuple(body)
    waiting: list[tuple[Iterable[ast.Call], Scope, int]] = [(_calls_in(body), scope, 0)]
    cut = _below_no_grad(body, scope, kinds) if graded else set()
    while waiting:
        calls, home, depth = waiting.pop()
        for call in calls:
            if call in cut:
                continue
            yield call, home
            if depth >= DEEPEST:
                continue
            for called in (kinds.called(call, home), *_closures_of(call, home)):
                if called is None or called in seen:
                    continue
                if graded and _is_below_no_grad(called, kinds):
                    continue
                cut |= _below_no_grad([called.node], called, kinds) if graded else set()
                seen.add(called)
                waiting.append((find_calls(called), called, depth + 1))


def _closures_of(call: ast.Call, scope: Scope) -> list[Scope]:
    """Return the functions that a function defines itself and gives to a call, which runs them."""
    names = [
        each.id for each in (*call.args, *(k.value for k in call.keywords)) if isinstance(each, ast.Name)
    ]
    own = scope.functions if scope.name is not None else {}  # a module's are called by name as well, mostly
    return [own[name] for name in names if name in own]


def _below_no_grad(body: Iterable[ast.AST], scope: Scope, kinds: Kinds) -> set[ast.Call]:
    """Return the calls in ``with torch.no_grad():`` blocks."""
    return {
        call
        for statement in body
        for node in (statement, *own_nodes(statement))
        if isinstance(node, (ast.With, ast.AsyncWith))
        and any(_is_no_grad(each.context_expr, scope, kinds) for each in node.items)
        for call in _calls_in(node.body)
    }


def _is_below_no_grad(function: Scope, kinds: Kinds) -> bool:
    decorators: list[ast.expr] = getattr(function.node, "decorator_list", [])
    return any(_is_no_grad(each, function.outer or function, kinds) for each in decorators)


def _is_no_grad(node: ast.expr, scope: Scope, kinds: Kinds) -> bool:
    called = node.func if isinstance(node, ast.Call) else node
    return kinds.files.dotted(called, scope) in NO_GRAD


def _calls_in(body: Iterable[ast.AST]) -> Iterator[ast.Call]:
    for statement in body:
        yield from (node for node in (statement, *own_nodes(statement)) if isinstance(node, ast.Call))


def find_forwards(calls: Iterable[Place], kinds: Kinds) -> Iterator[Forward]:
    """Yield the calls of what is a model whichever way a run takes."""
    reached = tuple(calls)
    within = {call for call, _ in reached}
    for call, scope in reached:
        if isinstance(call.func, HOLDERS):
            values = _find_given(call.func, scope, within, kinds) or kinds.all_of(call.func, scope, *MODELS)
            if values:
                yield Forward(call, scope, values)


def _find_given(node: ast.expr, scope: Scope, within: set[ast.Call], kinds: Kinds) -> tuple[Value, ...]:
    """Return the models that these calls of a function give it: others may give it the module below a wrapper."""
    if not isinstance(node, ast.Name) or node.id not in scope.parameters or scope.bound[node.id] != [UNKNOWN]:
        return ()
    found: list[Value] = []
    for call, home in kinds.callers(scope):
        if call in within:
            given = find_argument(call, scope, node.id)
            values = kinds.all_of(given, home, *MODELS) if given is not None else ()
            if not values:
                return ()
            found += values
    return tuple(dict.fromkeys(found))


def may_be_wrapped(loop: TrainingLoop, kinds: Kinds) -> bool:
    """Whether a model of a loop is wrapped, if only on one side of a test: in the runs that have several ranks.

    Or sharded, in a program whose ranks share nothing out but data and the model's states.
    """
    if loop.wrapped:
        return True
    found = [kinds.find(call.func, scope) for call, scope in loop.calls if isinstance(call.func, HOLDERS)]
    found = [
        values for values in found if all(each.kind in (*MODELS, "sharded", "unknown") for each in values)
    ]
    if any(each.kind == "wrapped" for values in found for each in values):
        return True
    sharded = any(
        each.kind == "sharded" or each.made in kinds.sharded_in_place for values in found for each in values
    )
    module = loop.scope.module
    return sharded and not (kinds.programs.any_file(module, _splits, kinds) or _splits_meshes(module, kinds))


def _splits(member: Scope, kinds: Kinds) -> bool:
    """Whether ranks may have parts of one batch, or of one layer: these are meant to read the same data."""
    return any(name.rpartition(".")[2] in SPLITS for _, _, name in kinds.programs.list_calls(member))


def _splits_meshes(module: Scope, kinds: Kinds) -> bool:
    """Whether a mesh of a program may have a dimension that is not one of data."""
    meshes = find_meshes(module, kinds)
    if not meshes:
        return any(kinds.programs.calls(module, MESHES))
    return any(OF_DATA.fullmatch(each) is None for mesh in meshes for each in mesh.list_dimensions())


def loaders_of(node: ast.expr, scope: Scope, kinds: Kinds) -> tuple[Value, ...]:
    """Return the loaders that a loop may go through, where it can go through nothing else."""
    found = tuple(each for each in kinds.find(node, scope) if each.kind != "none")
    return found if all(each.kind == "loader" for each in found) else ()


def batches_of(loop: TrainingLoop, kinds: Kinds) -> tuple[Value, ...]:
    """Return the loaders whose batches a loop trains on: it goes through them, or asks them for the next one."""
    found = loaders_of(loop.node.iter, loop.scope, kinds) if not isinstance(loop.node, ast.While) else ()
    if found:
        return found
    asked = [
        loaders_of(call.args[0], scope, kinds)
        for call, scope in reach(loop.node.body, loop.scope, kinds, graded=True)
        if isinstance(call.func, ast.Name) and call.func.id == "next" and call.args
    ]
    return tuple(dict.fromkeys(each for loaders in asked for each in loaders))


def is_backward(call: ast.Call) -> bool:
    """Whether a call is ``loss.backward()``, ``accelerator.backward(loss)`` or ``loss_scaler(loss, optimizer)``."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("backward", "manual_backward"):
        return True
    # timm's and others' scalers do the backward and the step when they are called: scaler(loss, optimizer)
    owner = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if "scaler" not in owner.lower() or len(call.args) < 2:
        return False
    loss, optimizer = (ast.unparse(each).lower() for each in call.args[:2])
    return "loss" in loss and "optim" in optimizer


def find_backwards(kinds: Kinds) -> dict[ast.Call, Scope]:
    """Return the calls of ``backward`` below loops that train, and where each stands."""
    return {call: scope for loop in training_loops(kinds) for call, scope in loop.calls if is_backward(call)}


def enclosing_loops(node: ast.AST, scope: Scope, kinds: Kinds) -> list[ast.stmt]:
    """Return the loops around a statement in its scope, the innermost first."""
    flow = kinds.flow(scope)
    spot = flow.spot(node)
    if spot is None:
        return []
    loops = {own.number: statement for statement, own in flow.statements if own.number in spot.loops}
    return [loops[number] for number in reversed(spot.loops)]


def runs_again(node: ast.AST, scope: Scope, kinds: Kinds, depth: int = 0) -> bool:
    """Whether a loop around a statement, or around calls of its function, runs it several times."""
    if any(_has_rounds(loop) for loop in enclosing_loops(node, scope, kinds)):
        return True
    if depth >= DEEPEST:
        return False
    return any(runs_again(call, home, kinds, depth + 1) for call, home in kinds.callers(scope))


def _has_rounds(loop: ast.stmt) -> bool:
    """Whether a loop may have a second round."""
    if not isinstance(loop, (ast.For, ast.AsyncFor)) or not isinstance(loop.iter, ast.Call):
        return True
    only = loop.iter.args[0] if len(loop.iter.args) == 1 else None
    return not (isinstance(only, ast.Constant) and only.value == 1)


@once
def _gathering_of(kinds: Kinds) -> dict[Scope, bool]:
    """Return the table of which functions gather, to be filled."""
    return {}


def skips_by_rank(loop: TrainingLoop, kinds: Kinds) -> bool:
    """Whether a loop takes its own share of the batches, by a remainder, a slice or a test on the rank.

    Also in functions that it gives something that it has of a batch; what a function gathers from all ranks is theirs
    together, and the own part of that no share of a batch.
    """
    known = _gathering_of(kinds)
    known.update({home: _gathers(home, kinds) for home in {home for _, home in loop.calls} - known.keys()})
    called = {kinds.files.function(call.func, home) for call, home in loop.calls if not known[home]}
    bodies = [loop.node.body, *(getattr(each.node, "body", []) for each in called if each is not None)]
    for node in (inner for body in bodies for each in body for inner in ast.walk(each)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            chosen: ast.AST = node.right
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            chosen = node.slice
        elif isinstance(node, ast.If) and any(isinstance(each, ast.Continue) for each in node.body):
            chosen = node.test
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("chunk", "split")
        ):
            chosen = node
        else:
            continue
        if any(map(about_shards, names_in(chosen))):
            return True
    return False


def _gathers(function: Scope, kinds: Kinds) -> bool:
    """Whether a function gathers from all ranks, by itself or by one of the files that it calls."""
    inner = (kinds.files.function(call.func, function) for call in find_calls(function))
    return any(
        "gather" in name_last(call.func)
        for scope in (function, *(each for each in inner if each is not None))
        for call in find_calls(scope)
    )


def about_shards(name: str) -> bool:
    """Whether a name shows that something is done by rank."""
    return any(word in name.lower() for word in SHARDING)


def about_ranks(name: str) -> bool:
    """Whether a name shows that something is done by rank; files have shards as well."""
    return any(word in name.lower() for word in SHARDING if word != "shard")


def about_random(name: str) -> bool:
    """Whether a name is that of a function that makes data up."""
    return name in RANDOM


def _follow_name(
    node: ast.Name | ast.Attribute, home: Scope, kinds: Kinds
) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what a variable may be: bound here or outside, taken out of a tuple, given by callers, kept by ``self``."""
    if isinstance(node, ast.Attribute):
        owner = home.find_class() if isinstance(node.value, ast.Name) and node.value.id == "self" else None
        if owner is not None:
            maker = owner.functions.get("__init__", owner)
            yield from ((value, maker) for value in owner.attributes.get(node.attr, []))
        return
    where, values = home.lookup(node.id) or (home, [])
    yield from ((value, where) for value in values if value is not UNKNOWN)
    yield from (
        (each.value, where) for each in kinds.flow(where).bindings.get(node.id, ()) if each.value is not None
    )
    yield from ((value, where) for value in _list_added(node.id, where))
    if node.id in where.parameters:
        for call, caller in kinds.callers(where):
            argument = find_argument(call, where, node.id)
            if argument is not None:
                yield argument, caller


def _list_added(name: str, scope: Scope) -> Iterator[ast.expr]:
    """Yield what a function puts into a container: ``sets[key] = value``, ``sets.append(value)``."""
    for each in own_nodes(scope.node):
        if isinstance(each, ast.Assign):
            targets = [one.value for one in each.targets if isinstance(one, ast.Subscript)]
            if any(isinstance(one, ast.Name) and one.id == name for one in targets):
                yield each.value
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            owner = each.func.value
            if each.func.attr in ADDS and isinstance(owner, ast.Name) and owner.id == name:
                yield from each.args


def speaks_of(node: ast.AST, fits: Callable[[str], bool], scope: Scope, kinds: Kinds) -> bool:
    """Whether a name fits in a node, in what its names are bound to, or in functions of the files that it calls."""
    waiting = [(node, scope, 0)]
    seen: set[ast.AST | Scope] = (
        set()
    )  # a variable that is bound anew again and again leads to all of its values
    for whole, home, depth in waiting:
        each = _drop_placing(whole, home, kinds)
        if any(fits(name) for name in names_in(each)):
            return True
        for inner in ast.walk(each) if depth < DEEPEST else ():
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and fits(inner.value):
                return True  # the name of a variable of the environment, an option, a key
            if isinstance(inner, (ast.Name, ast.Attribute)):
                found = [pair for pair in _follow_name(inner, home, kinds) if pair[0] not in seen]
                waiting += [(value, where, depth + 1) for value, where in found]
                seen.update(value for value, _ in found)
            elif isinstance(inner, ast.Call):
                called = kinds.files.function(inner.func, home)
                if called is not None and called not in seen:
                    seen.add(called)
                    if any(fits(name) for name in names_in(called.node)):
                        return True
    return False


def is_seeded_apart(module: Scope, kinds: Kinds) -> bool:
    """Whether a program seeds random numbers by the rank."""
    return kinds.programs.any_file(module, _seeds_apart, kinds)


def _seeds_apart(member: Scope, kinds: Kinds) -> bool:
    return any(
        "seed" in name.rpartition(".")[2].lower()
        and any(speaks_of(each, about_shards, scope, kinds) for each in call.args)
        for call, scope, name in kinds.programs.list_calls(member)
    )


def _drop_placing(node: ast.AST, scope: Scope, kinds: Kinds) -> ast.AST:
    """Return what is wrapped or moved to a device: by which rank that is done says nothing of what it is."""
    while isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "cuda"):
            node = node.func.value
        elif node.args and kinds.files.dotted(node.func, scope) in (*WRAPPERS, APEX):
            node = node.args[0]
        else:
            break
    return node


def note_loader(value: Value, rule: str, loop: TrainingLoop, **details: str) -> SourceFact:
    """Return what a rule sees in the making of a loader or sampler, with the loop that goes through it beside it."""
    scope = value.scope or loop.scope
    noticed = loop.scope.place(loop.node)
    return SourceFact(rule, scope.place(value.call), (RelatedPlace("noticed", noticed),), details)


def samplers_of(loader: Value, kinds: Kinds) -> tuple[Value, ...]:
    """Return what the sampler of a loader may be; nothing where it has none."""
    if loader.scope is None or loader.kind != "loader" or may_give(loader.call, loader.scope, "sampler"):
        return ()
    sampler = find_keyword(loader.call, "sampler", 3)
    if sampler is None:
        batches = find_keyword(loader.call, "batch_sampler", 4)
        made = kinds.all_of(batches, loader.scope, "sampler") if batches is not None else ()
        if (
            len(made) != 1
            or made[0].name.rpartition(".")[2] != "BatchSampler"
            or made[0].scope is not loader.scope
        ):
            return made
        sampler = find_keyword(made[0].call, "sampler", 0)
    found = kinds.find(sampler, loader.scope) if sampler is not None else ()
    return tuple(born_with(each, loader) for each in found)


def list_inner_samplers(found: Iterable[Value], kinds: Kinds) -> tuple[Value, ...]:
    """Return samplers, and in the place of torch's BatchSampler those that give it its samples."""
    inner: list[Value] = []
    for each in found:
        batched = each.kind == "sampler" and each.name in BATCHES and each.scope is not None
        sampler = find_keyword(each.call, "sampler", 0) if batched else None
        if sampler is None or each.scope is None:
            inner.append(each)
        else:
            inner += [born_with(value, each) for value in kinds.find(sampler, each.scope)]
    return tuple(inner)


def is_step(node: ast.AST, scope: Scope, kinds: Kinds) -> bool:
    """Whether it is ``optimizer.step()`` or ``scaler.step(optimizer)``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "step":
        return False
    found = kinds.find(node.func.value, scope)
    return any(each.kind in ("optimizer", "scaler") for each in found)


def distributed_modules(kinds: Kinds) -> list[Scope]:
    """Return the modules of programs that train a wrapped model."""
    found: dict[Scope, None] = {}
    for loop in training_loops(kinds):
        if loop.wrapped:
            module = loop.scope.module
            found.update(dict.fromkeys(kinds.programs.members(module)))
    return list(found)
