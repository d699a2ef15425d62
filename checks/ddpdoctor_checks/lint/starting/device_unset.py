"""BKD009: the current device is taken before a rank has set its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.facts.collectives import COLLECTIVES
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import JOINS, name_collective
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.known import KNOWN_ROOTS, QUIET
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.objects import WRAPPERS
from ddpdoctor.source.resolve.traces import OTHER_JOINS, Frame, Step, Trace
from ddpdoctor.source.resolve.walking import find_keyword, name_last, own_nodes
from ddpdoctor.source.sameness.alike import follow_name
from ddpdoctor.source.sameness.apart import ways_of
from ddpdoctor.source.training.cuda import HIDES, SETS, gives_device, hides_others, is_of_nccl, uses_gpu
from ddpdoctor.source.training.moves import is_move
from ddpdoctor.source.training.options import find_setting
from ddpdoctor.source.training.train_loops import is_backward
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact, tell_question
from ddpdoctor_checks.lint.rewriting import SET_DEVICE

BY_CURRENT = frozenset({"barrier", *(row.name for row in COLLECTIVES.values() if row.objects)})
"""Collectives that take the current device, whatever they are given."""

SETTING = ("set_device", "set_device_index", "Accelerator", "init_device_mesh", "DeviceMesh")
"""Last names of what else sets the device of a rank, in whichever package."""
MAY_SET = re.compile(
    r"set_?up|init|start|launch|device|gpu|cuda|pin|dist(?!anc|rib|ort|inct|ill)|ddp|env", re.I
)
"""Names of what may set it in a file or package that was not read."""
DEEPEST = 4
"""Variables that are followed into one another to a device."""


@lint_rule("device-unset", "device-shared", "device-doubted", reads="program", setups=True)
def find_unset_devices(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield what needs the device before it is set (``device-unset``), or where all take GPU 0 (``device-shared``).

    function: what is called. join: where the group is made. Nothing behind a call of a function that was not given: it
    may set the device. A group of NCCL in a program that speaks of no setting of the device is asked about
    (``device-doubted``), unless each rank that trains takes GPU 0.
    """
    sure = is_of_nccl(trace, files) and not trace.setup
    found = list(_find_sure(trace, files)) if sure else []
    yield from found or _find_unspoken(trace, files, sure)


def _find_unspoken(trace: Trace, files: Files, sure: bool) -> Iterator[SourceFact]:
    """Yield the group of NCCL of a program in which nothing sets a device, or what takes the first GPU there."""
    joins = [step for step in trace.steps if step.name in JOINS and step.call is not None]
    if not joins or not trace.has_peers or not (trace.setup or sure or uses_gpu(trace, files)):
        return
    programs, module = kinds_of(files).programs, trace.start.module
    named = all(programs.mentions(module, word) for word in ("nccl", "cuda"))
    if not named or programs.any_file(module, _sets_device, files):
        return
    if any(hides_others(each.node, each.scope, files) for each in trace.steps):
        return
    ways, place = ways_of(files, trace), joins[0].scope.place(joins[0].node)
    wrapped = list(_find_wrapped_moves(trace, files)) if sure else []
    trains = [set(step.guards) for step in trace.steps if step.call is not None and is_backward(step.call)]
    for step in trace.steps if sure else ():
        call = step.call
        if call is not None and _may_set_unread(call, step.scope, files):
            break
        trained = any(set(step.guards) <= each for each in trains)  # each run that trains comes there
        if call is None or not (trained or ways.is_on_way(step) or call in wrapped):
            continue
        if _takes_first_gpu(call, step, files):
            function = ast.unparse(call.func).rpartition(".")[2]
            yield ways.tell("device-shared", step, function=function, join=name_line(place))
            return
    yield SourceFact("device-doubted", place)


def _find_wrapped_moves(trace: Trace, files: Files) -> Iterator[ast.Call]:
    """Yield the calls that move a model which is wrapped in the same function, where all of them take the first GPU.

    Whichever of them a run comes to before it wraps the model.
    """
    for wrap in trace.steps:
        if wrap.call is None or wrap.name not in WRAPPERS or not wrap.call.args:
            continue
        model = ast.unparse(wrap.call.args[0])
        moves = [
            step
            for step in trace.steps
            if step.scope is wrap.scope
            and step.call is not None
            and is_move(step.call)
            and ast.unparse(step.call.func).rpartition(".")[0] == model
        ]
        if all(each.call is not None and _takes_first_gpu(each.call, each, files) for each in moves):
            yield from (each.call for each in moves if each.call is not None)


def _sets_device(member: Scope, files: Files) -> bool:
    """Whether a file has what may set the device of a rank; a function of the files is read by itself."""
    called = kinds_of(files).programs.list_calls(member)
    if any(
        name in SETS or (name in JOINS and find_keyword(call, "device_id") is not None)
        for call, _, name in called
    ):
        return True
    if not any(word in member.script.text for word in (*SETTING, HIDES)):
        return False
    return any(
        _speaks_of_setting(node, scope, files) or gives_device(node, scope, files)
        for scope in member.walk()
        for node in own_nodes(scope.node)
    )


def _speaks_of_setting(node: ast.AST, scope: Scope, files: Files) -> bool:
    """Whether it is what sets the device of a rank, by its last name: called, or kept for a later call."""
    return (
        isinstance(node, (ast.Name, ast.Attribute))
        and name_last(node) in SETTING
        and files.function(node, scope) is None
    )


def _may_set_unread(call: ast.Call, scope: Scope, files: Files) -> bool:
    """Whether it calls what is imported, was not read and may set the device, by its name."""
    name = files.dotted(call.func, scope) or ""
    root = name.lstrip(".").partition(".")[0]
    return (
        MAY_SET.search(name_last(call.func)) is not None
        and root not in KNOWN_ROOTS | QUIET
        and any(name.startswith(each) for outer in scope.visible() for each in outer.imports.values())
        and not files.was_read(name, scope)
    )


def _find_sure(trace: Trace, files: Files) -> Iterator[SourceFact]:
    ways = ways_of(files, trace)
    later = any(step.name in SETS for step in trace.steps)
    for step in trace.steps:
        call = step.call
        if (
            hides_others(step.node, step.scope, files)
            or step.name in SETS | OTHER_JOINS
            or (call is not None and _speaks_of_setting(call.func, step.scope, files))
            or ways.is_foreign(step)
        ):
            return
        if call is None:
            continue
        operation = step.name.removeprefix("torch.distributed.")
        given = find_keyword(call, "device_ids") is not None or find_keyword(call, "device") is not None
        if operation in BY_CURRENT and not given and name_collective(call, step.scope, files):
            yield ways.tell("device-unset", step, function=operation)
            return
        if not later and _takes_first_gpu(call, step, files) and not ways.may_differ(step):
            yield ways.tell("device-shared", step, function=ast.unparse(call.func).rpartition(".")[2])
            return


def _takes_first_gpu(call: ast.Call, step: Step, files: Files) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "cuda":
        own = [each for each in call.keywords if each.arg != "non_blocking"]
        return not call.args and not own and not step.name.startswith("torch.")
    if call.func.attr != "to":
        return False
    device = find_keyword(call, "device", 0)
    return device is not None and "cuda" in _list_devices(device, step.scope, step.frames, files)


def _list_devices(
    node: ast.expr | None, scope: Scope, frames: tuple[Frame, ...], files: Files, depth: int = 0
) -> set[str]:
    """Return what a device may be, of ``cuda`` and ``cpu``; nothing where it may be another one."""
    sides: list[tuple[ast.expr | None, Scope, tuple[Frame, ...]]] = []
    if isinstance(node, ast.IfExp):
        sides = [(node.body, scope, frames), (node.orelse, scope, frames)]
    elif isinstance(node, ast.Call) and files.dotted(node.func, scope) == "torch.device":
        sides = [(node.args[0], scope, frames)] if len(node.args) == 1 and not node.keywords else []
    elif isinstance(node, ast.Name):
        sides = follow_name(node, scope, frames)
    if sides and depth < DEEPEST:
        each = [_list_devices(value, home, way, files, depth + 1) for value, home, way in sides]
        return set().union(*each) if all(each) else set()
    text = find_setting(node, scope, files)
    return {text} if text in ("cuda", "cpu") else set()


@check("BKD009", family="source", needs=NEEDS, id="lint.device_set", commands=LINT)
def tell_device_unset(evidence: Evidence) -> Iterable[Finding]:
    """A collective takes the current device before one is set, or all ranks compute on the first GPU."""
    for fact in facts_of(evidence, "device-unset"):
        function = fact.details["function"]
        yield tell_fact(
            fact,
            f"{function} at {name_line(fact.place)} uses the current device, but no rank has set its own: "
            "all may use GPU 0.",
            Fix("set the rank's device first", code=f"{SET_DEVICE}\n{fact.place.text}"),
            why="the group is NCCL's, and nothing before it sets the device",
            severity="warning",
        )
    for fact in facts_of(evidence, "device-shared"):
        function = fact.details["function"]
        yield tell_fact(
            fact,
            f"{function} at {name_line(fact.place)} uses the current device, which no rank sets: all use "
            "GPU 0.",
            Fix("set the rank's device first", code=f"{SET_DEVICE}\n{fact.place.text}"),
            why="the group is NCCL's, and nothing in the program sets the device",
            severity="warning",
        )
    known = {fact.details.get("join") for fact in facts_of(evidence, "device-shared")}
    for fact in facts_of(evidence, "device-doubted"):
        if name_line(fact.place) in known:
            continue
        yield tell_question(
            fact,
            f"No file of the program sets the device of a rank whose group of NCCL is made at {name_line(fact.place)}: "
            "does all that goes to a GPU name its own?",
            Fix("set the rank's device first", code=f"{SET_DEVICE}\n{fact.place.text}"),
            why="the program uses GPUs, and calls without a device take GPU 0",
        )
