"""What goes wrong with samples: who reads which, in what order, drawn how."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from tests.mutants.operators.base import operator
from tests.mutants.syntax import (
    Edit,
    File,
    Replacement,
    before,
    dotted,
    keyword,
    last_name,
    with_keyword,
    without,
)

HELD_OUT = re.compile(r"val|test|eval|dev|query|gallery|knn|feat", re.I)
SAMPLER = "DistributedSampler"


def _samplers(file: File) -> dict[str, cst.Call]:
    """Return what a DistributedSampler is assigned to, where it is for training and shuffles."""
    found: dict[str, cst.Call] = {}
    for call in file.calls(SAMPLER):
        assign = file.parents[call]
        shuffle = keyword(call, "shuffle")
        if isinstance(assign, cst.IfExp):
            assign = file.parents[assign]
        if not isinstance(assign, cst.Assign) or (shuffle is not None and file.code(shuffle.value) != "True"):
            continue
        name = file.code(assign.targets[0].target)
        if not HELD_OUT.search(name) and not HELD_OUT.search(" ".join(file.code(arg) for arg in call.args)):
            found[name] = call
    return found


def _loaders(file: File) -> Iterator[tuple[cst.Call, str]]:
    """Yield the loaders that get one of these samplers, with its name."""
    samplers = _samplers(file)
    for call in file.calls("DataLoader"):
        given = keyword(call, "sampler")
        if given is None or HELD_OUT.search(_function_name(file, call)):
            continue
        name = file.code(given.value)
        if name in samplers and file.scope(samplers[name]) is file.scope(call):
            yield call, name


def _function_name(file: File, node: cst.CSTNode) -> str:
    scope = file.scope(node)
    return scope.name.value if isinstance(scope, cst.FunctionDef) else ""


@operator("drop-sampler", "DAT001", words="the loader does not get the DistributedSampler", severity="error")
def drop_sampler(file: File) -> Iterator[Edit]:
    for call, name in _loaders(file):
        yield Edit({call: without(call, "sampler")}, (call, _samplers(file)[name]))


@operator(
    "shuffle-without-sampler",
    "DAT001",
    words="`shuffle=True` in the place of the DistributedSampler",
    severity="error",
)
def shuffle_without_sampler(file: File) -> Iterator[Edit]:
    for call, name in _loaders(file):
        changed = with_keyword(without(call, "sampler"), "shuffle", "True")
        yield Edit({call: changed}, (call, _samplers(file)[name]))


@operator(
    "plain-sampler",
    "DAT001",
    words="a RandomSampler in the place of the DistributedSampler",
    severity="error",
)
def plain_sampler(file: File) -> Iterator[Edit]:
    loaders = {name: call for call, name in _loaders(file)}
    for name, call in _samplers(file).items():
        if name in loaders and call.args and call.args[0].keyword is None:
            plain = cst.Call(
                cst.parse_expression("torch.utils.data.RandomSampler"),
                [cst.Arg(call.args[0].value)],
            )
            unset: dict[cst.CSTNode, Replacement] = {
                each: cst.RemoveFromParent()
                for each in _epochs(file)
                if file.code(each).startswith(f"{name}.")
            }
            unset[call] = plain
            yield Edit(unset, (call, loaders[name]))


def _epochs(file: File) -> Iterator[cst.SimpleStatementLine]:
    for call in file.calls("set_epoch"):
        line = file.statement(call)
        if line is not None and len(line.body) == 1 and isinstance(line.body[0], cst.Expr):
            yield line


@operator("drop-set-epoch", "DAT002", words="`set_epoch` is not called")
def drop_set_epoch(file: File) -> Iterator[Edit]:
    found = [line for line in _epochs(file) if "sampler" in file.code(line).lower()]
    found = [line for line in found if not HELD_OUT.search(file.code(line))]
    scopes = {id(file.scope(line)) for line in found}
    if not found or not re.search(rf"(?<!\w){SAMPLER}\(", file.program) or len(scopes) > 1:
        return
    anchors: list[cst.CSTNode] = list(_samplers(file).values())
    anchors += [loop for line in found for loop in [file.nearest(line, cst.For)] if loop is not None]
    yield Edit({_with_test(file, line): cst.RemoveFromParent() for line in found}, tuple(anchors))


def _with_test(file: File, line: cst.SimpleStatementLine) -> cst.CSTNode:
    """Return a line, or the branch that has nothing else."""
    branch = file.nearest(line, cst.If)
    if branch is None or branch.orelse is not None or branch.body is not file.parents[line]:
        return line
    return branch if len(branch.body.body) == 1 and not isinstance(file.parents[branch], cst.If) else line


@operator("rank-in-split-seed", "DAT004", words="each rank draws the split from a seed of its own")
def rank_in_split_seed(file: File) -> Iterator[Edit]:
    for call in file.calls("random_split", "train_test_split"):
        line = file.statement(call)
        if line is None or not file.dist or keyword(call, "random_state") or file.by_rank(call):
            continue
        if last_name(call.func) == "train_test_split" or "from_indices" in file.code(call):
            continue
        plain = without(call, "generator")
        changed = line.deep_replace(call, plain)
        if isinstance(changed, cst.SimpleStatementLine):
            yield Edit({line: before(changed, f"torch.manual_seed(42 + {file.dist}.get_rank())\n")}, (line,))


@operator(
    "one-seed-for-all",
    "DAT006",
    words="the rank is taken out of the seed",
    undecided="equal seeds are also what some programs want; whether augmentation draws from them is rarely in the files",
)
def one_seed_for_all(file: File) -> Iterator[Edit]:
    for call in file.calls("manual_seed", "seed", "set_seed", "seed_everything"):
        if not call.args or not isinstance(sum_ := call.args[0].value, cst.BinaryOperation):
            continue
        if isinstance(sum_.operator, cst.Add) and re.search(
            r"\brank|get_rank|\bgpu\b", file.code(sum_.right)
        ):
            yield Edit({sum_: sum_.left}, (call,))
    for assign in file.all(cst.Assign):
        value = assign.value
        if (
            isinstance(value, cst.BinaryOperation)
            and isinstance(value.operator, cst.Add)
            and "seed" in file.code(assign.targets[0].target)
            and re.search(r"\brank|get_rank", file.code(value.right))
        ):
            yield Edit({value: value.left}, (assign,))


@operator(
    "padded-evaluation",
    "DAT007",
    words="evaluation by a DistributedSampler, which repeats samples",
    undecided="whether the samples divide by the ranks is not in the files",
)
def padded_evaluation(file: File) -> Iterator[Edit]:
    for call in file.calls("SequentialSampler"):
        if call.args and HELD_OUT.search(file.code(call)) and SAMPLER in file.text:
            sampler = cst.parse_expression(
                f"torch.utils.data.{SAMPLER}({file.code(call.args[0].value)}, shuffle=False)"
            )
            yield Edit({call: sampler}, (call,))


@operator(
    "uneven-shards",
    "DAT003",
    words="ranks take every n-th sample themselves, some one more than others",
    undecided="the number of samples is not in the files; only a run sees it",
)
def uneven_shards(file: File) -> Iterator[Edit]:
    if not file.dist:
        return
    for call, name in _loaders(file):
        data = call.args[0].value if call.args and call.args[0].keyword is None else None
        if data is None:
            continue
        text = file.code(data)
        mine = (
            f"torch.utils.data.Subset({text}, range({file.dist}.get_rank(), len({text}), "
            f"{file.dist}.get_world_size()))"
        )
        plain = without(call, "sampler")
        first = plain.args[0].with_changes(value=cst.parse_expression(mine))
        yield Edit({call: plain.with_changes(args=[first, *plain.args[1:]])}, (call, _samplers(file)[name]))


@operator("download-by-all", "DAT008", words="every rank downloads into one directory")
def download_by_all(file: File) -> Iterator[Edit]:
    for arg in file.all(cst.Arg):
        if arg.keyword is None or arg.keyword.value != "download":
            continue
        call = file.nearest(arg, cst.Call)
        if call is None or not re.search(r"\bdatasets\.|MNIST|CIFAR|SVHN|STL10", dotted(call.func)):
            continue
        value = file.code(arg.value)
        if not file.by_rank(call) and (value == "False" or RANK_VALUE.search(value)):
            yield Edit({arg: arg.with_changes(value=cst.Name("True"))}, (call,))


RANK_VALUE = re.compile(r"rank|is_main|is_master")
