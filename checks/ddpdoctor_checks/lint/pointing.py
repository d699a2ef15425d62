"""COL003, COL007 and COL011 as they stand in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import Finding, Fix, check
from ddpdoctor_checks.lint.facts import LINT, facts_of, name_line, tell_fact
from ddpdoctor_checks.lint.rewriting import read_line

NEEDS = ("sources",)
_LOST = {
    "dropped": "and its Work is dropped",
    "kept": "into a variable that nobody reads",
    "collected": "into a list that nobody reads",
}


@check("COL007", family="source", needs=NEEDS, id="lint.work", commands=LINT)
def find_unwaited(evidence: Evidence) -> Iterable[Finding]:
    """Asynchronous work is begun, and nothing waits for it."""
    for fact in facts_of(evidence, "work-unwaited"):
        operation, how = fact.details["operation"], fact.details["way"]
        yield tell_fact(
            fact,
            f"{operation} is begun at {name_line(fact.place)} {_LOST[how]}: nothing waits until it is done.",
            Fix(
                "keep the Work and wait before the tensor is used",
                code=_keep(fact.place.text, how),
            ),
            why="no wait, barrier or synchronisation follows in the function",
        )


def _keep(text: str, how: str) -> str:
    """Return the line with its work kept, where it is a whole statement that begins one."""
    if how == "dropped" and isinstance(read_line(text), ast.Expr):
        return f"work = {text}\nwork.wait()"
    return "for work in works:\n    work.wait()" if how == "collected" else "work.wait()"


@check("COL011", family="source", needs=NEEDS, id="lint.point_to_point", commands=LINT)
def find_unmatched(evidence: Evidence) -> Iterable[Finding]:
    """Messages whose other side never comes: all ranks are on the same side first, or there is none."""
    exchange = Fix(
        "let one half send first, or begin both at once",
        code="works = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, peer), "
        "dist.P2POp(dist.irecv, theirs, peer)])\nfor work in works:\n    work.wait()",
    )
    for fact in facts_of(evidence, "all-receive"):
        yield tell_fact(
            fact,
            f"All ranks receive at {name_line(fact.place)} before any sends ({name_line(fact.related[0].place)}): none "
            "gets its message.",
            exchange,
            why="no test on the rank stands above either line",
        )
    for fact in facts_of(evidence, "all-send"):
        yield tell_fact(
            fact,
            f"All ranks send at {name_line(fact.place)} before any receives ({name_line(fact.related[0].place)}): with "
            "NCCL, or large tensors, none comes through.",
            exchange,
            why="no test on the rank stands above either line",
            severity="warning",
        )
    for fact in facts_of(evidence, "message-unmatched"):
        other = "receives" if fact.details["side"] == "send" else "sends"
        yield tell_fact(
            fact,
            f"{name_line(fact.place)} has no other side: nothing in the program {other}.",
            Fix("let the peer make the matching call", code="dist.recv(tensor, src=0)"),
            why="the files that belong to the program do not name the other side",
        )


@check("COL003", family="source", needs=NEEDS, id="lint.roots", commands=LINT)
def find_roots(evidence: Evidence) -> Iterable[Finding]:
    """Each rank names another root."""
    for fact in facts_of(evidence, "root-differs"):
        operation, root = fact.details["operation"], fact.details["root"]
        yield tell_fact(
            fact,
            f"{operation} at {name_line(fact.place)} has {root} as its root, which is another on each rank: all wait "
            "for different ones.",
            Fix("name one rank, the same on all", code=f"dist.{operation}(tensor, 0)"),
            why=f"{root} was followed to the rank",
        )
    for fact in facts_of(evidence, "roots-apart"):
        operation, one, other = (fact.details[name] for name in ("operation", "root", "other"))
        yield tell_fact(
            fact,
            f"{operation} at {name_line(fact.place)} has rank {one} as its root, and on the other side of the test "
            f"({name_line(fact.related[0].place)}) rank {other}: ranks wait for different ones.",
            Fix("name one rank, the same on all", code=f"dist.{operation}(tensor, {one})"),
            why="a test on the rank decides between the two",
        )
