"""What is read of a wrapped model."""

from __future__ import annotations

from pathlib import Path

from tests.watch.injecting import python

COUNTS = """
    import torch
    from ddpdoctor_watch.models import ddp

    class Joined(torch.nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x)   # after it has taken the sums of all ranks, say

    class Named(torch.nn.BatchNorm2d):
        pass

    def count(*layers):
        return ddp._count_batch_norms(torch.nn.Sequential(*layers))

    assert count(torch.nn.BatchNorm1d(2), torch.nn.Sequential(Named(2))) == 2
    assert count(torch.nn.BatchNorm1d(2).eval()) == 0
    assert count(torch.nn.SyncBatchNorm(2), Joined(2), torch.nn.GroupNorm(1, 2)) == 0
    print("counted")
"""


def test_batch_norms_with_a_forward_of_their_own_may_normalise_over_all_ranks(tmp_path: Path) -> None:
    done = python(tmp_path, COUNTS)
    assert done.stdout.strip() == "counted", done.stderr
