"""ENV007: a parser takes one spelling of the local rank alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import JOINS
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.known import KNOWN_ROOTS
from ddpdoctor.source.resolve.names import Files, Scope, name_calls
from ddpdoctor.source.resolve.traces import SPAWNS
from ddpdoctor.source.resolve.walking import find_keyword, name_last
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

SPELLINGS = ("--local_rank", "--local-rank")
FROM_LAUNCHER = re.compile(r"""(?:["']|\benviron\.)LOCAL_RANK|SLURM_LOCALID|OMPI_COMM""")
"""The variable, as text: an attribute of that name, such as ``cfg.LOCAL_RANK``, is the program's own."""
RANKS = re.compile(r"torch\.distributed|DistributedDataParallel|init_process_group")
LAUNCHERS = frozenset({"accelerate", "transformers", "lightning", "pytorch_lightning", "deepspeed", "megatron",
                       "horovod",
                       "mmcv", "mmengine", "mmdet", "detectron2", "colossalai", "composer", "ignite",
                       "fairscale"})  # fmt: skip
"""Packages that pass or take the local rank in a way of their own."""
STARTS = frozenset({"subprocess.Popen", "subprocess.run", "subprocess.call", "subprocess.check_call"})
"""Calls by which a script may start its ranks itself, unless they take the text that a command prints."""
DYNAMIC = frozenset({"importlib.import_module", "__import__", "exec", "runpy.run_path", "runpy.run_module"})
"""Calls that bring in code that is not seen."""


@lint_rule("local-rank-option", reads="module")
def find_local_rank_options(module: Scope, files: Files) -> Iterator[SourceFact]:
    """Yield an option of argparse that has one spelling of the local rank alone (``local-rank-option``).

    has, lacks: the spellings. Nothing where this file, or one that runs with it, reads the environment's.
    """
    if not any(each in module.script.text for each in SPELLINGS):
        return
    options: dict[str, tuple[ast.Call, Scope]] = {}
    others = False
    for scope in module.walk():
        for call, _ in name_calls(scope, files):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
                values = [each.value for each in call.args if isinstance(each, ast.Constant)]
                names = [each for each in values if isinstance(each, str) and each.startswith("--")]
                if set(names) & set(SPELLINGS) and not set(names) <= set(SPELLINGS):
                    others = True  # it has a further name: whoever starts the script knows that
                for name in names:
                    if name in SPELLINGS:
                        options.setdefault(name, (call, scope))
            elif isinstance(call.func, ast.Attribute) and call.func.attr == "parse_known_args":
                others = True  # what it does not know is no error
    if len(options) != 1 or others or _takes_otherwise(module, files):
        return
    ((spelling, (call, scope)),) = options.items()
    lacking = SPELLINGS[1 - SPELLINGS.index(spelling)]
    related = kinds_of(files).programs.of_script(module)
    yield SourceFact(
        "local-rank-option",
        scope.place(call),
        details={"has": spelling, "lacks": lacking},
        certain=all(_is_read_whole(each, files) for each in related) and _is_used(scope, related, files),
    )


def _is_read_whole(module: Scope, files: Files) -> bool:
    """Whether a module imports nothing of which the source was not read, and could read the environment."""
    given = {part for each in files.modules for part in each.script.name.removesuffix(".py").split("/")}
    roots = {
        name.lstrip(".").split(".")[0] for each in module.walk() for name in each.imports.values() if name
    }
    calls = {name for scope in module.walk() for _, name in name_calls(scope, files)}
    return roots - {""} <= KNOWN_ROOTS | given and not calls & DYNAMIC


def _is_used(scope: Scope, related: Collection[Scope], files: Files) -> bool:
    """Whether what declares an option is part of a program that was read: else who uses it may know better."""
    inside = next(
        (each for each in scope.outwards() if isinstance(each.outer and each.outer.node, ast.Module)), None
    )
    if inside is None:
        return True  # in the module itself
    name = getattr(inside.node, "name", "")
    for module in related:
        nodes = [node for statement in module.node.body for node in ast.walk(statement)]
        if any(name_last(node) == name for node in nodes if isinstance(node, (ast.Name, ast.Attribute))):
            return True
    return any(name in JOINS for module in related for _, name in name_calls(module, files))


def _takes_otherwise(module: Scope, files: Files) -> bool:
    """Whether the local rank may come from elsewhere, or the option from a launcher of their own."""
    related = kinds_of(files).programs.of_script(module)
    texts = [each.script.text for each in related]
    if any(FROM_LAUNCHER.search(text) for text in texts) or not any(RANKS.search(text) for text in texts):
        return True
    for scope in (inner for each in related for inner in each.walk()):
        if LAUNCHERS & {name.split(".")[0] for name in scope.imports.values()}:
            return True
        for call, name in name_calls(scope, files):
            if name in SPAWNS or (name in STARTS and not _takes_text(call)):
                return True
        for call, name in name_calls(scope, files):
            if name in JOINS and None not in (find_keyword(call, "rank"), find_keyword(call, "world_size")):
                return True  # whoever starts it tells the ranks
    return False


def _takes_text(call: ast.Call) -> bool:
    """Whether a command is run for what it prints, as ``git rev-parse HEAD`` is."""
    return any(find_keyword(call, word) is not None for word in ("stdout", "capture_output"))


@check("ENV007", family="source", needs=NEEDS, id="lint.local_rank", commands=LINT)
def tell_local_rank_option(evidence: Evidence) -> Iterable[Finding]:
    """A parser takes one spelling of the local rank, and nothing reads LOCAL_RANK."""
    for fact in facts_of(evidence, "local-rank-option"):
        has, lacks = fact.details["has"], fact.details["lacks"]
        refused = (
            "torch.distributed.launch of torch 2.0 and later passes --local-rank, which argparse rejects"
            if has == "--local_rank"
            else "torch.distributed.launch before torch 2.0 passes --local_rank, which argparse rejects"
        )
        yield tell_fact(
            fact,
            f"The parser at {name_line(fact.place)} accepts {has} but not {lacks}: {refused}; torchrun "
            "passes neither, and nothing here reads LOCAL_RANK.",
            Fix(
                "accept both spellings, with torchrun's variable as the default",
                code='parser.add_argument("--local-rank", "--local_rank", type=int, '
                'default=int(os.environ.get("LOCAL_RANK", 0)))',
            ),
            why=f"add_argument has {has} alone, and LOCAL_RANK occurs in none of the files",
            severity=None if has == "--local_rank" else "warning",
        )
