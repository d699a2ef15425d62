"""What goes wrong with the wrapper: what goes around it, what is changed behind it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from tests.mutants.operators.base import operator
from tests.mutants.syntax import Edit, File, Replacement, after, before, dotted, is_wrap, last_name

OF_MODULES = {
    *"apply bfloat16 buffers children cpu cuda double eval extra_repr float forward half load_state_dict".split(),
    *"modules named_buffers named_children named_modules named_parameters parameters register_buffer".split(),
    *"register_forward_hook requires_grad_ share_memory state_dict to train training type zero_grad".split(),
    *"module device_ids no_sync join".split(),
}


def _wraps(file: File) -> Iterator[tuple[cst.SimpleStatementLine, cst.Assign, str]]:
    """Yield the assignments of a wrapper to a name, with the name."""
    for assign in file.all(cst.Assign):
        line = file.statement(assign)
        if is_wrap(assign.value) and line is not None and len(line.body) == 1:
            yield line, assign, file.code(assign.targets[0].target)


def _steps(file: File, name: str) -> Iterator[tuple[cst.Call, cst.For]]:
    """Yield the calls of a wrapped model in a loop that trains."""
    for call in file.all(cst.Call):
        if file.code(call.func) != name or not call.args:
            continue
        loop = file.nearest(call, cst.For)
        if loop is None or not re.search(r"\bbackward\(", file.code(loop)):
            continue
        tests = " ".join(file.tests(call))
        held = any("no_grad" in file.code(each) for each in _withs(file, call))
        if not held and not re.search(r"eval|val|test", tests):
            yield call, loop


def _withs(file: File, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for each in file.above(node, cst.With):
        if isinstance(each, cst.With):
            yield from each.items


def _given(file: File) -> set[str]:
    """Return parameters of this file's functions that some file of the program gives a wrapped model."""
    names: set[str] = set()
    wrapped = set(re.findall(r"(\w+)\s*=\s*[\w.]*(?:DistributedDataParallel|\bDDP)\(", file.program))
    for function in file.all(cst.FunctionDef):
        for hit in re.finditer(rf"\b{function.name.value}\(\s*(\w+)\s*,", file.program):
            parameters = [each.name.value for each in function.params.params]
            if parameters and hit[1] in wrapped and "model" in parameters[0]:
                names.add(parameters[0])
    return names


def _train_calls(file: File) -> Iterator[tuple[cst.Call, str, cst.For]]:
    if not re.search(r"DistributedDataParallel\(|\bDDP\(", file.program):
        return
    for name in sorted(file.wrapped | _given(file)):
        for call, loop in _steps(file, name):
            yield call, name, loop


@operator("through-module", "DDP005", words="the training step calls `model.module(x)`", severity="error")
def through_module(file: File) -> Iterator[Edit]:
    for call, name, loop in _train_calls(file):
        yield Edit({call.func: cst.parse_expression(f"{name}.module")}, (call, *_backwards(file, loop)))


@operator("through-bare-model", "DDP005", words="the training step calls the bare model", severity="error")
def through_bare_model(file: File) -> Iterator[Edit]:
    bare = re.search(r"\b(\w*without_ddp|raw_model|bare_model|model_unwrapped)\b\s*=", file.text)
    if not bare:
        return
    for call, name, loop in _train_calls(file):
        scope = file.code(file.scope(call))
        if name in file.wrapped and re.search(rf"\b{bare[1]}\b\s*=", scope):
            yield Edit({call.func: cst.Name(bare[1])}, (call, *_backwards(file, loop)))


def _backwards(file: File, loop: cst.For) -> list[cst.CSTNode]:
    return [each for each in file.inside(loop, cst.Call) if last_name(each.func) in ("backward", "step")]


@operator("drop-wrap", "DDP015", words="the model is not wrapped", severity="error")
def drop_wrap(file: File) -> Iterator[Edit]:
    for line, assign, name in _wraps(file):
        call = assign.value
        if not isinstance(call, cst.Call) or not call.args or ".step(" not in file.program:
            continue  # where no optimizer steps, nothing becomes of the gradients
        scope = file.scope(line)
        steps = [loop for call, loop in _steps(file, name) if file.scope(call) is scope]
        block = file.parents[line]
        others = list(getattr(block, "body", []))
        uses = re.findall(rf"\b{re.escape(name)}\.module\b", file.text)
        gone = []
        for other in others:
            if other is not line and re.fullmatch(
                rf"\s*\w+ = {re.escape(name)}\.module\s*", file.code(other)
            ):
                gone.append(other)
        if len(uses) > len(gone) or len(list(_wraps(file))) > 1:
            continue
        anchors = tuple(each for loop in steps for each in _backwards(file, loop))
        bare = call.args[0].value
        table: dict[cst.CSTNode, Replacement] = {each: cst.RemoveFromParent() for each in gone}
        # without the wrapper the variable is the model itself, which may be made in the very call
        if file.code(bare) == name:
            table[line] = cst.RemoveFromParent()
        else:
            table[assign] = assign.with_changes(value=bare)
        if steps:
            yield Edit(table, anchors)


@operator(
    "unfreeze-after-wrap",
    "DDP006",
    words="parameters are unfrozen after the model is wrapped",
    severity="error",
)
def unfreeze_after_wrap(file: File) -> Iterator[Edit]:
    for line, assign, name in _wraps(file):
        call = assign.value
        if not isinstance(call, cst.Call) or not call.args or not isinstance(call.args[0].value, cst.Name):
            continue
        bare = call.args[0].value.value
        loop = _epoch_loop(file, line)
        if (
            loop is None
            or not isinstance(loop.target, cst.Name)
            or not isinstance(loop.body, cst.IndentedBlock)
        ):
            continue
        if re.search(
            rf"for (\w+) in {re.escape(name)}\.parameters\(\):\s+\1\.requires_grad\s*=\s*False", file.text
        ):
            continue  # frozen as a whole after the wrap: an average or a teacher, which is not trained
        frozen = f"for parameter in list({bare}.parameters())[:2]:\n    parameter.requires_grad = False\n"
        freed = (
            f"if {loop.target.value} == 1:\n    for parameter in {name}.parameters():\n"
            "        parameter.requires_grad = True\n"
        )
        body = loop.body.with_changes(body=[*cst.parse_module(freed).body, *loop.body.body])
        yield Edit({line: before(line, frozen), loop.body: body}, (line,))


def _epoch_loop(file: File, line: cst.CSTNode) -> cst.For | None:
    for loop in file.inside(file.scope(line), cst.For):
        if file.lines(loop)[0] > file.lines(line)[1] and "epoch" in file.code(loop.target):
            return loop
    return None


@operator(
    "change-after-wrap", "DDP006", words="a layer is replaced after the model is wrapped", severity="error"
)
def change_after_wrap(file: File) -> Iterator[Edit]:
    for line, _, name in _wraps(file):
        if _epoch_loop(file, line) is None and not list(_steps(file, name)):
            continue
        layer = re.search(r"self\.(head|fc|classifier|lm_head|proj|out)\b\s*=\s*nn\.Linear", file.program)
        if "nn" not in file.text or not re.search(r"import torch\.nn as nn|from torch import nn", file.text):
            continue
        part = layer[1] if layer else "fc"
        text = f"{name}.module.{part} = nn.Linear({name}.module.{part}.in_features, 10)\n"
        yield Edit({line: after(line, text)}, (line,))


@operator("data-parallel-inside", "DDP012", words="an nn.DataParallel is wrapped")
def data_parallel_inside(file: File) -> Iterator[Edit]:
    for line, assign, _ in _wraps(file):
        call = assign.value
        if isinstance(call, cst.Call) and call.args and isinstance(call.args[0].value, cst.Name):
            bare = call.args[0].value.value
            yield Edit({line: before(line, f"{bare} = torch.nn.DataParallel({bare})\n")}, (line,))


@operator("no-sync-around-backward", "DDP007", words="`no_sync` encloses only the backward")
def no_sync_around_backward(file: File) -> Iterator[Edit]:
    for block in file.all(cst.With):
        if not any("no_sync()" in file.code(item) for item in block.items):
            continue
        if not isinstance(block.body, cst.IndentedBlock) or len(block.body.body) < 2:
            continue
        last = block.body.body[-1]
        if ".backward(" not in file.code(last) or any(
            ".backward(" in file.code(each) for each in block.body.body[:-1]
        ):
            continue
        inner = block.with_changes(body=block.body.with_changes(body=[last]), leading_lines=[])
        lines = list(block.body.body[:-1])
        yield Edit({block: cst.FlattenSentinel([*lines, inner])}, (last,))


@operator("drop-no-sync", "PRF005", words="every micro-batch is reduced")
def drop_no_sync(file: File) -> Iterator[Edit]:
    for line in file.all(cst.SimpleStatementLine):
        if re.search(r"require_backward_grad_sync\s*=", file.code(line)):
            loop = file.nearest(line, cst.For)
            anchors = (*_backwards(file, loop), loop) if loop is not None else ()
            yield Edit({line: cst.RemoveFromParent()}, anchors)
    for block in file.all(cst.With):
        if len(block.items) == 1 and re.fullmatch(r"\w+\.no_sync\(\)", file.code(block.items[0]).strip()):
            branch = file.nearest(block, cst.If)
            loop = file.nearest(block, cst.For)
            if branch is not None and branch.orelse is not None and loop is not None:
                lines = [each for each in branch.orelse.children if isinstance(each, cst.IndentedBlock)]
                if lines and isinstance(branch.orelse, cst.Else):
                    body = list(lines[0].body)
                    yield Edit({branch: cst.FlattenSentinel(body)}, tuple(_backwards(file, loop)))


@operator(
    "attribute-of-wrapper", "DDP014", words="the model's own method is asked of the wrapper", severity="error"
)
def attribute_of_wrapper(file: File) -> Iterator[Edit]:
    for node in file.all(cst.Attribute):
        inner = node.value
        if not isinstance(inner, cst.Attribute) or inner.attr.value != "module":
            continue
        name = dotted(inner.value)
        called = isinstance(file.parents[node], cst.Call)
        known = re.search(r"hasattr|isinstance", " ".join(file.tests(node)))
        if name in file.wrapped and called and node.attr.value not in OF_MODULES and not known:
            yield Edit({inner: inner.value}, (node,))


@operator(
    "wrap-skipped-batch-norm",
    "DDP013",
    words="BatchNorm is not synchronized",
    undecided="the size of a batch on each rank is rarely in the files",
)
def drop_batch_norm(file: File) -> Iterator[Edit]:
    for call in file.calls("convert_sync_batchnorm"):
        line = file.statement(call)
        if line is not None and isinstance(file.parents[call], cst.Assign):
            yield Edit({line: cst.RemoveFromParent()}, ())


@operator(
    "teacher-before-wrap",
    "NUM001",
    words="the average of the weights is copied before the wrap, when ranks differ",
    undecided="only `run` has the code: it takes seeds that differ as well",
)
def teacher_before_wrap(file: File) -> Iterator[Edit]:
    for line, assign, name in _wraps(file):
        call = assign.value
        if not isinstance(call, cst.Call) or not call.args or not isinstance(call.args[0].value, cst.Name):
            continue
        for other in file.calls("deepcopy"):
            copied = file.statement(other)
            if (
                copied is not None
                and re.search(rf"deepcopy\({re.escape(name)}(\.module)?\)", file.code(other))
                and file.scope(other) is file.scope(line)
                and file.lines(copied)[0] > file.lines(line)[1]
            ):
                text = file.code(copied).strip().replace(f"{name}.module", call.args[0].value.value)
                yield Edit({line: before(line, text + "\n"), copied: cst.RemoveFromParent()}, (line,))
