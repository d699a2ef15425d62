"""`ddpdoctor check` on hosts that are slow, die, or lose a rank while the world runs."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.launch.doctor import FACTORIES
from tests.marks import long

from .checking import Doctor, require_alone, require_named, static
from .harness import Host, Hosts
from .traffic import wait_until

pytestmark = pytest.mark.root

PAIRS = ("--skip", "backends,collectives,ddp", "--collectives", "all_reduce", "--sizes", "4K", "--iters", "3")
"""A sweep over slow links takes long, and it is the pairs that tell them apart."""
SLOW, USUAL = 40, 400
"""Megabits per second. The usual is limited too, far below what the machine can do: else its load would tell
the links apart."""
ONLY_DDP = ("--skip", "backends,collectives,bandwidth")


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    return Doctor(tmp_path)


def in_stage(host: Host, stage: str, *, finished: bool = False) -> bool:
    """Tell whether a rank of the host has begun (or finished) a stage."""
    wanted = f'"event": "{"end" if finished else "begin"}"', f'"stage": "{stage}"'
    for path in host.temporary.glob("ddpdoctor-*/rank-*.jsonl"):
        if any(all(word in line for word in wanted) for line in path.read_text().splitlines()):
            return True
    return False


def agent_events(host: Host) -> list[str]:
    """Return what the agent of a host has written so far."""
    return [path.read_text() for path in host.temporary.glob("ddpdoctor-*/agent.jsonl")]


@pytest.mark.long
def test_slow_host_is_named(doctor: Doctor) -> None:
    with Hosts(3) as hosts:
        for host in hosts:
            host.limit_rate(SLOW if host.index == 2 else USUAL)
        told = doctor.ask(hosts, static(hosts, *PAIRS))
    found = require_named(told, "PRF002", exit_code=0, nodes=["node-c"], ranks=[2])
    assert "slow with every partner" in found["message"]


@pytest.mark.long
def test_slow_link_is_named_and_not_its_ends(doctor: Doctor) -> None:
    with Hosts(3) as hosts:
        hosts.limit_pair(hosts[1], hosts[2], SLOW)
        hosts[0].limit_rate(USUAL)  # an end of each other link
        told = doctor.ask(hosts, static(hosts, *PAIRS))
    found = require_named(told, "PRF002", exit_code=0, nodes=["node-b", "node-c"])
    assert found["pairs"] == [["node-b", "node-c"]]
    assert "link" in found["message"]


@pytest.mark.long
def test_rank_that_is_killed_on_the_far_host_is_named(doctor: Doctor) -> None:
    with Hosts(2) as hosts:
        told = doctor.ask(hosts, static(hosts, *ONLY_DDP, "--model", f"{FACTORIES}:killed_on_one"))
    found = require_named(told, "BKD002", nodes=["node-b"], ranks=[1])
    assert "SIGKILL" in found["message"]
    assert "stage ddp" in found["message"]


@pytest.mark.parametrize("dead", [*long(1), 0], ids=["other", "hosting"])
def test_host_that_dies_is_named_by_the_other(doctor: Doctor, dead: int) -> None:
    with Hosts(2) as hosts:
        alive = hosts[1 - dead]
        started = doctor.start(hosts, static(hosts, *ONLY_DDP, "--model", f"{FACTORIES}:hangs_on_one"))
        assert wait_until(lambda: all(in_stage(host, "ddp") for host in hosts), 60)
        hosts[dead].kill_everything()
        (told,) = doctor.finish([alive], [started[1 - dead]])
    found = require_alone(told, "BKD002", nodes=[hosts[dead].name], ranks=[dead])
    assert "connection" in str(found).lower()
    assert (told.merged is not None) == (dead == 1)


@pytest.mark.long
def test_signal_ends_the_waiting_for_others_at_once(doctor: Doctor) -> None:
    with Hosts(2) as hosts:
        (started,) = doctor.start([hosts[0]], static(hosts, "--join-timeout", "200"))
        assert wait_until(lambda: any("waiting for node 1" in text for text in agent_events(hosts[0])), 60)
        started.send_signal(signal.SIGINT)
        (told,) = doctor.finish([hosts[0]], [started])
    # Not the 200 s that it waits for others: `finish` would have cut that.
    assert told.result.returncode == 130, told.result.describe()
    assert told.own["interrupted"] == "SIGINT"


def test_signal_on_one_host_ends_it_on_all(doctor: Doctor) -> None:
    with Hosts(2) as hosts:
        started = doctor.start(hosts, static(hosts, *ONLY_DDP, "--model", f"{FACTORIES}:hangs_on_one"))
        assert wait_until(lambda: all(in_stage(host, "ddp") for host in hosts), 60)
        started[1].send_signal(signal.SIGINT)
        told = doctor.finish(hosts, started)
    assert told[1].result.returncode == 130, told[1].result.describe()
    assert told[1].own["interrupted"] == "SIGINT"
    assert told[0].result.returncode in (1, 3), told[0].result.describe()
