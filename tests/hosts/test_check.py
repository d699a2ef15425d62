"""`ddpdoctor check` on several hosts: what is broken between them is named, on every host, in time."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ddpdoctor.report.schema import load_schema

from .harness import Host, Hosts, Result

pytestmark = pytest.mark.root

LIMIT_S = 120.0
"""For one command on a busy machine; alone each case takes 3 to 12 s."""
PORT = 29517
QUICK = ("--nproc", "1", "--skip", "collectives,ddp,bandwidth")
Options = Callable[[Host], Sequence[str]]
Environment = Callable[[Host], dict[str, str | None]]


@dataclass
class Told:
    """What one host said."""

    result: Result
    node: dict[str, Any] | None
    """Its node-<n>.json."""
    merged: dict[str, Any] | None
    """report.json, where it wrote one."""
    page: Path | None

    @property
    def out(self) -> str:
        return self.result.stdout

    def first(self) -> dict[str, Any]:
        """Return the first finding of what it saw of all nodes, or alone."""
        report = self.merged or self.node
        assert report is not None, self.result.describe()
        assert report["findings"], self.result.describe()
        return dict(report["findings"][0])


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., list[Told]]:
    """Runs check on all hosts at once, and looks at what they print, write and leave behind."""

    def call(
        hosts: Hosts,
        options: Options,
        *,
        env: Environment | None = None,
        on: Sequence[Host] | None = None,
    ) -> list[Told]:
        asked = list(on if on is not None else hosts)
        for host in asked:
            (tmp_path / host.name).mkdir(exist_ok=True)
        running = [
            host.start(
                [sys.executable, "-m", "ddpdoctor", "check", *options(host)],
                env=env(host) if env else None,
                cwd=tmp_path / host.name,
            )
            for host in asked
        ]
        results = [each.wait(LIMIT_S) for each in running]
        told = [read(result, tmp_path / host.name) for result, host in zip(results, asked, strict=True)]
        for each in told:
            assert not each.result.timed_out, each.result.describe()
            assert "Traceback" not in each.result.stdout + each.result.stderr, each.result.describe()
            assert each.out.startswith("ddpdoctor "), each.result.describe()
        for host in asked:
            left = host.leftovers()
            assert not left, left
        return told

    return call


def read(result: Result, folder: Path) -> Told:
    """Read what a host wrote; every report must fit the schema."""
    nodes = sorted(folder.glob("ddpdoctor-runs/*/node-*.json"))
    merged = sorted(folder.glob("ddpdoctor-runs/*/report.json"))
    pages = sorted(folder.glob("ddpdoctor-runs/*/report.html"))
    reports = [json.loads(path.read_text()) for path in (*nodes, *merged)]
    for report in reports:
        jsonschema.validate(report, load_schema())
    return Told(
        result,
        reports[0] if nodes else None,
        reports[len(nodes)] if merged else None,
        pages[0] if pages else None,
    )


def static(hosts: Hosts, *more: str, nnodes: int | None = None) -> Options:
    """The options of a static rendezvous at the first host."""

    def options(host: Host) -> list[str]:
        where = ["--master-addr", hosts[0].name, "--master-port", str(PORT)]
        count = str(nnodes or len(hosts))
        return [*QUICK, "--nnodes", count, "--node-rank", str(host.index), *where, *more]

    return options


def c10d(hosts: Hosts, *more: str) -> Options:
    """The options of a c10d rendezvous at the first host, the same everywhere."""
    endpoint = f"{hosts[0].name}:{PORT}"
    return lambda host: [*QUICK, "--nnodes", str(len(hosts)), "--rdzv-endpoint", endpoint, *more]


@pytest.mark.parametrize("kind", [static, c10d])
def test_healthy_hosts_are_healthy(ask: Callable[..., list[Told]], kind: Callable[..., Options]) -> None:
    with Hosts(2) as hosts:
        told = ask(hosts, kind(hosts))
    for each in told:
        assert each.result.returncode == 0, each.result.describe()
        assert each.out.startswith("ddpdoctor ✓ healthy"), each.out
        assert each.node is not None
    hosting = [each.merged for each in told if each.merged is not None and each.page is not None]
    assert len(hosting) == 1
    assert [node["host"] for node in hosting[0]["world"]["nodes"]] == ["node-a", "node-b"]


def test_three_hosts_under_torchrun_are_healthy(ask: Callable[..., list[Told]]) -> None:
    with Hosts(3) as hosts:
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=3", "--nproc-per-node=1"]
        results = hosts.run_all(
            lambda host: [
                *command,
                f"--node-rank={host.index}",
                f"--master-addr={hosts[0].name}",
                f"--master-port={PORT}",
                "-m",
                "ddpdoctor",
                "check",
                "--skip",
                "collectives,ddp,bandwidth",
                "--run-dir",
                host.temporary,
            ],
            timeout=LIMIT_S,
        )
        assert all(result.returncode == 0 for result in results), [r.describe() for r in results]
        assert results[0].stdout.startswith("ddpdoctor ✓ healthy"), results[0].describe()
        for host in hosts:
            left = host.leftovers(files=False)
            assert not left, left


def test_taken_port_names_its_holder(ask: Callable[..., list[Told]]) -> None:
    with Hosts(2) as hosts:
        holder = hosts[0].start([sys.executable, "-m", "http.server", str(PORT)])
        try:
            script = f"import socket; socket.create_connection(('127.0.0.1', {PORT}), 1)"
            for _ in range(100):
                if hosts[0].run([sys.executable, "-c", script], timeout=30).returncode == 0:
                    break
            result = hosts[0].run(
                [sys.executable, "-m", "ddpdoctor", "check", *static(hosts)(hosts[0])],
                timeout=LIMIT_S,
                cwd=hosts[0].temporary,
            )
        finally:
            holder.kill()
    assert result.returncode == 1, result.describe()
    assert result.stdout.startswith("ddpdoctor ✖ NET001"), result.describe()
    assert "http.server" in result.stdout


def test_unresolvable_master_is_named_on_the_node_that_cannot(ask: Callable[..., list[Told]]) -> None:
    with Hosts(2) as hosts:
        hosts[1].forget_name(hosts[0].name)
        told = ask(hosts, static(hosts, "--join-timeout", "8"))
    assert told[1].result.returncode == 1, told[1].result.describe()
    assert told[1].first()["code"] == "NET002"
    assert told[1].first()["nodes"] == ["node-b"]
    assert told[0].first()["code"] == "NET006"


def test_loopback_host_name_is_named(ask: Callable[..., list[Told]]) -> None:
    with Hosts(2) as hosts:
        hosts[1].set_name(hosts[1].name, "127.0.1.1")
        told = ask(hosts, static(hosts))
    assert told[0].result.returncode == 1, told[0].result.describe()
    first = told[0].first()
    assert (first["code"], first["nodes"]) == ("NET003", ["node-b"])
    assert "127.0.1.1" in first["message"]
    assert "eth0" in json.dumps(first["fix"])


def test_loopback_host_name_is_fine_with_the_interface_set(ask: Callable[..., list[Told]]) -> None:
    with Hosts(2) as hosts:
        hosts[1].set_name(hosts[1].name, "127.0.1.1")
        told = ask(hosts, static(hosts), env=lambda host: {"GLOO_SOCKET_IFNAME": "eth0"})
    assert told[0].result.returncode == 0, told[0].result.describe()


@pytest.mark.parametrize("value", ["eth9", "^lo"])
def test_missing_interface_is_named_on_its_node(ask: Callable[..., list[Told]], value: str) -> None:
    with Hosts(2) as hosts:
        told = ask(
            hosts,
            static(hosts, "--stage-timeout", "rendezvous=15"),
            env=lambda host: {"GLOO_SOCKET_IFNAME": value if host.index else "eth0"},
        )
    first = told[0].first()
    assert (first["code"], first["nodes"]) == ("NET004", ["node-b"]), told[0].out
    assert value in first["message"]


def test_closed_ephemeral_ports_are_named(ask: Callable[..., list[Told]]) -> None:
    with Hosts(2) as hosts:
        hosts.drop_ports(hosts[0], hosts[1], 32768, 60999, both_ways=True)
        told = ask(hosts, static(hosts))
    for each in told:
        assert each.result.returncode == 1, each.result.describe()
        assert "NET005" in each.out.splitlines()[0], each.out
    first = told[0].first()
    assert {tuple(sorted(pair)) for pair in first["pairs"]} == {("node-a", "node-b")}


def test_missing_host_is_named_by_those_that_came(ask: Callable[..., list[Told]]) -> None:
    with Hosts(3) as hosts:
        told = ask(hosts, static(hosts, "--join-timeout", "6"), on=[hosts[0], hosts[1]])
    for each in told:
        assert each.result.returncode == 1, each.result.describe()
        assert each.node is not None
        assert each.first()["code"] == "NET006"
    assert told[0].first()["ranks"] == [2]


def test_endpoint_that_nobody_matches_is_not_blamed_on_the_network(ask: Callable[..., list[Told]]) -> None:
    with Hosts(2) as hosts:
        for host in hosts:
            host.set_name("head", hosts[0].address)
        # The name is another one than the host's own, and the host's own name leads to loopback: nobody matches.
        hosts[0].set_name(hosts[0].name, "127.0.1.1")
        options = [*QUICK, "--nnodes", "2", "--rdzv-endpoint", f"head:{PORT}", "--join-timeout", "6"]
        told = ask(hosts, lambda host: options)
    codes = {each.first()["code"] for each in told}
    assert codes <= {"NET006", "NET007"}, [each.out for each in told]
    assert all(each.result.returncode == 1 for each in told)


def test_unresolvable_peer_is_named_and_local_addr_heals_it(ask: Callable[..., list[Told]]) -> None:
    with Hosts(2) as hosts:
        hosts[0].forget_name(hosts[1].name)
        hosts[1].forget_name(hosts[0].name)
        endpoint = f"{hosts[0].address}:{PORT}"
        options = [*QUICK, "--nnodes", "2", "--rdzv-endpoint", endpoint, "--stage-timeout", "rendezvous=15"]
        told = ask(hosts, lambda host: options)
        healed = ask(hosts, lambda host: [*options, "--local-addr", host.address])
    assert any(each.first()["code"] == "NET008" for each in told), [each.out for each in told]
    assert [each.result.returncode for each in healed] == [0, 0], [each.out for each in healed]


def test_unreachable_peer_is_named(ask: Callable[..., list[Told]]) -> None:
    with Hosts(3) as hosts:
        hosts.drop_all(hosts[1], hosts[2])
        told = ask(hosts, static(hosts))
    first = told[0].first()
    assert first["code"] == "NET013", told[0].out
    assert {tuple(sorted(pair)) for pair in first["pairs"]} == {("node-b", "node-c")}


def test_lost_large_packets_are_named(ask: Callable[..., list[Told]]) -> None:
    with Hosts(2) as hosts:
        hosts.drop_larger(hosts[0], hosts[1], 1400)
        told = ask(hosts, static(hosts))
    assert any(each.first()["code"] == "NET014" for each in told), [each.out for each in told]


def test_duplicated_node_rank_names_both(ask: Callable[..., list[Told]]) -> None:
    with Hosts(3) as hosts:
        where = ["--master-addr", hosts[0].name, "--master-port", str(PORT), "--join-timeout", "15"]
        told = ask(
            hosts,
            lambda host: [*QUICK, "--nnodes", "3", "--node-rank", str(min(host.index, 1)), *where],
        )
    first = told[0].first()
    assert first["code"] == "ENV002", told[0].out
    assert "node-b" in first["message"]
    assert "node-c" in first["message"]


def test_different_worlds_are_named(ask: Callable[..., list[Told]]) -> None:
    with Hosts(2) as hosts:
        told = ask(hosts, lambda host: static(hosts, "--join-timeout", "8", nnodes=2 + host.index)(host))
    assert any(each.first()["code"] == "ENV003" for each in told), [each.out for each in told]


def test_differing_variables_are_named_with_their_nodes(ask: Callable[..., list[Told]]) -> None:
    with Hosts(2) as hosts:
        told = ask(hosts, static(hosts), env=lambda host: {"NCCL_ALGO": "Ring" if host.index else "Tree"})
    first = told[0].first()
    assert first["code"] == "ENV004", told[0].out
    assert "NCCL_ALGO" in first["message"]


def test_contradicting_launcher_variables_are_named(ask: Callable[..., list[Told]]) -> None:
    with Hosts(2) as hosts:
        told = ask(hosts, static(hosts), env=lambda host: {"NODE_RANK": "7", "PET_NNODES": "5"})
    codes = [finding["code"] for finding in (told[0].merged or {})["findings"]]
    assert "ENV006" in codes, told[0].out


def test_slow_link_is_named(ask: Callable[..., list[Told]]) -> None:
    with Hosts(4) as hosts:
        hosts[3].limit_rate(80)
        told = ask(
            hosts,
            lambda host: [
                "--nproc", "1", "--nnodes", "4", "--node-rank", str(host.index),
                "--master-addr", hosts[0].name, "--master-port", str(PORT), "--skip", "collectives,ddp,backends",
            ],
        )  # fmt: skip
    findings = {finding["code"]: finding for finding in (told[0].merged or {})["findings"]}
    assert "PRF002" in findings, told[0].out
    assert "node-d" in json.dumps(findings["PRF002"])
