"""NET010: ranks meet at a file whose name is the same in each run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import JOINS
from ddpdoctor.source.resolve.names import Files, Scope, name_calls
from ddpdoctor.source.resolve.texts import fold
from ddpdoctor.source.resolve.walking import find_keyword
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

FILES = ("file:/", "FileStore")
CLEANERS = re.compile(r"\b(?:remove|unlink|rmtree|tempfile|mkstemp|mkdtemp|uuid|TemporaryDirectory)\b")
"""Names in a script of what removes the file, or makes its name unique."""


@lint_rule("rendezvous-file", reads="module")
def find_fixed_files(module: Scope, files: Files) -> Iterator[SourceFact]:
    """Yield a ``file://`` rendezvous whose path is the same in each run (``rendezvous-file``).

    path: of the file. Nothing where the script removes files or makes unique names.
    """
    if not any(word in module.script.text for word in FILES) or _cleans(module):
        return
    for scope in module.walk():
        for call, name in name_calls(scope, files):
            path = None
            if name in JOINS:
                path = fold(find_keyword(call, "init_method", 1), scope, files)
                path = path[7:] if path is not None and path.startswith("file://") else None
            elif name == "torch.distributed.FileStore":
                path = fold(find_keyword(call, "file_name", 0), scope, files)
            if path:
                yield SourceFact("rendezvous-file", scope.place(call), details={"path": path})


def _cleans(module: Scope) -> bool:
    """Whether the code removes files or makes unique names; its comments do not."""
    if not CLEANERS.search(module.script.text):
        return False
    spoken = (
        node for node in ast.walk(module.node) if isinstance(node, (ast.Name, ast.Attribute, ast.alias))
    )
    return any(CLEANERS.search(ast.unparse(node)) for node in spoken)


@check("NET010", family="source", needs=NEEDS, id="lint.rendezvous_file", commands=LINT)
def tell_fixed_file(evidence: Evidence) -> Iterable[Finding]:
    """Ranks meet at a file whose name is the same in each run."""
    for fact in facts_of(evidence, "rendezvous-file"):
        path = fact.details["path"]
        yield tell_fact(
            fact,
            f"The rendezvous file {path} ({name_line(fact.place)}) is the same in each run: one left by a "
            "killed run, or used by another job, makes the next one fail or hang.",
            Fix("start with torchrun and use env://", code='dist.init_process_group("nccl")'),
            why="the path is fixed, and nothing in the script removes it",
            severity="warning",
        )
