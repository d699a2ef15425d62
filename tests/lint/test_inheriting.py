"""What a class leaves to those that inherit from it: methods and attributes of templates and mixins."""

from __future__ import annotations

import pytest

from tests.lint.judging import find_marked, lines_of, lint

HEAD = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
"""
TRAINER = """\
class Trainer:
    def fit(self):
        for epoch in range(3):
            for (x,) in self.loader:
                loss = self.find_loss(x)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
    {template}
class Mine(Trainer):
    def __init__(self):
        self.data = TensorDataset(torch.load("x.pt"))
        self.loader = DataLoader(self.data, batch_size=8, shuffle=True)  # here
        self.model = DDP(torch.nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def find_loss(self, x):
        return self.model(x).sum()
{others}
dist.init_process_group("gloo")
Mine().fit()
dist.destroy_process_group()
"""
TEMPLATES = [
    "pass",
    "def find_loss(self, x):\n        raise NotImplementedError",
    'def find_loss(self, x):\n        """Of a batch."""\n        raise NotImplementedError("of a batch")',
    "def find_loss(self, x): ...",
]
PLAIN = "class Plain(Trainer):\n    def find_loss(self, x):\n        return x.sum()\n"


@pytest.mark.wrong
@pytest.mark.parametrize("template", TEMPLATES)
def test_methods_and_attributes_of_a_class_that_inherits(template: str) -> None:
    text = TRAINER.format(template=template, others="")
    findings = lint(text, head=HEAD)
    assert [(each.code, each.severity) for each in findings] == [("DAT001", "warning")]
    assert lines_of(findings, "DAT001") == find_marked(text, head=HEAD)


@pytest.mark.right
@pytest.mark.parametrize("template", TEMPLATES)
def test_methods_that_classes_define_differently_are_not_followed(template: str) -> None:
    assert lint(TRAINER.format(template=template, others=PLAIN), head=HEAD) == []


@pytest.mark.wrong
def test_attributes_of_an_object_that_is_handed_over() -> None:
    text = """\
class Data:
    def __init__(self, name):
        self.loader = DataLoader(TensorDataset(torch.load(name)), batch_size=8, shuffle=True)  # here
def fit(data):
    model = DDP(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in data.loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
dist.init_process_group("gloo")
fit(Data("x.pt"))
dist.destroy_process_group()
"""
    assert lines_of(lint(text, head=HEAD), "DAT001") == find_marked(text, head=HEAD)
