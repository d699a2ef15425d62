"""A value of a program: of which kind it is, which call made it, and what is in it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from ddpdoctor.source.resolve.names import Scope


@dataclass(frozen=True, slots=True)
class Value:
    """What a value may be."""

    kind: str
    """model, wrapped, sharded, loader, prepared, sampler, optimizer, scaler, loss, dataset, none or unknown …"""
    made: ast.AST | None = None
    """The call that made it."""
    scope: Scope | None = None
    """Where that call stands."""
    name: str = ""
    """Dotted name of what was called."""
    owner: Scope | None = None
    """Its class, where that stands in one of the files."""
    inner: tuple[Value, ...] = ()
    """What was put into a value that is wrapped."""
    via: tuple[tuple[ast.Call, Scope], ...] = ()
    """The calls of functions of the files in which it was made, the outermost first."""
    guessed: bool = False
    """Whether it is taken for a model since it is wrapped; what made it is not known."""

    def __hash__(self) -> int:
        """Hash what differs most often: all that is inside would be gone through each time."""
        return hash((self.kind, self.made, len(self.via)))

    @property
    def identity(self) -> object:
        """What is equal for one object; also for those of different rounds of a loop, or of different owners."""
        return self.made, tuple(call for call, _ in self.via)

    def may_be(self, other: Value) -> bool:
        """Whether two values may be one object: of one call, where the calls around it do not differ.

        What a method keeps as ``self.sampler`` is followed to its making alone, and what the method returns also to
        the call of the method.
        """
        fewer = min(len(self.via), len(other.via))
        own, theirs = (each.via[len(each.via) - fewer :] for each in (self, other))
        return self.made is other.made and [call for call, _ in own] == [call for call, _ in theirs]

    @property
    def call(self) -> ast.Call:
        """The call that made it.

        Raises:
            TypeError: it is of no kind that a call makes.
        """
        if not isinstance(self.made, ast.Call):
            raise TypeError(self.kind)
        return self.made


Index = int | str | None
"""Which element of a value is meant: its place in a tuple, or its key in a dictionary; None for the value itself."""
UNKNOWN = Value("unknown")
NONE = Value("none")


def as_model(value: Value, wrapper: ast.Call, scope: Scope) -> Value:
    """Return what is wrapped: whatever made it, a wrapper takes models alone."""
    if value.kind != "unknown":
        return value
    if value.made is None:
        return Value("model", wrapper, scope, guessed=True)
    return replace(value, kind="model", guessed=True)


def renew(value: Value, node: ast.Call, scope: Scope) -> Value:
    """Return a copy of an object, made by a call."""
    return Value(value.kind, node, scope, value.name, value.owner, value.inner)


def born(value: Value, function: Scope, node: ast.Call, scope: Scope) -> Value:
    """Return what a function returned: each call of it makes another object, unless it was given that object."""
    home = value.via[0][1] if value.via else value.scope
    return replace(value, via=((node, scope), *value.via)) if home is function else value


def born_with(value: Value, other: Value) -> Value:
    """Return a value that was followed from where another one was made, as an object of the same call of a function."""
    home = value.via[0][1] if value.via else value.scope
    return replace(value, via=(*other.via, *value.via)) if other.via and home is other.scope else value


def prepare(value: Value, node: ast.Call, scope: Scope) -> Value:
    """Return what Accelerate or Fabric makes of an object, for several ranks."""
    if value.kind == "model":
        return Value("prepared model", node, scope, value.name, value.owner, (value,))
    kind = "prepared" if value.kind == "loader" else value.kind
    return Value(kind, node, scope, value.name, value.owner, (value,))
