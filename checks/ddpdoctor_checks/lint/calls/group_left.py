"""COL012: a process group of NCCL is never destroyed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, check, lint_rule
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.known import KNOWN_ROOTS
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.programs import ALL_JOINS
from ddpdoctor.source.resolve.walking import find_calls, find_keyword, is_spelled_out, name_last, names_in
from ddpdoctor.source.training.cuda import makes_nccl
from ddpdoctor.source.training.train_loops import training_loops
from ddpdoctor_checks.job.silent import teardown
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact

ENDS = re.compile(
    r"(?:^|_)(?:destroy|clean_?up|shut_?down|tear_?down|finali[sz]e)"
    r"(?:_(?:dist|distributed|ddp|all|process|processes|groups?|model|parallel|env|environment|rpc)){0,2}$",
    re.IGNORECASE,
)
"""Names of functions that may destroy the process group."""


@lint_rule("group-left", reads="files")
def find_undestroyed(files: Files) -> Iterator[SourceFact]:
    """Yield groups of NCCL in scripts that never destroy them (``group-left``).

    Only scripts are looked at that are seen to train a wrapped model, or whose own main guard leads to the group:
    others may be a part of more.
    """
    kinds = kinds_of(files)
    training = {loop.scope.script.name for loop in training_loops(kinds) if loop.wrapped}
    joining = kinds.programs.scopes_calling(ALL_JOINS)
    for module in files.modules:
        joins = [
            (call, scope)
            for scope in module.walk()
            if scope in joining
            for call in find_calls(scope)
            if _is_nccl(call, scope, files)
        ]
        members = kinds.programs.members(module) if joins else ()
        if not any(map(_is_script, members)):
            continue
        if not any(each.script.name in training for each in members) and not _is_started(module):
            continue
        if not any(_may_end(member, files) for member in members):
            yield from (SourceFact("group-left", scope.place(call)) for call, scope in joins)


def _is_nccl(call: ast.Call, scope: Scope, files: Files) -> bool:
    """Whether a call makes a group that is known to be NCCL's."""
    joins = files.dotted(call.func, scope) in ALL_JOINS and is_spelled_out(call)
    return joins and makes_nccl(call, scope, files)


def _may_end(member: Scope, files: Files) -> bool:
    """Whether a file destroys a group, or calls what may; a function of the files is read by itself."""
    return any("destroy_process_group" in name for name in names_in(member.node)) or any(
        ENDS.search(name_last(call.func))
        and not ast.unparse(call.func).startswith("super()")  # of a class for tests
        and files.function(call.func, scope) is None
        and name.split(".")[0] not in KNOWN_ROOTS
        and find_keyword(call, "wait") is None  # of a pool of threads
        for call, scope, name in kinds_of(files).programs.list_calls(member)
    )


def _is_started(module: Scope) -> bool:
    """Whether a module has a main guard: what it does is done when it is run."""
    return any(
        isinstance(each, ast.If) and "__name__" in set(names_in(each.test))
        for each in getattr(module.node, "body", ())
    )


def _is_script(module: Scope) -> bool:
    """Whether a module does something when it is run: calls of its own functions, loops, or a main guard."""
    for statement in getattr(module.node, "body", ()):
        if isinstance(statement, ast.While):
            return True
        if isinstance(statement, ast.If) and "__name__" in set(names_in(statement.test)):
            return True
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            func = statement.value.func
            if isinstance(func, ast.Name) and func.id in module.functions:
                return True
    return False


@check("COL012", family="source", needs=("sources",), id="lint.teardown", commands=LINT)
def tell_undestroyed(evidence: Evidence) -> Iterable[Finding]:
    """A script makes a process group of NCCL and never destroys it."""
    for fact in facts_of(evidence, "group-left"):
        yield tell_fact(
            fact,
            f"The NCCL process group created at {name_line(fact.place)} is never destroyed.",
            teardown.EVERYWHERE,
            why="nothing in the program is called destroy, cleanup or shutdown; torch warns about it at exit",
            severity="info",
            role="advice",
        )
