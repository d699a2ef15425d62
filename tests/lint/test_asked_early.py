"""The rank is asked for before there is a process group, by a function that then says 0 on every rank."""

from __future__ import annotations

import pytest

from tests.lint.judging import find_marked, lines_of, lint

HELPERS = """
def world():
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()
def my_rank():
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
def start(backend="gloo"):
    {start}
def main(config):
    {before}
    start()
    {after}
main({{}})
dist.destroy_process_group()
"""
START = "dist.init_process_group(backend)"
BOTH = "rank, size = world()  # here"
ALONE = "rank = my_rank()  # here"
SAMPLER = "sampler = DistributedSampler(data, num_replicas=size, rank=rank)\n    sampler.set_epoch(0)"

MAKER = """
def start(port=29500):
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size(), dist.get_rank()
    try:
        size, rank = int(os.environ["SLURM_NTASKS"]), int(os.environ["SLURM_PROCID"])
    except KeyError:
        size, rank = 1, 0
        return size, rank
    try:
        dist.init_process_group("nccl", rank=rank, world_size=size)
    except RuntimeError:
        size, rank = 1, 0
    return size, rank
def main():
"""
"""Its first call makes the group, and says what it is given there."""


def code(before: str, after: str, start: str = START) -> str:
    return HELPERS.format(before=before, after=after, start=start)


@pytest.mark.wrong
@pytest.mark.parametrize(
    "text",
    [
        code(BOTH, SAMPLER),
        code(ALONE, "torch.manual_seed(config['seed'] + rank)"),
        code(ALONE, "if rank == 0:\n        print('begin')"),
        code(f"import yaml\n    config = yaml.safe_load(open('a'))\n    {ALONE}", "shard(data, rank)"),
        code(ALONE, "shard(data, rank)").replace(
            "return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0",
            "rank = 0\n    if dist.is_initialized():\n        rank = dist.get_rank()\n    return rank",
        ),
        code(ALONE, "shard(data, rank)", f"if not dist.is_initialized():\n        {START}"),
    ],
)
def test_number_of_a_single_process_is_used_by_all_ranks(text: str) -> None:
    findings = lint(text)
    assert [(each.code, each.severity) for each in findings if each.code == "ENV019"] == [
        ("ENV019", "warning")
    ]
    assert lines_of(findings, "ENV019") == find_marked(text)


@pytest.mark.right
@pytest.mark.parametrize(
    "text",
    [
        code("pass", f"{BOTH}\n    {SAMPLER}"),
        code(BOTH, f"{BOTH}\n    {SAMPLER}"),
        code(ALONE, "print(rank)"),
        code(ALONE, "pass"),
        code(f"torch.manual_seed(0 + my_rank())\n    {ALONE}\n    shard(data, rank)", "pass"),
        code(f"launch(config)\n    {ALONE}", "shard(data, rank)"),
        code(ALONE, "shard(data, rank)", "pass"),
        code(ALONE, "shard(data, rank)")
        .replace("main({})", f"{START}\nmain({{}})")
        .replace("    start()\n", ""),
        code("rank = int(os.environ['RANK'])", "shard(data, rank)"),
        MAKER + "    rank, size = start()\n    shard(data, rank)\nmain()\n",
    ],
)
def test_number_is_asked_for_in_time_or_not_used(text: str) -> None:
    assert "ENV019" not in {each.code for each in lint(text)}
