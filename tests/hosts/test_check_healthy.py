"""`ddpdoctor check` on hosts of which nothing is wrong, however it is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from .checking import PORT, QUICK, Doctor, c10d, require_healthy, static
from .harness import Host, Hosts

pytestmark = pytest.mark.root


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    return Doctor(tmp_path)


def test_all_stages_over_two_hosts(doctor: Doctor) -> None:
    with Hosts(2) as hosts:
        told = doctor.ask(hosts, static(hosts, "--stage-timeout", "bandwidth=60"))
    report = require_healthy(told)
    assert [each.name for each in told] == ["node-0", "node-1"]
    assert [(node["host"], node["ranks"]) for node in report["world"]["nodes"]] == [
        ("node-a", [0]),
        ("node-b", [1]),
    ]
    passed = {
        (each["node"], each["stage"]) for each in report["evidence"]["stages"] if each["status"] == "passed"
    }
    assert {(1, "ddp"), (1, "bandwidth"), (0, "collectives")} <= passed


@pytest.mark.long
def test_c10d_numbers_the_hosts_as_torch_does(doctor: Doctor) -> None:
    with Hosts(2) as hosts:
        told = doctor.ask(hosts, c10d(2, "node-b"))
    report = require_healthy(told, hosting=1)
    assert [each.name for each in told] == ["node-0", "node-1"]
    ranks = report["evidence"]["ranks"]
    found = {each["rank"]: (each["node"], each["host"], each["variables"]["GROUP_RANK"]) for each in ranks}
    assert found == {0: (0, "node-a", "0"), 1: (1, "node-b", "1")}


@pytest.mark.long
def test_three_hosts_with_different_numbers_of_ranks(doctor: Doctor) -> None:
    with Hosts(3) as hosts:
        told = doctor.ask(hosts, lambda host: static(hosts, nproc=1 + (host.index == 1))(host))
    report = require_healthy(told)
    assert [node["ranks"] for node in report["world"]["nodes"]] == [[0], [1, 2], [3]]
    assert report["world"]["size"] == 4
    assert [each["code"] for each in report["findings"] if each["severity"] != "info"] == []


@pytest.mark.long
def test_under_torchrun(doctor: Doctor) -> None:
    with Hosts(2) as hosts:

        def torchrun(host: Host) -> list[str]:
            where = [f"--node-rank={host.index}", "--master-addr=node-a", f"--master-port={PORT}"]
            run = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--log-dir=logs"]
            return [*run, *where]

        told = doctor.ask(hosts, lambda host: QUICK, launcher=torchrun)
    report = require_healthy(told)
    assert report["world"]["launcher"] == "torchrun"
    assert [node["host"] for node in report["world"]["nodes"]] == ["node-a", "node-b"]
