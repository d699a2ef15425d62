"""ENV019: a script needs the process group, and nothing in its program makes one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import APEX, SAMPLERS
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.known import KNOWN_ROOTS, QUIET
from ddpdoctor.source.resolve.makers import find_class_kind
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope, name_calls
from ddpdoctor.source.resolve.objects import WRAPPERS
from ddpdoctor.source.resolve.programs import ALL_JOINS, ALONE, DISTRIBUTED, FRAMEWORKS, SEVERAL
from ddpdoctor.source.resolve.rank_tests import RankReader
from ddpdoctor.source.resolve.traces import Guard, Step, Trace
from ddpdoctor.source.resolve.walking import (
    find_argument,
    find_keyword,
    is_main_guard,
    is_spelled_out,
    name_last,
    own_nodes,
)
from ddpdoctor.source.sameness.alike import SETTINGS
from ddpdoctor.source.sameness.apart import ways_of
from ddpdoctor.source.training.fixed import list_fixed
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact, tell_question

ASKS = frozenset({"torch.distributed.get_rank", "torch.distributed.get_world_size", "torch.distributed.barrier",
                  "torch.distributed.all_reduce", "torch.distributed.broadcast"})  # fmt: skip
MAKES = re.compile(r"init\w{0,24}(process_?group|distributed|_ddp|_dist\b|_mpi|parallel)|setup_ddp|setup_dist|Trainer\b"
                   r"|TrainingArguments|HfArgumentParser|launch|horovod|deepspeed|tensor_parallel", re.I)  # fmt: skip
"""Names of what may make a group, in whichever package."""
OF_MAKERS = re.compile("horovod|deepspeed|megatron|colossalai", re.I)
"""Packages of which any call may make one."""
RANKED = re.compile(r"(?:environ|getenv)\W{1,8}(?:get\W{1,4})?(?:LOCAL_)?(?:RANK|WORLD_SIZE)\b")
"""Reading of a launcher's variables."""
OF_SCHEDULERS = re.compile(
    r"^'(?:SLURM_(?:PROCID|NTASKS|NPROCS)|OMPI_COMM_WORLD_RANK|PMI_RANK)' in os\.environ$"
)
"""Tests for a launcher beside torchrun: some run of several ranks takes that side."""
MAY_MAKE = re.compile(
    r"init(?!_?(?:weight|param|model|net|bias|buffer))|set_?up|prepare|launch|start|boot|dist(?!anc|rib|ort|inct|ill)|distributed"
    r"|ddp|parallel|\brun|run\b|main\b|train(?!_?(?:data|load|set|trans|aug|sampl|valid|test|id|ing_?(?:data|load|set)))|engine"
    r"|cluster|accelerat|session|fabric|strateg|mpi\b|slurm|solver|experiment|learner|worker|agent|spawn|connect|context|begin|activate",
    re.I,
)
"""Names of what may make a group in a package of which nothing is known."""
READS_ONLY = ("config", "cfg", "logg", "parse", "version")
"""Parts of names of what reads settings or writes a log, in whichever package: it makes no group."""
DEEPEST = 4
"""Values that are followed into one another."""
OF_RANKS = re.compile(
    r"rank|world|dist|ddp|parallel|proc|gpu|cuda|device|node|local|launch|init|slurm|mpi|group|multi|shard|size|num_|n_|sync|main|master",
    re.I,
)
"""Parts of what a test says that may decide whether there are several ranks."""
CHOOSES = frozenset({"getattr", "hasattr", "isinstance", "len", "exists", "isfile", "isdir", "startswith", "endswith",
                     "get", "lower", "int", "float", "str", "bool", "min", "max"})  # fmt: skip
"""Functions in a test that ask for an option, a file or a number."""


@lint_rule("group-missing", "group-doubted", reads="program")
def find_missing_groups(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield the first call of a script that needs a group that nothing makes (``group-missing``).

    function: what is called. package: what else may make it, where the program imports what is not known
    (``group-doubted``).
    """
    kinds = kinds_of(files)
    module = trace.start.module
    if trace.alone or not trace.whole:
        return
    started = _is_flat(module, files) or trace.start.spawned
    own = [step for step in trace.steps if started or _is_of_script(step)]
    steps = [step for step in own if _needs_group(step, kinds)]
    wraps = [step for step in own if step.name in WRAPPERS and not _asks_for_group(step)]
    if not (steps or wraps) or _is_made(module, kinds):
        return
    needed = next((step for step in steps if _is_reached(step, kinds)), None)
    steps = steps or wraps
    ways, step = ways_of(files, trace), needed or steps[0]
    others = _list_others(module, kinds)
    if needed is not None:
        others &= _list_called(trace.steps[: trace.steps.index(needed)], trace, files)
    package = next(iter(sorted(others)), "")
    details = {"function": step.name.rpartition(".")[2], "package": package}
    yield SourceFact(
        "group-missing" if needed is not None and not package else "group-doubted",
        step.scope.place(step.node),
        details=details,
        certain=ways.is_sure(step),
    )


def _is_of_script(step: Step) -> bool:
    """Whether a step is surely one of a script that is started: behind its main guard, not when it is imported."""
    return any(each.kind == "main" for each in step.guards)


def _is_flat(module: Scope, files: Files) -> bool:
    """Whether a module is run as a script without a main guard, and no file imports it.

    Its last line calls a function of its own, or it reads its rank and has loops outside functions.
    """
    if module in files.all_imported:
        return False
    body = getattr(module.node, "body", [])
    last = body[-1] if body else None
    if (
        isinstance(last, ast.Expr)
        and isinstance(last.value, ast.Call)
        and not (last.value.args or last.value.keywords)
    ):
        function = files.function(last.value.func, module)
        if function is not None and function.module is module:
            return True
    loops = any(isinstance(each, (ast.For, ast.While)) for each in body)
    return loops and RANKED.search(module.script.text) is not None


def _is_reached(step: Step, kinds: Kinds) -> bool:
    """Whether a run of several ranks comes to a step, by what the program itself says of the tests before it."""
    return all(
        each.kind in ("main", "for", "with", "decorator") or _is_taken(each, kinds) for each in step.guards
    )


def _is_taken(guard: Guard, kinds: Kinds) -> bool:
    """Whether some run of several ranks surely comes past a test.

    It asks the environment or the launcher's option for ranks, for a device, for a setting that the program makes by
    itself, or for something else that is the user's to choose.
    """
    return isinstance(guard.test, ast.expr) and _takes(guard.test, guard.positive, guard, kinds)


def _takes(test: ast.expr, positive: bool, guard: Guard, kinds: Kinds) -> bool:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _takes(test.operand, not positive, guard, kinds)
    if isinstance(test, ast.BoolOp):
        needs = all if isinstance(test.op, ast.And) is positive else any
        return needs(_takes(each, positive, guard, kinds) for each in test.values)
    if OF_DEVICES.fullmatch(ast.unparse(test)) is not None:
        return positive
    if isinstance(test, ast.Compare):
        if OF_SCHEDULERS.search(ast.unparse(test)):
            return True
        if isinstance(test.ops[0], (ast.Is, ast.IsNot)) and ast.unparse(test.comparators[0]) == "None":
            return positive is isinstance(test.ops[0], ast.IsNot) and _is_made_by_program(
                test.left, guard, kinds
            )
    many = _find_side_of_many(test)
    if many is not None and _is_counted(many[0], guard, kinds):
        return many[1] is positive
    if many is None and not OF_RANKS.search(ast.unparse(test)):
        chosen = _is_choice(test, positive, guard.scope, kinds)
        return chosen and RankReader(kinds.files).read(test, guard.scope) is None
    if kinds.programs.side(test, guard.scope) != positive:
        return False
    if isinstance(test, (ast.Name, ast.Attribute)):
        return _is_made_by_program(test, guard, kinds) or _is_left_to_user(test, guard, kinds)
    return "os.environ" in ast.unparse(test) or (
        isinstance(test, ast.Compare)
        and (_is_option_of_launcher(test.left) or _is_of_environment(test.left, guard.scope))
    )


def _is_choice(test: ast.expr, positive: bool, scope: Scope, kinds: Kinds) -> bool:
    """Whether a test that speaks of no ranks is about an option, a file or a number: some run goes either way.

    One about what the program gives by itself goes the way of that. A parameter is no choice that a call gives such a
    value, or leaves to its default: ``Loader(args, "test")``; nor is what an object keeps of them.
    """
    if any(name_last(each.func) not in CHOOSES for each in ast.walk(test) if isinstance(each, ast.Call)):
        return False
    if any(_is_kept(each) for each in ast.walk(test)):
        return False
    sides = _list_fixed_sides(test, scope, kinds.files)
    if sides is not None:
        return positive in sides
    names = [each.id for each in ast.walk(test) if isinstance(each, ast.Name) and each.id in scope.parameters]
    return not any(
        (given := find_argument(call, scope, name)) is None
        or list_fixed(given, home, kinds.files) is not None
        for name in names
        for call, home in kinds.callers(scope)
    )


def _list_fixed_sides(test: ast.expr, scope: Scope, files: Files) -> set[bool] | None:
    """Return the sides that a test of what the program gives by itself may take; None of another test."""
    if not isinstance(test, ast.Compare):
        values = list_fixed(test, scope, files)
        return None if values is None else set(map(bool, values))
    left, right = (list_fixed(each, scope, files) for each in (test.left, test.comparators[0]))
    if left is None or right is None:
        return None
    equal = isinstance(test.ops[0], ast.Eq)
    known = len(test.ops) == 1 and (equal or isinstance(test.ops[0], ast.NotEq))
    return {(one == other) is equal for one in left for other in right} if known else set()


def _is_kept(node: ast.AST) -> bool:
    """Whether it is an attribute of ``self`` that is no settings."""
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self" and node.attr not in SETTINGS


def _find_side_of_many(test: ast.expr) -> tuple[ast.expr, bool] | None:
    """Return the number that a test compares with 1 or 2, and the side of more than one."""
    if (
        not isinstance(test, ast.Compare)
        or len(test.ops) != 1
        or not isinstance(test.comparators[0], ast.Constant)
    ):
        return None
    key = type(test.ops[0]), test.comparators[0].value
    return (test.left, key in SEVERAL) if key in SEVERAL | ALONE else None


def _is_counted(node: ast.expr, guard: Guard, kinds: Kinds, depth: int = 0) -> bool:
    """Whether a number is that of the GPUs, or of the environment, whether there is a group or not.

    A constant may be beside it, for a run of one process; alone it is the start of what a group sets.
    """
    if depth > DEEPEST:
        return False
    if isinstance(node, (ast.Call, ast.Subscript)):
        counts = isinstance(node, ast.Call) and name_last(node.func) == "device_count"
        return counts or RANKED.search(ast.unparse(node)) is not None
    sides: list[tuple[ast.expr | None, Guard]] = []
    if isinstance(node, ast.Attribute):
        sides = [(each, guard) for each in _list_assigned(node, guard, kinds)]
    elif isinstance(node, ast.Name) and (found := guard.scope.lookup(node.id)) is not None:
        home, values = found
        if home.spawned and node.id in home.parameters:
            return True  # of the process that spawned it, which had no group
        sides = [(each, replace(guard, scope=home)) for each in values if each is not UNKNOWN]
        sides += [
            (find_argument(call, home, node.id), replace(guard, scope=scope))
            for call, scope in (kinds.callers(home) if node.id in home.parameters else ())
        ]
    sides = [pair for pair in sides if not isinstance(pair[0], ast.Constant)]
    return bool(sides) and all(
        each is not None and _is_counted(each, where, kinds, depth + 1) for each, where in sides
    )


def _is_of_environment(node: ast.expr, scope: Scope) -> bool:
    """Whether a variable is what the launcher's environment has: ``RANK = int(os.getenv("RANK", -1))``."""
    found = scope.lookup(node.id) if isinstance(node, ast.Name) else None
    return found is not None and len(found[1]) == 1 and RANKED.search(ast.unparse(found[1][0])) is not None


def _is_option_of_launcher(node: ast.expr) -> bool:
    """Whether a value is ``args.local_rank``; a parameter of that name may be -1 in each call."""
    return isinstance(node, ast.Attribute) and "rank" in node.attr and ast.unparse(node.value) != "self"


def _is_made_by_program(setting: ast.expr, guard: Guard, kinds: Kinds) -> bool:
    """Whether the program assigns to a variable or an option of that name something that is no constant, or True."""
    return any(
        not isinstance(each, ast.Constant) or each.value is True
        for each in _list_assigned(setting, guard, kinds)
    )


def _is_left_to_user(setting: ast.expr, guard: Guard, kinds: Kinds) -> bool:
    """Whether a setting for several ranks is an option of the program, which it does not switch off by itself."""
    name = ast.unparse(setting).rpartition(".")[2]
    return (
        isinstance(setting, ast.Attribute)
        and DISTRIBUTED.fullmatch(name.lower()) is not None
        and not _list_assigned(setting, guard, kinds)
    )


def _list_assigned(setting: ast.expr, guard: Guard, kinds: Kinds) -> list[ast.expr]:
    """Return what a program assigns to variables and options of the name of a setting."""
    name = ast.unparse(setting).rpartition(".")[2]
    return [
        node.value
        for member in kinds.programs.members(guard.scope.module)
        for node in ast.walk(member.node)
        if isinstance(node, ast.Assign)
        and any(
            isinstance(each, (ast.Name, ast.Attribute)) and ast.unparse(each).rpartition(".")[2] == name
            for each in node.targets
        )
    ]


def _needs_group(step: Step, kinds: Kinds) -> bool:
    """Whether a step raises where there is no group, and no test before it may ask for one."""
    call = step.call
    if call is None or find_keyword(call, "process_group") is not None:
        return False
    if step.name in SAMPLERS:
        given = find_keyword(call, "num_replicas", 1), find_keyword(call, "rank", 2)
        if not is_spelled_out(call) or None not in given:
            return False
    elif step.name not in (*WRAPPERS, APEX, *ASKS):
        return False
    return not any(
        each.kind in ("try", "except", "case") or _may_ask(each.test, each, kinds)
        for each in step.guards
        if each.kind not in ("for", "main", "with", "decorator")
    )


def _may_ask(test: ast.AST, guard: Guard, kinds: Kinds) -> bool:
    """Whether a test may ask for a group; one for the number of GPUs or by the launcher's variables does not."""
    if isinstance(test, ast.BoolOp):
        return any(_may_ask(each, guard, kinds) for each in test.values)
    text = OF_DEVICES.sub("", ast.unparse(test))
    if not MAY_ASK.search(text):
        return False
    if ASKS_FOR_GROUP.search(text) or "get_world_size" in text or not isinstance(test, ast.expr):
        return True
    many = _find_side_of_many(test)
    if many is not None and _is_counted(many[0], guard, kinds):
        return False
    return not _is_size_of_launch(test, guard.scope, kinds)


def _is_size_of_launch(test: ast.expr, scope: Scope, kinds: Kinds) -> bool:
    """Whether a test is about the number of ranks alone, which some file of the program reads from the environment."""
    if kinds.programs.side(test, scope) is None:
        return False
    return any(
        RANKED.search(line) and "WORLD_SIZE" in line
        for member in kinds.programs.members(scope.module)
        for line in member.script.lines
    )


def _asks_for_group(step: Step) -> bool:
    """Whether a test before a step asks whether there is a group."""
    return any(ASKS_FOR_GROUP.search(OF_DEVICES.sub("", ast.unparse(each.test))) for each in step.guards)


OF_DEVICES = re.compile(
    r"(?:\btorch\.)?\b(?:cuda|accelerator|cpu|npu|xpu|hpu|mps|mtia|musa|mlu)\.is_available\(\)"
)
ASKS_FOR_GROUP = re.compile("initiali[sz]ed|is_available|is_dist", re.I)
MAY_ASK = re.compile("initiali[sz]ed|available|is_dist|get_world_size|world_size|num_gpus|n_gpu|gpus", re.I)
"""Tests that ask for a group, directly or by the number of ranks that it has."""


def _is_made(module: Scope, kinds: Kinds) -> bool:
    """Whether something in the program may make a group, by its name."""
    return kinds.programs.any_file(module, _makes_group, kinds)


def _makes_group(member: Scope, kinds: Kinds) -> bool:
    for call, scope, name in kinds.programs.list_calls(member):
        if name in ALL_JOINS or name in FRAMEWORKS:
            return True
        of_files = kinds.files.function(call.func, scope) or kinds.files.find_class(call.func, scope)
        if of_files is None and _may_be_maker(name or ast.unparse(call.func)):
            return True
    if any(_hands_on_join(scope, kinds.files) for scope in member.walk()):
        return True
    return any(
        _may_be_maker(kinds.files.dotted(base, scope) or "") and kinds.files.find_class(base, scope) is None
        for scope in member.walk()
        for base in getattr(scope.node, "bases", ())
    )


def _hands_on_join(scope: Scope, files: Files) -> bool:
    """Whether a scope speaks of a function that makes a group without calling it: ``start=dist.init_process_group``."""
    nodes = list(own_nodes(scope.node))
    called = {id(each.func) for each in nodes if isinstance(each, ast.Call)}
    return any(
        isinstance(each, (ast.Name, ast.Attribute))
        and id(each) not in called
        and files.dotted(each, scope) in ALL_JOINS
        for each in nodes
    )


def _may_be_maker(name: str) -> bool:
    """Whether what is called may make a group by its own name, or by that of a package that makes them."""
    root, last = name.partition(".")[0], name.rpartition(".")[2]
    return root not in QUIET and bool(MAKES.search(last) or OF_MAKERS.match(root))


def _list_called(steps: Sequence[Step], trace: Trace, files: Files) -> set[str]:
    """Return the packages of what is called before a step and may make a group by its name; an import alone makes none.

    A process that is spawned imports its module before, without what is for the script alone, and inherits no group.
    Methods of a model make none.
    """
    names = [
        step.name
        for step in steps
        if not files.was_read(step.name, step.scope)
        and not any(_is_of_model(each.callee, files) for each in step.frames)
    ]
    if trace.start.spawned:
        module = trace.start.module
        guards = (
            each
            for each in getattr(module.node, "body", ())
            if isinstance(each, ast.If) and is_main_guard(each.test)
        )
        guarded = {id(node) for each in guards for node in ast.walk(each)}
        names += [name for call, name in name_calls(module, files) if id(call) not in guarded]
    return {
        _name_package(name)
        for name in names
        if MAY_MAKE.search(name) and not any(part in name.lower() for part in READS_ONLY)
    }


def _is_of_model(function: Scope, files: Files) -> bool:
    owner = function.find_class()
    return owner is not None and find_class_kind(owner, files) == "model"


def _name_package(name: str) -> str:
    return name.lstrip(".").split(".")[0] or name


def _list_others(module: Scope, kinds: Kinds) -> set[str]:
    """Return packages of which it is not known what they do, and files that are imported and were not read."""
    found = set()
    for member in kinds.programs.members(module):
        for scope in member.walk():
            for name in scope.imports.values():
                root = _name_package(name)
                if root not in KNOWN_ROOTS | QUIET and not kinds.files.was_read(name, scope):
                    found.add(root)
    return found


@check("ENV019", family="source", needs=NEEDS, id="lint.group_missing", commands=LINT)
def tell_group_missing(evidence: Evidence) -> Iterable[Finding]:
    """A script needs the process group and nothing in its files makes one."""
    make = Fix("make the group first", code='dist.init_process_group("nccl")')
    for fact in facts_of(evidence, "group-missing"):
        yield tell_fact(
            fact,
            f"{fact.details['function']} at {name_line(fact.place)} needs the process group, and nothing in the "
            "program calls init_process_group.",
            make,
            why="no file of the program makes a group, and no package that it imports does",
        )
    for fact in facts_of(evidence, "group-doubted"):
        yield tell_question(
            fact,
            f"{fact.details['function']} at {name_line(fact.place)} needs the process group, and no file that was "
            f"read calls init_process_group: {_ask(fact.details['package'])}",
            make,
            why="the program imports a module that was not read"
            if fact.details["package"]
            else "a test before the call may keep a run of this program away from it",
        )


def _ask(package: str) -> str:
    return f"does {package}?" if package else "is the call never reached in this program?"
