"""Jobs on several hosts that stand still because of the network: the pair or the interface is named, and no rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .harness import Hosts
from .running import ENDLESS, Jobs, Ran, analyze, line_of

pytestmark = pytest.mark.root

PATIENCE = ("--stall-after", "10", "--hang-timeout", "14", "--on-hang", "abort", "--nodes-wait", "5")
"""By 10 s the kernel has sent what is lost six times; where a node cannot tell the others, each ends by itself."""

LARGE = """\
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
gate = os.environ["GATE"]
for step in range(6):
    dist.all_reduce(torch.ones(1))
open(f"{gate}.{rank}", "w").close()
while not os.path.exists(f"{gate}.go"):
    time.sleep(0.05)
dist.all_reduce(torch.ones(1 << 20))  # LARGE
"""
"""Small all-reduces, and once all ranks have made them a large one."""


def run(
    tmp_path: Path,
    hosts: Hosts,
    trouble: Callable[[], None],
    *,
    source: str | None = None,
    rendezvous: str = "static",
    options: tuple[str, ...] = PATIENCE,
    env: dict[str, str] | None = None,
) -> tuple[Jobs, list[Ran]]:
    """Run a job, and bring the trouble about once all ranks have passed some steps."""
    jobs = Jobs(tmp_path, hosts, rendezvous=rendezvous)
    if source is not None:
        (tmp_path / "train.py").write_text(source)
    started = jobs.start(*options, env=env or ENDLESS)
    jobs.await_steps(started)
    trouble()
    (tmp_path / "gate.go").touch()
    return jobs, jobs.finish(started)


def require_network(ran: Ran, code: str, *hosts: str) -> None:
    """Assert that a node names this trouble between these hosts first, and no rank as its cause."""
    first = ran.first
    assert (first["code"], first["ranks"]) == (code, []), ran.result.describe()
    assert sorted(first["pairs"][0]) == sorted(hosts)
    assert first["victims"]
    assert "no rank is the root cause" in first["message"]
    assert ran.report is not None
    blamed = [each for each in ran.report["findings"] if each["role"] == "cause" and each["ranks"]]
    assert blamed == [], ran.result.describe()


@pytest.mark.long
def test_large_packets_that_vanish_are_named_with_the_pair_by_both_hosts(tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        hosts.drop_larger(hosts[0], hosts[1], 1000)
        _, ran = run(tmp_path, hosts, lambda: None, source=LARGE)
    for each in ran:
        require_network(each, "NET014", "node-a", "node-b")
        line = next(n for n, text in enumerate(LARGE.splitlines(), 1) if text.endswith("# LARGE"))
        assert {place["line"] for place in each.first["where"] if place["role"] == "victim"} == {line}
        assert each.first["details"]["mtu"][each.host] == 1500
        assert each.first["details"]["bytes_failed"] > 1000
    assert ran[0].first["confidence"] == "high"


@pytest.mark.long
def test_large_packets_that_vanish_between_two_of_three_hosts_are_told_by_the_head(tmp_path: Path) -> None:
    """Between these two there are no signs of life; that both reach the head, and no full packet ever passed, tells."""
    with Hosts(3) as hosts:
        hosts.drop_larger(hosts[1], hosts[2], 1000)
        options = (*PATIENCE[:3], "60", "--on-hang", "report", "--nodes-wait", "20")
        _, ran = run(
            tmp_path,
            hosts,
            lambda: None,
            source=LARGE.replace('"gloo")', '"gloo", timeout=__import__("datetime").timedelta(seconds=30))'),
            options=options,
            rendezvous="c10d",
        )
    require_network(ran[0], "NET014", "node-b", "node-c")
    assert ran[0].first["confidence"] == "medium"


@pytest.mark.long
def test_cable_that_is_pulled_in_mid_run_is_a_lost_link_from_both_ends(tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        jobs, (head, other) = run(tmp_path, hosts, lambda: hosts[1].link_down())
        analyzed = analyze(jobs, head.directory, other.directory)
    require_network(head, "NET011", "node-a", "node-b")
    require_network(other, "NET011", "node-a", "node-b")
    assert (other.first["confidence"], other.first["nodes"]) == ("high", ["node-b"])
    assert "eth0 on node-b has lost its carrier" in other.first["message"]
    assert other.first["details"]["since"]
    first = analyzed["findings"][0]
    assert (first["code"], first["ranks"], first["nodes"]) == ("NET011", [], ["node-b"])
    assert {place["line"] for place in first["where"]} == {line_of("WAITING")}


@pytest.mark.long
def test_interface_that_is_taken_down_is_named(tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        _, (head, other) = run(tmp_path, hosts, lambda: hosts[1].link_down(cable=False))
    require_network(head, "NET011", "node-a", "node-b")
    assert (other.first["code"], other.first["ranks"]) == ("NET011", [])
    assert "eth0 on node-b is switched off" in other.first["message"]


@pytest.mark.long
def test_two_of_three_hosts_that_lose_each_other_are_named_while_their_processes_run(tmp_path: Path) -> None:
    with Hosts(3) as hosts:
        options = (*PATIENCE[:3], "60", "--on-hang", "report", "--nodes-wait", "20")
        _, ran = run(
            tmp_path,
            hosts,
            lambda: hosts.drop_all(hosts[1], hosts[2]),
            options=options,
            env={**ENDLESS, "LIMIT": "30"},
        )
    require_network(ran[0], "NET011", "node-b", "node-c")
    assert ran[0].first["confidence"] == "high"
    assert "The processes on both are still running" in ran[0].first["message"]
