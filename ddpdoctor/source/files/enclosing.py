"""Under which conditions a line of a script runs: the tests and loops around it, inside its function."""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

MOST_BYTES = 4 << 20
"""Most bytes of a source file that is read; a longer one was written by a program."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A statement that decides whether a line runs, or how often."""

    kind: str
    """if, else, for, while, except, case, unless (an earlier test whose side leaves the block), or until (a test of the
    loop around the line behind which the loop ends)."""
    line: int
    text: str
    """The source line, stripped."""


def find_conditions(file: str, line: int) -> tuple[Condition, ...]:
    """Return the conditions of a line, the innermost first.

    Beside the statements around it: tests before it in the same block that leave the function or the loop
    (``if rank: return``), for after them the line runs on the other side only; and, just before each loop, the tests in
    it that end the loop (``if done: break``).

    Args:
        file: a Python file; one that cannot be read or parsed gives nothing.
        line: counted from 1.
    """
    tree, lines = _parse(file)
    if tree is None or line < 1:
        return ()
    found: list[Condition] = []
    _descend(tree.body, line, lines, found)
    return tuple(reversed(found))


def find_handler(file: str, line: int) -> Condition | None:
    """Return the `except` around a line, inside its function, behind which the program goes on as if nothing was wrong.

    None where there is none, where several `except`s of the innermost such statement do, and where they raise or exit.

    Args:
        file: a Python file.
        line: counted from 1.
    """
    tree, lines = _parse(file)
    found: Condition | None = None
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _holds(node.body, line):
            found = None  # ast.walk comes to outer functions first
        if isinstance(node, ast.Try) and _holds(node.body, line):
            going = [each for each in node.handlers if not any(map(_ends, ast.walk(each)))]
            if going:
                found = _condition("except", going[0].lineno, lines) if len(going) == 1 else None
    return found


def find_loss(file: str, line: int) -> tuple[int, str] | None:
    """Return the line and text of the statement that gave a loss its value whose backward a line begins.

    None where several statements of the function may have, or none in it has. That it is divided or weighted
    afterwards (``loss = loss / steps``) is not what gave it its value.

    Args:
        file: a Python file.
        line: of ``loss.backward()``, ``scaler.scale(loss).backward()`` or ``accelerator.backward(loss)``.
    """
    tree, lines = _parse(file)
    body: list[ast.AST] = []
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)) and (
            isinstance(node, ast.Module) or _holds(node.body, line)
        ):
            body = list(_walk_function(node))  # ast.walk comes to outer functions first
    names = {name for node in body if getattr(node, "lineno", 0) == line for name in _list_losses(node)}
    given = [
        node
        for node in body
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.lineno < line
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id in names
        if isinstance(node, ast.AugAssign) or not _mentions(node.value, target.id)
    ]
    if len(given) != 1 or isinstance(given[0], ast.AugAssign):
        return None
    return given[0].lineno, lines[given[0].lineno - 1].strip()


def _walk_function(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what stands in a function itself, in no function inside of it."""
    for each in ast.iter_child_nodes(node):
        yield each
        if not isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from _walk_function(each)


def _list_losses(node: ast.AST) -> Iterator[str]:
    """Yield the variables of which a call begins the backward."""
    if (
        not isinstance(node, ast.Call)
        or not isinstance(node.func, ast.Attribute)
        or node.func.attr != "backward"
    ):
        return
    given: ast.AST = node.args[0] if node.args else node.func.value
    if isinstance(given, ast.Call) and given.args:
        given = given.args[0]
    yield from (each.id for each in ast.walk(given) if isinstance(each, ast.Name))


def _mentions(value: ast.expr | None, name: str) -> bool:
    return value is None or any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(value))


def _ends(node: ast.AST) -> bool:
    """Whether it raises, or calls what ends a process."""
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name in ("exit", "_exit", "abort", "quit")
    return isinstance(node, ast.Raise)


@lru_cache(maxsize=1024)
def is_source(file: str) -> bool:
    """Whether a file is a Python script that may be read and quoted.

    Names of files come from what processes wrote down, which anybody may have changed: a pipe would block, and a line
    of a private key does not belong into a report. What has no name of Python's has to be a program of it.
    """
    try:
        status = os.stat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            return False
        if os.path.realpath(file).endswith((".py", ".pyw")):
            return True
        return any(not isinstance(each, ast.Expr) for each in ast.parse(Path(file).read_bytes()).body)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False


@lru_cache(maxsize=64)
def _parse(file: str) -> tuple[ast.Module | None, list[str]]:
    try:
        if not is_source(file):
            return None, []
        data = Path(file).read_bytes()
        return ast.parse(data), data.decode(errors="replace").splitlines()
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None, []


def _descend(body: list[ast.stmt], line: int, lines: list[str], found: list[Condition]) -> None:
    for place, statement in enumerate(body):
        if not statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            continue
        found.extend(_guard(earlier, lines) for earlier in body[:place] if _leaves(earlier))
        _enter(statement, line, lines, found)
        return


def _enter(statement: ast.stmt, line: int, lines: list[str], found: list[Condition]) -> None:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        found.clear()  # what is around a function says nothing of when it is called
        _descend(statement.body, line, lines, found)
        return
    for name, block in ast.iter_fields(statement):
        if not isinstance(block, list):
            continue
        for child in block:
            if isinstance(child, (ast.ExceptHandler, ast.match_case)) and _holds(child.body, line):
                handler = isinstance(child, ast.ExceptHandler)
                at = child.lineno if isinstance(child, ast.ExceptHandler) else child.pattern.lineno
                found.append(_condition("except" if handler else "case", at, lines))
                _descend(child.body, line, lines, found)
                return
        statements = [child for child in block if isinstance(child, ast.stmt)]
        if not _holds(statements, line):
            continue
        kind = _KINDS.get((type(statement), name))
        if kind is not None:
            found.append(_condition(kind, statement.lineno, lines))
        if isinstance(statement, _LOOPS) and name == "body":
            found.extend(_condition("until", each, lines) for each in _list_breaks(statements))
        _descend(statements, line, lines, found)
        return


_KINDS = {
    (ast.If, "body"): "if",
    (ast.If, "orelse"): "else",
    (ast.For, "body"): "for",
    (ast.AsyncFor, "body"): "for",
    (ast.While, "body"): "while",
}


_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def _list_breaks(body: list[ast.stmt], test: int | None = None) -> list[int]:
    """Return the lines of the innermost tests of a loop's body on a side of which there is a break out of it."""
    found: list[int] = []
    for statement in body:
        if isinstance(statement, ast.Break) and test is not None:
            found.append(test)
        if isinstance(statement, (*_LOOPS, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        inner = statement.lineno if isinstance(statement, ast.If) else test
        for _, block in ast.iter_fields(statement):
            if isinstance(block, list):
                parts = [
                    part.body if isinstance(part, (ast.ExceptHandler, ast.match_case)) else [part]
                    for part in block
                ]
                found += [
                    line
                    for part in parts
                    for line in _list_breaks([s for s in part if isinstance(s, ast.stmt)], inner)
                ]
    return list(dict.fromkeys(found))


def _holds(block: list[ast.stmt], line: int) -> bool:
    return bool(block) and block[0].lineno <= line <= (block[-1].end_lineno or block[-1].lineno)


def _leaves(statement: ast.stmt) -> bool:
    """Whether it is a test one side of which always leaves the block, and the other does not."""
    if not isinstance(statement, ast.If):
        return False
    last = statement.body[-1]
    while isinstance(last, (ast.With, ast.AsyncWith)):
        last = last.body[-1]
    return not statement.orelse and isinstance(last, (ast.Return, ast.Continue, ast.Break, ast.Raise))


def _guard(statement: ast.stmt, lines: list[str]) -> Condition:
    return _condition("unless", statement.lineno, lines)


def _condition(kind: str, line: int, lines: list[str]) -> Condition:
    return Condition(kind, line, lines[line - 1].strip() if 0 < line <= len(lines) else "")
