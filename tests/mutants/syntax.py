"""Python as libcst has it: what operators ask of a file, and how they change it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

Node = TypeVar("Node", bound=cst.CSTNode)
Function = cst.FunctionDef
RANK = re.compile(
    r"\brank\b|_rank\b|get_rank\(|is_main|is_master|master_process|is_first|is_chief|rank_zero|is_rank_0"
    r"|is_local_main|main_process|is_primary|on_master|is_logging|\bgpu\b|\bproc_id\b|is_dp0"
)
Replacement = cst.CSTNode | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of one file."""

    table: Mapping[cst.CSTNode, Replacement]
    """Nodes of the file, each with what takes its place."""
    anchors: tuple[cst.CSTNode, ...] = ()
    """Nodes of the file where a finding is right as well as at the changed lines."""
    undecided: str = ""
    """Why the files given do not decide that this is wrong, where they do not."""


@dataclass(frozen=True)
class File:
    """A file of a program, parsed."""

    name: str
    text: str
    program: str = ""
    """The text of all files of the program."""
    _memo: dict[type, list[cst.CSTNode]] = field(default_factory=dict)

    @cached_property
    def wrapper(self) -> MetadataWrapper:
        return MetadataWrapper(cst.parse_module(self.text))

    @cached_property
    def parents(self) -> dict[cst.CSTNode, cst.CSTNode]:
        return dict(self.wrapper.resolve(ParentNodeProvider))

    @cached_property
    def _below(self) -> dict[cst.CSTNode, list[cst.CSTNode]]:
        below: dict[cst.CSTNode, list[cst.CSTNode]] = {}
        for child, parent in self.parents.items():
            below.setdefault(parent, []).append(child)
        return below

    def walk(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield a node and all below it, in the order of the text."""
        left = [node]
        while left:
            one = left.pop()
            yield one
            left.extend(reversed(self._below.get(one, ())))

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return a node's first and last line."""
        place = self.wrapper.resolve(PositionProvider)[node]
        return place.start.line, place.end.line

    def all(self, kind: type[Node]) -> list[Node]:
        """Return all nodes of a kind in the order of the text."""
        if not self._memo:
            for node in self.walk(self.wrapper.module):
                self._memo.setdefault(type(node), []).append(node)
        return [node for node in self._memo.get(kind, []) if isinstance(node, kind)]

    def calls(self, *names: str) -> Iterator[cst.Call]:
        """Yield the calls of functions whose last name is one of these."""
        for call in self.all(cst.Call):
            if last_name(call.func) in names:
                yield call

    def above(self, node: cst.CSTNode, *kinds: type[cst.CSTNode]) -> Iterator[cst.CSTNode]:
        """Yield what encloses a node, from the inside, only of these kinds."""
        while (parent := self.parents.get(node)) is not None:
            if isinstance(parent, kinds):
                yield parent
            node = parent

    def nearest(self, node: cst.CSTNode, kind: type[Node]) -> Node | None:
        """Return what encloses a node."""
        return next((each for each in self.above(node, kind) if isinstance(each, kind)), None)

    def statement(self, node: cst.CSTNode) -> cst.SimpleStatementLine | None:
        """Return the line of simple statements that a node is in."""
        return self.nearest(node, cst.SimpleStatementLine)

    def scope(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the function that a node is in, or the module."""
        return self.nearest(node, cst.FunctionDef) or self.wrapper.module

    def tests(self, node: cst.CSTNode) -> Iterator[str]:
        """Yield the tests that a node depends on, up to its function."""
        inner = node
        for outer in self.above(node, cst.If, cst.FunctionDef, cst.IfExp, cst.Lambda):
            if isinstance(outer, cst.FunctionDef | cst.Lambda):
                return
            if isinstance(outer, cst.If | cst.IfExp) and inner is not outer.test:
                yield self.code(outer.test)
            inner = outer

    def by_rank(self, node: cst.CSTNode) -> bool:
        """Tell whether a node depends on a test of the rank, an earlier return by one included."""
        if any(RANK.search(test) for test in self.tests(node)):
            return True
        function = self.scope(node)
        if not isinstance(function, cst.FunctionDef):
            return False
        if any(RANK.search(self.code(each.decorator)) for each in function.decorators):
            return True
        first = self.lines(node)[0]
        for branch in self.inside(function, cst.If):
            earlier = self.lines(branch)[1] < first and RANK.search(self.code(branch.test))
            if earlier and any(True for _ in self.inside(branch.body, cst.Return)):
                return True
        return False

    def inside(self, node: cst.CSTNode, kind: type[Node]) -> Iterator[Node]:
        """Yield the nodes of a kind in another."""
        return (each for each in self.walk(node) if isinstance(each, kind))

    def code(self, node: cst.CSTNode) -> str:
        """Return a node's text."""
        return cst.Module([]).code_for_node(node)

    @cached_property
    def dist(self) -> str:
        """How the file calls torch.distributed, or nothing."""
        for pattern in (
            r"^\s*import torch\.distributed as (\w+)",
            r"^\s*from torch import distributed as (\w+)",
        ):
            if hit := re.search(pattern, self.text, re.M):
                return hit[1]
        return "torch.distributed" if re.search(r"^\s*import torch\b", self.text, re.M) else ""

    @cached_property
    def wrapped(self) -> set[str]:
        """Texts of what a wrapper is assigned to."""
        return {
            self.code(target.target)
            for assign in self.all(cst.Assign)
            if isinstance(assign.value, cst.Call) and is_wrap(assign.value)
            for target in assign.targets
        }


def is_wrap(node: cst.CSTNode) -> bool:
    """Tell whether this makes a DistributedDataParallel of torch."""
    return isinstance(node, cst.Call) and last_name(node.func) in ("DistributedDataParallel", "DDP")


def last_name(node: cst.CSTNode) -> str:
    """Return the last part of a dotted name."""
    if isinstance(node, cst.Name):
        return node.value
    return node.attr.value if isinstance(node, cst.Attribute) else ""


def dotted(node: cst.CSTNode) -> str:
    """Return a dotted name, or nothing where it is something else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr.value}"
    return ""


def keyword(call: cst.Call, name: str) -> cst.Arg | None:
    """Return the argument of a name."""
    return next((arg for arg in call.args if arg.keyword is not None and arg.keyword.value == name), None)


def without(call: cst.Call, *names: str) -> cst.Call:
    """Return a call without its arguments of some names."""
    kept = [arg for arg in call.args if arg.keyword is None or arg.keyword.value not in names]
    if kept and len(kept) < len(call.args) and call.args[-1] not in kept:
        kept[-1] = kept[-1].with_changes(comma=call.args[-1].comma)
    return call.with_changes(args=kept)


def with_keyword(call: cst.Call, name: str, value: str) -> cst.Call:
    """Return a call with one more argument, or another value for it."""
    old = keyword(call, name)
    expression = cst.parse_expression(value)
    if old is not None:
        return call.with_changes(
            args=[arg.with_changes(value=expression) if arg is old else arg for arg in call.args]
        )
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    new = cst.Arg(expression, keyword=cst.Name(name), equal=equal)
    return call.with_changes(args=[*call.args, new])


def below(test: str, statement: cst.BaseStatement) -> cst.If:
    """Return a statement below a test."""
    plain = (
        statement.with_changes(leading_lines=[])
        if isinstance(statement, cst.SimpleStatementLine | cst.BaseCompoundStatement)
        else statement
    )
    return cst.If(cst.parse_expression(test), cst.IndentedBlock([plain]))


def statements(text: str) -> list[cst.BaseStatement]:
    """Parse some statements."""
    return list(cst.parse_module(text).body)


def after(statement: cst.BaseStatement, text: str) -> cst.FlattenSentinel[cst.BaseStatement]:
    """Return a statement with others behind it."""
    return cst.FlattenSentinel([statement, *statements(text)])


def before(statement: cst.BaseStatement, text: str) -> cst.FlattenSentinel[cst.BaseStatement]:
    """Return a statement with others before it."""
    return cst.FlattenSentinel([*statements(text), statement])


def unguarded(branch: cst.If) -> cst.FlattenSentinel[cst.BaseStatement]:
    """Return the body of a branch, which may stand on the line of its test."""
    if isinstance(branch.body, cst.SimpleStatementSuite):
        return cst.FlattenSentinel([cst.SimpleStatementLine(branch.body.body)])
    return cst.FlattenSentinel([each for each in branch.body.body if isinstance(each, cst.BaseStatement)])


def apply(file: File, edit: Edit) -> str:
    """Return the text of the changed file."""
    return file.wrapper.module.visit(_Replacing(edit.table)).code


def places(file: File, edit: Edit, text: str) -> tuple[set[int], dict[int, int]]:
    """Return the lines of the new text where a finding is right, and the new line of each old one that is left.

    Args:
        file: as it was.
        edit: what was changed.
        text: of the changed file.
    """
    old, new = file.text.splitlines(), text.splitlines()
    moved: dict[int, int] = {}
    right: set[int] = set()
    for kind, start, end, new_start, new_end in difflib.SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        if kind == "equal":
            moved.update({start + step + 1: new_start + step + 1 for step in range(end - start)})
        else:
            right.update(range(new_start + 1, max(new_end, new_start + 1) + 1))
            if new_start == new_end:
                right.add(new_start)
    for node in edit.anchors:
        first, last = file.lines(node)
        last = last if last - first < 30 else first
        right.update(moved[line] for line in range(first, last + 1) if line in moved)
    return right, moved


class _Replacing(cst.CSTTransformer):
    def __init__(self, table: Mapping[cst.CSTNode, Replacement]) -> None:
        super().__init__()
        self._table = table

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Any:
        return self._table.get(original_node, updated_node)
