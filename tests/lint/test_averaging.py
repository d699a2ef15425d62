"""Sums over ranks that are divided by their number twice (NUM009)."""

from __future__ import annotations

import pytest

from tests.lint.judging import assert_found, lint

PROGRAM = """\
class Reducer:
    def __init__(self, net, op=dist.ReduceOp.{op}):
        self.params, self.op = list(net.parameters()), op
        for p in self.params:
            dist.broadcast(p.data, 0)
    def reduce(self):
        bucket = torch.cat([p.grad.reshape(-1) for p in self.params])
        {reduce}
        {divide}
        return bucket
def main():
    dist.init_process_group("gloo")
    world_size = dist.get_world_size()
    Reducer(torch.nn.Linear(2, 2)).reduce()
    dist.destroy_process_group()
main()
"""
REDUCES = [
    "dist.all_reduce(bucket, op=self.op)",
    "dist.all_reduce(bucket, self.op)",
    "dist.all_reduce(bucket, op=dist.ReduceOp.{op})",
]
DIVIDES = [
    "bucket /= dist.get_world_size()",
    "bucket.div_(dist.get_world_size())",
    "bucket = bucket / dist.get_world_size()",
]


@pytest.mark.wrong
@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("divide", DIVIDES)
def test_average_that_is_divided_once_more(reduce: str, divide: str) -> None:
    text = PROGRAM.format(op="AVG", reduce=reduce.format(op="AVG"), divide=f"{divide}  # here")
    assert_found(text, "NUM009", "warning")


@pytest.mark.right
@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize(
    ("op", "divide"),
    [
        *(("SUM", each) for each in DIVIDES),
        ("AVG", "pass"),
        ("AVG", "bucket /= len(self.params)"),
        ("AVG", "bucket = torch.ones(2)\n        bucket /= dist.get_world_size()"),
    ],
)
def test_sum_that_is_divided_once_or_average_that_is_not(reduce: str, op: str, divide: str) -> None:
    assert lint(PROGRAM.format(op=op, reduce=reduce.format(op=op), divide=divide)) == []


@pytest.mark.right
@pytest.mark.parametrize(
    "scaled",
    [
        "(loss * world_size).backward()",
        "loss = loss * world_size; loss.backward()",
        "loss *= dist.get_world_size(); loss.backward()",
        "loss.backward(); net.weight.grad.mul_(world_size)",
        "scaled = world_size * loss; scaled.backward()",
    ],
)
def test_loss_or_gradients_that_are_multiplied_before(scaled: str) -> None:
    text = PROGRAM.format(op="AVG", reduce=REDUCES[0], divide=DIVIDES[0]).replace(
        "    Reducer(torch.nn.Linear(2, 2)).reduce()\n",
        "    net = torch.nn.Linear(2, 2)\n    reducer, loss = Reducer(net), net(torch.ones(2)).sum()\n"
        f"    {scaled}\n    reducer.reduce()\n",
    )
    assert lint(text) == []
