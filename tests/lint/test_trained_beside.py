"""Models that are trained beside wrapped ones, and are never wrapped (DDP015)."""

from __future__ import annotations

import pytest

from tests.lint.judging import find_marked, lines_of, lint

PAIR = """
class Maker(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(x)

class Critic(torch.nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner
        self.fc = torch.nn.Linear(2, 1)

    def forward(self, x):
        return self.fc(x)

def run(batches, args):
    dist.init_process_group("gloo")
    maker, critic = Maker(), None
    if args.critic:
        critic = Critic()
    {before}
    maker_optimizer = torch.optim.Adam(maker.parameters())
    critic_optimizer = torch.optim.Adam(critic.parameters()) if critic is not None else None
    {wrap}
    {between}
    for epoch in range(3):
        train([maker, critic], [maker_optimizer, critic_optimizer], batches)
    dist.destroy_process_group()

def train(models, optimizers, batches):
    maker, critic = models
    maker_optimizer, critic_optimizer = optimizers
    for x in batches:
        made = maker(x)
        if critic is not None:
            loss = critic(made.detach()).mean()
            critic_optimizer.zero_grad()
            loss.backward()
            {reduced}
            critic_optimizer.step()  # here
        maker_optimizer.zero_grad()
        made.mean().backward()
        maker_optimizer.step()

run(load(), parse())
"""


def write(
    before: str = "pass", wrap: str = "maker = DDP(maker)", between: str = "pass", reduced: str = "pass"
) -> str:
    return PAIR.format(before=before, wrap=wrap, between=between, reduced=reduced)


@pytest.mark.wrong
@pytest.mark.parametrize("between", ["pass", "print(critic)", "critic.train()"])
def test_model_that_is_trained_beside_a_wrapped_one(between: str) -> None:
    program = write(between=between)
    (finding,) = lint(program)
    assert (finding.code, finding.severity) == ("DDP015", "warning")
    assert lines_of([finding], "DDP015") == find_marked(program)


@pytest.mark.right
@pytest.mark.parametrize(
    "program",
    [
        write(between="if critic is not None:\n        critic = DDP(critic)"),
        write(between="critic = share(critic)"),
        write(between="share(critic)"),
        write(wrap="maker = DDP(Critic(critic))"),
        write(wrap="maker.critic = critic\n    maker = DDP(maker)"),
        write(wrap="maker = DDP(torch.nn.ModuleList([maker, critic]))"),
        write(wrap="pair = torch.nn.ModuleDict({'maker': maker, 'critic': critic})\n    maker = DDP(maker)"),
        write(reduced="for p in critic.parameters():\n                dist.all_reduce(p.grad)"),
        "import horovod.torch as hvd\n" + write(),
    ],
)
def test_model_that_is_wrapped_held_or_reduced_is_right(program: str) -> None:
    assert not lines_of(lint(program), "DDP015")


@pytest.mark.right
def test_model_without_an_optimizer_of_its_own_is_right() -> None:
    program = write().replace("torch.optim.Adam(critic.parameters())", "torch.optim.Adam(maker.parameters())")
    assert not lines_of(lint(program), "DDP015")


@pytest.mark.right
def test_model_that_is_called_without_gradients_is_right() -> None:
    called = "with torch.no_grad():\n                loss = critic(made.detach()).mean()"
    program = write().replace("loss = critic(made.detach()).mean()", called)
    assert not lines_of(lint(program), "DDP015")
