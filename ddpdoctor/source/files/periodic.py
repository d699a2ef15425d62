"""Averages of parameters that a program makes each so many steps: what they wait for, read without running anything.

Local SGD, DiLoCo and outer optimizers join their ranks now and then. Where nothing of the kind was seen in a run, the
test that it waits for tells ranks that were to train one model from those that train apart on purpose.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ddpdoctor.source.files.reading import Script

CARRYING = frozenset(
    {"all_reduce", "all_gather", "all_gather_into_tensor", "all_reduce_coalesced", "broadcast", "reduce",
     "reduce_scatter_tensor"}
)  # fmt: skip
"""Functions of torch.distributed that carry what they are given."""
SMALL = re.compile(
    r"\b(?:norm|mean|sum|item|max|min|std|var|any|all|numel|len|tensor|zeros|ones|isnan|isfinite)\("
)
"""What makes a number of a parameter: norms that are logged are no parameters that are carried."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Round:
    """A test that decides in which steps parameters are carried."""

    file: str
    line: int
    text: str


def find_rounds(scripts: Iterable[Script]) -> list[Round]:
    """Return the tests by a number of steps behind which a program carries its parameters over ranks.

    A test counts where it takes a remainder (``step % 8``), itself or by a name that was given one in the same file.
    Followed is one call of the function in which the collective stands.

    Args:
        scripts: Of one program.
    """
    read = [(script.name, _Tests(script.tree)) for script in scripts if script.tree is not None]
    found: list[Round] = []
    carriers: set[str] = set()
    for name, tests in read:
        for call in tests.list_carrying():
            guard = tests.find(call)
            if guard is not None:
                found.append(Round(name, guard.lineno, ast.unparse(guard.test)))
            elif (function := tests.functions.get(call)) is not None:
                carriers.add(function.name)
    for name, tests in read:
        for call in tests.calls:
            guard = tests.find(call) if _name(call) in carriers else None
            if guard is not None:
                found.append(Round(name, guard.lineno, ast.unparse(guard.test)))
    return list(dict.fromkeys(found))


class _Tests:
    """The calls of one file and the tests that they stand behind.

    Args:
        tree: Of the file.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.calls: list[ast.Call] = []
        self.functions: dict[ast.Call, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        """Call -> the function that it stands in, where it does."""
        self._guards: dict[ast.Call, ast.If] = {}
        self._loops: dict[ast.Call, list[ast.expr]] = {}
        self._numbers = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and SMALL.search(ast.unparse(node.value))
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self._names = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and _has_remainder(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self._go(tree.body, None, None, ())

    def find(self, call: ast.Call) -> ast.If | None:
        """Return the innermost test by a number of steps that a call stands behind."""
        return self._guards.get(call)

    def list_carrying(self) -> Iterator[ast.Call]:
        """Yield the collectives in a loop over parameters."""
        for call in self.calls:
            if _name(call) in CARRYING and any("param" in ast.unparse(each) for each in self._loops[call]):
                given = call.args[0] if call.args else None
                number = isinstance(given, ast.Name) and given.id in self._numbers
                if given is not None and not number and not SMALL.search(ast.unparse(given)):
                    yield call

    def _go(
        self,
        body: Iterable[ast.stmt],
        function: ast.FunctionDef | ast.AsyncFunctionDef | None,
        guard: ast.If | None,
        loops: tuple[ast.expr, ...],
    ) -> None:
        for statement in body:
            if isinstance(statement, ast.ClassDef):
                self._go(statement.body, None, None, ())
                continue
            if isinstance(statement, _FUNCTIONS):
                self._go(statement.body, statement, None, ())
                continue
            inner, around = guard, loops
            if isinstance(statement, ast.If) and self._is_due(statement.test):
                inner = statement
            if isinstance(statement, (ast.For, ast.AsyncFor)):
                around = (*loops, statement.iter)
            blocks = [
                block
                for _, block in ast.iter_fields(statement)
                if isinstance(block, list) and block and isinstance(block[0], ast.stmt)
            ]
            handlers = [each.body for each in getattr(statement, "handlers", ())]
            self._note(statement, function, guard, loops)
            for block in (*blocks, *handlers):
                self._go(block, function, inner, around)
            if inner is not guard and isinstance(statement, ast.If) and not statement.orelse:
                last = statement.body[-1]
                if isinstance(last, (ast.Return, ast.Continue)):
                    guard = statement

    def _note(
        self,
        statement: ast.stmt,
        function: ast.FunctionDef | ast.AsyncFunctionDef | None,
        guard: ast.If | None,
        loops: tuple[ast.expr, ...],
    ) -> None:
        """Remember the calls of a statement itself, not those of the statements in it."""
        waiting: list[ast.AST] = [statement]
        around = list(loops)  # one list for all calls of the statement
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.comprehension):
                around.append(node.iter)
            if isinstance(node, ast.Call):
                self.calls.append(node)
                self._loops[node] = around
                if function is not None:
                    self.functions[node] = function
                if guard is not None:
                    self._guards[node] = guard
            waiting += [
                each
                for each in ast.iter_child_nodes(node)
                if not isinstance(each, (ast.stmt, ast.ExceptHandler))
            ]

    def _is_due(self, test: ast.expr) -> bool:
        return _has_remainder(test) or any(
            isinstance(node, ast.Name) and node.id in self._names for node in ast.walk(test)
        )


def _has_remainder(value: ast.expr) -> bool:
    return any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mod)
        and not (
            isinstance(node.left, ast.JoinedStr)
            or isinstance(getattr(node.left, "value", None), (str, bytes))
        )
        for node in ast.walk(value)
    )


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
