"""ENV019: the process group is needed before it is made, or made twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import JOINS, SAMPLERS, is_any_collective, is_wrapper
from ddpdoctor.source.resolve.names import Files
from ddpdoctor.source.resolve.traces import OTHER_JOINS, Step, Trace
from ddpdoctor.source.resolve.walking import find_keyword, is_spelled_out, own_nodes
from ddpdoctor.source.sameness.apart import Ways, ways_of
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

ASKS = frozenset({"torch.distributed.get_rank", "torch.distributed.get_world_size"})
DESTROYS = "torch.distributed.destroy_process_group"
ENDS = re.compile("destroy|cleanup|clean_up|shutdown|teardown|finali[sz]e|reset|abort", re.IGNORECASE)
"""Names of functions that may end a group."""


@lint_rule("group-not-made", "group-twice", reads="program", setups=True)
def find_group_order(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield what needs the process group before it is made (``group-not-made``), or a second one (``group-twice``).

    function: what is called, for the first. That is told only of what is reached without any test, and only up to the
    first call of a function that was not given, which may make the group. A second group is told where each run that
    makes the first comes there, and nothing in between may destroy it. Of a function that makes the group, what is
    told is wrong whatever ran before: one of the two steps fails.
    """
    if not trace.joins or not any(step.name in JOINS for step in trace.steps):
        return
    ways = ways_of(files, trace)
    early = [] if trace.setup else list(_find_early(trace, ways, files))
    yield from early or _find_before(trace, files)
    made: Step | None = None
    for step in trace.steps:
        if step.name in JOINS and step.call is not None:
            if made is not None and made.node is not step.node and _follows(made, step):
                related = (RelatedPlace("noticed", made.scope.place(made.node)),)
                yield SourceFact("group-twice", step.scope.place(step.call), related=related)
                return
            made = step
        elif step.name == DESTROYS or step.name in OTHER_JOINS or ways.is_foreign(step):
            made = None


def _follows(first: Step, second: Step) -> bool:
    """Whether each run that comes past the first step comes to the second; what stands in a ``try`` may have failed."""
    more = set(first.guards) - set(second.guards)
    return set(second.guards) <= set(first.guards) and all(
        each.kind not in ("try", "except") for each in more
    )


def _find_early(trace: Trace, ways: Ways, files: Files) -> Iterator[SourceFact]:
    """Yield the first call that needs the group before it is made."""
    for step in trace.steps:
        call = step.call
        if call is None:
            continue
        if step.name in (*JOINS, DESTROYS) or step.name in OTHER_JOINS or ways.is_foreign(step):
            return
        if _runs_at_once(step, ways) and _needs_group(step, files):
            what = step.name.rpartition(".")[2]
            yield SourceFact("group-not-made", step.scope.place(call), details={"function": what})
            return


def _find_before(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield a call that needs the group where the next thing that each such run does with groups is to make it.

    Whatever ran before: either there was no group, and the call is wrong, or there was one, and making it is.
    """
    waiting: list[Step] = []
    made: list[Step] = []
    for step in trace.steps:
        call = step.call
        if call is None:
            continue
        if step.name in JOINS:
            for each in waiting:
                if _is_on_one_way(each, step) and not _asks_whether(step):
                    what = each.name.rpartition(".")[2]
                    place = RelatedPlace("noticed", step.scope.place(step.node))
                    yield SourceFact(
                        "group-not-made", each.scope.place(each.node), (place,), {"function": what}
                    )
                    return
            waiting = [each for each in waiting if _are_apart(each, step)]
            made.append(step)
        elif (waiting or made) and _may_end(step, call):
            waiting, made = [], []
        elif (
            _needs_group(step, files) and all(_are_apart(each, step) for each in made) and _runs_anyhow(step)
        ):
            waiting.append(step)


def _may_end(step: Step, call: ast.Call) -> bool:
    """Whether a step ends the group, or may by the name of what it calls."""
    return step.name == DESTROYS or (not step.known and ENDS.search(ast.unparse(call.func)) is not None)


def _is_on_one_way(first: Step, second: Step) -> bool:
    """Whether each run that comes to one of two steps comes to the other, in this order, and to both at most once."""
    own, other = set(first.guards), set(second.guards)
    more = own ^ other
    return (own <= other or other <= own) and all(
        each.kind not in ("try", "except", "for", "while", "case") for each in more
    )


def _are_apart(first: Step, second: Step) -> bool:
    """Whether two steps are on the two sides of one test, so that no run comes to both."""
    sides = {each.test: each.positive for each in first.guards}
    return any(sides.get(each.test, each.positive) != each.positive for each in second.guards)


def _asks_whether(step: Step) -> bool:
    """Whether a test before a step may ask if there is a group."""
    return any(
        each.kind not in ("for", "main", "with") and "initialized" in ast.unparse(each.test)
        for each in step.guards
    )


def _runs_at_once(step: Step, ways: Ways) -> bool:
    """Whether no test stands before a step, and no generator, which runs when it is gone through."""
    return ways.is_straight(step) and not _is_lazy(step)


def _runs_anyhow(step: Step) -> bool:
    """Whether a step runs as soon as a run comes to it, whether there is a group or not."""
    return not _asks_whether(step) and not _is_lazy(step)


def _is_lazy(step: Step) -> bool:
    """Whether a step is one of a generator."""
    later = (
        each.callee for each in step.frames if not isinstance(each.callee.node, (ast.Module, ast.ClassDef))
    )
    return any(
        isinstance(node, (ast.Yield, ast.YieldFrom)) for each in later for node in own_nodes(each.node)
    )


def _needs_group(step: Step, files: Files) -> bool:
    call = step.call
    if call is None:
        return False
    if step.name in SAMPLERS:
        told = find_keyword(call, "num_replicas", 1), find_keyword(call, "rank", 2)
        return is_spelled_out(call) and None in told
    if step.name in ASKS or is_wrapper(call, step.scope, files):
        return True
    return is_any_collective(call, step.scope, files)


@check("ENV019", family="source", needs=NEEDS, id="lint.initialisation", commands=LINT)
def tell_group_order(evidence: Evidence) -> Iterable[Finding]:
    """Something needs the process group before it is made, or it is made twice."""
    for fact in facts_of(evidence, "group-not-made"):
        function = fact.details["function"]
        yield tell_fact(
            fact,
            f"{function} at {name_line(fact.place)} needs the process group, which is created only later.",
            Fix(
                "call init_process_group first",
                code=f"dist.init_process_group(backend)\n{fact.place.text}",
            ),
            why="no `if` guards it, and nothing before it creates the group",
        )
    for fact in facts_of(evidence, "group-twice"):
        yield tell_fact(
            fact,
            f"init_process_group at {name_line(fact.place)} creates the process group a second time: the "
            f"first is at {name_line(fact.related[0].place)}.",
            Fix("initialize it once", code=f"if not dist.is_initialized():\n    {fact.place.text}"),
            why="whenever the first is created, so is this one, and nothing destroys the group in between",
        )
