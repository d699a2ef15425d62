"""DDP001: layers of a wrapped model that no forward pass uses, or of which one forward pass uses one alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.makers import find_class_kind
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.tables import may_give
from ddpdoctor.source.resolve.walking import find_keyword, name_last, names_in, own_nodes
from ddpdoctor.source.training.train_loops import Forward, TrainingLoop, training_loops
from ddpdoctor.source.training.wraps import is_certain, wraps_of
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

LAYERS = re.compile(
    r"torch\.nn\.(Linear|Bilinear|Conv\d?d|ConvTranspose\dd|Embedding|EmbeddingBag|LSTM|GRU|RNN|LSTMCell|GRUCell|"
    r"MultiheadAttention|Transformer\w*|LayerNorm|GroupNorm|BatchNorm\dd|Parameter)"
)
"""What has parameters that a loss has to reach."""
TABLES = frozenset({"torch.nn.ModuleDict", "torch.nn.ModuleList"})
BASES = frozenset({"torch.nn.Module", "torch.nn.modules.module.Module"})
WALKS = frozenset({"children", "named_children", "modules", "named_modules", "_modules", "__dict__", "getattr",
                   "get_submodule", "vars", "attrgetter", "register_parametrization"})  # fmt: skip
"""Names by which a class may reach its layers without writing their names."""
SETS_UP = re.compile(r"init|reset|build|freeze|load|copy", re.IGNORECASE)
"""Names of functions that only prepare layers."""
MOST = 40
"""Classes of layers that one model is made of."""
RANDOM = frozenset({"random.random", "random.uniform", "numpy.random.rand", "numpy.random.random",
                    "numpy.random.uniform", "torch.rand", "torch.bernoulli"})  # fmt: skip
ASKS = ("find_unused_parameters", "static_graph")
"""Options of the wrapper with which it looks for parameters without a gradient by itself."""


@lint_rule("layer-unused", "layer-chosen", "layer-skipped", reads="files")
def find_unused_layers(files: Files) -> Iterator[SourceFact]:
    """Yield layers of wrapped models to which a loss gives no gradient.

    Such are layers that no function but those that prepare them mentions (``layer-unused``), tables of layers of which
    each forward pass takes the one that its caller names (``layer-chosen``), and those of which it leaves some out at
    random (``layer-skipped``). DistributedDataParallel waits for a gradient of each parameter, unless an option makes
    it look for those without (https://docs.pytorch.org/docs/stable/notes/ddp.html#internal-design). layer: its name.
    owner: its class. The wrap is beside it. Nothing where the class inherits from one that was not read, or may reach
    its layers without their names.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for wrap in wraps_of(kinds):
        call, scope = wrap.value.call, wrap.scope
        if any(find_keyword(call, name) is not None or may_give(call, scope, name) for name in ASKS):
            continue
        members = kinds.programs.members(scope.module)
        for inner in wrap.value.inner:
            owners = _list_owners(inner.owner, kinds) if inner.owner is not None and not inner.guessed else []
            for owner, name, value, maker in (row for each in owners for row in _list_layers(each, files)):
                if value in told or not is_certain(value, maker, kinds):
                    continue  # a layer below a test may never be made
                uses = [each for member in members for each in _list_uses(name, member)]
                rule = "layer-unused" if not uses else None
                table = files.dotted(value.func, maker) in TABLES
                if uses and table and _is_chosen(uses, owner):
                    rule = "layer-chosen" if _runs_once(wrap.value.made, kinds) else None
                elif table and _is_skipped(name, owner, files):
                    rule = "layer-skipped"
                if rule is not None:
                    told.add(value)
                    beside = (RelatedPlace("noticed", scope.place(call)),)
                    details = {"layer": name, "owner": owner.name or ""}
                    yield SourceFact(rule, maker.place(value), beside, details, certain=False)


def _list_owners(owner: Scope, kinds: Kinds) -> list[Scope]:
    """Return a class of models and those of the layers that it is made of, as far as all of each was read."""
    found = [owner]
    for each in found:
        for values in each.attributes.values():
            for value in values if len(found) < MOST else ():
                for call in ast.walk(value) if value is not UNKNOWN else ():
                    made = (
                        kinds.files.find_class(call.func, each.makers.get(value, each))
                        if isinstance(call, ast.Call)
                        else None
                    )
                    if (
                        made is not None
                        and made not in found
                        and find_class_kind(made, kinds.files) == "model"
                    ):
                        found.append(made)
    return [each for each in found if _is_whole(each, kinds)]


def _is_whole(owner: Scope, kinds: Kinds) -> bool:
    """Whether a class has a forward pass, all of it was read, and it reaches its layers by their names alone."""
    if kinds.files.objects.method(owner, "forward") is None:
        return False
    for each in kinds.files.objects.bases(owner):
        if not isinstance(each.node, ast.ClassDef) or not WALKS.isdisjoint(names_in(each.node)):
            return False
        home = each.outer or each
        for base in each.node.bases:
            known = kinds.files.find_class(base, home) is not None
            if not known and kinds.files.dotted(base, home) not in BASES:
                return False
    return True


def _list_layers(owner: Scope, files: Files) -> Iterator[tuple[Scope, str, ast.Call, Scope]]:
    """Yield the attributes of a class that hold layers with parameters, and are bound once."""
    for each in files.objects.bases(owner):
        for name, values in each.attributes.items():
            value = values[0] if len(values) == 1 else None
            maker = each.makers.get(value, each) if value is not None else each
            if isinstance(value, ast.Call) and (maker.name or "").endswith("__init__"):
                called = files.dotted(value.func, maker) or ""
                if LAYERS.fullmatch(called) or called in TABLES:
                    yield owner, name, value, maker


def _list_uses(name: str, member: Scope) -> list[tuple[ast.AST, Scope]]:
    """Return where a file mentions an attribute, or its name as a text, other than to prepare it."""
    text = member.script.text
    if name not in text:
        return []
    return [
        (node, scope)
        for scope in member.walk()
        if not SETS_UP.search((scope.name or "").rpartition(".")[2])
        for node in (*own_nodes(scope.node), *_in_lambdas(scope))
        if _mentions(node, name)
    ]


def _in_lambdas(scope: Scope) -> Iterator[ast.AST]:
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Lambda):
            yield from ast.walk(node.body)


def _mentions(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == name and isinstance(node.ctx, ast.Load)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and name in node.value


def _is_chosen(uses: list[tuple[ast.AST, Scope]], owner: Scope) -> bool:
    """Whether a table of layers is only asked for the element that a parameter of the forward pass names."""
    for node, scope in uses:
        if scope.find_class() is not owner or not isinstance(scope.node, ast.FunctionDef):
            return False
        taken = [
            each for each in own_nodes(scope.node) if isinstance(each, ast.Subscript) and each.value is node
        ]
        key = taken[0].slice if taken else None
        if not isinstance(key, ast.Name) or scope.bound.get(key.id) != [UNKNOWN]:
            return False
        if key.id not in scope.parameters or key.id in scope.loops:
            return False
    return True


def _is_skipped(name: str, owner: Scope, files: Files) -> bool:
    """Whether the forward pass goes through a list of layers and calls each only where a random number lets it."""
    forward = files.objects.method(owner, "forward")
    if forward is None:
        return False
    for loop in own_nodes(forward.node):
        if not isinstance(loop, ast.For) or not any(_mentions(each, name) for each in ast.walk(loop.iter)):
            continue
        own = set(names_in(loop.target))
        for statement in loop.body:
            if not isinstance(statement, ast.If) or not _draws(statement.test, forward, files):
                continue
            inside = [each for inner in statement.body for each in ast.walk(inner)]
            calls = any(
                isinstance(each, ast.Call) and own.intersection(names_in(each.func)) for each in inside
            )
            if isinstance(statement.body[-1], ast.Continue) or (calls and not statement.orelse):
                return True
    return False


def _draws(test: ast.expr, scope: Scope, files: Files) -> bool:
    """Whether a test is on a random number, also by a variable of the function."""
    names = {each.id for each in ast.walk(test) if isinstance(each, ast.Name)}
    values = [value for name in names for value in scope.bound.get(name, []) if value is not UNKNOWN]
    return any(
        isinstance(each, ast.Call) and files.dotted(each.func, scope) in RANDOM
        for whole in (test, *values)
        for each in ast.walk(whole)
    )


def _runs_once(made: ast.AST | None, kinds: Kinds) -> bool:
    """Whether each loop that trains a wrapped model calls it once for each backward pass."""
    loops = [
        (loop, each)
        for loop in training_loops(kinds)
        for each in loop.wrapped
        if any(value.made is made for value in each.values)
    ]
    return bool(loops) and all(_is_alone(loop, forward) for loop, forward in loops)


def _is_alone(loop: TrainingLoop, forward: Forward) -> bool:
    others = [each for each in loop.wrapped if each.call is not forward.call]
    repeats = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.DictComp)
    inner = [
        node
        for node in ast.walk(forward.scope.node)
        if isinstance(node, repeats) and any(each is forward.call for each in ast.walk(node))
    ]
    backwards = [node for node in inner if any(name_last(c.func) == "backward" for c in _calls(node))]
    return not others and len(inner) == len(backwards)


def _calls(node: ast.AST) -> list[ast.Call]:
    return [each for each in ast.walk(node) if isinstance(each, ast.Call)]


@check("DDP001", family="source", needs=NEEDS, id="lint.layers_unused", commands=LINT)
def tell_unused_layers(evidence: Evidence) -> Iterable[Finding]:
    """A layer of a wrapped model gets no gradient."""
    search = Fix(
        "let DDP look for parameters without a gradient",
        code="model = DistributedDataParallel(model, find_unused_parameters=True)",
    )
    for fact in facts_of(evidence, "layer-unused", "layer-chosen", "layer-skipped"):
        layer, line, fix = fact.details["layer"], name_line(fact.place), search
        if fact.rule == "layer-unused":
            what = f"{fact.details['owner']} creates {layer} at {line} and never uses it: its parameters"
            fix = Fix("remove the layer, or freeze it", code=f"self.{layer}.requires_grad_(False)")
            why = f"no file of the program mentions {layer} outside of functions that initialize"
        elif fact.rule == "layer-chosen":
            what = f"Each forward pass uses only the layer of {layer} ({line}) that its caller names: the parameters "
            what += "of the others"
            why = "the layers are only taken by a parameter, and each backward pass follows one forward pass"
        else:
            what = f"The forward pass skips layers of {layer} ({line}) at random: their parameters"
            why = "a random number decides in the forward pass whether each layer is called"
        wrap = name_line(fact.related[0].place)
        message = f"{what} receive no gradient, which DistributedDataParallel ({wrap}) does not expect."
        yield tell_fact(fact, message, fix, why=why, severity="warning")
