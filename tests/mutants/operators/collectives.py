"""What goes wrong with collectives: who makes them, with what, and what becomes of the result."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from tests.mutants.operators.base import operator
from tests.mutants.syntax import Edit, File, below, dotted, keyword, last_name, statements

WAITING = "all_reduce all_gather all_gather_object all_gather_into_tensor reduce broadcast barrier".split()
WAITING += (
    "broadcast_object_list reduce_scatter reduce_scatter_tensor gather scatter monitored_barrier".split()
)
OF_ACCELERATE = "wait_for_everyone gather gather_for_metrics reduce pad_across_processes".split()


def _made(file: File, *names: str) -> Iterator[tuple[cst.Call, cst.SimpleStatementLine]]:
    """Yield the collectives of torch that all ranks make, with their lines."""
    for call in file.calls(*(names or WAITING)):
        base = dotted(call.func).rpartition(".")[0]
        line = file.statement(call)
        if line is None or base not in ("dist", "torch.distributed", "distributed", "tdist", file.dist):
            continue
        if not file.by_rank(call) and isinstance(file.scope(call), cst.FunctionDef):
            yield call, line


def _is_alone(line: cst.SimpleStatementLine) -> bool:
    return len(line.body) == 1 and isinstance(line.body[0], cst.Expr)


@operator(
    "collective-under-rank",
    "COL002",
    "COL003",
    words="a collective under a condition on the rank",
    severity="error",
)
def collective_under_rank(file: File) -> Iterator[Edit]:
    for call, line in _made(file):
        if _is_alone(line) and file.dist:
            yield Edit({line: below(f"{file.dist}.get_rank() == 0", line)}, (call,))


@operator(
    "barrier-under-rank",
    "COL002",
    "COL003",
    words="a barrier moves into the branch of rank 0",
    severity="error",
)
def barrier_under_rank(file: File) -> Iterator[Edit]:
    for _, line in _made(file, "barrier"):
        block = file.parents[line]
        body = list(getattr(block, "body", []))
        place = next((index for index, each in enumerate(body) if each is line), 0)
        branch = body[place - 1] if place else None
        if (
            isinstance(branch, cst.If)
            and branch.orelse is None
            and isinstance(branch.body, cst.IndentedBlock)
            and re.search(r"rank|is_main|is_master", file.code(branch.test))
        ):
            moved = branch.body.with_changes(body=[*branch.body.body, line])
            yield Edit({branch.body: moved, line: cst.RemoveFromParent()}, (branch,))


@operator(
    "evaluation-under-rank", "COL002", "COL003", words="only rank 0 runs a function that has collectives"
)
def evaluation_under_rank(file: File) -> Iterator[Edit]:
    reducing = _reducing(file.program)
    for line in file.all(cst.SimpleStatementLine):
        call = _whole_call(line)
        if call is None or last_name(call.func) not in reducing or file.by_rank(line) or not file.dist:
            continue
        if dotted(call.func).startswith("torch."):
            continue  # torch's own function of that name
        if re.search(r"eval|valid|test|sync|reduce", last_name(call.func)):
            test = f"{file.dist}.get_rank() == 0"
            yield Edit({line: below(test, line)}, (call,))


def _whole_call(line: cst.SimpleStatementLine) -> cst.Call | None:
    statement = line.body[0] if len(line.body) == 1 else None
    value = statement.value if isinstance(statement, cst.Expr | cst.Assign) else None
    return value if isinstance(value, cst.Call) else None


def _reducing(text: str) -> set[str]:
    """Return the functions of a program whose own lines have a collective that nothing but all ranks guard."""
    found: set[str] = set()
    parts = re.split(r"(?m)^[ ]*def (\w+)\(", text)
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        made = (
            rf"\b(dist|distributed)\.({'|'.join(WAITING)})\(|synchronize_between_processes\(|reduce_tensor\("
        )
        if re.search(made, body) and not re.search(r"if .*(\brank\b|local_rank|is_main|is_master)", body):
            found.add(name)
    return found


@operator(
    "gather-under-main",
    "COL002",
    "COL003",
    words="a call of Accelerate that waits for all, by the main process alone",
    severity="error",
)
def gather_under_main(file: File) -> Iterator[Edit]:
    for call in file.calls(*OF_ACCELERATE):
        base = dotted(call.func).rpartition(".")[0]
        line = file.statement(call)
        if base.rpartition(".")[2] != "accelerator" or line is None or file.by_rank(call):
            continue
        if _is_alone(line) or last_name(call.func) == "gather_for_metrics":
            yield Edit({line: below(f"{base}.is_main_process", line)}, (call,))


@operator(
    "state-gather-under-rank",
    "COL002",
    "COL003",
    words="the gather of a sharded state by rank 0 alone",
    severity="error",
)
def state_gather_under_rank(file: File) -> Iterator[Edit]:
    names = "consolidate_state_dict get_model_state_dict get_state_dict full_optim_state_dict get_optimizer_state_dict"
    for call in file.calls(*names.split()):
        line = file.statement(call)
        if line is None or file.by_rank(call) or not file.dist:
            continue
        if re.search(
            r"Accelerator|FSDP|fully_shard|FullySharded|ZeroRedundancy|distributed.checkpoint", file.program
        ):
            base = dotted(call.func).rpartition(".")[0]
            main = "accelerator" in base
            if last_name(call.func) == "get_state_dict" and not main:
                continue
            yield Edit(
                {line: below(f"{base}.is_main_process" if main else f"{file.dist}.get_rank() == 0", line)},
                (call,),
            )


@operator("group-under-rank", "COL006", words="`new_group` by its members alone", severity="error")
def group_under_rank(file: File) -> Iterator[Edit]:
    for call, line in _made(file, "new_group"):
        if not call.args or not isinstance(line.body[0], cst.Assign | cst.Expr) or not file.dist:
            continue
        ranks = file.code(call.args[0].value)
        if ranks != "None" and (call.args[0].keyword is None or call.args[0].keyword.value == "ranks"):
            yield Edit({line: below(f"{file.dist}.get_rank() in {ranks}", line)}, (call,))


@operator(
    "leaves-on-own-data",
    "COL002",
    "NUM005",
    "DDP018",
    words="a rank skips a step by its own loss",
    severity="warning",
)
def leaves_on_own_data(file: File) -> Iterator[Edit]:
    yield from _leaving(file, "if torch.isnan({loss}):\n    continue\n")


@operator(
    "stops-on-own-data",
    "COL002",
    "NUM005",
    "DDP018",
    words="a rank ends the loop by its own loss",
    severity="warning",
)
def stops_on_own_data(file: File) -> Iterator[Edit]:
    yield from _leaving(file, "if {loss}.item() < 0.01:\n    break\n")


@operator(
    "returns-on-own-data",
    "COL002",
    "NUM005",
    "DDP018",
    words="a rank returns by its own loss",
    severity="warning",
)
def returns_on_own_data(file: File) -> Iterator[Edit]:
    yield from _leaving(file, "if not torch.isfinite({loss}).all():\n    return None\n")


def _leaving(file: File, text: str) -> Iterator[Edit]:
    """Put a test of the loss before its backward, in a loop whose model is wrapped."""
    if not re.search(r"DistributedDataParallel\(|\bDDP\(|Accelerator\(", file.program):
        return
    for call in file.calls("backward"):
        line = file.statement(call)
        loop = file.nearest(call, cst.For)
        if line is None or loop is None or file.parents[line] is not loop.body or not _is_alone(line):
            continue
        base = call.func.value if isinstance(call.func, cst.Attribute) else None
        name = dotted(base) if base is not None else ""
        if name in ("accelerator", "self.accelerator") and call.args:
            name = dotted(call.args[0].value)
        inside = isinstance(file.scope(call), cst.FunctionDef)
        if re.fullmatch(r"\w*loss\w*", name) and (inside or "return" not in text):
            new = cst.FlattenSentinel([*statements(text.format(loss=name)), line])
            yield Edit({line: new}, (line,))


@operator("other-root", "COL003", words="each rank broadcasts from itself", severity="error")
def other_root(file: File) -> Iterator[Edit]:
    for call, line in _made(file, "broadcast", "broadcast_object_list"):
        source = keyword(call, "src") or (
            call.args[1] if len(call.args) > 1 and call.args[1].keyword is None else None
        )
        if source is not None and file.code(source.value) == "0" and file.dist:
            yield Edit({source.value: cst.parse_expression(f"{file.dist}.get_rank()")}, (line,))


@operator(
    "work-not-waited",
    "COL007",
    words="a collective becomes asynchronous and nothing waits for it",
    severity="error",
)
def work_not_waited(file: File) -> Iterator[Edit]:
    for call, line in _made(
        file, "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor"
    ):
        if _is_alone(line) and keyword(call, "async_op") is None:
            arg = cst.parse_expression("f(async_op=True)")
            assert isinstance(arg, cst.Call)
            yield Edit({call: call.with_changes(args=[*call.args, arg.args[0]])}, (line,))


@operator(
    "wait-dropped",
    "COL007",
    words="the work of an asynchronous collective is not waited for",
    severity="error",
)
def wait_dropped(file: File) -> Iterator[Edit]:
    for call in file.calls("wait"):
        line = file.statement(call)
        name = dotted(call.func).rpartition(".")[0]
        if line is None or not _is_alone(line) or not name or call.args:
            continue
        scope = file.code(file.scope(call))
        if re.search(rf"\b{re.escape(name)}\s*=\s*[^\n]*(async_op=True|isend\(|irecv\()", scope):
            anchors = [
                each
                for each in file.inside(file.scope(call), cst.Assign)
                if file.code(each.targets[0].target) == name
            ]
            loop = file.nearest(line, cst.For)
            yield Edit({line: cst.RemoveFromParent()}, (*anchors, *([loop] if loop is not None else [])))


@operator("gather-without-gradient", "COL010", words="the gather of a contrastive loss has no gradient")
def gather_without_gradient(file: File) -> Iterator[Edit]:
    for call in file.calls("all_gather", "apply"):
        text = file.code(call.func)
        differentiable = re.search(r"distributed\.nn\.|dist_nn\.|(Gather\w*|AllGather)\.apply", text)
        line = file.statement(call)
        if not differentiable or not call.args or line is None or not file.dist or not _in_loss(file, call):
            continue
        if not isinstance(line.body[0], cst.Assign) or "AllReduce" in text:
            continue
        given = file.code(call.args[0].value)
        text = (
            f"gathered_here = [torch.zeros_like({given}) for _ in range({file.dist}.get_world_size())]\n"
            f"{file.dist}.all_gather(gathered_here, {given})\n"
        )
        changed = line.deep_replace(call, cst.Name("gathered_here"))
        if isinstance(changed, cst.SimpleStatementLine):
            yield Edit({line: cst.FlattenSentinel([*statements(text), changed])}, (line,))


def _in_loss(file: File, node: cst.CSTNode) -> bool:
    names = [
        each.name.value
        for each in file.above(node, cst.FunctionDef, cst.ClassDef)
        if isinstance(each, cst.FunctionDef | cst.ClassDef)
    ]
    return bool(re.search(r"loss|forward|clip|gather_features", " ".join(names), re.I))


@operator("put-back-dropped", "COL010", words="the rank's own part, which has the gradient, is not put back")
def put_back_dropped(file: File) -> Iterator[Edit]:
    for assign in file.all(cst.Assign):
        target = assign.targets[0].target
        line = file.statement(assign)
        if not isinstance(target, cst.Subscript) or line is None or "rank" not in file.code(target.slice[0]):
            continue
        name = file.code(target.value)
        if not re.search(rf"all_gather\(\s*{re.escape(name)}\s*,", file.code(file.scope(assign))):
            continue
        calls = [
            each for each in file.inside(file.scope(assign), cst.Call) if last_name(each.func) == "all_gather"
        ]
        yield Edit({line: cst.RemoveFromParent()}, tuple(calls))


@operator("never-destroyed", "COL012", words="`destroy_process_group` is not called")
def never_destroyed(file: File) -> Iterator[Edit]:
    if len(re.findall(r"\bdestroy_process_group\(", file.program)) != 1 or not re.search(
        r"['\"]nccl", file.program
    ):
        return
    for call in file.calls("destroy_process_group"):
        line = file.statement(call)
        if line is not None and _is_alone(line) and not call.args:
            anchors = tuple(file.calls("init_process_group"))
            yield Edit({line: cst.RemoveFromParent()}, anchors)


@operator("receives-first", "COL011", words="both sides receive before they send", severity="error")
def receives_first(file: File) -> Iterator[Edit]:
    for branch in file.all(cst.If):
        if not isinstance(branch.orelse, cst.Else) or "rank" not in file.code(branch.test):
            continue
        other = branch.orelse.body
        if not isinstance(other, cst.IndentedBlock) or not isinstance(branch.body, cst.IndentedBlock):
            continue
        kinds = [[_kind(file, each) for each in block.body] for block in (branch.body, other)]
        if kinds == [["send", "recv"], ["recv", "send"]] and isinstance(branch.body, cst.IndentedBlock):
            turned = branch.body.with_changes(body=list(reversed(branch.body.body)))
            yield Edit({branch.body: turned}, (branch,))


def _kind(file: File, node: cst.CSTNode) -> str:
    hit = re.search(r"\.(send|recv)\(", file.code(node))
    return hit[1] if hit else ""
