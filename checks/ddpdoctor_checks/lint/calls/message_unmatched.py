"""COL011: messages whose other side never comes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import DIST
from ddpdoctor.source.resolve.known import KNOWN_ROOTS
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.traces import SIDES, Guard, Trace
from ddpdoctor.source.resolve.walking import names_in
from ddpdoctor.source.sameness.apart import ways_of
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

SENDS = frozenset({f"{DIST}send", f"{DIST}isend", f"{DIST}send_object_list"})
RECEIVES = frozenset({f"{DIST}recv", f"{DIST}irecv", f"{DIST}recv_object_list"})
UNORDERED = frozenset({f"{DIST}isend", f"{DIST}irecv", f"{DIST}batch_isend_irecv"})


@lint_rule("all-receive", "all-send", "message-unmatched", reads="program")
def find_unmatched_messages(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield messages to which all ranks come on the same side first (``all-receive``, ``all-send``).

    The other side's line is beside it. Also messages without another side in any of the files (``message-unmatched``;
    side: ``send`` or ``recv``).
    """
    messages = [step for step in trace.steps if step.name in SENDS | RECEIVES]
    if not messages or not trace.has_peers:
        return
    ways = ways_of(files, trace)
    texts = [each.script.text for each in files.find_related(trace.start.module)]
    for names, other, what in ((SENDS, "recv", "send"), (RECEIVES, "send", "recv")):
        first = next((step for step in messages if step.name in names), None)
        if first is not None and not any(other in text for text in texts):
            certain = _knows_all(trace.start.module, files)
            yield SourceFact(
                "message-unmatched", first.scope.place(first.node), details={"side": what}, certain=certain
            )
            return
    if any(
        step.name in UNORDERED or ways.may_differ(step) for step in trace.steps if step.name.startswith(DIST)
    ):
        return
    first = messages[0]
    rule, others = ("all-receive", SENDS) if first.name in RECEIVES else ("all-send", RECEIVES)
    second = next((step for step in messages if step.name in others), None)
    if second is None:
        return
    together = first.guards == second.guards and all(
        guard.kind not in SIDES or _counts(guard) for guard in first.guards
    )
    if not together and not (ways.is_shared(first) and ways.is_shared(second)):
        return  # a test may let some ranks begin on the other side
    if not any(map(ways.is_foreign, trace.steps[: trace.steps.index(second)])):
        yield ways.tell(rule, first, beside=second)


def _counts(guard: Guard) -> bool:
    """Whether a test is on what a loop counts: ``step % args.every == 0``, and ranks do not differ in it."""
    return not guard.scope.loops.isdisjoint(names_in(guard.test)) or any(
        isinstance(each, ast.Mod) for each in ast.walk(guard.test)
    )


def _knows_all(module: Scope, files: Files) -> bool:
    """Whether the program imports nothing but what was given and packages that send no messages."""
    related = files.find_related(module)
    own = {each.script.name.removesuffix(".py").rpartition("/")[2] for each in related}
    roots = {
        name.lstrip(".").split(".")[0]
        for each in related
        for scope in each.walk()
        for name in scope.imports.values()
    }
    return roots <= KNOWN_ROOTS | own


@check("COL011", family="source", needs=NEEDS, id="lint.point_to_point", commands=LINT)
def tell_unmatched(evidence: Evidence) -> Iterable[Finding]:
    """Messages whose other side never comes: all ranks are on the same side first, or there is none."""
    exchange = Fix(
        "let one half send first, or issue both at once",
        code="works = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, peer), "
        "dist.P2POp(dist.irecv, theirs, peer)])\nfor work in works:\n    work.wait()",
    )
    for fact in facts_of(evidence, "all-receive"):
        yield tell_fact(
            fact,
            f"All ranks receive at {name_line(fact.place)} before any sends "
            f"({name_line(fact.related[0].place)}): deadlock.",
            exchange,
            why="no rank-dependent `if` guards either line",
        )
    for fact in facts_of(evidence, "all-send"):
        yield tell_fact(
            fact,
            f"All ranks send at {name_line(fact.place)} before any receives "
            f"({name_line(fact.related[0].place)}): a deadlock with NCCL, or with large tensors.",
            exchange,
            why="no rank-dependent `if` guards either line",
            severity="warning",
        )
    for fact in facts_of(evidence, "message-unmatched"):
        other = "receives" if fact.details["side"] == "send" else "sends"
        yield tell_fact(
            fact,
            f"{name_line(fact.place)} has no counterpart: nothing in the program {other}.",
            Fix("issue the matching call on the peer", code="dist.recv(tensor, src=0)"),
            why="the files of the program do not contain the counterpart",
        )
