"""`ddpdoctor check` on hosts with broken names, ports, interfaces and paths."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .checking import (
    MISSING,
    PORT,
    QUICK,
    Doctor,
    c10d,
    require_alone,
    require_healthy,
    require_named,
    static,
)
from .harness import Hosts
from .traffic import wait_until

pytestmark = pytest.mark.root


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    return Doctor(tmp_path)


@pytest.mark.parametrize("backend", [pytest.param("static", marks=pytest.mark.long), "c10d"])
def test_taken_port_is_named_with_its_holder(doctor: Doctor, backend: str) -> None:
    with Hosts(2) as hosts:
        holder = hosts[0].start([sys.executable, "-m", "http.server", str(PORT)])
        assert wait_until(lambda: any(each.port == PORT for each in hosts[0].listeners()))
        options = static(hosts, *QUICK, *MISSING)
        if backend == "c10d":
            options = c10d(2, "node-a", *QUICK, *MISSING)
        started = doctor.start(hosts, options)
        results = [each.wait(60) for each in started]
        holder.kill()
        told = doctor.finish(hosts, started)
    assert not any(result.timed_out for result in results)
    hosting = require_alone(told[0], "NET001", nodes=["node-a"], ranks=[0])
    assert "http.server" in hosting["message"]
    assert str(PORT) in hosting["message"]
    assert told[0].merged is not None
    other = require_alone(told[1], "NET001", nodes=["node-a"])
    assert "torch's store has not answered there" in other["message"]  # http.server waits for a line
    assert told[1].name == ("node-1" if backend == "static" else "node-node-b")


@pytest.mark.long
def test_unresolvable_master_is_named_where_it_is_unknown(doctor: Doctor) -> None:
    with Hosts(2) as hosts:
        hosts[1].forget_name("node-a")
        told = doctor.ask(hosts, static(hosts, *QUICK, *MISSING))
    blind = require_alone(told[1], "NET002", nodes=["node-b"], ranks=[1])
    assert "node-a" in blind["message"]
    require_alone(told[0], "NET006", ranks=[1])


@pytest.mark.long
def test_endpoint_that_nobody_can_resolve_is_named_everywhere(doctor: Doctor) -> None:
    with Hosts(2) as hosts:
        told = doctor.ask(hosts, c10d(2, "no-such-host", *QUICK))
    for each in told:
        assert "no-such-host" in require_alone(each, "NET002", nodes=[each.host])["message"]
        assert each.name == f"node-{each.host}"  # without a number they must not share a file's name
        assert each.merged is None


@pytest.mark.long
def test_loopback_host_name_is_named_and_an_interface_heals_it(doctor: Doctor) -> None:
    with Hosts(2) as hosts:
        hosts[1].set_name("node-b", "127.0.1.1")
        told = doctor.ask(hosts, static(hosts))
        healed = doctor.ask(hosts, static(hosts), env=lambda host: {"GLOO_SOCKET_IFNAME": "eth0"})
    found = require_named(told, "NET003", nodes=["node-b"], ranks=[1])
    assert "127.0.1.1" in found["message"]
    assert "GLOO_SOCKET_IFNAME=eth0" in json.dumps(found["fix"])
    require_healthy(healed)


@pytest.mark.long
def test_interfaces_that_are_not_there_are_named(doctor: Doctor) -> None:
    values = {"node-a": "eth0", "node-b": "eth9", "node-c": "^lo"}
    with Hosts(3) as hosts:
        told = doctor.ask(hosts, static(hosts), env=lambda host: {"GLOO_SOCKET_IFNAME": values[host.name]})
    require_named(told, "NET004")
    found = {tuple(each["nodes"]): each["message"] for each in told[0].findings("NET004")}
    assert set(found) == {("node-b",), ("node-c",)}
    assert "eth9" in found["node-b",]
    assert "^lo" in found["node-c",]


@pytest.mark.long
def test_closed_ephemeral_ports_are_named(doctor: Doctor) -> None:
    with Hosts(2) as hosts:
        hosts.drop_ports(hosts[0], hosts[1], 32768, 60999, both_ways=True)
        told = doctor.ask(hosts, static(hosts))
    found = require_named(told, "NET005", nodes=["node-a", "node-b"])
    assert sorted(found["pairs"]) == [["node-a", "node-b"], ["node-b", "node-a"]]
    assert "32768-60999" in found["message"]


def test_missing_host_is_named_by_those_that_came(doctor: Doctor) -> None:
    with Hosts(3) as hosts:
        told = doctor.ask([hosts[0], hosts[2]], static(hosts, *QUICK, *MISSING))
    found = require_named(told, "NET006", ranks=[1])
    assert "node 1 with rank 1 never joined" in found["message"]
    assert "--node-rank 1" in json.dumps(found["fix"])


@pytest.mark.long
def test_without_the_hosting_host_each_says_that_it_met_nobody(doctor: Doctor) -> None:
    with Hosts(3) as hosts:
        told = doctor.ask([hosts[1], hosts[2]], static(hosts, *QUICK, *MISSING))
    for each in told:
        assert f"{each.host} met none" in require_alone(each, "NET006")["message"]
        assert each.merged is None
    assert [each.name for each in told] == ["node-1", "node-2"]


@pytest.mark.long
def test_host_that_does_not_know_its_second_address_is_named(doctor: Doctor) -> None:
    with Hosts(2, second_interface=True) as hosts:
        told = doctor.ask(hosts, c10d(2, hosts[0].addresses[1], *QUICK, *MISSING))
    found = require_alone(told[0], "NET007", nodes=["node-a"])
    assert hosts[0].addresses[1] in found["message"]
    assert "node-a" in found["message"]
    require_alone(told[1], "NET006")


@pytest.mark.long
def test_endpoint_that_is_nobody_is_told_with_the_names_of_each(doctor: Doctor) -> None:
    with Hosts(2) as hosts:
        for host in hosts:
            host.set_name("service", hosts[0].address.rpartition(".")[0] + ".99")
        told = doctor.ask(hosts, c10d(2, "service", *QUICK, *MISSING))
    for each in told:
        found = require_alone(each, "NET006")
        assert f"{each.host} does not recognize itself as service:{PORT}" in json.dumps(found["evidence"])


@pytest.mark.long
def test_name_that_c10d_publishes_is_named_and_local_addr_heals_it(doctor: Doctor) -> None:
    with Hosts(2) as hosts:
        hosts[1].forget_name("node-a")
        options = c10d(2, hosts[0].address)
        told = doctor.ask(hosts, options)
        healed = doctor.ask(hosts, lambda host: [*options(host), "--local-addr", host.address])
    found = require_named(told, "NET008", nodes=["node-a"], ranks=[0])
    assert "node-b cannot resolve node-a" in found["message"]
    assert f"--local-addr {hosts[0].address}" in json.dumps(found["fix"])
    require_healthy(healed)


@pytest.mark.long
def test_hosts_between_which_nothing_passes_are_named(doctor: Doctor) -> None:
    with Hosts(3) as hosts:
        hosts.drop_all(hosts[1], hosts[2])
        told = doctor.ask(hosts, static(hosts))
    found = require_named(told, "NET013", nodes=["node-b", "node-c"], ranks=[1, 2])
    assert sorted(found["pairs"]) == [["node-b", "node-c"], ["node-c", "node-b"]]


@pytest.mark.long
def test_lost_large_packets_are_named_by_all(doctor: Doctor) -> None:
    with Hosts(2) as hosts:
        hosts.drop_larger(hosts[0], hosts[1], 1400)
        told = doctor.ask(hosts, static(hosts))
    found = require_named(told, "NET014", nodes=["node-a", "node-b"])
    assert found["details"]["bytes_passed"] == 1024
    assert found["details"]["mtu"] == {"node-a": 1500, "node-b": 1500}
