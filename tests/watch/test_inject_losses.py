"""What a token counts for in a loss is read from autograd's graph: the mean, and what it is multiplied by."""

from __future__ import annotations

import json

import pytest

from tests.watch.injecting import INJECT, python

SCRIPT = """
    import json, sys, torch
    import torch.distributed, torch.nn.functional as F
    sys.path.insert(0, sys.argv[1])
    from ddpdoctor_watch.training import gathers, losses

    x = torch.randn(6, 5, requires_grad=True)
    y = torch.tensor([1, 2, -100, 3, -100, 0])
    z = torch.tensor([1, 2, 0, 3, 4, 0])
    mask = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    each = F.cross_entropy(x, z, reduction="none")

    def see(loss):
        losses.note_backward(loss, sys._getframe())
        return losses.take()[0]

    told = {
        "mean": see(F.cross_entropy(x, y)),
        "divided": see(F.cross_entropy(x, y) / 4),
        "weighed": see(F.cross_entropy(x, y) * torch.tensor(2.0)),
        "sum": see(F.cross_entropy(x, y, reduction="sum") / 8),
        "two": see(F.cross_entropy(x, y) + F.cross_entropy(x[:2], y[:2])),
        "other": see((x ** 2).mean()),
        "learned": see(F.cross_entropy(x, y) * x.sum()),
        "masked": see((each * mask).sum() / mask.sum() / 2),
        "chosen": see(each[mask.bool()].mean()),
        "gathered": see(-(x.log_softmax(-1).gather(-1, z[:, None]).squeeze(-1) * mask).sum() / 8),
        "advantages": see((each * torch.tensor([0.5, -1.0, 2.0, 0.1, 1.0, 3.0])).mean()),
    }
    gathers.state.packed = True
    told["packed"] = see(F.cross_entropy(x, y))
    print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[float]]]:
    done = python(tmp_path_factory.mktemp("losses"), SCRIPT, str(INJECT))
    assert done.returncode == 0, done.stderr
    found: dict[str, list[list[float]]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("case", "rows"),
    [
        ("mean", [[4, 0.25]]),
        ("divided", [[4, 0.0625]]),
        ("weighed", [[4, 0.5]]),
        ("sum", [[4, 0.125]]),
        ("two", [[4, 0.25], [2, 0.5]]),
        ("other", []),
        ("learned", []),
        ("masked", [[4, 0.125]]),
        ("chosen", [[4, 0.25]]),
        ("gathered", [[4, 0.125]]),
        ("advantages", []),
        ("packed", []),
    ],
)
def test_weights_of_a_loss(told: dict[str, list[list[float]]], case: str, rows: list[list[float]]) -> None:
    assert told[case] == rows
