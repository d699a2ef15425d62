"""CKP005: all ranks make or delete one directory, or delete one file."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.names import Files
from ddpdoctor.source.resolve.traces import SIDES, Guard, Step, Trace
from ddpdoctor.source.resolve.walking import find_keyword, is_true
from ddpdoctor.source.sameness.apart import Ways, ways_of
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact, tell_question

MAKES = frozenset({"os.makedirs", "os.mkdir"})
DELETES = frozenset({"os.remove", "os.unlink", "os.rmdir"})
_VERBS = {"made": "create", "deleted": "delete", "copied": "copy to"}


@lint_rule("directory-raced", "directory-doubted", "directory-given", reads="program", classes=True)
def find_raced_directories(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield what each rank makes, copies or deletes, and fails where another was first (``directory-raced``).

    way: made, copied or deleted. path: how it is written, of the copy its target. Where one process may be what is run
    there, that is asked (``directory-doubted``).
    """
    if not trace.has_peers or any(step.name == "os.chdir" for step in trace.steps):
        return
    ways = ways_of(files, trace)
    there: list[tuple[str, Step]] = []
    for step in trace.steps:
        if (safe := _find_safe(step)) is not None:
            there.append((ways.spell(safe, step), step))
        found = _find_directory(step)
        if found is None or any(each.kind == "try" for each in step.guards):
            continue
        if _asks(step) and any(
            path == ways.spell(found[0], step) and _runs_before(made, step) for path, made in there
        ):
            continue  # it is there by then
        if found[1] == "made":  # who goes on from here has made it or found it
            there.append((ways.spell(found[0], step), step))
        if not ways.is_of_all(step):
            continue
        way, path = found[1], ast.unparse(found[0])
        if not ways.may_differ(step) and ways.is_alike(found[0], step):
            rule = "directory-doubted" if ways.is_single(step) else "directory-raced"
            yield ways.tell(rule, step, way=way, path=path)
        elif trace.owner is not None and _is_given(found[0], step, ways):
            yield ways.tell("directory-given", step, way=way, path=path)


def _is_given(path: ast.expr, step: Step, ways: Ways) -> bool:
    """Whether a path is made of what a class is given, and nothing of that is about ranks."""
    return not (ways.is_given_ranks or ways.is_single(step) or ways.may_differ_if_given(step)) and (
        ways.is_alike_if_given(path, step)
    )


def _find_safe(step: Step) -> ast.expr | None:
    """Return the directory that a step makes whoever was first."""
    call = step.call
    if call is None or not is_true(find_keyword(call, "exist_ok")):
        return None
    if step.name == "os.makedirs":
        return find_keyword(call, "name", 0)
    return call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir" else None


def _asks(step: Step) -> bool:
    """Whether a test before a step asks if the directory is there."""
    return any(_is_asking(each) for each in step.guards)


def _is_asking(guard: Guard) -> bool:
    return guard.kind in SIDES and any(
        word in ast.unparse(guard.test) for word in ("exists", "isdir", "is_dir")
    )


def _runs_before(made: Step, step: Step) -> bool:
    """Whether each run that comes to a step has come past an earlier one, or found the directory there."""
    return all(_is_asking(each) or each in step.guards for each in made.guards)


def _find_directory(step: Step) -> tuple[ast.expr, str] | None:
    call = step.call
    if call is None:
        return None
    if step.name == "shutil.rmtree":
        path = find_keyword(call, "path", 0)
        ignored = is_true(find_keyword(call, "ignore_errors", 1)) or find_keyword(call, "onerror") is not None
        return (path, "deleted") if path is not None and not ignored else None
    if step.name in DELETES:
        path = find_keyword(call, "path", 0)
        return (path, "deleted") if path is not None else None
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("unlink", "rmdir"):
        return (call.func.value, "deleted") if not _is_allowed(find_keyword(call, "missing_ok", 0)) else None
    if step.name == "shutil.copytree":
        path = find_keyword(call, "dst", 1)
        allowed = find_keyword(call, "dirs_exist_ok")
        return (path, "copied") if path is not None and not _is_allowed(allowed) else None
    fails = not _is_allowed(find_keyword(call, "exist_ok"))
    if step.name in MAKES and fails and len(call.args) < 3:
        path = find_keyword(call, "name" if step.name == "os.makedirs" else "path", 0)
        return (path, "made") if path is not None else None
    if isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir" and fails and len(call.args) < 3:
        return (call.func.value, "made") if step.name != "os.mkdir" else None
    return None


def _is_allowed(node: ast.expr | None) -> bool:
    """Whether a directory that is there already may be no error: what is no constant may be true."""
    return node is not None and not (isinstance(node, ast.Constant) and not node.value)


@check("CKP005", family="source", needs=NEEDS, id="lint.directories", commands=LINT)
def tell_directory_raced(evidence: Evidence) -> Iterable[Finding]:
    """Each rank makes or deletes one directory."""
    for fact in facts_of(evidence, "directory-raced"):
        path = fact.details["path"]
        if fact.details["way"] == "copied":
            wrong = f"All ranks copy to {path} at {name_line(fact.place)}: the second rank fails with FileExistsError."
            fix = Fix(
                "copy on rank 0 and synchronize with a barrier",
                code=f"if dist.get_rank() == 0:\n    {fact.place.text}\ndist.barrier()",
            )
        elif fact.details["way"] == "made":
            wrong = (
                f"All ranks create {path} at {name_line(fact.place)}: the second rank fails with "
                "FileExistsError."
            )
            fix = Fix("allow it to exist already", code=f"os.makedirs({path}, exist_ok=True)")
        else:
            wrong = (
                f"All ranks delete {path} at {name_line(fact.place)}: some fail because another rank "
                "deletes it first."
            )
            whole = "rmtree" in fact.place.text
            deletes = f"shutil.rmtree({path}, ignore_errors=True)" if whole else fact.place.text
            fix = Fix(
                "delete it on rank 0 and synchronize with a barrier",
                code=f"if dist.get_rank() == 0:\n    {deletes}\ndist.barrier()",
            )
        yield tell_fact(
            fact,
            wrong,
            fix,
            why="no rank-dependent `if` guards it, and the path is the same on all ranks",
            severity="warning",
        )
    for fact in facts_of(evidence, "directory-doubted"):
        path, way = fact.details["path"], _VERBS[fact.details["way"]]
        yield tell_question(
            fact,
            f"All ranks of this program would {way} {path} at {name_line(fact.place)}: is it run with one process?",
            Fix("allow it to exist already", code=f"os.makedirs({path}, exist_ok=True)")
            if way == "create"
            else Fix("do it on rank 0 and synchronize with a barrier"),
            why="the names around it are those of what one process is run for",
        )
    for fact in facts_of(evidence, "directory-given"):
        path, way = fact.details["path"], _VERBS[fact.details["way"]]
        yield tell_question(
            fact,
            f"All ranks that use this class {way} {path} at {name_line(fact.place)}: are they given one path?",
            Fix("allow it to exist already", code=f"os.makedirs({path}, exist_ok=True)")
            if way == "create"
            else Fix("do it on rank 0 and synchronize with a barrier"),
            why="no rank-dependent `if` guards it, and the path is made of what the class is given",
        )
