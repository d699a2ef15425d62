"""What is told of functions that make the process group, and of programs in which nothing does."""

from __future__ import annotations

import pytest

from tests.lint.judging import ask, lint

SETUP = """
def init_distributed(args):
    args.rank = int(os.environ["RANK"])
{body}
"""
"""A function of a library: no file that is read calls it."""
JOIN = "    dist.init_process_group(args.backend)\n"


def codes(text: str) -> list[str]:
    """Return the codes of the findings of a script."""
    return [each.code for each in lint(text)]


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("ENV019", "    dist.barrier()\n" + JOIN),
        ("ENV019", JOIN + JOIN),
        ("ENV014", "    torch.autograd.set_detect_anomaly(True)\n" + JOIN),
        ("ENV019", "    if args.slurm:\n    " + JOIN + "    else:\n        dist.barrier()\n    " + JOIN),
    ],
)
def test_function_that_nobody_calls_is_judged_where_it_makes_the_group(code: str, body: str) -> None:
    assert codes(SETUP.format(body=body)) == [code]


@pytest.mark.right
@pytest.mark.parametrize(
    "body",
    [
        JOIN + "    dist.barrier()\n",
        "    dist.barrier()\n    if not dist.is_initialized():\n    " + JOIN,
        JOIN + "    dist.destroy_process_group()\n" + JOIN,
        "    if args.slurm:\n    " + JOIN + "    else:\n    " + JOIN,
        "    world = dist.get_world_size()\n    dist.destroy_process_group()\n" + JOIN,
        "    torch.autograd.set_detect_anomaly(args.debug)\n" + JOIN,
        "    torch.autograd.set_detect_anomaly(True)\n",
    ],
)
def test_function_that_nobody_calls_may_be_right(body: str) -> None:
    assert codes(SETUP.format(body=body)) == []


@pytest.mark.right
def test_what_a_test_of_groups_does_may_have_to_fail() -> None:
    assert codes(SETUP.format(body=JOIN + JOIN).replace("init_distributed", "test_second_group")) == []


GUARDED = """
import {package}
if __name__ == "__main__":
    {before}
    model = DDP(torch.nn.Linear(8, 1))
    {after}
"""


@pytest.mark.wrong
def test_a_package_called_later_makes_no_group_in_time() -> None:
    (finding,) = lint(GUARDED.format(package="studio", before="pass", after="studio.show(model)"))
    assert finding.code == "ENV019"


@pytest.mark.right
def test_a_package_called_before_may_make_the_group() -> None:
    text = GUARDED.format(package="studio", before="studio.begin()", after="pass")
    assert codes(text) == []
    assert ["studio" in each.message for each in ask(text)] == [True]


SPAWNED = """
import {package}
def worker(rank, size):
    {first}
    model = DDP(torch.nn.Linear(8, 1))
def main():
    mp.spawn(worker, args=(2,), nprocs=2)
if __name__ == "__main__":
    main()
"""


@pytest.mark.wrong
def test_a_spawned_function_needs_a_group_of_its_own() -> None:
    (finding,) = lint(SPAWNED.format(package="numpy", first="torch.manual_seed(1)"))
    assert (finding.code, "needs the process group" in finding.message) == ("ENV019", True)


@pytest.mark.right
@pytest.mark.parametrize(
    ("package", "first"),
    [
        ("numpy", 'dist.init_process_group("gloo", rank=rank, world_size=size)'),
        ("studio", "studio.begin(rank)"),
    ],
)
def test_a_spawned_function_may_get_its_group(package: str, first: str) -> None:
    assert "ENV019" not in codes(SPAWNED.format(package=package, first=first))


EPOCHS = """
from torch.utils.data import DataLoader
{others}
dist.init_process_group("nccl")
sampler = DistributedSampler(images)
loader = DataLoader(images, batch_size=8, sampler=sampler)
{loop}
    for x, y in loader:
        loss_of(x, y).backward()
    epoch += 1
"""
OTHER = "class Repeated:\n    def set_epoch(self, epoch):\n        {body}\n"


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("others", "loop"),
    [
        (OTHER.format(body="self.epoch = epoch"), "for epoch in range(8):"),
        ("# set_epoch is for later", "epoch = 0\nwhile epoch < epochs:"),
        (OTHER.format(body="super().set_epoch(epoch)"), "while epoch < epochs:"),
    ],
)
def test_a_method_that_could_be_called_sets_no_epoch(others: str, loop: str) -> None:
    assert codes(EPOCHS.format(others=others, loop=loop)) == ["DAT002"]


@pytest.mark.right
@pytest.mark.parametrize(
    ("others", "loop"),
    [
        (OTHER.format(body="self.sampler.set_epoch(epoch)"), "for epoch in range(8):"),
        ("", "while epoch < epochs:\n    sampler.set_epoch(epoch)"),
    ],
)
def test_an_epoch_that_may_be_set(others: str, loop: str) -> None:
    assert "DAT002" not in codes(EPOCHS.format(others=others, loop=loop))


STARTED_BY_OTHERS = EPOCHS.format(others="import engine", loop="for epoch in range(8):").replace(
    'dist.init_process_group("nccl")', "ranks = engine.start()"
)


@pytest.mark.wrong
def test_a_sampler_with_numbers_of_its_own_is_of_a_job_of_several_ranks_whoever_starts_it() -> None:
    sampler = "DistributedSampler(images, num_replicas=ranks.size, rank=ranks.number)"
    source = STARTED_BY_OTHERS.replace("DistributedSampler(images)", sampler)
    assert codes(source) == ["DAT002"]
    assert codes(source.replace("    for x", "    sampler.set_epoch(epoch)\n    for x")) == []


TWICE = """
def setup():
    if {test}:
        return dist.get_rank()
    dist.init_process_group("gloo")
    dist.init_process_group("gloo")
    return dist.get_rank()
def ready():
    return dist.is_available() and dist.is_initialized()
def main():
    print(setup())
    dist.barrier()
    dist.destroy_process_group()
main()
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    "test", ["dist.is_initialized()", "dist.is_available() and dist.is_initialized()", "ready()"]
)
def test_a_function_that_makes_the_group_goes_on_where_it_asks_for_one(test: str) -> None:
    (finding,) = [each for each in lint(TWICE.format(test=test)) if each.code == "ENV019"]
    assert "a second" in finding.message
