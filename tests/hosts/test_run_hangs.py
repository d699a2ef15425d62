"""Jobs on several hosts that stand still: the rank at fault is named by host, rank and line, and all hosts end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .harness import Hosts
from .running import Jobs

pytestmark = pytest.mark.root

GUARDED = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
for _ in range(3):
    dist.all_reduce(torch.ones(1))
if rank == size - 1:
    dist.all_reduce(torch.zeros(2))  # GUARDED
dist.barrier()  # OTHERS
"""
STALLED = """\
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
dist.barrier()
if rank == size - 1:
    time.sleep(3600)  # SLEEPS
dist.barrier()  # OTHERS
"""


def line_of(source: str, mark: str) -> int:
    return next(n for n, line in enumerate(source.splitlines(), 1) if line.endswith(f"# {mark}"))


@pytest.mark.parametrize(
    ("hosts_count", "nproc", "rendezvous"),
    [pytest.param(2, 2, "static", marks=pytest.mark.long), (3, 1, "c10d")],
)
def test_deadlock_with_a_rank_of_the_far_host_is_named_and_ended_on_all(
    tmp_path: Path, hosts_count: int, nproc: int, rendezvous: str
) -> None:
    with Hosts(hosts_count) as hosts:
        jobs = Jobs(tmp_path, hosts, nproc=nproc, rendezvous=rendezvous)
        (tmp_path / "train.py").write_text(GUARDED)
        ran = jobs.finish(jobs.start())
    head = ran[0]
    last = hosts_count * nproc - 1
    assert [each.result.returncode for each in ran] == [1] * hosts_count, head.result.describe()
    first = head.first
    assert (first["code"], first["ranks"]) == ("COL002", [last])
    assert first["nodes"] == [f"node-{'abc'[hosts_count - 1]}"]
    assert (first["where"][0]["role"], first["where"][0]["line"]) == ("culprit", line_of(GUARDED, "GUARDED"))
    assert first["where"][0]["host"] == f"node-{'abc'[hosts_count - 1]}"
    assert first["victims"] == list(range(last))
    assert head.report is not None
    assert head.report["job"]["stopped_by"] == "ddpdoctor"


@pytest.mark.long
def test_stalled_rank_of_the_far_host_is_suspected_on_the_head(tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        jobs = Jobs(tmp_path, hosts)
        (tmp_path / "train.py").write_text(STALLED)
        ran = jobs.finish(jobs.start("--stall-after", "3", "--hang-timeout", "8", "--on-hang", "abort"))
    head = ran[0]
    assert [each.result.returncode for each in ran] == [1, 1], head.result.describe()
    assert (head.first["code"], head.first["ranks"]) == ("COL009", [1])
    assert (head.first["where"][0]["line"], head.first["where"][0].get("host")) == (
        line_of(STALLED, "SLEEPS"),
        "node-b",
    )
    assert "suspected after" in head.result.stderr


AHEAD_S = 37.0
SKEWED = f"""\
import socket
import time

if socket.gethostname() == "node-b":
    exact, exact_ns = time.time, time.time_ns
    time.time = lambda: exact() + {AHEAD_S}
    time.time_ns = lambda: exact_ns() + int({AHEAD_S} * 1e9)
"""
"""The hosts share the kernel's clock, so that of every Python process of one is set ahead as it starts."""


@pytest.mark.long
@pytest.mark.parametrize("stalls", [False, True], ids=["deadlock", "stall"])
def test_clocks_that_differ_by_seconds_change_nothing_and_are_told(tmp_path: Path, stalls: bool) -> None:
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(SKEWED)
    source = STALLED if stalls else GUARDED
    options = ("--stall-after", "3", "--hang-timeout", "8", "--on-hang", "abort" if stalls else "auto")
    with Hosts(2) as hosts:
        jobs = Jobs(tmp_path, hosts)
        (tmp_path / "train.py").write_text(source)
        paths = (str(tmp_path / "clock"), os.environ.get("PYTHONPATH", ""))
        env = {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
        ran = jobs.finish(jobs.start(*options, env=env))
    head = ran[0]
    assert [each.result.returncode for each in ran] == [1, 1], head.result.describe()
    first = head.first
    assert (first["code"], first["ranks"], first["nodes"]) == (
        "COL009" if stalls else "COL002",
        [1],
        ["node-b"],
    )
    assert first["where"][0]["line"] == line_of(source, "SLEEPS" if stalls else "GUARDED")
    member = head.member(1)
    assert abs(member["clock_offset_s"] - AHEAD_S) <= member["clock_error_s"] + 1e-3
    assert head.report is not None
    (skew,) = [each for each in head.report["findings"] if each["code"] == "ENV015"]
    assert (skew["nodes"], skew["severity"]) == (["node-b"], "warning")
    assert abs(skew["details"]["offsets_s"]["node-b"] - AHEAD_S) < AHEAD_S / 2
