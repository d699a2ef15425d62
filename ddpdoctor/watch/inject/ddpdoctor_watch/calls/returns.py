"""Seeing what a function of torch returns, without a frame of ours on the stack while it runs.

For functions that torch does not decorate: each ``return f(…)`` in one becomes ``return seen(f(…))``, at the same lines
and columns, so that its tracebacks stay as they are.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

NAME = "_ddpdoctor_returned"
"""Under which the module of such a function finds ours."""
MOST_LINES = 400
_SAME = ("co_code", "co_consts", "co_names", "co_varnames")
_WITHIN = (" ", "\t", "\n", "\r", ")", "]", "#")
"""What a line of a function at the top level may begin with, behind its first."""


def see_returns(func: Any, seen: Callable[[Any], Any]) -> bool:
    """Let a function give what it returns to another one, which must return it and not raise.

    Args:
        func: defined at the top level of its module, without a decorator or a closure.
        seen: called from its frame.

    Returns:
        False where its source cannot be had, or is not what runs: then it is left alone.
    """
    import ast  # torch has imported it

    code = func.__code__
    lines = _read_lines(code)
    if not lines or code.co_freevars:
        return False
    try:
        tree = ast.parse("".join(lines))
        # A compiler may call methods of what its module imports in another way.
        modules = [name for name in code.co_names if type(func.__globals__.get(name)) is type(ast)]
        tree.body += ast.parse("".join(f"import {name}\n" for name in modules)).body
        same = _compile(tree, code)
        if same is None or any(getattr(same, name) != getattr(code, name) for name in _SAME):
            return False
        for node in ast.walk(tree):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
                name = ast.copy_location(ast.Name(NAME, ast.Load()), node.value)
                node.value = ast.copy_location(ast.Call(name, [node.value], []), node.value)
        made = _compile(tree, code)
    except (SyntaxError, ValueError, RecursionError):
        return False
    if made is None:
        return False
    func.__globals__[NAME] = seen
    func.__code__ = made
    return True


def _read_lines(code: CodeType) -> list[str]:
    """Return the lines of a function at the top level of its file; none where they cannot be read."""
    lines: list[str] = []
    try:
        with open(code.co_filename, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if number < code.co_firstlineno:
                    continue
                if lines and not line.startswith(_WITHIN):
                    break
                if len(lines) == MOST_LINES:
                    return []
                lines.append(line)
    except (OSError, ValueError):
        return []
    return lines


def _compile(tree: Any, code: CodeType) -> CodeType | None:
    """Return the code of the one function of a tree, at the lines of another one's."""
    import __future__

    import ast

    if tree.body[0].lineno < code.co_firstlineno:
        ast.increment_lineno(tree, code.co_firstlineno - tree.body[0].lineno)
    mask = 0
    for name in __future__.all_feature_names:
        mask |= getattr(__future__, name).compiler_flag
    whole = compile(tree, code.co_filename, "exec", flags=code.co_flags & mask, dont_inherit=True)
    return next((each for each in whole.co_consts if getattr(each, "co_name", "") == code.co_name), None)
