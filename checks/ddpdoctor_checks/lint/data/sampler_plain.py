"""DAT001: where a script says that there are several ranks, its loader gets a sampler that knows none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.names import Files, Scope, name_calls
from ddpdoctor.source.resolve.programs import FRAMEWORKS
from ddpdoctor.source.resolve.walking import find_keyword, own_nodes
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_question

LOADERS = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})
PLAIN = frozenset({"torch.utils.data.RandomSampler", "torch.utils.data.sampler.RandomSampler"})
DISTRIBUTED = ("distributed", "ddp")
"""Parts of the names of options and functions that tell whether there are several ranks."""
SHARES = re.compile(r"rank|shard|world|split|subset|local|part|val|test|eval", re.IGNORECASE)
"""Names of data of which each rank may have a share, or that is not trained on."""


@lint_rule("sampler-plain", reads="files")
def find_plain_samplers(files: Files) -> Iterator[SourceFact]:
    """Yield loaders that get a RandomSampler on the side of a test that is for several ranks (``sampler-plain``).

    test: the test.
    """
    kinds = kinds_of(files)
    for module in files.modules:
        found = [each for scope in module.walk() for each in _find_in(scope, files)]
        if not found or any(name in FRAMEWORKS for _, _, name in kinds.programs.calls(module)):
            continue  # Accelerate and others give a loader its sampler
        yield from found


def _asks_for_ranks(test: ast.expr) -> bool:
    """Whether a test asks whether there are several ranks, and nothing else."""
    name = ast.unparse(test).removesuffix("()")
    last = name.rpartition(".")[2].lower()
    return name.replace(".", "").isidentifier() and any(word in last for word in DISTRIBUTED)


def _find_in(scope: Scope, files: Files) -> Iterator[SourceFact]:
    given = {
        ast.unparse(sampler): call
        for call, name in name_calls(scope, files)
        if name in LOADERS and (sampler := find_keyword(call, "sampler", 3)) is not None
    }
    for node in own_nodes(scope.node) if given else ():
        if not isinstance(node, ast.If) or not _asks_for_ranks(node.test):
            continue
        for each in node.body:
            loader = given.get(ast.unparse(each.targets[0])) if isinstance(each, ast.Assign) else None
            if loader is not None and isinstance(each, ast.Assign) and _is_plain(each.value, scope, files):
                details = {"test": ast.unparse(node.test)}
                yield SourceFact("sampler-plain", scope.place(loader), details=details, certain=False)


def _is_plain(value: ast.expr, scope: Scope, files: Files) -> bool:
    if not isinstance(value, ast.Call) or files.dotted(value.func, scope) not in PLAIN:
        return False
    data = find_keyword(value, "data_source", 0)
    return data is not None and not SHARES.search(ast.unparse(data))


@check("DAT001", family="source", needs=NEEDS, id="lint.sampler_plain", commands=LINT)
def ask_plain_sampler(evidence: Evidence) -> Iterable[Finding]:
    """A loader gets a sampler that knows no ranks where there are several."""
    known = {
        fact.place for rule in ("loader-unsharded", "loader-doubted") for fact in facts_of(evidence, rule)
    }
    for fact in facts_of(evidence, "sampler-plain"):
        if fact.place not in known:
            yield tell_question(
                fact,
                f"The DataLoader at {name_line(fact.place)} gets a RandomSampler where {fact.details['test']} holds: "
                "is the dataset sharded by rank elsewhere?",
                Fix("give each rank its own shard of the data", code="sampler = DistributedSampler(dataset)"),
                why="a RandomSampler knows no ranks, and the test says that there are several",
            )
