"""Parts of a model that are frozen after it was wrapped (DDP006)."""

from __future__ import annotations

import pytest

from tests.lint.judging import assert_found, lines_of, lint

PROGRAM = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(2, 2)
        self.head = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.body(x))

def main(args):
    dist.init_process_group("gloo")
    net = Net()
    {before}
    model = DDP(net{options})
    {after}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in load():
        {within}
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()

main(parse())
"""
FREEZE = "for p in model.module.body.parameters():\n        p.requires_grad = False"


def write(*, before: str = "pass", options: str = "", after: str = "pass", within: str = "pass") -> str:
    return PROGRAM.format(before=before, options=options, after=after, within=within)


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("after", "severity"),
    [
        (f"{FREEZE}  # here", "error"),
        ("model.module.body.requires_grad_(False)  # here", "error"),
        ("net.body.requires_grad_(False)  # here", "error"),
        ("if args.probe:\n        net.body.requires_grad_(False)  # here", "warning"),
    ],
)
def test_part_that_is_frozen_behind_the_wrap(after: str, severity: str) -> None:
    assert_found(write(after=after), "DDP006", severity)


@pytest.mark.right
@pytest.mark.parametrize(
    "program",
    [
        write(before="net.body.requires_grad_(False)"),
        write(before="net.body.requires_grad_(False)", after=FREEZE),
        write(options=", find_unused_parameters=True", after=FREEZE),
        write(options=", find_unused_parameters=args.unused", after=FREEZE),
        write(options=", **vars(args)", after=FREEZE),
        write(options=", static_graph=True", after=FREEZE),
        write(after=f"{FREEZE}\n    model = DDP(net)"),
        write(after="if args.test:\n        net.body.requires_grad_(False)\n        return evaluate(model)"),
        write(
            within="model.module.body.requires_grad_(False)\n        model.module.body.requires_grad_(True)"
        ),
        write(
            after=FREEZE,
            within="for p in model.module.body.parameters():\n            p.requires_grad = args.on",
        ),
    ],
)
def test_part_that_the_wrapper_does_not_wait_for_is_right(program: str) -> None:
    assert not lines_of(lint(program), "DDP006")
