"""``no_sync`` around the backward pass alone (DDP007)."""

from __future__ import annotations

import pytest

from tests.lint.judging import find_marked, lines_of, lint

TASK = """
import contextlib
from fairscale.nn.data_parallel import ShardedDataParallel

class Task:
    def __init__(self, args):
        self.net = torch.nn.Linear(2, 2)
        self.wrapped = None
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        if args.sharded:
            self.wrapped = ShardedDataParallel(self.net, self.optimizer)
        else:
            self.wrapped = DDP(self.net)

    @property
    def model(self):
        return self.wrapped if dist.is_initialized() else self.net

    def train(self, batches, every):
        for step, x in enumerate(batches):
            last = step % every == every - 1
            {body}
            if last:
                self.optimizer.step()
                self.optimizer.zero_grad()

dist.init_process_group("gloo")
Task(parse()).train(load(), 4)
dist.destroy_process_group()
"""
CONTEXT = "context = self.wrapped.no_sync() if not last else contextlib.nullcontext()"


@pytest.mark.wrong
def test_forward_before_no_sync_of_a_wrapper_that_may_be_another_one() -> None:
    body = f"loss = self.model(x).sum(); {CONTEXT}\n            with context:  # here\n                loss.backward()"
    program = TASK.format(body=body)
    found = [each for each in lint(program) if each.code == "DDP007"]
    assert lines_of(found, "DDP007") == find_marked(program)


@pytest.mark.right
def test_forward_inside_of_no_sync_is_right() -> None:
    body = f"{CONTEXT}\n            with context:\n                self.model(x).sum().backward()"
    assert not lines_of(lint(TASK.format(body=body)), "DDP007")
