"""Backward passes of sharded models that a rank leaves out by its own loss, also where a method decides."""

from __future__ import annotations

import pytest

from tests.lint.judging import find_marked, lines_of, lint

PROGRAM = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

class Guard:
    def __init__(self):
        self.mean = None
    def is_spike(self, value):
        if self.mean is None:
            self.mean = value
            return False
        if value > 3 * self.mean:
            return True
        self.mean = 0.9 * self.mean + 0.1 * value
        return False
    def is_agreed(self, value):
        largest = torch.tensor(float(value))
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        if largest > 3:
            return True
        return False
    def is_later(self, step, value):
        print(value)
        if step > 100:
            return True
        return False

def shard(model):
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model

def main():
    dist.init_process_group("gloo")
    guard = Guard()
    model = {model}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, x in enumerate(DataLoader(load(), 8)):
        loss = model(x).mean()
        if {test}:
            continue
        optimizer.zero_grad()
        loss.backward()  # here
        optimizer.step()
    dist.destroy_process_group()

main()
"""
NET = "torch.nn.Sequential(torch.nn.Linear(4, 4))"
SPIKE = "guard.is_spike(loss.item())"


@pytest.mark.wrong
@pytest.mark.parametrize("model", [f"FSDP({NET})", f"shard({NET})", f"DDP({NET})"])
@pytest.mark.parametrize("test", ["loss.item() > 10", "torch.isnan(loss)", SPIKE])
def test_a_rank_leaves_out_a_backward_pass_by_its_own_loss(model: str, test: str) -> None:
    text = PROGRAM.format(model=model, test=test)
    found = [each for each in lint(text) if each.code == "COL002"]
    assert lines_of(found, "COL002") == find_marked(text)


@pytest.mark.right
@pytest.mark.parametrize(
    ("model", "test"),
    [
        (NET, SPIKE),
        (f"shard({NET})", "step > 100"),
        (f"FSDP({NET})", "guard.is_agreed(loss.item())"),
        (f"FSDP({NET})", "guard.is_later(step, loss.item())"),
    ],
)
def test_models_of_a_rank_alone_and_tests_that_ranks_share(model: str, test: str) -> None:
    assert not lines_of(lint(PROGRAM.format(model=model, test=test)), "COL002")
