"""Steps of several networks in functions of their own (DDP005), and nn.DataParallel inside of a model (DDP012)."""

from __future__ import annotations

import pytest

from tests.lint.judging import find_marked, lines_of, lint

HEAD = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
"""
NETWORKS = """\
class Trainer:
    def __init__(self):
        self.maker, self.critic = DDP(torch.nn.Linear(4, 4)), DDP(torch.nn.Linear(4, 1))
        self.of_maker = torch.optim.Adam(self.maker.parameters(), lr=1e-3)
        self.of_critic = torch.optim.Adam(self.critic.parameters(), lr=1e-3)
    def step_critic(self, x):
        loss = {critic}
        self.of_critic.zero_grad()
        loss.backward()
        self.of_critic.step()
    def step_maker(self, x):
        loss = {maker}
        self.of_maker.zero_grad()
        loss.backward()
        self.of_maker.step()
dist.init_process_group("gloo")
trainer = Trainer()
data = TensorDataset(torch.load("x.pt"))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        trainer.step_critic(x)
        trainer.step_maker(x)
dist.destroy_process_group()
"""
CRITIC, MAKER = "self.critic(self.maker(x).detach()).mean()", "self.critic(self.maker(x)).mean()"


TAKEN_APART = """\
    def step_critic(self, x):
        score = self.critic.module(torch.cat([x, x]))  # here
        real, made = score.chunk(2)
        loss = torch.nn.functional.softplus(-real).mean() + torch.nn.functional.softplus(made).mean()
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    "text",
    [
        NETWORKS.format(critic="self.critic.module(x).mean()  # here", maker=MAKER),
        NETWORKS.format(critic=CRITIC, maker=MAKER).replace(
            f"    def step_critic(self, x):\n        loss = {CRITIC}\n", TAKEN_APART
        ),
    ],
)
def test_step_of_one_network_bypasses_its_wrapper(text: str) -> None:
    findings = lint(text, head=HEAD)
    assert [each.code for each in findings] == ["DDP005"]
    assert lines_of(findings, "DDP005") == find_marked(text, head=HEAD)


@pytest.mark.right
@pytest.mark.parametrize(
    ("critic", "maker"),
    [
        (CRITIC, MAKER),
        (CRITIC, "self.critic.module(self.maker(x)).mean()"),  # the step is that of the other network
        ("self.critic(self.maker.module(x).detach()).mean()", MAKER),
    ],
)
def test_network_that_another_ones_step_goes_through(critic: str, maker: str) -> None:
    assert lint(NETWORKS.format(critic=critic, maker=maker), head=HEAD) == []


INSIDE = """\
class Net(torch.nn.Module):
    def __init__(self, several=True):
        super().__init__()
        {made}
    def forward(self, x):
        return self.body(x)
MODELS = {{"net": Net}}
def build(name, **given):
    return MODELS[name](**given)
dist.init_process_group("gloo")
model = {wrapped}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
MADE = "self.body = torch.nn.DataParallel(torch.nn.Linear(4, 2))"


@pytest.mark.wrong
def test_data_parallel_inside_of_a_model() -> None:
    text = INSIDE.format(made=f"{MADE}  # here", wrapped='DDP(build("net"))')
    findings = lint(text, head=HEAD)
    assert [(each.code, each.severity) for each in findings] == [("DDP012", "warning")]
    assert lines_of(findings, "DDP012") == find_marked(text, head=HEAD)


@pytest.mark.right
@pytest.mark.parametrize(
    ("made", "wrapped"),
    [
        (f"self.body = torch.nn.Linear(4, 2)\n        if several:\n            {MADE}", 'DDP(build("net"))'),
        ("self.body = torch.nn.Linear(4, 2)", 'DDP(build("net"))'),
    ],
)
def test_data_parallel_of_one_way_of_a_model(made: str, wrapped: str) -> None:
    assert "DDP012" not in {each.code for each in lint(INSIDE.format(made=made, wrapped=wrapped), head=HEAD)}
