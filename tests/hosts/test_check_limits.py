"""`ddpdoctor check` on hosts, cut by the limit of the whole command, and ranks that say nothing of their hosts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from .checking import PORT, QUICK, Doctor, require_healthy, require_named, static
from .harness import Host, Hosts

pytestmark = pytest.mark.root

CUT = ("--timeout", "30")
"""Ends before --join-timeout; room for a busy machine to import torch and to begin the meeting."""


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    return Doctor(tmp_path)


def by_hand(*hosts: Host) -> dict[str, dict[str, str | None]]:
    """Return the variables of one rank on each host: nothing tells that there are several."""
    return {
        host.name: {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(hosts)),
            "MASTER_ADDR": hosts[0].name,
            "MASTER_PORT": str(PORT),
        }
        for rank, host in enumerate(hosts)
    }


@pytest.mark.long
def test_missing_host_is_named_when_the_command_is_out_of_time(doctor: Doctor) -> None:
    with Hosts(3) as hosts:
        told = doctor.ask([hosts[0], hosts[2]], static(hosts, *QUICK, *CUT))
    found = require_named(told, "NET006", ranks=[1])
    assert "when --timeout ended the wait" in found["message"]
    assert told[0].findings("BKD011") == []


@pytest.mark.long
def test_hosts_without_a_way_are_named_when_the_command_is_out_of_time(doctor: Doctor) -> None:
    with Hosts(3) as hosts:
        hosts.drop_all(hosts[1], hosts[2])
        told = doctor.ask(hosts, static(hosts, *QUICK, *CUT))
    require_named(told, "NET013", nodes=["node-b", "node-c"], ranks=[1, 2])


def test_ranks_by_hand_find_out_that_they_are_on_two_hosts(doctor: Doctor) -> None:
    """WORLD_SIZE=2 alone says nothing of hosts: that there was one node was only a guess."""
    with Hosts(2) as hosts:
        variables = by_hand(*hosts)

        def environ(host: Host) -> Mapping[str, str | None]:
            return variables[host.name]

        told = doctor.ask(hosts, lambda host: QUICK, env=environ)
    merged = require_healthy(told)
    assert [(node["host"], node["ranks"]) for node in merged["world"]["nodes"]] == [
        ("node-a", [0]),
        ("node-b", [1]),
    ]
    rows = {row["id"]: row["status"] for row in merged["checks"]}
    assert (rows["net.links.open"], rows["net.ports.ephemeral"]) == ("pass", "pass")
