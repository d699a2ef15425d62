"""Roles of ranks that stand in the source: samplers by a mesh (DAT009, DAT001), norms of shards (NUM007)."""

from __future__ import annotations

import pytest

from tests.lint.judging import find_marked, lines_of, lint

HEAD = """\
import os
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
"""
SAMPLED = """\
def main():
    mesh = init_device_mesh("cpu", ({shape}), mesh_dim_names=({names}))
    {before}
    data = TensorDataset(torch.load("x.pt"))
    sampler = DistributedSampler(data{given})  # here
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (x,) in DataLoader(data, batch_size=8, sampler=sampler):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    dist.destroy_process_group()
main()
"""
OF_MESH = ", num_replicas={mesh}.size(), rank={mesh}.get_local_rank()"


def sample(names: str, given: str = "", before: str = "pass", shape: str = "2, 2") -> str:
    """Fill in the program that samples by a mesh."""
    return SAMPLED.format(names=names, given=given, before=before, shape=shape)


WORLD = ", num_replicas=dist.get_world_size(), rank=dist.get_rank()"
VARIABLES = ', int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])'


@pytest.mark.wrong
@pytest.mark.parametrize(
    "text",
    [
        sample('"dp", "tp"'),
        sample('"dp_shard", "cp"'),
        sample('"pp", "dp"'),
        sample('"data", "tensor"', WORLD),
        sample('"dp", "tp"', VARIABLES),
        sample('"dp", "tp"', ", world, rank", "world, rank = dist.get_world_size(), dist.get_rank()").replace(
            "world, rank = dist.get_world_size(), dist.get_rank()",
            "world = dist.get_world_size(); rank = dist.get_rank()",
        ),
        sample('"dp", "tp"', OF_MESH.format(mesh='mesh["tp"]')),
        sample('"dp", "tp"', OF_MESH.format(mesh="peers"), 'peers = mesh["tp"]'),
        sample(
            '"dp", "tp"', ", dist.get_world_size(group), dist.get_rank(group)", 'group = mesh.get_group("tp")'
        ),
        sample('"dp", "tp"', shape="dist.get_world_size() // 2, 2"),
    ],
)
def test_sampler_that_shards_across_ranks_of_one_batch(text: str) -> None:
    findings = lint(text, head=HEAD)
    assert [(each.code, each.severity) for each in findings] == [("DAT009", "warning")]
    assert lines_of(findings, "DAT009") == find_marked(text, head=HEAD)


@pytest.mark.wrong
@pytest.mark.parametrize("mesh", ['mesh["replicate"]', 'mesh["shard"]'])
def test_sampler_that_leaves_a_data_parallel_dimension_out(mesh: str) -> None:
    text = sample('"replicate", "shard"', OF_MESH.format(mesh=mesh))
    findings = lint(text, head=HEAD)
    assert [(each.code, each.severity) for each in findings] == [("DAT001", "warning")]
    assert lines_of(findings, "DAT001") == find_marked(text, head=HEAD)


@pytest.mark.right
@pytest.mark.parametrize(
    "text",
    [
        sample('"replicate", "shard"'),
        sample('"dp", "tp"', OF_MESH.format(mesh='mesh["dp"]')),
        sample('"dp", "tp"', ', mesh.size(0), mesh.get_local_rank("dp")'),
        sample(
            '"dp", "tp"',
            ", dist.get_world_size(group), dist.get_rank(group)",
            'group = mesh["dp"].get_group()',
        ),
        sample('"dp", "tp"', shape="4, 1"),
        sample('"tp", "mine"'),  # what it stands for is not known
        sample('"replicate", "mine"', OF_MESH.format(mesh='mesh["mine"]')),
        sample('"dp", "ep"', OF_MESH.format(mesh='mesh["dp"]')),
        sample('"dp", "tp"', ", num_replicas=dp_size, rank=dp_rank", "dp_size, dp_rank = read_layout()"),
        sample('"dp_replicate", "dp_shard"', OF_MESH.format(mesh='mesh["dp_replicate", "dp_shard"]')),
        sample('"dp", *names'),
    ],
)
def test_sampler_by_the_dimensions_that_divide_the_batch(text: str) -> None:
    assert [(each.code, each.message) for each in lint(text, head=HEAD)] == []


CLIPPED = """\
def main():
    dist.init_process_group("gloo")
    model = {model}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        {clip}
        optimizer.step()
    dist.destroy_process_group()
main()
"""
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
LINEAR = "torch.nn.Linear(4, 2)"
SLICED = """\
class Sliced:
    def step(self, flat, max_norm):
        own = torch.empty(flat.numel() // dist.get_world_size())
        dist.reduce_scatter_tensor(own, flat)
        self.part.grad = own.div_(dist.get_world_size())
        {clip}
        self.inner.step()
"""


SLICE_BY_RANK = """\
class ByRank:
    def __init__(self):
        self.rank, self.world, self.size = dist.get_rank(), dist.get_world_size(), 4
    def own(self):
        return slice(self.rank * self.size, (self.rank + 1) * self.size)
    def take(self, flat):
        padded = torch.nn.functional.pad(flat, (0, self.size))
        return padded[self.rank * self.size : (self.rank + 1) * self.size]
    def head(self, flat):
        return flat[: self.size]
    def step(self, grad, max_norm):
        dist.all_reduce(grad)
        self.part.grad = {part}
        torch.nn.utils.clip_grad_norm_([self.part], max_norm)  # here
        self.inner.step()
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    "text",
    [
        CLIPPED.format(model=f"FSDP({LINEAR})", clip=f"{CLIP}  # here"),
        CLIPPED.format(
            model=f"FSDP({LINEAR}) if dist.get_world_size() > 1 else {LINEAR}", clip=f"{CLIP}  # here"
        ),
        CLIPPED.format(
            model=f"FSDP({LINEAR}, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)", clip=f"{CLIP}  # here"
        ),
        CLIPPED.format(
            model=f"fully_shard({LINEAR})",
            clip="torch.nn.utils.clip_grad_norm_([p.to_local() for p in model.parameters()], 1.0)  # here",
        ),
        CLIPPED.format(
            model=f"fully_shard({LINEAR})",
            clip="own = [p._local_tensor for p in model.parameters()]\n"
            "        torch.nn.utils.clip_grad_norm_(own, 1.0)  # here",
        ),
        SLICED.format(clip="torch.nn.utils.clip_grad_norm_([self.part], max_norm)  # here"),
        SLICED.format(clip="torch.nn.utils.clip_grad_norm_(self.part, max_norm)  # here"),
        SLICE_BY_RANK.format(part="grad[self.rank * self.size :][: self.size]"),
        SLICE_BY_RANK.format(part="grad[self.own()] / self.world"),
        SLICE_BY_RANK.format(part="self.take(grad / self.world).clone()"),
    ],
)
def test_norm_of_a_shard(text: str) -> None:
    findings = lint(text, head=HEAD)
    assert [(each.code, each.severity) for each in findings] == [("NUM007", "warning")]
    assert lines_of(findings, "NUM007") == find_marked(text, head=HEAD)


@pytest.mark.right
@pytest.mark.parametrize(
    "text",
    [
        CLIPPED.format(model=f"FSDP({LINEAR})", clip="model.clip_grad_norm_(1.0)"),
        CLIPPED.format(model=f"FSDP({LINEAR}, sharding_strategy=ShardingStrategy.NO_SHARD)", clip=CLIP),
        CLIPPED.format(model=f"FSDP({LINEAR}, sharding_strategy=choose())", clip=CLIP),
        CLIPPED.format(model=f"FSDP({LINEAR}) if os.environ.get('SHARD') else {LINEAR}", clip=CLIP),
        CLIPPED.format(model=f"fully_shard({LINEAR})", clip=CLIP),
        CLIPPED.format(model=f"torch.nn.parallel.DistributedDataParallel({LINEAR})", clip=CLIP),
        SLICED.format(clip="torch.nn.utils.clip_grad_norm_([self.other], max_norm)"),
        SLICED.format(clip="torch.nn.utils.clip_grad_norm_([flat], max_norm)"),
        SLICE_BY_RANK.format(part="grad[: self.size]"),
        SLICE_BY_RANK.format(part="grad.clone()"),
        SLICE_BY_RANK.format(part="self.head(grad).clone()"),
        SLICED.replace("reduce_scatter_tensor(own, flat)", "all_reduce(own)").format(
            clip="torch.nn.utils.clip_grad_norm_([self.part], max_norm)"
        ),
    ],
)
def test_norm_of_all_shards(text: str) -> None:
    assert "NUM007" not in {each.code for each in lint(text, head=HEAD)}
