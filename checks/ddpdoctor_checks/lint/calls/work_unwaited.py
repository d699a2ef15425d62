"""COL007: asynchronous work is begun, and nothing waits for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import DIST, GROUP_AT
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope, name_calls
from ddpdoctor.source.resolve.walking import find_keyword, is_true, own_nodes
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact
from ddpdoctor_checks.lint.rewriting import read_line

SETTLES = frozenset({"torch.distributed.barrier", "torch.distributed.monitored_barrier", "torch.cuda.synchronize",
                     "torch.accelerator.synchronize"})  # fmt: skip
WAITS = re.compile(r"synchronize|wait|dist\.|distributed|barrier")
"""What waits, or may, in a statement."""
ASKS = re.compile(r"\b(torch\.)?(dist|distributed)\.(get_world_size|get_rank|is_initialized|is_available)\b")
"""Questions about the group, which wait for nothing."""
_LOST = {
    "dropped": "and its Work is dropped",
    "kept": "into a variable that is never read",
    "replaced": "into a variable that is bound anew before it is read",
    "collected": "into a list that is never read",
    "early": "and its tensor is used before the wait",
}
_NUMBERS = frozenset({"item", "tolist", "sum", "mean", "sqrt", "numpy", "div_", "mul_", "clone"})
"""Methods of a tensor that use what it holds."""


@lint_rule("work-unwaited", reads="module")
def find_unwaited(module: Scope, files: Files) -> Iterator[SourceFact]:
    """Yield asynchronous work that is dropped or kept and never looked at (``work-unwaited``).

    operation: the collective. way: one of `_LOST`. Nothing where the function meets a barrier
    or synchronises the device afterwards.
    """
    for scope in module.walk():
        works = {call: name for call, name in name_calls(scope, files) if _is_work(call, name)}
        if not works:
            continue
        yield from _find_replaced(scope, works)
        yield from _find_early(scope, works)
        at_once = _find_read_at_once(scope, works)
        for call in at_once:
            yield _note_dropped(call, scope, works)
        if kinds_of(files).programs.any_file(module, _synchronises, files):
            continue
        settles = (c for c, name in name_calls(scope, files) if name in SETTLES and c not in works)
        settled = max((each.lineno for each in settles), default=0)
        for node in own_nodes(scope.node):
            if _coalesces(node):
                settled = max(settled, getattr(node, "end_lineno", None) or 0)  # its manager has the work
        for node in own_nodes(scope.node):
            for call, how in _find_lost(node, scope, module, files):
                if call in at_once:
                    continue
                if call in works and call.lineno > settled and _is_result_used(call, works[call], scope):
                    operation = works[call].removeprefix(DIST)
                    details = {"operation": operation, "way": how}
                    yield SourceFact("work-unwaited", scope.place(call), details=details)


def _note_dropped(call: ast.Call, scope: Scope, works: Mapping[ast.Call, str]) -> SourceFact:
    details = {"operation": works[call].removeprefix(DIST), "way": "dropped"}
    return SourceFact("work-unwaited", scope.place(call), details=details)


def _find_read_at_once(scope: Scope, works: Mapping[ast.Call, str]) -> list[ast.Call]:
    """Return work that is dropped and whose tensor the next lines read: nothing has waited in between."""
    found = []
    nodes: list[ast.AST] = [scope.node, *own_nodes(scope.node)]
    blocks = [(node, body) for node in nodes for body in _list_blocks(node)]
    around = {id(statement): (owner, body) for owner, body in blocks for statement in body}
    for _, body in blocks:
        for statement in body:
            call = statement.value if isinstance(statement, ast.Expr) else None
            if not isinstance(call, ast.Call) or call not in works or not call.args:
                continue
            if not works[call].endswith("isend") and _is_read_behind(
                statement, around, ast.unparse(call.args[0])
            ):
                found.append(call)
    return found


def _coalesces(node: ast.AST) -> bool:
    """Whether it is a manager that has the works of its block, and may wait for them at its end."""
    return isinstance(node, (ast.With, ast.AsyncWith)) and "coalescing" in ast.unparse(
        node.items[0].context_expr
    )


def _list_blocks(node: ast.AST) -> list[list[ast.stmt]]:
    blocks = (getattr(node, name, None) for name in ("body", "orelse", "finalbody"))
    return [each for each in blocks if isinstance(each, list)]


def _is_read_behind(
    statement: ast.AST, around: Mapping[int, tuple[ast.AST, Sequence[ast.stmt]]], text: str
) -> bool:
    """Whether what follows a statement, also behind the tests around it, reads a tensor before anything waits."""
    while id(statement) in around:
        owner, body = around[id(statement)]
        if _coalesces(owner):
            return False
        place = next(n for n, each in enumerate(body) if each is statement)
        read = _is_read_before_wait(body[place + 1 :], text)
        if read is not None:
            return read
        if not isinstance(owner, (ast.If, ast.With)):
            return False
        statement = owner
    return False


def _find_replaced(scope: Scope, works: dict[ast.Call, str]) -> Iterator[SourceFact]:
    """Yield work in a variable that the same block binds anew before anything reads it."""
    for node in (scope.node, *own_nodes(scope.node)):
        for body in _list_blocks(node):
            for place, statement in enumerate(body):
                call, name = _read_assigned(statement)
                if call in works and name and _is_bound_anew(body[place + 1 :], name):
                    details = {"operation": works[call].removeprefix(DIST), "way": "replaced"}
                    yield SourceFact("work-unwaited", scope.place(call), details=details)


def _find_early(scope: Scope, works: dict[ast.Call, str]) -> Iterator[SourceFact]:
    """Yield work in a variable whose tensor the next lines compute with, before the work is waited for."""
    for node in (scope.node, *own_nodes(scope.node)):
        for body in _list_blocks(node):
            for place, statement in enumerate(body):
                call, name = _read_assigned(statement)
                if call is None or call not in works or not call.args or works[call].endswith("isend"):
                    continue
                if _is_used_early(body[place + 1 :], ast.unparse(call.args[0]), name):
                    details = {"operation": works[call].removeprefix(DIST), "way": "early"}
                    yield SourceFact("work-unwaited", scope.place(call), details=details)


def _is_used_early(statements: Sequence[ast.stmt], text: str, work: str) -> bool:
    """Whether statements compute with a tensor before one of them has its work, waits, or may: it calls something."""
    for each in statements:
        names = {node.id for node in ast.walk(each) if isinstance(node, ast.Name)}
        if work in names or not isinstance(each, (ast.Assign, ast.AugAssign, ast.Expr)):
            return False
        if WAITS.search(ASKS.sub("", ast.unparse(each))):
            return False
        if _computes_with(each, text):
            return True
        if any(isinstance(node, ast.Call) for node in ast.walk(each)):
            return False
    return False


def _computes_with(node: ast.AST, text: str) -> bool:
    """Whether a tensor, or a part of it, is an operand, or is asked for its numbers."""
    operands: list[ast.expr] = []
    for each in ast.walk(node):
        if isinstance(each, ast.BinOp):
            operands += [each.left, each.right]
        elif isinstance(each, ast.Compare):
            operands += [each.left, *each.comparators]
        elif isinstance(each, ast.AugAssign):
            operands += [each.target, each.value]
        elif (
            isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in _NUMBERS
        ):
            operands.append(each.func.value)
    parts = (each.value if isinstance(each, ast.Subscript) else each for each in operands)
    return any(ast.unparse(each) == text for each in parts)


def _read_assigned(statement: ast.stmt) -> tuple[ast.Call | None, str]:
    """Return the call whose result a statement assigns to a variable, and the variable."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None, ""
    target, value = statement.targets[0], statement.value
    return (value, target.id) if isinstance(target, ast.Name) and isinstance(value, ast.Call) else (None, "")


def _is_bound_anew(statements: Sequence[ast.stmt], name: str) -> bool:
    """Whether a variable is bound anew before a statement reads it, and nothing waits in between."""
    for each in statements:
        named = [node for node in ast.walk(each) if isinstance(node, ast.Name) and node.id == name]
        if any(isinstance(node.ctx, ast.Load) for node in named):
            return False
        if named:
            return _read_assigned(each)[1] == name
        if re.search(r"synchronize|barrier", ast.unparse(each)):
            return False
    return False


def _is_read_before_wait(statements: Iterable[ast.stmt], text: str) -> bool | None:
    """Whether statements read a tensor before one of them waits for anything, or may; None where they do neither.

    Args:
        statements: what follows in the same block.
        text: the tensor.
    """
    for each in statements:
        first = each.iter if isinstance(each, (ast.For, ast.AsyncFor)) else each
        if isinstance(each, (ast.While, ast.Try)) or WAITS.search(ASKS.sub("", ast.unparse(first))):
            return False
        if _reads(first, text):
            return True
        if isinstance(each, (ast.For, ast.AsyncFor)):
            return bool(_is_read_before_wait(each.body, text))
        if any(isinstance(inner, ast.Call) for inner in ast.walk(each)):
            return False  # what a function does is not followed here
        if isinstance(each, (ast.Return, ast.Raise, ast.Break, ast.Continue)):
            return False
    return None


def _reads(node: ast.AST, text: str) -> bool:
    return any(
        (isinstance(each, ast.AugAssign) and ast.unparse(each.target) == text)
        or (
            isinstance(each, (ast.Name, ast.Attribute))
            and isinstance(each.ctx, ast.Load)
            and ast.unparse(each) == text
        )
        for each in ast.walk(node)
    )


def _synchronises(module: Scope, files: Files) -> bool:
    """Whether a file waits for a device somewhere: then what was begun is done.

    A function of the files with that name does what it does in its own lines.
    """
    return any(
        name.endswith(".synchronize") and files.function(call.func, scope) is None
        for scope in module.walk()
        for call, name in name_calls(scope, files)
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
        given = call.args[0] if len(call.args) == 1 else None
        row = [given] if not isinstance(given, ast.Tuple) else given.elts
        for place, added in enumerate(row):
            if isinstance(added, ast.Name):
                values = scope.bound.get(added.id, [])
                added = values[0] if len(values) == 1 and _is_read_once(added.id, scope) else added
            at = place if isinstance(given, ast.Tuple) else None
            if isinstance(added, ast.Call) and _is_forgotten(call.func, module, files, at):
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


def _is_read_once(name: str, scope: Scope) -> bool:
    nodes = (node for node in ast.walk(scope.node) if isinstance(node, ast.Name) and node.id == name)
    return sum(isinstance(node.ctx, ast.Load) for node in nodes) == 1


def _is_forgotten(function: ast.expr, module: Scope, files: Files, place: int | None) -> bool:
    """Whether it is ``append`` of a list with which the files do nothing but make, count and clear it.

    Args:
        function: what is called.
        module: where that stands.
        files: all of them.
        place: of the work in each element, where that is a tuple: of loops its variable is not read.
    """
    if not isinstance(function, ast.Attribute) or function.attr != "append":
        return False
    name = _name_list(function.value)
    nodes = [node for each in files.find_related(module) for node in ast.walk(each.node)]
    unread = {id(inner) for each in nodes for inner in (*_list_unread(each), *_list_passed_over(each, place))}
    return name is not None and not any(
        isinstance(each, (ast.Name, ast.Attribute))
        and isinstance(each.ctx, ast.Load)
        and id(each) not in unread
        and (_name_list(each) == name or getattr(each, "attr", "") == name.rpartition(".")[2])
        for each in nodes
    )


def _list_unread(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the lists of which a node takes no element: it adds to one, clears it, or asks how long it is."""
    if isinstance(node, ast.Attribute) and node.attr in ("append", "clear"):
        yield node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
        yield from node.args
    elif isinstance(node, (ast.If, ast.While, ast.Assert)):
        yield node.test
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand


def _list_passed_over(node: ast.AST, place: int | None) -> Iterator[ast.expr]:
    """Yield the list that a loop goes through and reads another part of each element: ``for p, _ in self.works``."""
    if place is None or not isinstance(node, ast.For) or not isinstance(node.target, ast.Tuple):
        return
    taken = node.target.elts[place] if place < len(node.target.elts) else None
    if isinstance(taken, ast.Name) and not any(
        isinstance(each, ast.Name) and each.id == taken.id and isinstance(each.ctx, ast.Load)
        for statement in node.body
        for each in ast.walk(statement)
    ):
        yield node.iter


def _name_list(node: ast.expr) -> str | None:
    """Return ``works`` or ``self.works``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return f"self.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


@check("COL007", family="source", needs=NEEDS, id="lint.work", commands=LINT)
def tell_unwaited(evidence: Evidence) -> Iterable[Finding]:
    """Asynchronous work is begun, and nothing waits for it."""
    for fact in facts_of(evidence, "work-unwaited"):
        operation, how = fact.details["operation"], fact.details["way"]
        yield tell_fact(
            fact,
            f"{operation} is issued at {name_line(fact.place)} {_LOST[how]}: "
            + ("it may hold this rank's own values yet." if how == "early" else "nothing waits for it."),
            Fix(
                "keep the Work object and wait before "
                + (
                    "what must come after the barrier"
                    if operation.endswith("barrier")
                    else "the tensor is used"
                ),
                code=_keep(fact.place.text, how),
            ),
            why="the variable has other work before anything waits for this one"
            if how == "replaced"
            else "the next lines use the tensor, and the wait comes after them"
            if how == "early"
            else "no wait, barrier or synchronization follows in the function",
            severity="warning" if how == "replaced" else None,
        )


def _keep(text: str, how: str) -> str:
    """Return the line with its work kept, where it is a whole statement that begins one."""
    if how == "dropped" and isinstance(read_line(text), ast.Expr):
        return f"work = {text}\nwork.wait()"
    if how == "early":
        return "work.wait()   # before the tensor is used"
    return "for work in works:\n    work.wait()" if how == "collected" else "work.wait()"
