"""Rules of how a training is set up. The line of the mistake ends in ``# HERE``."""

from __future__ import annotations

import pytest

from tests.lint.reading import HEAD, facts_in, marked, rules_in_head

NORMS = """
class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.{norm}(8)
    def forward(self, x):
        return self.norm(self.conv(x))
BATCH = {batch}
data = datasets.CIFAR10("x")
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size={size}, sampler=sampler)
model = {wrap}
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
"""


def norms(
    size: str = "2", wrap: str = "DDP(Normed().cuda())  # HERE", norm: str = "BatchNorm2d", batch: int = 64
) -> str:
    """Fill the frame in."""
    return NORMS.format(size=size, wrap=wrap, norm=norm, batch=batch)


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        norms(),
        norms("BATCH", batch=4),
        norms("7", wrap="DDP(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))  # HERE"),
    ],
)
def test_batch_norm_over_few_samples(source: str) -> None:
    assert rules_in_head(source) == [("batch-norm-small", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        norms("8"),
        norms("BATCH"),
        norms("args.batch"),
        norms(norm="GroupNorm"),
        norms(wrap="DDP(nn.SyncBatchNorm.convert_sync_batchnorm(Normed()))"),
        norms(wrap="DDP(build())"),
    ],
)
def test_batch_norm_over_enough_samples(source: str) -> None:
    assert rules_in_head(source) == []


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        "model = DDP(Net().cuda(), device_ids=[0, 1])  # HERE\n",
        "def wrap(net):\n    return DDP(net, [0, 1, 2])  # HERE\nwrap(Net())\n",
        "class T:\n    def __init__(self, rank):\n        self.m = DDP(Net(), device_ids=[rank])  # HERE\n",
    ],
)
def test_device_ids_that_cannot_be(source: str) -> None:
    assert rules_in_head(source) == [("device-ids", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        "model = DDP(Net())\n",
        "model = DDP(Net().cuda(), device_ids=[0])\n",
        "model = DDP(Net().to(where), device_ids=None)\ndevice = 1\n",
        "model = DDP(build(), device_ids=[rank])\n",
        "model = DDP(Net(), device_ids=[rank], output_device=rank)\n",
        "model = DDP(Net().to(rank), device_ids=[rank])\n",
        "torch.set_default_device('cuda')\nmodel = DDP(Net(), device_ids=[rank])\n",
    ],
)
def test_device_ids_that_may_be(source: str) -> None:
    assert rules_in_head(source) == []


REENTRANT = """
from torch.utils.checkpoint import checkpoint
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Linear(2, 2)
    def forward(self, x):
        {call}
        return x
model = DDP(Deep(){options})
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    "call",
    [
        "x = checkpoint(self.block, x, use_reentrant=True)  # HERE",
        "x = checkpoint(self.block, x)  # HERE",
        "for _ in range(2):\n            x = torch.utils.checkpoint.checkpoint(self.block, x)  # HERE",
    ],
)
def test_reentrant_checkpoint_below_a_search(call: str) -> None:
    source = REENTRANT.format(call=call, options=", find_unused_parameters=True")
    assert rules_in_head(source) == [("reentrant-checkpoint", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    ("call", "options"),
    [
        ("x = checkpoint(self.block, x, use_reentrant=False)", ", find_unused_parameters=True"),
        ("x = checkpoint(self.block, x, use_reentrant=True)", ""),
        ("x = checkpoint(self.block, x)", ", find_unused_parameters=True, static_graph=True"),
        ("x = checkpoint(self.block, x, **how)", ", find_unused_parameters=True"),
    ],
)
def test_checkpoint_that_works(call: str, options: str) -> None:
    assert rules_in_head(REENTRANT.format(call=call, options=options)) == []


GROUP = """
def main():
    {init}
    model = DDP(Net().to(place))
    for x in batches:
        model(x).sum().backward()
    {end}
{start}
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        GROUP.format(init="dist.init_process_group('nccl')  # HERE", end="train()", start="main()"),
        GROUP.format(
            init="torch.distributed.init_process_group(backend='nccl', init_method='env://')  # HERE",
            end="pass",
            start="if __name__ == '__main__':\n    main()",
        ),
    ],
)
def test_group_is_left(source: str) -> None:
    assert rules_in_head(source) == [("group-left", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        GROUP.format(
            init="dist.init_process_group('nccl')", end="dist.destroy_process_group()", start="main()"
        ),
        GROUP.format(init="dist.init_process_group('nccl')", end="cleanup()", start="main()"),
        GROUP.format(init="dist.init_process_group('gloo')", end="pass", start="main()"),
        GROUP.format(init="dist.init_process_group(args.backend)", end="pass", start="main()"),
        GROUP.format(init="dist.init_process_group('nccl')", end="pass", start=""),
    ],
)
def test_group_is_destroyed_or_it_cannot_be_told(source: str) -> None:
    assert rules_in_head(source) == []


@pytest.mark.parametrize(("call", "certain"), [("{}", True), ("{} if self.thrifty else self.body(x)", False)])
def test_a_checkpoint_that_is_chosen_is_not_certain(call: str, certain: bool) -> None:
    made = call.format("torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=True)")
    source = (
        HEAD
        + f"""
import torch.utils.checkpoint
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.thrifty, self.body = False, nn.Linear(2, 2)
    def forward(self, x):
        return {made}
model = DDP(Deep(), find_unused_parameters=True)
"""
    )
    (fact,) = [each for each in facts_in(source) if each.rule == "reentrant-checkpoint"]
    assert fact.certain is certain
