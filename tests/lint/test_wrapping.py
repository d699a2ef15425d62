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
    assert rules_in(HEAD + source) == [("data-parallel", HEAD.count("\n") + source.count("\n"))]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        "model = nn.DataParallel(nn.Linear(2, 2))\n",
        "def a():\n    dist.init_process_group()\ndef b():\n    return nn.DataParallel(nn.Linear(2, 2))\n",
        "if args.ddp:\n    dist.init_process_group()\nelse:\n    m = nn.DataParallel(m)\n",
    ],
)
def test_data_parallel_without_ranks(source: str) -> None:
    assert rules_in(HEAD + source) == []
