"""CKP003: each rank loads onto the device from which a checkpoint was saved."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.rank_tests import RANKS
from ddpdoctor.source.resolve.traces import Trace
from ddpdoctor.source.resolve.walking import find_keyword, is_true, name_last
from ddpdoctor.source.sameness.apart import ways_of
from ddpdoctor.source.training.cuda import hides_others, saves_from_cpu, uses_gpu
from ddpdoctor.source.training.restores import is_of_numbers, is_of_program, is_restored
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact, tell_question
from ddpdoctor_checks.lint.rewriting import rewrite, set_keyword

PUBLISHED = re.compile(
    "pretrain|backbone|imagenet|pytorch_model|huggingface|consolidat|name_or_path", re.IGNORECASE
)
"""Checkpoints that others have published, or that are put together of shards, whose tensors mostly are on the CPU:
their path says so, or a test before."""
RESUMES = re.compile("resum|restart|recover", re.IGNORECASE)
"""Checkpoints of the program itself, whoever writes them."""
SPELLED = re.compile(r"(?:^|/)([^/.]{3,100})(?:\.[^/]{0,20})?$")
"""The name of a file without its endings, at the end of a text or of the piece before what is filled in."""
CHOSEN = 3
"""Variables that are followed into one another from a path."""


@lint_rule("load-unmapped", "load-doubted", reads="program", classes=True)
def find_loads_on_one_device(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield where each rank loads a checkpoint onto the device from which it was saved (``load-unmapped``).

    Only what is given to ``load_state_dict``, or has keys that a ``torch.save`` of the files writes (own), in programs
    that use GPUs. Where it is not seen what becomes of it, the program moves to the CPU what it saves, or others may
    have published the file (its path says so, or is spelled out and named nowhere else), that is asked
    (``load-doubted``).
    """
    if not trace.has_peers or not uses_gpu(trace, files):
        return
    if any(hides_others(each.node, each.scope, files) for each in trace.steps):
        return
    ways, kinds, from_cpu = ways_of(files, trace), kinds_of(files), saves_from_cpu(trace)
    for step in trace.steps:
        call = step.call
        if call is None or step.name != "torch.load" or any(each.arg is None for each in call.keywords):
            continue
        if find_keyword(call, "map_location", 1) is not None or is_true(find_keyword(call, "mmap")):
            continue
        path = find_keyword(call, "f", 0)
        if path is None or ways.may_be_of_some(step):
            continue
        parts = list(_follow(path, step.scope))
        if any(map(_is_of_rank, parts)):
            continue
        tests = [ast.unparse(each.test) for each in step.guards if each.kind == "if"]
        texts = [
            each.value for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        words = " ".join([ways.spell(path, step), *texts, *tests])
        own = is_of_program(call, step.scope, kinds)
        restored = own or is_restored(call, step.scope, kinds)
        published = not own and PUBLISHED.search(words)
        of_others = not own and not RESUMES.search(words) and _is_named_once(texts, files)
        sure = restored and not published and not of_others and not from_cpu and (own or trace.owner is None)
        if not restored and is_of_numbers(call, step.scope):
            continue
        if restored or (trace.owner is None and not published):
            yield ways.tell("load-unmapped" if sure else "load-doubted", step, own="yes" if own else "")


def _follow(path: ast.expr, scope: Scope, depth: int = 0) -> Iterator[ast.AST]:
    """Yield all that stands in a path, and in what its variables are, such as tables that it is chosen from."""
    for each in ast.walk(path):
        yield each
        found = scope.lookup(each.id) if isinstance(each, ast.Name) and depth < CHOSEN else None
        home, values = found if found is not None else (scope, [])
        for value in values:
            if value is not UNKNOWN:
                yield from _follow(value, home, depth + 1)


def _is_named_once(texts: Iterable[str], files: Files) -> bool:
    """Whether a path spells names out that stand in one line alone: no program that was read writes such a file."""
    names = {found[1] for text in texts if (found := SPELLED.search(text))}
    lines = [line for module in files.modules for line in module.script.lines] if names else []
    return bool(names) and all(sum(name in line for line in lines) <= 1 for name in names)


def _is_of_rank(node: ast.AST) -> bool:
    """Whether it is a rank: each loads the file that it saved itself, from its own device."""
    name = name_last(node).lower() if isinstance(node, (ast.Name, ast.Attribute)) else ""
    return "rank" in name or name in RANKS


@check("CKP003", family="source", needs=NEEDS, id="lint.map_location", commands=LINT)
def tell_load_unmapped(evidence: Evidence) -> Iterable[Finding]:
    """A checkpoint is loaded by all ranks without ``map_location``."""
    for fact in facts_of(evidence, "load-unmapped"):
        yield tell_fact(
            fact,
            f"torch.load at {name_line(fact.place)} has no map_location: each rank loads onto the device "
            "from which the file was saved, usually GPU 0.",
            Fix(
                "load onto the CPU, or the rank's own device",
                code=rewrite(
                    fact.place.text,
                    ("load",),
                    lambda call: set_keyword(call, "map_location", "'cpu'"),
                    'torch.load(path, map_location="cpu")',
                ),
            ),
            why="the program uses GPUs, and "
            + (
                "what is loaded has keys that its own torch.save writes"
                if fact.details["own"]
                else "what is loaded goes to load_state_dict"
            ),
            severity="warning",
        )
    for fact in facts_of(evidence, "load-doubted"):
        yield tell_question(
            fact,
            f"torch.load at {name_line(fact.place)} has no map_location: are there tensors of a GPU in the file?",
            Fix("load onto the CPU", code='torch.load(path, map_location="cpu")'),
            why="each rank of a program that uses GPUs comes there; what becomes of the result is not seen, or the "
            "file is a pretrained model, which may have been saved from a GPU",
        )
