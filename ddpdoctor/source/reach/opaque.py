"""What may be a collective and cannot be told: a side of a test that makes such a call is not compared."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from ddpdoctor.source.resolve.calls import is_any_collective, name_collective
from ddpdoctor.source.resolve.known import HARMLESS, KNOWN_ROOTS
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.traces import find_callee
from ddpdoctor.source.resolve.walking import find_calls, name_last

DIST = "torch.distributed."


class Unknowns:
    """Looks for calls that are not followed.

    Args:
        files: all that are read together.
        summarise: gives the collectives that a function makes.
    """

    def __init__(self, files: Files, summarise: Callable[[Scope], Sequence[object]]) -> None:
        self._files = files
        self._summarise = summarise

    def may_call(self, body: Sequence[ast.AST], scope: Scope) -> bool:
        """Whether a side calls what may be a collective and cannot be told: functions that were not given."""
        calls = (node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Call))
        return any(self._is_unknown(call, scope) for call in calls)

    def _is_unknown(self, call: ast.Call, scope: Scope) -> bool:
        if self._hands_over(call, scope):
            return True
        function = find_callee(call, scope, self._files)
        if function is not None:
            inner = find_calls(function)
            return _calls_parameter(function) or any(self._hands_over(each, function) for each in inner)
        if self._is_method_of_files(call, scope):
            return True
        if name_collective(call, scope, self._files) is not None:
            return False
        root = (self._files.dotted(call.func, scope) or "").split(".")[0]
        harmless = name_last(call.func) in HARMLESS or root in KNOWN_ROOTS
        return is_any_collective(call, scope, self._files) or not harmless

    def _hands_over(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call is given a collective, or a function of the files that makes one: it may make that."""
        for each in call.args:
            if not isinstance(each, (ast.Name, ast.Attribute)):
                continue
            if (self._files.dotted(each, scope) or "").startswith(DIST):
                return True
            function = self._files.function(each, scope)
            if function is not None and self._summarise(function):
                return True
        return False

    def _is_method_of_files(self, call: ast.Call, scope: Scope) -> bool:
        """Whether it is a method of an object whose class stands in the files, that makes collectives."""
        if not isinstance(call.func, ast.Attribute):
            return False
        owner = self._files.find_made(call.func.value, scope)
        method = self._files.objects.method(owner, call.func.attr) if owner is not None else None
        return method is not None and bool(self._summarise(method))


def _calls_parameter(function: Scope) -> bool:
    """Whether a function calls what it is given."""
    return any(
        isinstance(each.func, ast.Name) and each.func.id in function.parameters
        for each in find_calls(function)
    )
