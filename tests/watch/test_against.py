"""Jobs beside their reference, as strangers write them: what agrees, what differs and by what, and what abstains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.watch.injecting import write
from tests.watch.launching import doctor, environ, finish, start

HEAD = """
    import os, sys, torch, torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn
    fault = sys.argv[1]
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
"""
TAIL = """
    dist.destroy_process_group()
"""
WRAPPED = """
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    if fault == "refuses" and world < 2:
        raise ValueError("this script needs several ranks")
    if fault != "unseeded":
        torch.manual_seed(0)
    given = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(160, 6, generator=given), torch.randint(0, 3, (160,), generator=given))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    parts = [nn.Linear(6, 16), nn.Dropout(0.3 if fault == "dropout" else 0.0), nn.Tanh(), nn.Linear(16, 3)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*parts))
    rate = 0.1 * world if fault == "rate" else 0.1
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, reduction="sum" if fault == "sum" else "mean")
        loss.backward()
        optimizer.step()
"""
BY_HAND = """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * world if fault == "rate" else 0.1)
    for step in range(10):
        given = torch.Generator().manual_seed(step)
        x = torch.randn(12, 6, generator=given)
        y = x.sum(1, keepdim=True)
        if fault == "order":
            order = torch.randperm(36, generator=torch.Generator().manual_seed(step + 50 * (world > 1)))
            x = torch.arange(36.0).repeat(6, 1).t()[order][:12] / 36
            y = x.sum(1, keepdim=True)
        mine = slice(rank * 12 // world, (rank + 1) * 12 // world)
        F.mse_loss(model(x[mine]), y[mine]).backward()
        for place, each in enumerate(model.parameters()):
            dist.all_reduce(each.grad)
            if fault != "undivided" and (fault != "one" or place != 2):
                each.grad /= world
        optimizer.step()  # STEP
        optimizer.zero_grad()
"""
SHARDED = """
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(31, 7), nn.Linear(7, 9), nn.LayerNorm(9), nn.Linear(9, 31))
    for part in model:
        fully_shard(part)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(9):
        tokens = torch.randint(1, 31, (12, 5), generator=torch.Generator().manual_seed(step)).chunk(world)[rank]
        logits = model(tokens[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(logits, tokens[:, 1:].flatten())
        (loss / world if fault == "twice" else loss).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
TENSOR_PARALLEL = """
    class Enter(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.view_as(x)
        @staticmethod
        def backward(context, gradient):
            gradient = gradient.contiguous()
            if fault != "backward":
                dist.all_reduce(gradient)
            return gradient
    class Leave(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            x = x.clone()
            dist.all_reduce(x)
            return x
        @staticmethod
        def backward(context, gradient):
            return gradient
    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            up, down = nn.Linear(8, 12, bias=False), nn.Linear(12, 8, bias=False)
            self.up = nn.Parameter(up.weight.detach().chunk(world, 0)[rank].clone())
            self.down = nn.Parameter(down.weight.detach().chunk(world, 1)[rank].clone())
        def forward(self, x):
            return Leave.apply(F.linear(F.relu(F.linear(Enter.apply(x), self.up)), self.down))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), Split(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = torch.Generator().manual_seed(1)
    for step in range(9):
        x, y = torch.randn(10, 5, generator=given), torch.randint(0, 3, (10,), generator=given)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
STYLES = {"ddp": WRAPPED, "hand": BY_HAND, "fsdp": SHARDED, "tp": TENSOR_PARALLEL}


def compare(
    folder: Path, style: str, fault: str, ranks: int = 2, *options: str
) -> tuple[dict[str, Any], str]:
    """Return the report of a job with its reference, and what was printed."""
    write(folder, HEAD + STYLES[style] + TAIL)
    words = doctor(
        folder, "--against", "1", *options, "--standalone", "--nproc", str(ranks), "train.py", fault
    )
    ended = finish(start(words, folder, folder, env=environ(folder, OMP_NUM_THREADS="1")), folder)
    told = " ".join(ended.stderr.decode().split())
    assert ended.code == 0, told
    report: dict[str, Any] = json.loads((folder / "run" / "report.json").read_text())
    return report, told


def find(report: dict[str, Any]) -> dict[str, Any] | None:
    return next((each for each in report["findings"] if each["code"] == "NUM009"), None)


LONG = pytest.mark.long
RIGHT = [("ddp", 2), ("ddp", 3), ("hand", 2), ("hand", 3), ("tp", 2)]


@pytest.mark.parametrize(
    ("style", "ranks"),
    [pytest.param("fsdp", 3, marks=LONG), *[pytest.param(*case, marks=LONG) for case in RIGHT]],
)
def test_what_is_right_agrees(tmp_path: Path, style: str, ranks: int) -> None:
    report, told = compare(tmp_path, style, "none", ranks)
    assert find(report) is None
    assert "agree with the reference on 1 rank" in told, told
    assert "files that the script writes in these steps are overwritten" in told
    (reference,) = report["evidence"]["references"]
    assert len(reference["steps"]) >= 4
    first = reference["steps"][0]
    assert first["samples"]["shared"] == first["samples"]["job_distinct"] > 0
    assert reference["widened"] == (ranks if style == "ddp" else 1)


CASES = [
    ("hand", "undivided", "scale", 2.0, "they are summed across ranks and not divided"),
    ("hand", "one", "scale of some", 2.0, "Gradients of 2.weight are 2.00x"),
    ("hand", "rate", "learning rate", 2.0, "it depends on the number of ranks"),
    ("hand", "order", "data order", None, "in another order than the reference"),
    ("ddp", "sum", "scale", 0.5, "the loss of a rank is a sum over its samples"),
    ("ddp", "rate", "learning rate", 2.0, "it follows the larger global batch"),
    (
        "fsdp",
        "twice",
        "scale",
        0.5,
        "divided by the number of ranks, and the mean across ranks divides it again",
    ),
    ("tp", "backward", "not reduced", None, "Gradients of 0.weight and 0.bias differ between ranks"),
]


@pytest.mark.parametrize(
    ("style", "fault", "cause", "factor", "words"),
    [CASES[0], *[pytest.param(*case, marks=LONG) for case in CASES[1:]]],
)
def test_what_differs_first_is_named(
    tmp_path: Path, style: str, fault: str, cause: str, factor: float | None, words: str
) -> None:
    report, told = compare(tmp_path, style, fault)
    found = find(report)
    assert found is not None, told
    assert (found["details"]["cause"], found["details"]["step"]) == (cause, 1)
    assert found["details"]["factor"] == (None if factor is None else pytest.approx(factor, rel=1e-5))
    assert words in found["message"]
    follows = (style, cause) == ("ddp", "learning rate") or cause == "data order"
    assert found["severity"] == ("info" if follows else "warning")
    assert found["where"][0]["file"] == "train.py"
    if style == "hand":
        lines = (tmp_path / "train.py").read_text().splitlines()
        reduces = cause.startswith("scale")  # it is what the program does with the sums
        assert ("dist.all_reduce(" if reduces else "# STEP") in lines[found["where"][0]["line"] - 1]


ABSTAINING = [
    ("unseeded", "initialized with different random numbers"),
    ("dropout", "the forward pass draws random numbers"),
    ("refuses", "ended before its first optimizer step with ValueError: this script needs several ranks"),
]


@pytest.mark.long
@pytest.mark.parametrize(("fault", "words"), ABSTAINING)
def test_what_cannot_be_compared_is_said_and_is_no_alarm(tmp_path: Path, fault: str, words: str) -> None:
    report, told = compare(tmp_path, "ddp", fault)
    assert find(report) is None
    assert words in told, told
    (row,) = [each for each in report["checks"] if each["id"] == "training.against"]
    assert row["status"] == "unknown"


@pytest.mark.long
def test_arguments_of_the_reference_come_behind_those_of_the_script(tmp_path: Path) -> None:
    write(tmp_path, "import sys, os\nprint('given', os.environ['WORLD_SIZE'], *sys.argv[1:])" + STEPS)
    words = doctor(
        tmp_path, "--against", "1", "--against-args", "--b 'c d'", "--nproc", "2", "train.py", "--a"
    )
    ended = finish(start(words, tmp_path, tmp_path, env=environ(tmp_path)), tmp_path)
    assert ended.code == 0
    assert ended.stdout.decode().splitlines() == ["given 2 --a"] * 2
    assert "overwritten" not in ended.stderr.decode()  # where they go was chosen
    logs = list((tmp_path / "run" / "reference" / "logs").glob("*stdout.log"))
    assert any("given 1 --a --b c d" in each.read_text() for each in logs)


STEPS = """
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--against", "0", "train.py"), "not a whole number of at least 1"),
        (("--against-args", "--tp 1", "train.py"), "--against-args needs --against"),
        (("--against", "1", "--no-watch", "train.py"), "sampling is off"),
        (("--against", "1", "--", "python", "train.py"), "a command after -- launches its own"),
    ],
)
def test_options_that_compare_nothing_are_refused(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    write(tmp_path, "pass")
    ended = finish(start(doctor(tmp_path, *words), tmp_path, tmp_path), tmp_path)
    assert ended.code == 2
    assert told in " ".join(ended.stderr.decode().split())
