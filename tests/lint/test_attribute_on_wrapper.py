"""Attributes of the model that are asked of the wrapper."""

from __future__ import annotations

import pytest

from ddpdoctor_checks.lint.wrapping.attribute_on_wrapper import OF_WRAPPER
from tests.lint.judging import assert_found, lint

SCRIPT = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 2)

    def encode(self, x):
        return self.head(x)

    def forward(self, x):
        return self.encode(x)

dist.init_process_group("gloo")
model = DDP(Net())
{use}
"""


@pytest.mark.wrong
@pytest.mark.parametrize("use", ["print(model.head)", "for x in []:\n    model.encode(x)"])
def test_attribute_of_the_model_is_told_at_its_line(use: str) -> None:
    assert_found(SCRIPT.format(use=f"{use}  # here"), "DDP014", "error")


@pytest.mark.right
@pytest.mark.parametrize(
    "use",
    [
        "print(model.module.head)",
        "model.head = model.module.head\nprint(model.head)",
        "print(model.training, model.parameters())",
        "if hasattr(model, 'head'):\n    print(model.head)",
        "print(model.module.head if isinstance(model, DDP) else model.head)",
        "model = model.module\nprint(model.head)",
    ],
)
def test_attribute_that_is_there_is_right(use: str) -> None:
    assert lint(SCRIPT.format(use=use)) == []


def test_names_of_the_wrapper_are_those_of_torch() -> None:
    from torch.nn.parallel import DistributedDataParallel

    names = {each for each in dir(DistributedDataParallel) if not each.startswith(("_", "register_"))}
    assert names <= OF_WRAPPER
