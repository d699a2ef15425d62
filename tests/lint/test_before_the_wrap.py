"""What is made before a model is wrapped, and losses that are divided although gradients are averaged."""

from __future__ import annotations

import pytest

from tests.lint.judging import find_marked, lines_of, lint

HEAD = """\
import copy
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
"""
TEACHER = """\
class Average:
    def __init__(self, model):
        self.model = copy.deepcopy(model).eval(){mark}
def main():
    dist.init_process_group("gloo")
    torch.manual_seed({seed})
    net = torch.nn.Linear(4, 2)
    {before}
    model = DDP(net)
    {after}
    data = TensorDataset(torch.load("x.pt"))
    sampler = DistributedSampler(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (x,) in DataLoader(data, batch_size=8, sampler=sampler):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), {target})
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()
main()
"""
COPY = "teacher = copy.deepcopy(net)"


def teach(
    before: str = "pass",
    after: str = "pass",
    target: str = "teacher(x).detach()",
    seed: str = "1 + dist.get_rank()",
    mark: str = "",
) -> str:
    """Fill in the program that trains against a copy."""
    return TEACHER.format(before=before, after=after, target=target, seed=seed, mark=mark)


@pytest.mark.wrong
@pytest.mark.parametrize(
    "text",
    [
        teach(f"{COPY}  # here"),
        teach(f"{COPY}.eval().requires_grad_(False)  # here"),
        teach("teacher = Average(net)", target="teacher.model(x).detach()", mark="  # here"),
    ],
)
def test_copy_before_the_wrap_that_is_trained_against(text: str) -> None:
    findings = lint(text, head=HEAD)
    assert [(each.code, each.severity) for each in findings] == [("NUM001", "warning")]
    assert lines_of(findings, "NUM001") == find_marked(text, head=HEAD)


@pytest.mark.right
@pytest.mark.parametrize(
    "text",
    [
        teach(COPY, seed="1"),
        teach(after="teacher = copy.deepcopy(model.module)"),
        teach(after=COPY),
        teach(COPY, target="x[:, :2]"),  # kept for an evaluation: the first rank's is saved
        teach(COPY, after="teacher.load_state_dict(net.state_dict())"),
        teach(f'net.load_state_dict(torch.load("w.pt", map_location="cpu"))\n    {COPY}'),
        teach("teacher = Average(torch.nn.Linear(4, 2))", target="teacher.model(x).detach()", seed="1"),
    ],
)
def test_copy_that_is_equal_on_all_ranks_or_not_used(text: str) -> None:
    assert [(each.code, each.message) for each in lint(text, head=HEAD)] == []


SHARDED = """\
def main():
    dist.init_process_group("gloo")
    net = torch.nn.Linear(4, 2)
    {before}
    model = FSDP(net{given})
    {after}
    for step in range(10):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
main()
"""
MADE = "optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)"


@pytest.mark.wrong
@pytest.mark.parametrize(
    "text",
    [
        SHARDED.format(before=f"{MADE}  # here", given="", after="pass"),
        SHARDED.format(before=f"{MADE}  # here", given=", use_orig_params=False", after="pass"),
        SHARDED.format(
            before='optimizer = torch.optim.SGD([{"params": net.parameters()}], lr=0.1)  # here',
            given="",
            after="pass",
        ),
    ],
)
def test_optimizer_of_parameters_that_are_replaced(text: str) -> None:
    findings = lint(text, head=HEAD)
    assert [each.code for each in findings] == ["DDP006"]
    assert lines_of(findings, "DDP006") == find_marked(text, head=HEAD)


HELPERS = """\
def build_optimizer(net, lr):
    return torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=lr)
def shard(net):
    return FSDP(net{given})
class Engine:
    def __init__(self):
        net = torch.nn.Linear(4, 2)
        {first}
        {second}
    def run(self):
        self.model(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()
dist.init_process_group("gloo")
Engine().run()
dist.destroy_process_group()
"""
BUILT = "self.optimizer = build_optimizer({model}, 0.1)"


@pytest.mark.wrong
def test_optimizer_and_shards_of_functions() -> None:
    text = HELPERS.format(
        given="", first=f"{BUILT.format(model='net')}  # here", second="self.model = shard(net)"
    )
    assert lines_of(lint(text, head=HEAD), "DDP006") == find_marked(text, head=HEAD)


@pytest.mark.right
@pytest.mark.parametrize(
    ("given", "first", "second"),
    [
        ("", "self.model = shard(net)", BUILT.format(model="self.model")),
        (", use_orig_params=True", BUILT.format(model="net"), "self.model = shard(net)"),
        ("", BUILT.format(model="torch.nn.Linear(2, 2)"), "self.model = shard(net)"),
    ],
)
def test_optimizer_and_shards_of_functions_in_order(given: str, first: str, second: str) -> None:
    text = HELPERS.format(given=given, first=first, second=second)
    assert "DDP006" not in {each.code for each in lint(text, head=HEAD)}


@pytest.mark.right
@pytest.mark.parametrize(
    "text",
    [
        SHARDED.format(before="pass", given="", after=MADE.replace("net.", "model.")),
        SHARDED.format(before=MADE, given=", use_orig_params=True", after="pass"),
        SHARDED.format(before=MADE, given="", after=MADE.replace("net.", "model.")),
        SHARDED.format(before=MADE.replace("net.", "torch.nn.Linear(2, 2)."), given="", after="pass"),
    ],
)
def test_optimizer_of_parameters_that_stay(text: str) -> None:
    assert "DDP006" not in {each.code for each in lint(text, head=HEAD)}


IN_PLACE = """\
from torch.distributed.fsdp import fully_shard
def group(net):
    return [{{"params": [p for p in net.parameters() if p.ndim > 1]}}, {{"params": [net.bias]}}]
def shard(net):
    for layer in net.children():
        fully_shard(layer)
    fully_shard(net)
def main():
    dist.init_process_group("gloo")
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    {first}
    {second}
    for step in range(10):
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
main()
"""
GROUPED = "optimizer = torch.optim.AdamW(group(net), lr=1e-3)"


@pytest.mark.wrong
@pytest.mark.parametrize("made", [MADE, GROUPED])
@pytest.mark.parametrize("sharded", ["fully_shard(net)", "shard(net)"])
def test_optimizer_of_parameters_that_are_sharded_in_place(made: str, sharded: str) -> None:
    text = IN_PLACE.format(first=f"{made}  # here", second=sharded)
    findings = [each for each in lint(text, head=HEAD) if each.code == "DDP006"]
    assert lines_of(findings, "DDP006") == find_marked(text, head=HEAD)
    assert "before fully_shard" in findings[0].message


@pytest.mark.right
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("fully_shard(net)", MADE),
        ("shard(net)", GROUPED),
        (GROUPED.replace("group(net)", "group(torch.nn.Linear(2, 2))"), "shard(net)"),
        (MADE, "pass"),
        (MADE, f"shard(net)\n    {MADE}"),
        (MADE, "for layer in net.children():\n        fully_shard(layer)"),
    ],
)
def test_optimizer_of_what_is_sharded_before(first: str, second: str) -> None:
    text = IN_PLACE.format(first=first, second=second)
    assert "DDP006" not in {each.code for each in lint(text, head=HEAD)}


@pytest.mark.wrong
@pytest.mark.parametrize(
    "backward",
    [
        "(loss / dist.get_world_size()).backward()  # here",
        "loss.div(dist.get_world_size()).backward()  # here",
        "loss = loss / dist.get_world_size()  # here\n            loss.backward()",
        "loss /= dist.get_world_size()  # here\n            loss.backward()",
    ],
)
def test_loss_that_is_divided_although_gradients_are_averaged(backward: str) -> None:
    text = teach(target="x[:, :2]", seed="1").replace("loss.backward()", backward)
    findings = lint(text, head=HEAD)
    assert [(each.code, each.severity) for each in findings] == [("NUM009", "warning")]
    assert lines_of(findings, "NUM009") == find_marked(text, head=HEAD)


@pytest.mark.right
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("loss.backward()", "(loss / 4).backward()"),
        ("loss.backward()", "loss.backward()\n            shown = loss / dist.get_world_size()"),
        ("loss.backward()", "loss = loss / dist.get_world_size()\n            loss = model(x).sum()\n            loss.backward()"),
        ("lr=0.1", "lr=0.1 * dist.get_world_size()"),
        ("model = DDP(net)", "model = DDP(net)\n    model.register_comm_hook(None, summed)"),
        ("model = DDP(net)", "model = net"),
    ],
)  # fmt: skip
def test_loss_whose_division_is_right(old: str, new: str) -> None:
    text = teach(target="x[:, :2]", seed="1").replace(old, new)
    if "backward" not in old:
        text = text.replace("loss.backward()", "(loss / dist.get_world_size()).backward()")
    assert "NUM009" not in {each.code for each in lint(text, head=HEAD)}
