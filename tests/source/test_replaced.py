"""Statements that put another module into a model that exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.source.files.reading import parse_script
from ddpdoctor.source.files.replaced import find_replacements
from ddpdoctor.watch.readers.records import Shortener


def read(text: str) -> list[tuple[int, str]]:
    script = parse_script(f"import torch.distributed\n{text}".encode(), "a.py")
    return [(each.line - 1, each.text) for each in find_replacements([script], {"head"})]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("model.head = nn.Linear(8, 3)", [(1, "model.head = nn.Linear(8, 3)")]),
        ("def tune(net):\n    if net:\n        net.module.head = make()", [(3, "net.module.head = make()")]),
        ("setattr(model, 'head', layer)", [(1, "setattr(model, 'head', layer)")]),
        ("model.add_module('head', layer)", [(1, "model.add_module('head', layer)")]),
        ("try:\n    pass\nexcept ValueError:\n    model.head = layer", [(4, "model.head = layer")]),
        ("class Net:\n    def __init__(self):\n        self.head = nn.Linear(8, 2)", []),
        ("model.head = None", []),
        (
            "model.headers = make()\nhead = make()\nmodel.tail.head()\nsetattr(model, 'tail', 1)\nsetattr()",
            [],
        ),
        ("model.head: object", []),
    ],
)
def test_statements_that_replace_a_module(text: str, found: list[tuple[int, str]]) -> None:
    assert read(text) == found


def test_a_script_is_read_from_a_line_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch.distributed\n\nmodel.head = torch.nn.Linear(8, 3)\n")
    (found,) = Shortener(tmp_path).find_replacements([[str(script), 3, "<module>"]], {"head"})
    assert (found.file, found.line, found.source) == ("train.py", 3, "model.head = torch.nn.Linear(8, 3)")
    assert Shortener(tmp_path).find_replacements(None, {"head"}) == ()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("def freeze(part):\n    for each in part.parameters():\n        each.requires_grad = False", [3]),
        ("model.stem.requires_grad_(False)", [1]),
        ("model.stem.requires_grad_(requires_grad=False)", [1]),
        ("model.stem.requires_grad_(epoch > 3)\nother.requires_grad = trains", [1, 2]),
        ("model.requires_grad_()\nmodel.requires_grad_(True)\nmodel.weight.requires_grad = True", []),
        ("class Net:\n    def __init__(self):\n        self.stem.requires_grad_(False)", []),
        ("requires_grad = False\nmodel = Model(requires_grad=False)", []),
        (
            "model.freeze_feature_encoder()\nmodel.unfreeze()\nfreezer()\nset_requires_grad(net, False)",
            [1, 3, 4],
        ),
        ("def freeze(part):\n    part.requires_grad_(False)\nfreeze(model)", [2]),
    ],
)
def test_statements_that_freeze_parameters(tmp_path: Path, text: str, lines: list[int]) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import torch.distributed\n{text}\n")
    found = Shortener(tmp_path).find_freezes([[str(script), 2, "<module>"]])
    assert [each.line - 1 for each in found] == lines
