"""What goes wrong before the first step: start, rendezvous, devices, settings."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from tests.mutants.operators.base import operator
from tests.mutants.operators.files import ONE_NODE, SEVERAL_NODES
from tests.mutants.syntax import Edit, File, before, dotted, keyword, last_name, with_keyword


def _inits(file: File) -> Iterator[tuple[cst.Call, cst.SimpleStatementLine]]:
    for call in file.calls("init_process_group"):
        line = file.statement(call)
        if line is not None and isinstance(line.body[0], cst.Expr):
            yield call, line


@operator("never-initialized", "ENV019", words="`init_process_group` is not called", severity="error")
def never_initialized(file: File) -> Iterator[Edit]:
    found = list(_inits(file))
    if len(re.findall(r"\binit_process_group\(", file.program)) != 1 or len(found) != 1:
        return
    if not re.search(r"DistributedDataParallel\(|\bDDP\(|DistributedSampler\(", file.program):
        return
    used = list(file.calls("DistributedDataParallel", "DDP", "DistributedSampler", "all_reduce", "barrier"))
    asked = list(file.calls("get_rank", "get_world_size"))
    yield Edit({found[0][1]: cst.RemoveFromParent()}, (*used, *asked))


@operator("initialized-twice", "ENV019", words="the process group is initialized twice", severity="error")
def initialized_twice(file: File) -> Iterator[Edit]:
    for call, line in _inits(file):
        if not re.search(r"is_initialized\(\)", " ".join(file.tests(call))):
            yield Edit({line: before(line, file.code(line).strip() + "\n")}, (line,))


@operator("spawn-unguarded", "ENV017", words="processes are spawned without a main guard", severity="error")
def spawn_unguarded(file: File) -> Iterator[Edit]:
    spawns = [
        call for call in file.calls("spawn") if re.search(r"\bmp\.|multiprocessing", file.code(call.func))
    ]
    for branch in file.wrapper.module.body:
        if not spawns or not isinstance(branch, cst.If) or "__main__" not in file.code(branch.test):
            continue
        direct = any(True for call in file.inside(branch, cst.Call) if call in spawns)
        called = re.findall(r"\b(\w+)\(", file.code(branch.body))
        within = any(
            isinstance(scope := file.scope(call), cst.FunctionDef) and scope.name.value in called
            for call in spawns
        )
        if direct or within:
            body = [each for each in branch.body.body if isinstance(each, cst.BaseStatement)]
            yield Edit({branch: cst.FlattenSentinel(body)}, tuple(spawns))


@operator(
    "one-spelling", "ENV007", words="the script takes only one spelling of `--local-rank`", severity="error"
)
def one_spelling(file: File) -> Iterator[Edit]:
    for call in file.calls("add_argument"):
        names = [arg for arg in call.args if "local" in file.code(arg) and "rank" in file.code(arg)]
        names = [arg for arg in names if arg.keyword is None]
        if len(names) == 2:
            kept = next((arg for arg in names if "_rank" in file.code(arg)), names[0])
            args = [arg for arg in call.args if arg not in names or arg is kept]
            yield Edit({call: call.with_changes(args=args)}, (call,))


@operator("port-out-of-range", "NET009", words="the port is above 65535", severity="error")
def port_out_of_range(file: File) -> Iterator[Edit]:
    for text in file.all(cst.SimpleString):
        value = text.value
        line = file.statement(text)
        if line is None or (file.nearest(text, cst.FunctionDef) is None and "init" not in file.code(line)):
            continue
        around = file.code(line)
        if re.fullmatch(r"['\"]tcp://[\w.]+:\d+['\"]", value) and "init_method" in around:
            yield Edit({text: text.with_changes(value=re.sub(r"\d+(['\"])$", r"72345\1", value))}, (line,))
        elif re.fullmatch(r"['\"]\d{4,5}['\"]", value) and re.search(r"environ\[.MASTER_PORT.\]\s*=", around):
            yield Edit({text: text.with_changes(value=f"{value[0]}72345{value[0]}")}, (line,))


@operator("fixed-rendezvous-file", "NET010", words="ranks meet by a fixed file in /tmp")
def fixed_rendezvous_file(file: File) -> Iterator[Edit]:
    for call, line in _inits(file):
        given = keyword(call, "init_method")
        if given is not None and "env://" in file.code(given) and keyword(call, "rank") is not None:
            yield Edit({call: with_keyword(call, "init_method", '"file:///tmp/rendezvous"')}, (line,))


@operator("anomalies-left-on", "ENV014", words="the search for anomalies is left on")
def anomalies_left_on(file: File) -> Iterator[Edit]:
    for _, line in _inits(file):
        if re.search(r"^import torch\b", file.text, re.M):
            yield Edit({line: before(line, "torch.autograd.set_detect_anomaly(True)\n")}, (line,))


@operator("device-not-set", "BKD009", "BKD003", words="`set_device` is not called")
def device_not_set(file: File) -> Iterator[Edit]:
    calls = [c for c in file.calls("set_device") if "cuda" in dotted(c.func)]
    if len(calls) != 1 or len(re.findall(r"cuda\.set_device\(", file.program)) != 1:
        return
    if (
        not re.search(r"\.cuda\(\)|device\(.cuda.\)|\.to\(.cuda.\)", file.program)
        or "nccl" not in file.program
    ):
        return
    line = file.statement(calls[0])
    if line is not None and isinstance(line.body[0], cst.Expr):
        waits = [c for c in file.all(cst.Call) if last_name(c.func) in ("barrier", "all_reduce", "broadcast")]
        wraps = list(file.calls("DistributedDataParallel", "DDP", "init_process_group"))
        yield Edit({line: cst.RemoveFromParent()}, (*waits, *wraps))


@operator(
    "device-by-global-rank", "BKD004", words="the device is that of the global rank", severity="warning"
)
def device_by_global_rank(file: File) -> Iterator[Edit]:
    unknown = "" if SEVERAL_NODES.search(file.program) else ONE_NODE
    if not file.dist:
        return
    for call in file.calls("set_device"):
        if (
            "cuda" in dotted(call.func)
            and call.args
            and re.search(r"local_rank|gpu", file.code(call.args[0]))
        ):
            value = cst.parse_expression(f"{file.dist}.get_rank()")
            inits = [file.lines(c)[0] for c in file.calls("init_process_group")]
            if inits and max(inits) < file.lines(call)[0]:
                yield Edit({call.args[0].value: value}, (call,), undecided=unknown)


@operator(
    "barrier-before-group", "ENV019", words="a barrier before the process group exists", severity="error"
)
def asked_before_group(file: File) -> Iterator[Edit]:
    for call, line in _inits(file):
        scope = file.scope(call)
        if isinstance(scope, cst.FunctionDef) and file.dist and file.parents[line] is scope.body:
            text = f"{file.dist}.barrier()\n"
            yield Edit({line: before(line, text)}, (line,))


@operator(
    "never-moved",
    "DDP016",
    words="the model stays on the CPU and the wrapper gets `device_ids`",
    severity="error",
)
def never_moved(file: File) -> Iterator[Edit]:
    for call in file.calls("DistributedDataParallel", "DDP"):
        ids = keyword(call, "device_ids")
        bare = call.args[0].value if call.args else None
        if ids is None or not isinstance(bare, cst.Name) or file.code(ids.value) == "None":
            continue
        name, scope = bare.value, file.scope(call)
        moves = [
            line
            for line in file.inside(scope, cst.SimpleStatementLine)
            if re.fullmatch(rf"\s*({name} = )?{name}\.(cuda|to)\([^()]*\)\s*", file.code(line))
        ]
        # Where it could be moved by something else, or made there, it is not known to stay.
        made = re.findall(rf"\b{name} = .*", file.code(scope))
        if len(moves) == 1 and not any(
            re.search(r"cuda|\.to\(|device", each) for each in made if "Parallel" not in each
        ):
            yield Edit({moves[0]: cst.RemoveFromParent()}, (call,))
