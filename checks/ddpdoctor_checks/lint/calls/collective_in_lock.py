"""COL009: a collective is called by the one rank that holds a lock for which the others wait."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import is_wrapper, name_collective
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.traces import Guard, Trace
from ddpdoctor.source.resolve.walking import find_calls, names_in
from ddpdoctor.source.sameness.apart import Ways, ways_of
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

LOCKS = frozenset({"filelock.FileLock", "filelock.SoftFileLock", "filelock.UnixFileLock", "portalocker.Lock",
                   "fasteners.InterProcessLock", "oslo_concurrency.lockutils.lock"})  # fmt: skip
"""Managers that one process of a machine holds at a time."""
LOCKING = frozenset({"fcntl.flock", "fcntl.lockf", "portalocker.lock", "msvcrt.locking"})
"""Functions that take such a lock; shared ones have ``LOCK_SH`` among their arguments."""


@lint_rule("collective-in-lock", reads="program")
def find_collectives_in_locks(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield collectives inside of a lock that all ranks take (``collective-in-lock``).

    One process holds the lock and waits in the collective; the others wait for the lock and never reach it. The lock
    is beside it. Silent where a test may be about ranks, and where what is locked has the rank in its name.
    """
    if not trace.has_peers:
        return
    ways = ways_of(files, trace)
    told: set[ast.AST] = set()
    for step in trace.steps:
        call = step.call
        lock = next((each for each in step.guards if each.kind == "with" and _is_lock(each, files)), None)
        if call is None or lock is None or lock.test in told:
            continue
        operation = name_collective(call, step.scope, files)
        operation = operation or ("DistributedDataParallel" if is_wrapper(call, step.scope, files) else None)
        others = replace(step, guards=tuple(each for each in step.guards if each is not lock))
        if operation is None or ways.may_be_of_some(others) or _is_by_rank(lock, ways):
            continue
        told.add(lock.test)
        beside = RelatedPlace("noticed", lock.scope.place(lock.test))
        certain = ways.is_sure(step)
        details = {"operation": operation}
        yield SourceFact(
            "collective-in-lock", step.scope.place(step.node), (beside,), details, certain=certain
        )


def _is_lock(guard: Guard, files: Files) -> bool:
    """Whether a manager is a lock between processes, or a function of the files that takes one."""
    made, scope = guard.test, guard.scope
    if isinstance(made, (ast.Name, ast.Attribute)):
        found = files.find_maker(made, scope)
        made, scope = found if found is not None else (made, scope)
    if not isinstance(made, ast.Call):
        return False
    if files.dotted(made.func, scope) in LOCKS:
        return True
    function = files.function(made.func, scope)
    if function is not None:
        return _takes_lock(function, files)
    owner = files.find_class(made.func, scope)
    enter = files.objects.method(owner, "__enter__") if owner is not None else None
    return enter is not None and _takes_lock(enter, files)


def _takes_lock(function: Scope, files: Files) -> bool:
    return any(
        files.dotted(call.func, function) in LOCKING
        and not {"LOCK_SH", "LOCK_NB"} & set(names_in(call))
        and "LOCK_UN" not in names_in(call)
        for call in find_calls(function)
    )


def _is_by_rank(guard: Guard, ways: Ways) -> bool:
    """Whether what is locked may be another file on each rank."""
    return ways.values.speaks_of_ranks(guard.test, guard.scope) or any(
        "rank" in name.lower() for name in names_in(guard.test)
    )


@check("COL009", family="source", needs=NEEDS, id="lint.lock", commands=LINT)
def tell_collectives_in_locks(evidence: Evidence) -> Iterable[Finding]:
    """The rank that holds a lock waits in a collective for ranks that wait for the lock."""
    for fact in facts_of(evidence, "collective-in-lock"):
        lock = name_line(fact.related[0].place)
        yield tell_fact(
            fact,
            f"{fact.details['operation']} at {name_line(fact.place)} is inside the lock taken at {lock}: the rank that "
            "holds the lock waits there, and the other ranks wait for the lock: deadlock.",
            Fix(
                "move the collective out of the lock",
                code=f"{fact.related[0].place.text}\n    ...\n{fact.place.text}",
            ),
            why="all ranks take the lock, one process at a time, and no rank-dependent `if` guards the collective",
        )
