"""What goes wrong with files: who writes, who reads, and when."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from tests.mutants.operators.base import operator
from tests.mutants.syntax import Edit, File, dotted, keyword, last_name, unguarded, without

ONE_NODE = "that the job has several nodes is not in the files"
SEVERAL_NODES = re.compile(r"node_rank|nnodes|num_nodes|SLURM_(NNODES|NODEID|NODELIST)|n_nodes", re.I)
ALONE = re.compile(r"export|convert|infer|demo|sample|generat|hubconf|average|avg_|visual|predict", re.I)
"""Names of files that one process runs."""
FIRST = re.compile(
    r"^(not \w+\.distributed or )?\(?[\w.]*(rank|get_rank\(\)) == 0\)?$|^[\w.]*(is_main_process|is_master|is_master_proc|master_process)(\(\))?$"
)


def _guarded(file: File) -> Iterator[tuple[cst.If, cst.Call]]:
    """Yield the branches of rank 0 whose work is to save, with the call that saves."""
    for call in file.calls("save"):
        if dotted(call.func) != "torch.save" or len(call.args) < 2:
            continue
        branch = file.nearest(call, cst.If)
        if branch is None or branch.orelse is not None or file.scope(branch) is not file.scope(call):
            continue
        others = [each for each in file.tests(branch) if re.search(r"rank|main|master", each)]
        path = file.code(call.args[1].value)
        if FIRST.match(file.code(branch.test).strip()) and not others and not re.search(r"rank|gpu", path):
            yield branch, call


@operator("save-by-all", "CKP001", words="every rank writes the checkpoint", severity="error")
def save_by_all(file: File) -> Iterator[Edit]:
    for branch, call in _guarded(file):
        if not isinstance(file.parents.get(branch), cst.If):
            yield Edit({branch: unguarded(branch)}, (call,))


@operator("save-by-local-rank", "CKP001", words="local rank 0 of every node writes the checkpoint")
def save_by_local_rank(file: File) -> Iterator[Edit]:
    hit = re.search(r"\b(args\.local_rank|local_rank|self\.local_rank|args\.gpu)\b\s*=[^=]", file.text)
    if not hit:
        return
    unknown = "" if SEVERAL_NODES.search(file.program) else ONE_NODE
    for branch, call in _guarded(file):
        if "local" not in file.code(branch.test) and not _is_gathered(hit[1], file.scope(call)):
            test = cst.parse_expression(f"{hit[1]} == 0")
            yield Edit({branch.test: test}, (call,), undecided=unknown)


def _is_gathered(text: str, scope: cst.CSTNode) -> bool:
    """Tell whether a name is that of the arguments that a function gathers: ``*args`` has no ``args.gpu``."""
    star = scope.params.star_arg if isinstance(scope, cst.FunctionDef) else None
    return isinstance(star, cst.Param) and star.name.value == text.partition(".")[0]


@operator("load-without-map", "CKP003", words="`torch.load` without `map_location`")
def load_without_map(file: File) -> Iterator[Edit]:
    if not re.search(r"cuda|gpu", file.program, re.I) or ALONE.search(file.name):
        return
    for call in file.calls("load"):
        if dotted(call.func) == "torch.load" and keyword(call, "map_location") is not None:
            scope = file.scope(call)
            name = scope.name.value if isinstance(scope, cst.FunctionDef) else ""
            used = not name or len(re.findall(rf"\b{name}\(", file.program)) > 1
            if not file.by_rank(call) and used:
                yield Edit({call: without(call, "map_location")}, (call,))


@operator("directory-without-exist", "CKP005", words="all ranks make one directory, which must not exist")
def directory_without_exist(file: File) -> Iterator[Edit]:
    for call in file.calls("makedirs", "mkdir"):
        caught = file.nearest(call, cst.Try) is not None
        if (
            keyword(call, "exist_ok") is not None
            and not caught
            and not file.by_rank(call)
            and _runs_on_ranks(file, call)
        ):
            yield Edit({call: without(call, "exist_ok")}, (call,))


def _runs_on_ranks(file: File, node: cst.CSTNode) -> bool:
    """Tell whether a line surely runs on every rank: the function initializes, or calls what does."""
    scope = file.scope(node)
    return bool(
        re.search(
            r"init_process_group\(|init_distributed_mode\(|setup_distributed|get_rank\(|Accelerator\(",
            file.code(scope),
        )
    )


@operator("directory-by-all", "CKP005", words="all ranks make one directory after they have looked for it")
def directory_by_all(file: File) -> Iterator[Edit]:
    for call in file.calls("makedirs", "mkdir"):
        branch = file.nearest(call, cst.If)
        if branch is None or branch.orelse is not None or keyword(call, "exist_ok") is not None:
            continue
        if FIRST.match(file.code(branch.test).strip()) and _runs_on_ranks(file, call):
            yield Edit({branch: unguarded(branch)}, (call,))


@operator(
    "barrier-after-save",
    "CKP002",
    words="no barrier between the save of rank 0 and the load of all",
    severity="error",
)
def barrier_after_save(file: File) -> Iterator[Edit]:
    for call in file.calls("barrier"):
        line = file.statement(call)
        scope = file.scope(call)
        if line is None or file.by_rank(call):
            continue
        here = file.lines(line)[0]
        saves = [
            c for c in file.inside(scope, cst.Call) if dotted(c.func) == "torch.save" and file.by_rank(c)
        ]
        loads = [
            c for c in file.inside(scope, cst.Call) if dotted(c.func) == "torch.load" and not file.by_rank(c)
        ]
        paths = {file.code(save.args[1].value) for save in saves if len(save.args) > 1}
        barriers = [c for c in file.inside(scope, cst.Call) if last_name(c.func) == "barrier"]
        for load in loads:
            between = [s for s in saves if file.lines(s)[0] < here < file.lines(load)[0]]
            if between and load.args and file.code(load.args[0].value) in paths:
                since = file.lines(between[-1])[0]
                alone = sum(since < file.lines(each)[0] < file.lines(load)[0] for each in barriers) == 1
                if alone:
                    yield Edit({line: cst.RemoveFromParent()}, (load, *between))


@operator(
    "saved-with-prefix",
    "CKP004",
    words="the wrapper's state is saved and the bare model loads it",
    severity="error",
)
def saved_with_prefix(file: File) -> Iterator[Edit]:
    for call in file.calls("state_dict"):
        func = call.func
        if not isinstance(func, cst.Attribute) or not isinstance(func.value, cst.Attribute):
            continue
        name = file.code(func.value.value)
        if func.value.attr.value != "module" or name not in file.wrapped:
            continue
        loads = [
            each
            for each in file.calls("load_state_dict")
            if isinstance(each.func, cst.Attribute)
            and keyword(each, "strict") is None
            and (
                file.code(each.func.value) == f"{name}.module"
                or (
                    file.code(each.func.value) == name
                    and any(
                        file.scope(each) is file.scope(wrap) and file.lines(each)[0] < file.lines(wrap)[0]
                        for wrap in file.calls("DistributedDataParallel", "DDP")
                    )
                )
            )
        ]
        saved = re.search(r"torch\.save\(", file.code(file.scope(call)))
        if loads and saved and "module." not in re.sub(r"\b\w+\.module\.", "", file.text):
            yield Edit({func.value: func.value.value}, (call, *loads))


@operator(
    "optimizer-not-restored",
    "CKP007",
    words="training resumes without the optimizer's state",
    severity="error",
)
def optimizer_not_restored(file: File) -> Iterator[Edit]:
    calls = [c for c in file.calls("load_state_dict") if re.search(r"optim|\bopt\b", file.code(c.func), re.I)]
    if len(calls) != 1 or not re.search(r"optim\w*\.state_dict\(\)", file.program):
        return
    line = file.statement(calls[0])
    if line is not None and len(re.findall(r"optim\w*\.load_state_dict\(", file.program)) == 1:
        loads = [
            c
            for c in file.inside(file.scope(line), cst.Call)
            if last_name(c.func) in ("load", "load_state_dict")
        ]
        yield Edit({line: cst.RemoveFromParent()}, tuple(loads))
