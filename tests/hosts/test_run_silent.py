"""`ddpdoctor run` on several hosts with one rank each: replicas part between the hosts, and no host sees it alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import Hosts
from .running import Jobs

pytestmark = pytest.mark.root

SILENT = """\
import gc
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for step in range(12):
        batch = torch.randn(8, 4)
        forward = model.module if os.environ["FAULTY"] == "1" else model
        forward(batch).pow(2).mean().backward()  # FAULT
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
gc.collect()  # torch may abort a process in which a wrapper is alive at its end
"""
LINE = next(n for n, line in enumerate(SILENT.splitlines(), 1) if line.endswith("# FAULT"))


@pytest.mark.parametrize("faulty", ["1", pytest.param("0", marks=pytest.mark.long)])
def test_replicas_that_part_between_hosts_are_named_on_the_head(tmp_path: Path, faulty: str) -> None:
    with Hosts(2) as hosts:
        jobs = Jobs(tmp_path, hosts)
        (tmp_path / "train.py").write_text(SILENT, encoding="utf-8")
        head, other = jobs.finish(jobs.start(env={"FAULTY": faulty}))
    assert head.result.returncode == other.result.returncode == 0, head.result.describe()
    assert head.report is not None
    assert [each["node"] for each in head.report["evidence"]["training"]] == [0, 1]
    if faulty == "0":
        assert not [each for each in head.report["findings"] if each["severity"] == "error"]
        return
    first = head.first
    assert (first["code"], first["ranks"]) == ("DDP005", [0, 1])
    place = first["where"][0]
    assert (place["file"].rpartition("/")[2], place["line"]) == ("train.py", LINE)
    told = " ".join(each["text"] for each in first["evidence"])
    assert "0.weight" in told, told  # a tensor that no host alone sees differ
    assert (other.directory / "report.json").exists()
