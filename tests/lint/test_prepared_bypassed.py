"""Training that goes around what Accelerate prepared (DDP005)."""

from __future__ import annotations

import pytest

from tests.lint.judging import assert_found, lines_of, lint

PREPARED = """
from accelerate import Accelerator

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.head(x)

    def compute_loss(self, x):
        return self(x).mean()

def main(batches):
    accelerator = Accelerator()
    net = Net()
    {before}
    optimizer = torch.optim.Adam(net.parameters())
    model, optimizer = accelerator.prepare(net, optimizer)
    {then}
    for x in batches:
        loss = {loss}
        accelerator.backward(loss)
        {reduced}
        optimizer.step()
        optimizer.zero_grad()

main(load())
"""


def write(loss: str, *, before: str = "pass", then: str = "pass", reduced: str = "pass") -> str:
    return PREPARED.format(loss=loss, before=before, then=then, reduced=reduced)


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("loss", "then"),
    [
        ("accelerator.unwrap_model(model).compute_loss(x)", "pass"),
        ("model.module.compute_loss(x)", "pass"),
        ("bare(x).mean()", "bare = accelerator.unwrap_model(model)"),
        ("bare(x).mean()", "bare = model.module if type(model) == DDP else model"),
        ("bare(x).mean()", "bare = model if type(model) is not DDP else model.module"),
        ("net(x).mean()", "pass"),
    ],
)
def test_what_was_prepared_is_unwrapped_and_trained(loss: str, then: str) -> None:
    assert_found(write(f"{loss}  # here", then=then), "DDP005", "warning")


@pytest.mark.right
@pytest.mark.parametrize(
    "program",
    [
        write("model(x).mean()"),
        write("model(x).mean() + accelerator.unwrap_model(model).compute_loss(x)"),
        write("accelerator.unwrap_model(model).compute_loss(x)", before="print('DeepSpeed')"),
        write("accelerator.unwrap_model(model).compute_loss(x)", before="net.requires_grad_(False)"),
        write(
            "accelerator.unwrap_model(model).compute_loss(x)",
            reduced="for p in net.parameters():\n            p.grad = accelerator.reduce(p.grad)",
        ),
        write("model(x).mean()", then="print(accelerator.unwrap_model(model).compute_loss(load()))"),
        write("net(x).mean()", then="net = model"),
        write(
            "model(x).mean()", then="with torch.no_grad():\n        accelerator.unwrap_model(model)(load())"
        ),
    ],
)
def test_what_was_prepared_and_is_trained_as_such_is_right(program: str) -> None:
    assert not lines_of(lint(program), "DDP005")
