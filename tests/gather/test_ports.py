"""The rendezvous port as torch's store would find it."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from ddpdoctor.gather.network import ports
from ddpdoctor.gather.network.ports import free_port, probe_port, unprivileged_start


def test_a_free_port_is_free_and_stays_unbound() -> None:
    port = free_port()
    assert probe_port(3, "127.0.0.1", port).status == "free"
    assert probe_port(3, None, port).status == "free"


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1"])
def test_a_taken_port_names_its_holder(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        try:
            holder.bind((address, 0))
        except OSError:
            pytest.skip(f"{address} is not available here")
        holder.listen()
        port = holder.getsockname()[1]
        probe = probe_port(0, None, port)
        if address == "::1":
            # torch falls back to IPv4, so an IPv6-only holder does not stop it.
            assert probe.status in ("taken", "free")
            return
        assert (probe.status, probe.port, probe.holder_pid) == ("taken", port, os.getpid())
        assert "python" in (probe.holder_command or "")
        assert probe.error


def test_a_port_that_waits_after_its_connection_is_free() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's store has it
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the server's side closes first and keeps TIME_WAIT
            client.recv(1)
    assert probe_port(0, None, port).status == "free"


def test_an_outgoing_connection_on_the_port_counts_and_is_named() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with socket.create_connection(server.getsockname()) as client:
            probe = probe_port(0, None, client.getsockname()[1])
    assert (probe.status, probe.holder_pid) == ("taken", os.getpid())


def test_without_rights_the_holder_is_unknown(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        probe = probe_port(0, None, holder.getsockname()[1], proc=tmp_path)
    assert (probe.status, probe.holder_pid, probe.holder_command) == ("taken", None, None)


@pytest.mark.parametrize("port", [0, -1, 65536, 99999])
def test_numbers_that_are_no_ports(port: int) -> None:
    probe = probe_port(0, None, port)
    assert probe.status == "invalid"
    assert str(port) in (probe.error or "")


def test_an_address_of_another_machine() -> None:
    # 198.51.100.0/24 is reserved for documentation (RFC 5737): no interface has it.
    probe = probe_port(0, "198.51.100.7", free_port())
    assert probe.status == "unassignable"
    assert "198.51.100.7" in (probe.error or "")


def test_a_privileged_port_without_rights_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(port: int) -> OSError:
        return PermissionError(13, "Permission denied")

    monkeypatch.setattr(ports, "_try_listen", refuse)
    assert probe_port(0, None, 80).status == "denied"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_first_unprivileged_port(tmp_path: Path) -> None:
    assert 0 <= unprivileged_start() <= 65535
    assert unprivileged_start(tmp_path) == 1024
