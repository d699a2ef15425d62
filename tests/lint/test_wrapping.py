"""Rules of how a model is wrapped."""

from __future__ import annotations

import pytest

from tests.lint.reading import rules_in

HEAD = "import torch\nimport torch.nn as nn\nimport torch.distributed as dist\nfrom torch import nn as tnn\n"


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        "dist.init_process_group('gloo')\nmodel = nn.DataParallel(nn.Linear(2, 2))\n",
        "def main():\n    dist.init_process_group('nccl')\n    net = tnn.parallel.DataParallel(tnn.Linear(2, 2).cuda())\n",
        "class T:\n    def __init__(self):\n        dist.init_process_group()\n        self.net = torch.nn.DataParallel(self.make())\n",
    ],
)
def test_data_parallel_in_a_rank(source: str) -> None:
    assert {line for _, line in rules_in(HEAD + source)} == {HEAD.count("\n") + source.count("\n")}


JOINS = """\
def join(args):
    if not args.many:
        return
    dist.init_process_group("nccl")


def main(args):
    join(args)
    if args.many:
        model = {many}
    else:
        model = {one}
    return model


main(parse())
"""


@pytest.mark.wrong
def test_data_parallel_behind_the_test_of_the_ranks() -> None:
    source = "def main(args):\n    if args.many:\n        dist.init_process_group()\n    model = nn.DataParallel(Net())\nmain(parse())\n"
    assert [line for _, line in rules_in(HEAD + source)] == [HEAD.count("\n") + 4]


@pytest.mark.right
def test_data_parallel_on_the_way_without_ranks() -> None:
    source = JOINS.format(many="nn.parallel.DistributedDataParallel(Net())", one="nn.DataParallel(Net())")
    assert rules_in(HEAD + source) == []


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        "model = nn.DataParallel(nn.Linear(2, 2))\n",
        "def a():\n    dist.init_process_group()\ndef b():\n    return nn.DataParallel(nn.Linear(2, 2))\n",
        "if args.ddp:\n    dist.init_process_group()\nelse:\n    m = nn.DataParallel(m)\n",
        "m = nn.DataParallel(m)\ndist.init_process_group('gloo', rank=0, world_size=1)\n",
    ],
)
def test_data_parallel_without_ranks(source: str) -> None:
    assert rules_in(HEAD + source) == []
