"""Rules of single communications: work that nobody waits for, messages between two ranks, roots that differ."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.facts.collectives import COLLECTIVES
from ddpdoctor.source.apart import Ways
from ddpdoctor.source.calls import GROUP_AT, name_collective
from ddpdoctor.source.known import KNOWN_ROOTS
from ddpdoctor.source.names import UNKNOWN, Files, Scope
from ddpdoctor.source.ranks import RankReader
from ddpdoctor.source.traces import Step, Trace
from ddpdoctor.source.walking import find_keyword, is_true, name_calls, own_nodes

DIST = "torch.distributed."
SETTLES = frozenset({"torch.distributed.barrier", "torch.distributed.monitored_barrier", "torch.cuda.synchronize",
                     "torch.accelerator.synchronize"})  # fmt: skip
SENDS = frozenset({f"{DIST}send", f"{DIST}isend", f"{DIST}send_object_list"})
RECEIVES = frozenset({f"{DIST}recv", f"{DIST}irecv", f"{DIST}recv_object_list"})
UNORDERED = frozenset({f"{DIST}isend", f"{DIST}irecv", f"{DIST}batch_isend_irecv"})
ROOTS = {row.name: row.root for row in COLLECTIVES.values() if row.root is not None}
"""Collectives with a root, and where it stands."""


def find_unwaited(module: Scope, files: Files) -> Iterator[SourceFact]:
    """Yield asynchronous work that is dropped or kept and never looked at (``work-unwaited``).

    operation: the collective. way: ``dropped``, ``kept`` or ``collected``. Nothing where the function meets a barrier
    or synchronises the device afterwards.
    """
    for scope in module.walk():
        works = {call: name for call, name in name_calls(scope, files) if _is_work(call, name)}
        if not works:
            continue
        if any(_synchronises(each, files) for each in files.find_related(module)):
            return
        settled = max((c.lineno for c, name in name_calls(scope, files) if name in SETTLES), default=0)
        for node in own_nodes(scope.node):
            if isinstance(node, (ast.With, ast.AsyncWith)) and "coalescing" in ast.unparse(
                node.items[0].context_expr
            ):
                settled = max(settled, node.end_lineno or 0)  # its manager has the work
        for node in own_nodes(scope.node):
            for call, how in _find_lost(node, scope, module, files):
                if call in works and call.lineno > settled and _is_result_used(call, works[call], scope):
                    operation = works[call].removeprefix(DIST)
                    details = {"operation": operation, "way": how}
                    yield SourceFact("work-unwaited", scope.place(call), details=details)


def _synchronises(module: Scope, files: Files) -> bool:
    """Whether a file waits for a device somewhere: then what was begun is done."""
    return any(
        name.endswith(".synchronize") for scope in module.walk() for _, name in name_calls(scope, files)
    )


def _is_work(call: ast.Call, name: str) -> bool:
    operation = name.removeprefix(DIST)
    if operation == name:
        return False
    return operation in ("isend", "irecv") or (
        operation in GROUP_AT and is_true(find_keyword(call, "async_op"))
    )


def _is_result_used(call: ast.Call, name: str, scope: Scope) -> bool:
    """Whether anybody else may look at the tensor: one that a function makes for the call alone is nobody's loss."""
    if name.endswith(("isend", "irecv")):
        return True
    for value in (
        *call.args,
        *(each.value for each in call.keywords if each.arg in ("tensor", "tensor_list")),
    ):
        if not isinstance(value, ast.Name):
            continue
        own = [each for each in scope.bound.get(value.id, []) if each is not UNKNOWN]
        loads = [each for each in ast.walk(scope.node) if isinstance(each, ast.Name) and each.id == value.id]
        uses = [each for each in loads if isinstance(each.ctx, ast.Load)]
        if not own or len(uses) > 1:
            return True
    return not any(isinstance(each, ast.Name) for each in call.args[:2])


def _find_lost(node: ast.AST, scope: Scope, module: Scope, files: Files) -> Iterator[tuple[ast.Call, str]]:
    """Yield calls whose result a statement loses, and how."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        yield call, "dropped"
        added = call.args[0] if len(call.args) == 1 else None
        if isinstance(added, ast.Call) and _is_forgotten(call.func, module, files):
            yield added, "collected"
    elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        value = node.value
        if isinstance(value, ast.ListComp):
            value = value.elt
        name = node.targets[0].id  # with an underscore: dropped on purpose
        if isinstance(value, ast.Call) and not name.startswith("_") and not _is_loaded(name, scope):
            yield value, "kept"


def _is_loaded(name: str, scope: Scope) -> bool:
    """Whether a function, or one inside of it, reads a variable; one of a module may be read elsewhere."""
    if any(
        isinstance(each, (ast.Global, ast.Nonlocal)) and name in each.names for each in ast.walk(scope.node)
    ):
        return True
    return any(
        isinstance(each, ast.Name) and each.id == name and not isinstance(each.ctx, ast.Store)
        for each in ast.walk(scope.node)
    )


def _is_forgotten(function: ast.expr, module: Scope, files: Files) -> bool:
    """Whether it is ``append`` of a list with which the files do nothing but make it and add to it."""
    if not isinstance(function, ast.Attribute) or function.attr != "append":
        return False
    name = _name_list(function.value)
    nodes = [node for each in files.find_related(module) for node in ast.walk(each.node)]
    added = {id(each.value) for each in nodes if isinstance(each, ast.Attribute) and each.attr == "append"}
    return name is not None and not any(
        isinstance(each, (ast.Name, ast.Attribute))
        and isinstance(each.ctx, ast.Load)
        and id(each) not in added
        and (_name_list(each) == name or getattr(each, "attr", "") == name.rpartition(".")[2])
        for each in nodes
    )


def _name_list(node: ast.expr) -> str | None:
    """Return ``works`` or ``self.works``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return f"self.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def find_unmatched_messages(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield messages to which all ranks come on the same side first (``all-receive``, ``all-send``).

    The other side's line is beside it. Also messages without another side in any of the files (``message-unmatched``;
    side: ``send`` or ``recv``).
    """
    messages = [step for step in trace.steps if step.name in SENDS | RECEIVES]
    if not messages or not trace.has_peers:
        return
    ways = Ways(files, trace)
    text = "\n".join(line for each in files.find_related(trace.start) for line in each.script.lines)
    for names, other, what in ((SENDS, "recv", "send"), (RECEIVES, "send", "recv")):
        first = next((step for step in messages if step.name in names), None)
        if first is not None and other not in text:
            certain = _knows_all(trace.start, files)
            yield SourceFact(
                "message-unmatched", first.scope.place(first.node), details={"side": what}, certain=certain
            )
            return
    if any(
        step.name in UNORDERED or ways.may_differ(step) for step in trace.steps if step.name.startswith(DIST)
    ):
        return
    first = messages[0]
    rule, others = ("all-receive", SENDS) if first.name in RECEIVES else ("all-send", RECEIVES)
    second = next((step for step in messages if step.name in others), None)
    if second is not None and not (ways.is_sure(first) and ways.is_sure(second)):
        return  # a test may let some ranks begin on the other side
    if second is not None and not any(map(ways.is_foreign, trace.steps[: trace.steps.index(second)])):
        yield ways.tell(rule, first, beside=second)


def _knows_all(module: Scope, files: Files) -> bool:
    """Whether the program imports nothing but what was given and packages that send no messages."""
    related = files.find_related(module)
    own = {each.script.name.removesuffix(".py").rpartition("/")[2] for each in related}
    roots = {
        name.lstrip(".").split(".")[0]
        for each in related
        for scope in each.walk()
        for name in scope.imports.values()
    }
    return roots <= KNOWN_ROOTS | own


def find_roots_that_differ(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield collectives whose root is each rank's own number, or one near it (``root-differs``).

    operation: the collective. root: how it is written.
    """
    if not trace.has_peers:
        return
    ways, ranks = Ways(files, trace), RankReader(files)
    for step in trace.steps:
        call = step.call
        operation = name_collective(call, step.scope, files) if call is not None else None
        if call is None or operation not in ROOTS:
            continue
        keyword, position = ROOTS[operation]
        root = find_keyword(call, keyword, position)
        if root is None or not _is_own_rank(root, step, ranks) or ways.may_differ(step):
            continue
        yield ways.tell("root-differs", step, operation=operation, root=ast.unparse(root))


def _is_own_rank(root: ast.expr, step: Step, ranks: RankReader) -> bool:
    """Whether a root was followed to the rank, by additions and remainders alone."""
    node = root
    if isinstance(node, ast.Name):
        found = step.scope.lookup(node.id)
        if found is not None and len(found[1]) == 1 and isinstance(found[1][0], ast.BinOp):
            return found[0] is step.scope and _is_own_rank(found[1][0], step, ranks)
    while isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mod)):
        if isinstance(node.op, ast.Sub) and not isinstance(node.right, ast.Constant):
            return False  # ``rank - rank % size``: the first rank of a group
        node = node.left
    return not isinstance(node, ast.BinOp) and ranks.rank(node, step.scope) is True


def find_roots_apart(module: Scope, files: Files) -> Iterator[SourceFact]:
    """Yield collectives whose root is another number on the two sides of a test on the rank (``roots-apart``).

    operation: the collective. root, other: both roots. The call of the other side is beside it.
    """
    ranks = RankReader(files)
    for scope in module.walk():
        if not any(name.removeprefix(DIST) in ROOTS for _, name in name_calls(scope, files)):
            continue
        for node in own_nodes(scope.node):
            if not isinstance(node, ast.If) or not node.orelse or ranks.read(node.test, scope) is None:
                continue
            left, right = (_rooted(side, scope, files) for side in (node.body, node.orelse))
            if [operation for operation, _, _ in left] != [operation for operation, _, _ in right]:
                continue
            for (operation, one, call), (_, other, beside) in zip(left, right, strict=True):
                if one is not None and other is not None and one != other:
                    related = (RelatedPlace("culprit", scope.place(beside)),)
                    place = scope.place(call)
                    details = {"operation": operation, "root": str(one), "other": str(other)}
                    yield SourceFact("roots-apart", place, related=related, details=details)


def _rooted(side: list[ast.stmt], scope: Scope, files: Files) -> list[tuple[str, int | None, ast.Call]]:
    """Return the collectives of a side that have a root, with it where it is a number."""
    found = []
    calls = [each for statement in side for each in own_nodes(statement) if isinstance(each, ast.Call)]
    for call in sorted(calls, key=lambda each: (each.lineno, each.col_offset)):
        operation = name_collective(call, scope, files)
        if operation in ROOTS:
            root = find_keyword(call, *ROOTS[operation])
            number = root.value if isinstance(root, ast.Constant) and isinstance(root.value, int) else None
            found.append((operation, number, call))
    return found
