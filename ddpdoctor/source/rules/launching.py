"""Rules of how ranks are started, and of the process group's first moment."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.source.apart import Ways
from ddpdoctor.source.calls import JOINS, SAMPLERS, is_any_collective, is_wrapper
from ddpdoctor.source.known import KNOWN_ROOTS
from ddpdoctor.source.names import Files, Scope
from ddpdoctor.source.texts import fold
from ddpdoctor.source.traces import OTHER_JOINS, SPAWNS, Step, Trace
from ddpdoctor.source.walking import find_keyword, is_spelled_out, name_calls, name_last, own_nodes

SPELLINGS = ("--local_rank", "--local-rank")
FROM_LAUNCHER = re.compile(r"LOCAL_RANK|SLURM_LOCALID|OMPI_COMM")
RANKS = re.compile(r"torch\.distributed|DistributedDataParallel|init_process_group")
LAUNCHERS = frozenset({"accelerate", "transformers", "lightning", "pytorch_lightning", "deepspeed", "megatron",
                       "horovod",
                       "mmcv", "mmengine", "mmdet", "detectron2", "colossalai", "composer", "ignite", "fairscale",
                       "subprocess"})  # fmt: skip
"""Packages that pass or take the local rank in a way of their own."""
OWN_QUESTION = re.compile(r"__name__|process|environ|getenv|parent|spawn|child", re.IGNORECASE)
"""Tests that may be about whether this is a child."""
DYNAMIC = frozenset({"importlib.import_module", "__import__", "exec", "runpy.run_path", "runpy.run_module"})
"""Calls that bring in code that is not seen."""
ASKS = frozenset({"torch.distributed.get_rank", "torch.distributed.get_world_size"})
DESTROYS = "torch.distributed.destroy_process_group"


def find_local_rank_options(module: Scope, files: Files) -> Iterator[SourceFact]:
    """Yield an option of argparse that has one spelling of the local rank alone (``local-rank-option``).

    has, lacks: the spellings. Nothing where this file, or one that it belongs
    to by imports, reads the environment's.
    """
    if not any(each in line for line in module.script.lines for each in SPELLINGS):
        return
    options: dict[str, tuple[ast.Call, Scope]] = {}
    others = False
    for scope in module.walk():
        for call, _ in name_calls(scope, files):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
                for each in call.args:
                    if isinstance(each, ast.Constant) and each.value in SPELLINGS:
                        options.setdefault(str(each.value), (call, scope))
            elif isinstance(call.func, ast.Attribute) and call.func.attr == "parse_known_args":
                others = True  # what it does not know is no error
    if len(options) != 1 or others or _takes_otherwise(module, files):
        return
    ((spelling, (call, scope)),) = options.items()
    lacking = SPELLINGS[1 - SPELLINGS.index(spelling)]
    related = files.find_related(module)
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
    related = files.find_related(module)
    texts = ["\n".join(each.script.lines) for each in related]
    if any(FROM_LAUNCHER.search(text) for text in texts) or not any(RANKS.search(text) for text in texts):
        return True
    for scope in (inner for each in related for inner in each.walk()):
        if LAUNCHERS & {name.split(".")[0] for name in scope.imports.values()}:
            return True
        if any(name in SPAWNS for _, name in name_calls(scope, files)):
            return True
        for call, name in name_calls(scope, files):
            if name in JOINS and None not in (find_keyword(call, "rank"), find_keyword(call, "world_size")):
                return True  # whoever starts it tells the ranks
    return False


def find_unguarded_spawns(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield what starts processes when the file is imported (``spawn-unguarded``; in notebooks ``spawn-in-notebook``).

    function: what starts them. The place is the line of the module that leads there. Children of the start method spawn
    import the file again; those of fork do not, so that a plain Process is told only after spawn was chosen.
    """
    if not isinstance(trace.start.node, ast.Module):
        return
    if trace.start.script.name.rpartition("/")[2] == "__main__.py":
        return  # children do not import it again (multiprocessing.spawn)
    chosen = ""
    for step in trace.steps:
        call = step.call
        if call is None:
            continue
        if step.name.endswith("multiprocessing.set_start_method") and call.args:
            chosen = fold(call.args[0], step.scope, files) or ""
        if not _starts(step, chosen, files):
            continue
        if trace.start.script.cells:
            target = call.args[0] if call.args else find_keyword(call, "target")
            function = files.function(target, step.scope) if target is not None else None
            if function is not None and function.script is trace.start.script:
                yield SourceFact(
                    "spawn-in-notebook", step.scope.script.place(call), details={"function": step.name}
                )
            continue
        kinds = {each.kind for each in step.guards}
        asked = any(OWN_QUESTION.search(ast.unparse(each.test)) for each in step.guards if each.kind != "for")
        if kinds & {"main", "try", "except"} or asked:
            continue
        first = step.frames[0].call if step.frames else call
        related = (RelatedPlace("noticed", step.scope.place(call)),)
        yield SourceFact(
            "spawn-unguarded",
            trace.start.place(first),
            related=related if step.frames else (),
            details={"function": step.name.rpartition(".")[2] or "Process"},
            certain=not kinds - {"for", "with"},
        )
        return


def _starts(step: Step, chosen: str, files: Files) -> bool:
    call = step.call
    if call is None:
        return False
    if step.name in SPAWNS:
        method = find_keyword(call, "start_method", 5)
        return method is None or fold(method, step.scope, files) in ("spawn", "forkserver")
    if step.name in ("multiprocessing.Process", "torch.multiprocessing.Process"):
        return chosen in ("spawn", "forkserver")
    if (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "Process"
        and isinstance(call.func.value, ast.Name)
    ):
        found = step.scope.lookup(call.func.value.id)
        made = found[1][0] if found and len(found[1]) == 1 else None
        if found and isinstance(made, ast.Call) and made.args:
            name = files.dotted(made.func, found[0]) or ""
            return name.endswith("multiprocessing.get_context") and (
                fold(made.args[0], found[0], files) in ("spawn", "forkserver")
            )
    return False


def find_group_order(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield what needs the process group before it is made (``group-not-made``), or a second one (``group-twice``).

    function: what is called, for the first. Told only of what is reached without any test, and only up to the first
    call of a function that was not given, which may make the group.
    """
    if not trace.joins or not any(step.name in JOINS for step in trace.steps):
        return
    ways = Ways(files, trace)
    made: Step | None = None
    early = False
    for step in trace.steps:
        call = step.call
        if call is None:
            continue
        if step.name in JOINS:
            if not ways.is_straight(step):
                return
            if made is not None and not _same_loop(made, step):
                related = (RelatedPlace("noticed", made.scope.place(made.node)),)
                yield SourceFact("group-twice", step.scope.place(call), related=related)
                return
            made = step
        elif step.name == DESTROYS or step.name in OTHER_JOINS or ways.is_foreign(step):
            return
        elif made is None and not early and _runs_at_once(step, ways) and _needs_group(step, files):
            early = True
            what = step.name.rpartition(".")[2]
            yield SourceFact("group-not-made", step.scope.place(call), details={"function": what})


def _runs_at_once(step: Step, ways: Ways) -> bool:
    """Whether no test stands before a step, and no generator, which runs when it is gone through."""
    later = (
        each.callee for each in step.frames if not isinstance(each.callee.node, (ast.Module, ast.ClassDef))
    )
    lazy = any(
        isinstance(node, (ast.Yield, ast.YieldFrom)) for each in later for node in own_nodes(each.node)
    )
    return ways.is_straight(step) and not lazy


def _same_loop(made: Step, step: Step) -> bool:
    return made.node is step.node


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
