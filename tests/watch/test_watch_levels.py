"""How much is looked at in a training: levels, the share of the time, and the bytes that are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.watch.injecting import Journal, python
from tests.watch.test_run_options import run

START = """
    import sys, time, torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils.data import DataLoader, TensorDataset

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=int(sys.argv[1]))
    torch.manual_seed(0)

    kept = []

    def train(model, steps, size):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept.append(optimizer)
        for epoch in range(2):
            for batch, in DataLoader(TensorDataset(torch.randn(4 * steps, size)), batch_size=4):
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
"""
SMALL = (
    START
    + """
    train(torch.nn.Linear(3, 2), 20, 3)
"""
)
LOOKED = ("tensors", "step", "batch", "epoch", "watching")


def watch(folder: Path, source: str, level: str | None = None, ranks: int = 2) -> Journal:
    variables = {"DDPDOCTOR_WATCH_LEVEL": level} if level is not None else {}
    return python(folder, source, str(ranks), variables=variables).main()


def steps(journal: Journal) -> list[int]:
    return [event["step"] for event in journal.all("step")]


@pytest.mark.parametrize(
    ("level", "kinds", "looks"),
    [
        ("off", set(), []),
        ("light", {"tensors", "step", "epoch", "watching"}, [1, 2, 4, 8, 16, 32, 41]),
        pytest.param("normal", set(LOOKED), [1, 2, 4, 8, 16, 32, 41], marks=pytest.mark.long),
        ("deep", set(LOOKED), list(range(1, 42))),
        (None, set(LOOKED), [1, 2, 4, 8, 16, 32, 41]),
        pytest.param("nonsense", set(LOOKED), [1, 2, 4, 8, 16, 32, 41], marks=pytest.mark.long),
    ],
)
def test_a_level_decides_what_is_looked_at(
    tmp_path: Path, level: str | None, kinds: set[str], looks: list[int]
) -> None:
    seen = watch(tmp_path, SMALL, level)
    assert {kind for kind in LOOKED if seen.all(kind)} == kinds
    assert steps(seen) == looks
    assert seen.all("loader")  # what makes ranks leave a loop is told at every level


@pytest.mark.long
def test_deep_ends_with_the_usual_steps(tmp_path: Path) -> None:
    seen = watch(tmp_path, START + "\n    train(torch.nn.Linear(1, 1), 1100, 1)\n", "deep")
    looked = steps(seen)
    assert looked[:1500] == list(range(1, 1501))
    assert looked[1500:] == [2048, 2201]


def test_looks_at_a_large_model_stay_within_their_share_and_say_so(tmp_path: Path) -> None:
    """A look at 80 MB costs more than these steps do: it is a large part of them until it is left out."""
    script = (
        START
        + """
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Parameter(torch.randn(20_000_000))
            self.few = torch.nn.Parameter(torch.randn(4))
        def forward(self, batch):
            return batch * self.few

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = sys.modules["ddpdoctor_watch.core.budget"]
    watch.GRACE_NS = 0
    for step in range(600):
        model(torch.ones(4)).sum().backward()
        optimizer.step()
        time.sleep(0.001)
    """
    )
    seen = watch(tmp_path, script)
    assert steps(seen)[:3] == [1, 2, 4]
    assert len(steps(seen)) < 10
    assert any("more than 1% of the time" in event["reason"] for event in seen.all("abstained"))


@pytest.mark.long
def test_many_ranks_share_the_bytes_of_an_hour(tmp_path: Path) -> None:
    """1,000 tensors on each of 64 ranks, looked at in each step: each tensor is listed while there is room."""
    script = (
        START
        + """
    model = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(500)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(140):
        for each in model.parameters():
            each.grad = torch.ones_like(each)
        optimizer.step()
    """
    )
    seen = watch(tmp_path, script, "deep", 64)
    assert len(steps(seen)) == 141
    size = seen.path.stat().st_size
    assert 64 * size < 50e6, size
    whole = [event["step"] for event in seen.all("step") if "each" in event]
    assert whole[:4] == [1, 2, 4, 8]
    assert whole[-1] == 141  # at the end is always told which tensors differ
    assert len(seen.one("tensors")["rows"]) == 1000


def test_evaluations_share_these_bytes(tmp_path: Path) -> None:
    """400 buffers on each of 256 ranks: 50 kB each time, of 180 kB that a rank has."""
    script = (
        START
        + """
    from torch.nn.parallel import DistributedDataParallel as DDP

    net = torch.nn.Sequential()
    for place in range(140):
        net.add_module("encoder_block_with_a_name_as_long_as_many_are_" + str(place), torch.nn.BatchNorm1d(2))
    model = DDP(net, broadcast_buffers=False, init_sync=False)
    for _ in range(64):
        model.train()
        model(torch.randn(4, 2))
        model.eval()
        model(torch.randn(4, 2))
    """
    )
    seen = watch(tmp_path, script, ranks=256)
    assert [event["index"] for event in seen.all("evaluation")][:2] == [1, 2]
    size = seen.path.stat().st_size
    assert 256 * size < 50e6, size


def test_a_step_that_raises_is_not_told_as_the_next_one(tmp_path: Path) -> None:
    script = (
        START
        + """
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            if kept.append(1) or len(kept) == 2:
                raise ArithmeticError("no step")

    model = torch.nn.Linear(3, 3)
    optimizer = Failing(model.parameters(), lr=0.1)
    for _ in range(5):
        try:
            optimizer.step()
        except ArithmeticError:
            pass
    """
    )
    assert steps(watch(tmp_path, script)) == [1, 4, 6]


def test_the_level_is_handed_to_the_job(tmp_path: Path) -> None:
    show = "import os; print(os.environ.get('DDPDOCTOR_WATCH_LEVEL'))"
    assert run(tmp_path, show, "--watch-level", "light").stdout == b"light\n"
    (tmp_path / "pyproject.toml").write_text('[tool.ddpdoctor.run]\nwatch_level = "off"\n')
    assert run(tmp_path, show).stdout == b"off\n"


def test_a_level_that_does_not_exist_is_refused_before_the_job(tmp_path: Path) -> None:
    ended = run(tmp_path, "open('ran', 'w')", "--watch-level", "lihgt")
    assert ended.code == 2
    assert b"there is no level 'lihgt'; choose from off, light, normal, deep" in ended.stderr
    assert b"try: light" in ended.stderr
    assert not (tmp_path / "ran").exists()


def test_the_end_says_what_looking_cost(tmp_path: Path) -> None:
    ended = run(tmp_path, SMALL.replace("sys.argv[1]", "2").replace("\n    ", "\n"))
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    (training,) = report["evidence"]["training"]
    lines = ended.stderr.decode().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("ddpdoctor ? saw 1 of 2 ranks (rank 0) · no verdict")  # the other is made up
    assert f"watching cost {training['share'] * 100:.2g} %" in ended.stderr.decode()
