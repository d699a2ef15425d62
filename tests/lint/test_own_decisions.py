"""Decisions by what a rank measured on data of its own, and the program that agrees on them first."""

from __future__ import annotations

import pytest

from tests.lint.judging import find_marked, lines_of, lint

HEAD = """\
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
"""
PROGRAM = """\
class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0
    def add(self, value, count):
        self.total += value * count
        self.count += count
    @property
    def average(self):
        return self.total / self.count
class Patience:
    def __init__(self):
        self.best, self.bad = None, 0
    def is_over(self, value):
        if self.best is None or value < self.best:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= 3
def sample(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 4, generator=generator)
def compare(net, x, y):
    return F.mse_loss(net(x), y).item()
def validate(model, loader, rank):
    model.eval()
    {validate}
def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau, patience = ReduceLROnPlateau(optimizer), Patience()
    held = TensorDataset(torch.randn(64, 4))
    loader = DataLoader(held, 8, sampler={sampler})
    for epoch in range(9):
        x = sample(epoch * dist.get_world_size() + rank)
        optimizer.zero_grad()
        F.mse_loss(model(x), x).backward()
        optimizer.step()
        value = validate(model, loader, rank)
        {use}
    dist.destroy_process_group()
main()
"""
SHARDS = "DistributedSampler(held, shuffle=False)"
BY_SEED = "x = sample(99 + rank)\n    with torch.no_grad():\n        return F.mse_loss(model(x), x).item()"
BY_METER = (
    "meter = Meter()\n    with torch.no_grad():\n        for (x,) in loader:\n"
    "            meter.add(F.mse_loss(model(x), x).item(), len(x))\n    return meter.average"
)
BY_LIST = (
    "values = []\n    with torch.no_grad():\n        for (x,) in loader:\n"
    "            values.append(F.mse_loss(model.module(x), x).item())\n    return sum(values) / len(values)"
)
BY_DRAWS = (
    "torch.manual_seed(3 + rank)\n    held = torch.randn(8, 4), torch.randn(8, 4)\n    with torch.no_grad():\n"
    "        return compare(model.module, *held)"
)
USES = [
    "plateau.step(value)  # here",
    "if patience.is_over(value):  # here\n            break",
    "if value < 0.1:  # here\n            break",
]


def make(validate: str, use: str, sampler: str = SHARDS) -> str:
    """Fill the program in."""
    return PROGRAM.format(validate=validate, use=use, sampler=sampler)


@pytest.mark.wrong
@pytest.mark.parametrize("validate", [BY_SEED, BY_METER, BY_LIST, BY_DRAWS])
@pytest.mark.parametrize("use", USES)
def test_each_rank_decides_by_its_own_number(validate: str, use: str) -> None:
    text = make(validate, use)
    findings = [each for each in lint(text, head=HEAD) if each.code == "NUM005"]
    assert lines_of(findings, "NUM005") == find_marked(text, head=HEAD)
    assert {each.severity for each in findings} == {"warning"}


@pytest.mark.right
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("validate", "sampler"),
    [
        (BY_SEED.replace("99 + rank", "99"), SHARDS),
        (BY_DRAWS.replace("3 + rank", "3"), SHARDS),
        (BY_METER, "None"),
        (BY_LIST, "None"),
        (
            BY_SEED.replace("return F", "loss = F").replace(
                ".item()", "\n    dist.all_reduce(loss)\n    return loss"
            ),
            SHARDS,
        ),
    ],
)
def test_number_of_the_same_data_or_of_all_ranks(validate: str, sampler: str, use: str) -> None:
    assert "NUM005" not in {each.code for each in lint(make(validate, use, sampler), head=HEAD)}


@pytest.mark.right
@pytest.mark.parametrize(
    "use",
    [
        "if rank == 0 and value < 0.1:\n            torch.save(model.module.state_dict(), 'best.pt')",
        "if rank == 0:\n            if value < 0.1:\n                print('low')",
        "print(value)",
    ],
)
def test_one_rank_alone_decides_or_nothing_is_decided(use: str) -> None:
    assert "NUM005" not in {each.code for each in lint(make(BY_SEED, use), head=HEAD)}


TO_ONE = (
    "sums = torch.zeros(2)\n    with torch.no_grad():\n        for (x,) in loader:\n"
    "            sums[0] += F.mse_loss(model(x), x)\n            sums[1] += 1\n    return mean_of(sums)\n"
    "def mean_of(sums):\n    dist.{operation}\n    return (sums[0] / sums[1]).item()"
)


@pytest.mark.wrong
@pytest.mark.parametrize("use", USES)
def test_what_one_rank_alone_has_decides_on_all(use: str) -> None:
    text = make(TO_ONE.format(operation="reduce(sums, dst=0)"), use)
    findings = [each for each in lint(text, head=HEAD) if each.code == "NUM005"]
    assert lines_of(findings, "NUM005") == find_marked(text, head=HEAD)
    assert "leaves the result on one rank only" in findings[0].message


@pytest.mark.right
@pytest.mark.parametrize(
    ("operation", "use"),
    [
        ("all_reduce(sums)", USES[0]),
        ("reduce(sums, dst=0)\n    dist.broadcast(sums, src=0)", USES[0]),
        ("reduce(sums, dst=0)", "if rank == 0:\n            print(value < 0.1)"),
        ("reduce(sums, dst=0)", "print(value)"),
    ],
)
def test_what_all_ranks_have_or_one_alone_uses(operation: str, use: str) -> None:
    text = make(TO_ONE.format(operation=operation), use)
    assert "NUM005" not in {each.code for each in lint(text, head=HEAD)}


BEFORE = (
    "sums = torch.zeros(2)\n    with torch.no_grad():\n        for (x,) in loader:\n"
    "            sums[0] += F.mse_loss(model.module(x), x)\n            sums[1] += 1\n"
    "    {early}dist.all_reduce(sums)\n    {late}return value"
)
READ = "value = (sums[0] / sums[1]).item()\n    "


@pytest.mark.wrong
def test_a_number_that_is_read_before_the_sums_are_reduced() -> None:
    text = make(BEFORE.format(early=READ, late=""), USES[0])
    assert lines_of(lint(text, head=HEAD), "NUM005") == find_marked(text, head=HEAD)


@pytest.mark.right
def test_a_number_that_is_read_after_the_sums_are_reduced() -> None:
    text = make(BEFORE.format(early="", late=READ), USES[0])
    assert "NUM005" not in {each.code for each in lint(text, head=HEAD)}


BATCHES = """\
def train_on(model, optimizer, batch):
    optimizer.zero_grad()
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
def main(batches):
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        try:
            {tried}
        except {error}:
            {handled}
    dist.destroy_process_group()
main([torch.ones(4)])
"""
TRAINS = "train_on(model, optimizer, batch)"


@pytest.mark.wrong
@pytest.mark.parametrize(
    "error", ["ValueError", "(KeyError, IndexError)", "AssertionError", "TypeError as error", "Exception"]
)
@pytest.mark.parametrize("handled", ["continue", "print('skipped')", "pass"])
def test_error_of_a_batch_lets_one_rank_skip_the_backward(error: str, handled: str) -> None:
    text = BATCHES.format(tried=TRAINS, error=error, handled=handled)
    assert {(each.code, each.severity) for each in lint(text)} == {("COL002", "warning")}


@pytest.mark.right
@pytest.mark.parametrize(
    ("tried", "error", "handled"),
    [
        (TRAINS, "ValueError", "raise"),
        (TRAINS, "KeyboardInterrupt", "break"),
        ("batch = batch.float()", "ValueError", "continue"),
        (TRAINS, "ValueError", "sys.exit(1)"),
    ],
)
def test_error_that_ends_the_job_or_comes_before_the_model(tried: str, error: str, handled: str) -> None:
    assert lint(BATCHES.format(tried=tried, error=error, handled=handled)) == []


NAMED = """\
def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(9):
        out = model(torch.randn(8, 4))
        losses = {{"near": out.sum(), "far": out.abs().mean()}}
        total = {total}
        {before}
        if not torch.isfinite({asked}).all():
            continue
        total.backward()  # here
        optimizer.step()
    dist.destroy_process_group()
main()
"""
TOTALS = ["sum(losses[name] * 0.5 for name in losses)", "sum(losses.values())", 'losses["near"]']


@pytest.mark.wrong
@pytest.mark.parametrize("total", TOTALS)
def test_a_loss_out_of_several_that_have_names(total: str) -> None:
    text = HEAD + NAMED.format(total=total, before="pass", asked="total")
    assert lines_of(lint(text), "COL002") == find_marked(text)


@pytest.mark.right
@pytest.mark.parametrize("total", TOTALS)
def test_losses_that_have_names_are_reduced_before(total: str) -> None:
    before = (
        "seen = {name: each.detach().clone() for name, each in losses.items()}\n"
        "        for each in seen.values():\n            dist.all_reduce(each)"
    )
    assert lint(HEAD + NAMED.format(total=total, before=before, asked="sum(seen.values())")) == []


HELPED = """\
{helper}
def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(9):
        loss = model(torch.randn(8, 4)).sum()
        seen = {name}(loss)
        if not torch.isfinite(loss).all():
            continue
        loss.backward()  # here
        optimizer.step()
        print(seen)
    dist.destroy_process_group()
main()
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    "helper",
    [
        "def reduce_tensor(x):\n    whole = x.detach().clone()\n    dist.all_reduce(whole)\n    return whole / 2",
        "def reduce_tensor(x):\n    with torch.no_grad():\n        whole = x\n        dist.reduce(whole, dst=0)\n    return whole",
        "def reduce_tensor(x):\n    x = x.clone()\n    dist.all_reduce(x)\n    return x",
        "def reduce_tensor(x):\n    each = [torch.zeros_like(x) for _ in range(2)]\n    dist.all_gather(each, x)\n"
        "    return torch.stack(each).mean()",
    ],
)
def test_a_helper_that_leaves_what_it_is_given_as_it_was(helper: str) -> None:
    text = HEAD + HELPED.format(helper=helper, name="reduce_tensor")
    assert lines_of(lint(text), "COL002") == find_marked(text)


@pytest.mark.right
@pytest.mark.parametrize(
    "helper",
    [
        "def mean_of_all(x):\n    dist.all_reduce(x)\n    return x",
        "def mean_of_all(x):\n    whole = x.data\n    dist.all_reduce(whole)\n    return whole",
        "def mean_of_all(x):\n    for each in [x]:\n        dist.all_reduce(each)",
        "def sum_up(y):\n    dist.all_reduce(y)\ndef mean_of_all(x):\n    sum_up(x)\n    return x / 2",
    ],
)
def test_a_helper_that_changes_what_it_is_given(helper: str) -> None:
    assert lint(HEAD + HELPED.format(helper=helper, name="mean_of_all")) == []


OBJECT = """\
class Agreement:
    def any(self, value):
        flag = torch.tensor([float(value)])
        {agrees}
        return bool(flag.item())
    def highest(self, value):
        flag = torch.tensor([float(value)])
        {agrees}
        return flag.item()
class Trainer:
    def __init__(self):
        self.model = DDP(torch.nn.Linear(4, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.agreed = Agreement()
    def step(self):
        loss = self.model(torch.randn(8, 4)).sum()
        if {test}:
            return
        loss.backward()  # here
        self.optimizer.step()
def main():
    dist.init_process_group("gloo")
    trainer = Trainer()
    for _ in range(9):
        trainer.step()
    dist.destroy_process_group()
main()
"""
AGREED = ["self.agreed.any(not torch.isfinite(loss).item())", "self.agreed.highest(loss.item()) > 100"]


@pytest.mark.right
@pytest.mark.parametrize("test", [*AGREED, "max(self.agreed.highest(loss.item()), 1.0) > 100"])
def test_an_object_that_lets_ranks_agree_has_methods_of_any_name(test: str) -> None:
    agrees = "dist.all_reduce(flag, op=dist.ReduceOp.MAX)"
    assert lint(HEAD + OBJECT.format(agrees=agrees, test=test)) == []


@pytest.mark.wrong
@pytest.mark.parametrize(
    "test",
    [
        "not torch.isfinite(loss).any()",
        "max(loss.item(), 1.0) > 100",
        "self.agreed.highest(loss.item()) > 100",
        "loss.item() > self.agreed.highest(loss.item())",
    ],
)
def test_a_test_of_the_own_loss_whatever_stands_beside_it(test: str) -> None:
    text = HEAD + OBJECT.format(agrees="pass", test=test)
    assert lines_of(lint(text), "COL002") == find_marked(text)


ENGINE = """\
class Engine:
    def __init__(self):
        self.net, self.skipped = DDP(torch.nn.Linear(4, 4)), 0
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def loss(self, x):
        out = self.net(x)
        {loss}
    def is_fine(self, loss):
        {asked}
        self.skipped += not fine
        return fine
    def train(self, loader):
        for (x,) in loader:
            loss = self.loss(x)
            if not self.is_fine(loss):
                continue
            loss.backward(){here}
            self.optimizer.step()
dist.init_process_group("gloo")
Engine().train([])
dist.destroy_process_group()
"""
PLAIN, ASKS = "return F.mse_loss(out, x)", "fine = bool(torch.isfinite(loss))"


def test_a_loss_and_a_question_about_it_may_be_methods() -> None:
    text = HEAD + ENGINE.format(loss=PLAIN, asked=ASKS, here="  # here")
    assert lines_of(lint(text), "COL002") == find_marked(text)


@pytest.mark.parametrize(
    ("loss", "asked"),
    [
        (PLAIN, "dist.all_reduce(loss)\n        fine = bool(torch.isfinite(loss))"),
        (PLAIN, "fine = agree_on(torch.isfinite(loss))"),
        (PLAIN, "fine = self.skipped < 3"),
        ("dist.all_reduce(out)\n        return F.mse_loss(out, x)", ASKS),
        ("return F.mse_loss(gather_all(out), x)", ASKS),
    ],
)
def test_methods_that_let_ranks_agree(loss: str, asked: str) -> None:
    text = HEAD + ENGINE.format(loss=loss, asked=asked, here="")
    assert lines_of(lint(text), "COL002") == set()


def test_functions_that_train_and_call_each_other() -> None:
    text = """\
def first(model, x, depth):
    loss = second(model, x, depth) if depth else F.mse_loss(model(x), x)
    if not torch.isfinite(loss):
        return loss
    loss.backward()  # here
    return loss
def second(model, x, depth):
    loss = second(model, x, depth - 1) + first(model, x, depth - 1) + F.mse_loss(model(x), x)
    loss.backward()
    return loss
dist.init_process_group("gloo")
first(DDP(torch.nn.Linear(4, 4)), torch.randn(2, 4), 2)
dist.destroy_process_group()
"""
    assert lines_of(lint(HEAD + text), "COL002") <= find_marked(HEAD + text)
