"""DAT001: where a script says that there are several ranks, its loader gets a sampler that knows none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope, name_calls
from ddpdoctor.source.resolve.programs import FRAMEWORKS
from ddpdoctor.source.resolve.walking import find_keyword, own_nodes
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact, tell_question
from ddpdoctor_checks.lint.data.loader_unsharded import is_the_same

LOADERS = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})
PLAIN = frozenset({"torch.utils.data.RandomSampler", "torch.utils.data.sampler.RandomSampler"})
DISTRIBUTED = ("distributed", "ddp")
"""Parts of the names of options and functions that tell whether there are several ranks."""
SHARES = re.compile(r"rank|shard|world|split|subset|local|part|val|test|eval", re.IGNORECASE)
"""Names of data of which each rank may have a share, or that is not trained on."""


@lint_rule("sampler-plain", reads="files")
def find_plain_samplers(files: Files) -> Iterator[SourceFact]:
    """Yield loaders that get a RandomSampler on the side of a test that is for several ranks (``sampler-plain``).

    test: the test. whole: whether the data set is the same on each rank, by all that is seen of its making.
    """
    kinds = kinds_of(files)
    for module in files.modules:
        found = [each for scope in module.walk() for each in _find_in(scope, kinds)]
        if not found or any(kinds.programs.calls(module, FRAMEWORKS)):
            continue  # Accelerate and others give a loader its sampler
        yield from found


def _asks_for_ranks(test: ast.expr) -> bool:
    """Whether a test asks whether there are several ranks, and nothing else."""
    name = ast.unparse(test).removesuffix("()")
    last = name.rpartition(".")[2].lower()
    return name.replace(".", "").isidentifier() and any(word in last for word in DISTRIBUTED)


def _find_in(scope: Scope, kinds: Kinds) -> Iterator[SourceFact]:
    given = {
        ast.unparse(sampler): call
        for call, name in name_calls(scope, kinds.files)
        if name in LOADERS and (sampler := find_keyword(call, "sampler", 3)) is not None
    }
    for node in own_nodes(scope.node) if given else ():
        if not isinstance(node, ast.If) or not _asks_for_ranks(node.test):
            continue
        for each in node.body:
            loader = given.get(ast.unparse(each.targets[0])) if isinstance(each, ast.Assign) else None
            data = _find_data(each.value, scope, kinds) if isinstance(each, ast.Assign) else None
            if loader is not None and data is not None:
                sets = kinds.all_of(data, scope, "dataset")
                whole = bool(sets) and all(is_the_same(one, kinds) for one in sets)
                details = {"test": ast.unparse(node.test), "whole": "yes" if whole else ""}
                yield SourceFact("sampler-plain", scope.place(loader), details=details, certain=False)


def _find_data(value: ast.expr, scope: Scope, kinds: Kinds) -> ast.expr | None:
    """Return the data of a RandomSampler; None of another, and of data of which each rank may have a share."""
    if not isinstance(value, ast.Call) or kinds.files.dotted(value.func, scope) not in PLAIN:
        return None
    data = find_keyword(value, "data_source", 0)
    return data if data is not None and not SHARES.search(ast.unparse(data)) else None


@check("DAT001", family="source", needs=NEEDS, id="lint.sampler_plain", commands=LINT)
def ask_plain_sampler(evidence: Evidence) -> Iterable[Finding]:
    """A loader gets a sampler that knows no ranks where there are several."""
    known = {
        fact.place for rule in ("loader-unsharded", "loader-doubted") for fact in facts_of(evidence, rule)
    }
    for fact in facts_of(evidence, "sampler-plain"):
        if fact.place in known:
            continue
        gets = f"The DataLoader at {name_line(fact.place)} gets a RandomSampler where {fact.details['test']} holds"
        fix = Fix("give each rank its own shard of the data", code="sampler = DistributedSampler(dataset)")
        why = "a RandomSampler knows no ranks, and the test says that there are several"
        if fact.details["whole"]:
            yield tell_fact(
                fact, f"{gets}: each rank trains on the whole dataset.", fix, why=why, severity="warning"
            )
        else:
            yield tell_question(fact, f"{gets}: is the dataset sharded by rank elsewhere?", fix, why=why)
