"""Corrections are code for their place, with its own names, where the line is a whole statement."""

from __future__ import annotations

import ast

import pytest

from ddpdoctor_checks.lint.rewriting import find_call, name_target, read_line, rewrite, set_keyword
from tests.lint.judging import lint

SETUP = """
from torch.utils.data import DataLoader
dist.init_process_group("nccl")
model = DDP(torch.nn.Linear(2, 2).cuda())
images = torchvision.datasets.MNIST("x")
{before}
{loader}
for epoch in range(9):
    for i, (x, y) in enumerate(batches):
        loss = {call}(x).sum()
        loss.backward()
dist.destroy_process_group()
"""


def correct(text: str, code: str) -> str | None:
    """Return the code of the correction of one finding."""
    (finding,) = [each for each in lint(text, head="import torch, torchvision\nimport torch.distributed as dist\n"
                                        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                                        "from torch.utils.data.distributed import DistributedSampler\n")
                  if each.code == code]  # fmt: skip
    return finding.fix[0].code


def test_sampler_of_the_place_is_told_the_epoch() -> None:
    text = SETUP.format(
        before="parts = DistributedSampler(images)",
        loader="batches = DataLoader(images, 32, sampler=parts)",
        call="model",
    )
    assert correct(text, "DAT002") == (
        "for epoch in range(epochs):\n    parts.set_epoch(epoch)\n    for i, (x, y) in enumerate(batches):"
    )
    inline = SETUP.format(
        before="", loader="batches = DataLoader(images, 32, sampler=DistributedSampler(images))", call="model"
    )
    assert "\n    batches.sampler.set_epoch(epoch)\n" in str(correct(inline, "DAT002"))


def test_loader_of_the_place_gets_a_sampler() -> None:
    text = SETUP.format(
        before="", loader="batches = DataLoader(images, batch_size=32, shuffle=True)", call="model"
    )
    assert correct(text, "DAT001") == (
        "sampler = DistributedSampler(images, shuffle=True)\n"
        "batches = DataLoader(images, batch_size=32, sampler=sampler)\n"
        "for epoch in range(epochs):\n    sampler.set_epoch(epoch)"
    )
    over_lines = text.replace("DataLoader(images", "DataLoader(\n    images")
    assert "loader = DataLoader(dataset" in str(correct(over_lines, "DAT001"))  # an example


def test_wrapper_of_the_place_is_called() -> None:
    text = SETUP.format(
        before="parts = DistributedSampler(images)",
        loader="batches = DataLoader(images, 32, sampler=parts)",
        call="model.module",
    )
    assert correct(text, "DDP005") == "loss = model(x).sum()"


def test_save_and_load_of_the_place() -> None:
    start = "dist.init_process_group('nccl')\ntorch.cuda.set_device(0)\nnet = torch.nn.Linear(2, 2)\n"
    saved = f"{start}torch.save(net.state_dict(), 'last.pt')\n"
    assert correct(saved, "CKP001") == (
        "if dist.get_rank() == 0:\n    torch.save(net.state_dict(), 'last.pt.tmp')\n"
        "    os.replace('last.pt.tmp', 'last.pt')\ndist.barrier()"
    )
    named = f"{start}path = 'a.pt'\ntorch.save(net.state_dict(), path)\n"
    assert "\n    os.replace(path + '.tmp', path)\n" in str(correct(named, "CKP001"))
    loaded = f"{start}net.load_state_dict(torch.load(args.start, weights_only=True))\n"
    assert correct(loaded, "CKP003") == (
        "net.load_state_dict(torch.load(args.start, weights_only=True, map_location='cpu'))"
    )


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("x = f(1, a=2)", "x = f(1, a=3)"),
        ("if f():", "if f(a=3):\n    pass"),
        ("x = f(", "example"),
        ("f(f(1))", "example"),
        ("x = 1; f()", "example"),
        ("x = '\0'", "example"),
        ("(" * 5000, "example"),
    ],
)
def test_line_is_changed_or_an_example_is_given(text: str, after: str) -> None:
    assert rewrite(text, ("f",), lambda call: set_keyword(call, "a", "3"), "example") == after


def test_targets_and_calls() -> None:
    assert name_target(read_line("self.x = f()")) == "self.x"
    assert name_target(read_line("a, b = f()")) is None
    assert name_target(read_line("f()")) is None
    call = find_call(read_line("y = m.step(1)"), "step")
    assert isinstance(call, ast.Call)
