"""Sharded models: backward passes that a rank leaves out by its own loss, and data that all ranks read."""

from __future__ import annotations

import pytest

from tests.lint.judging import find_marked, lines_of, lint

PROGRAM = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

class Guard:
    def __init__(self):
        self.mean = None
    def is_spike(self, value):
        if self.mean is None:
            self.mean = value
            return False
        if value > 3 * self.mean:
            return True
        self.mean = 0.9 * self.mean + 0.1 * value
        return False
    def is_agreed(self, value):
        largest = torch.tensor(float(value))
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        if largest > 3:
            return True
        return False
    def is_later(self, step, value):
        print(value)
        if step > 100:
            return True
        return False

def shard(model):
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model

def main():
    dist.init_process_group("gloo")
    guard = Guard()
    model = {model}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, x in enumerate(DataLoader(load(), 8)):
        loss = model(x).mean()
        if {test}:
            continue
        optimizer.zero_grad()
        loss.backward()  # here
        optimizer.step()
    dist.destroy_process_group()

main()
"""
NET = "torch.nn.Sequential(torch.nn.Linear(4, 4))"
SPIKE = "guard.is_spike(loss.item())"


@pytest.mark.wrong
@pytest.mark.parametrize("model", [f"FSDP({NET})", f"shard({NET})", f"DDP({NET})"])
@pytest.mark.parametrize("test", ["loss.item() > 10", "torch.isnan(loss)", SPIKE])
def test_a_rank_leaves_out_a_backward_pass_by_its_own_loss(model: str, test: str) -> None:
    text = PROGRAM.format(model=model, test=test)
    found = [each for each in lint(text) if each.code == "COL002"]
    assert lines_of(found, "COL002") == find_marked(text)


@pytest.mark.right
@pytest.mark.parametrize(
    ("model", "test"),
    [
        (NET, SPIKE),
        (f"shard({NET})", "step > 100"),
        (f"FSDP({NET})", "guard.is_agreed(loss.item())"),
        (f"FSDP({NET})", "guard.is_later(step, loss.item())"),
    ],
)
def test_models_of_a_rank_alone_and_tests_that_ranks_share(model: str, test: str) -> None:
    assert not lines_of(lint(PROGRAM.format(model=model, test=test)), "COL002")


DATA = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", {mesh})
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(64, 4))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    {shard}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, 8, {order})  # here
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    dist.destroy_process_group()

main()
"""
IN_PLACE = "fully_shard(model, mesh=mesh)"


@pytest.mark.wrong
@pytest.mark.parametrize("shard", [IN_PLACE, "model = FSDP(model)"])
@pytest.mark.parametrize("mesh", ["(4,)", "(2, 2), mesh_dim_names=('replicate', 'shard')"])
def test_all_ranks_of_a_sharded_model_read_all_data(shard: str, mesh: str) -> None:
    mesh = mesh.replace("(4,)", "(4,), mesh_dim_names=('dp',)")
    text = DATA.format(mesh=mesh, shard=shard, order="shuffle=True")
    assert lines_of(lint(text), "DAT001") == find_marked(text)


@pytest.mark.right
@pytest.mark.parametrize(
    ("mesh", "shard", "order"),
    [
        ("(4,), mesh_dim_names=('dp',)", IN_PLACE, "sampler=DistributedSampler(data, seed=1)"),
        ("(2, 2), mesh_dim_names=('dp', 'tp')", IN_PLACE, "shuffle=True"),
        ("(2, 2)", IN_PLACE, "shuffle=True"),
        ("(4,), mesh_dim_names=('dp',)", f"{IN_PLACE}\n    pair = dist.new_group([0, 1])", "shuffle=True"),
        ("(4,), mesh_dim_names=('dp',)", "pass", "shuffle=True"),
    ],
)
def test_ranks_have_data_of_their_own_or_parts_of_one_layer(mesh: str, shard: str, order: str) -> None:
    assert not lines_of(lint(DATA.format(mesh=mesh, shard=shard, order=order)), "DAT001")
