"""Noise that all ranks draw with one seed, for different samples; statistics of BatchNorm that are each rank's own."""

from __future__ import annotations

import pytest

from tests.lint.judging import ask, find_marked, lines_of, lint

NOISE = """\
from torch.utils.data import DataLoader
class Schedule:
    def __init__(self, steps, generator):
        self.steps, self.generator = steps, generator
    def corrupt(self, x):
        t = torch.randint(0, self.steps, {shape}{given})
        noise = torch.randn(x.shape, generator=self.generator)
        return x + noise, t
def train(args, schedule):
    data = torch.utils.data.TensorDataset(torch.load("x.pt"))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            {batch}
            loss = model(noisy, t).sum()
            loss.backward()
            optimizer.step()
def main(args):
    dist.init_process_group("gloo")
    {before}
    generator = {made}
    train(args, Schedule(50, generator))
    dist.destroy_process_group()
if __name__ == "__main__":
    main(argparse.ArgumentParser().parse_args())
"""


def _fill(**parts: str) -> str:
    whole = {
        "shape": "(len(x),)",
        "given": ", generator=self.generator",
        "batch": "noisy, t = schedule.corrupt(x)",
        "before": "pass",
        "made": "torch.Generator().manual_seed(args.seed)  # here",
    }
    return NOISE.format(**(whole | parts))


@pytest.mark.wrong
@pytest.mark.parametrize("seed", ["args.seed", "0", "args.seed + 1"])
def test_noise_of_one_seed_on_all_ranks(seed: str) -> None:
    text = _fill(made=f"torch.Generator().manual_seed({seed})  # here")
    (found,) = lint(text)
    assert (found.code, found.severity) == ("DAT006", "warning")
    assert lines_of([found], "DAT006") == find_marked(text)
    assert "train.py:" in found.details["drawn"]


@pytest.mark.right
@pytest.mark.parametrize(
    "parts",
    [
        {"made": "torch.Generator().manual_seed(args.seed + dist.get_rank())"},
        {"made": "torch.Generator()"},
        {"made": "make_generator(args)"},
        {"before": "own = torch.Generator(); own.manual_seed(dist.get_rank())"},
        {"batch": "noisy, t = x, 0; schedule.corrupt(x)"},
    ],
)
def test_noise_that_may_differ_or_is_not_trained_on(parts: dict[str, str]) -> None:
    text = _fill(**parts)
    assert [*lint(text), *ask(text)] == []


@pytest.mark.right
def test_one_number_for_all_samples_may_have_to_be_the_same() -> None:
    text = _fill(shape="(1,)").replace("x + noise", "x * 2")
    assert lint(text) == []


BUFFERS = """\
{table}
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = torch.nn.Linear(4, 4), torch.nn.{norm}(4)
    def forward(self, x):
        return self.norm(self.layer(x))
dist.init_process_group("gloo")
data = torch.utils.data.TensorDataset(torch.load("x.pt"))
sampler = DistributedSampler(data)
loader = torch.utils.data.DataLoader(data, batch_size=32, sampler=sampler)
model = DDP(Net(){given})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        model(x).sum().backward()
        optimizer.step()
    {after}
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("table", "given", "norm", "after", "found"),
    [
        ("", ", broadcast_buffers=False", "BatchNorm1d", "model.eval()", True),
        ("T = dict(broadcast_buffers=False)", ", **T", "BatchNorm1d", "model.eval()", True),
        ("T = {'broadcast_buffers': False}", ", **T", "BatchNorm1d", "model.eval()", True),
        ("", ", broadcast_buffers=True", "BatchNorm1d", "model.eval()", False),
        ("", ", broadcast_buffers=False", "LayerNorm", "model.eval()", False),
        ("", ", broadcast_buffers=False", "SyncBatchNorm", "model.eval()", False),
        ("", ", broadcast_buffers=False", "BatchNorm1d", "pass", False),
    ],
)
def test_wrapper_that_leaves_each_rank_its_statistics(
    table: str, given: str, norm: str, after: str, *, found: bool
) -> None:
    text = BUFFERS.format(table=table, given=given, norm=norm, after=after)
    seen = [each for each in lint(text) if each.code == "NUM002"]
    assert [(each.severity, each.role) for each in seen] == [("info", "advice")] * found
