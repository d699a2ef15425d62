"""Connections and interfaces as the kernel tells them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpdoctor.gather.network import netlink
from ddpdoctor.gather.network.netlink import (
    TcpSocket,
    in_network_of,
    list_links,
    list_tcp,
    list_tcp_from_proc,
)
from ddpdoctor.watch.live import network


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
    ):
        far, _ = server.accept()
        with far:
            yield near, far


def own(sockets: list[TcpSocket], near: socket.socket) -> TcpSocket:
    return next(
        each for each in sockets if each.near == near.getsockname() and each.far == near.getpeername()
    )


def test_both_sources_tell_the_same(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    near.sendall(bytes(1000))
    told = own(list_tcp(), far)
    table = own(list_tcp_from_proc(os.getpid()), far)
    for each in (told, table):
        assert (each.state, each.receive_queue, each.repeats) == ("established", 1000, 0)
        assert each.inode == os.fstat(far.fileno()).st_ino
    assert table.info is None
    assert told.info is not None
    assert told.info.received_bytes == 1000
    assert told.info.heard_s < 30
    assert told.info.segment_bytes > 500


def test_listening_sockets_are_left_out(pair: tuple[socket.socket, socket.socket]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname() not in {each.near for each in list_tcp()}
        assert server.getsockname() not in {each.near for each in list_tcp_from_proc(os.getpid())}


def test_interfaces_are_listed_without_the_loopback() -> None:
    names = {name for _, name in socket.if_nameindex()}
    links = list_links()
    assert {each.name for each in links} == names - {"lo"}
    assert all(each.mtu for each in links)


def test_process_that_is_gone_has_no_network() -> None:
    with pytest.raises(FileNotFoundError):
        in_network_of(2**22 + 1, list_tcp)


def test_look_tells_what_ranks_hold_and_whether_it_moved(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    ranks: dict[int, int | None] = {os.getpid(): 3}
    before = network.take_sample(list(ranks))
    near.sendall(bytes(20_000))
    seen = network.describe(ranks, before, network.take_sample(list(ranks)), 1)
    assert (seen.node, seen.source, seen.note) == (1, "sock_diag", None)
    name = f"127.0.0.1:{far.getsockname()[1]}"
    peer = f"127.0.0.1:{near.getsockname()[1]}"
    (row,) = [each for each in seen.connections if (each.near, each.far) == (name, peer)]
    assert (row.rank, row.moved, row.unread, row.passed_bytes) == (3, True, 20_000, 20_000)
    again = network.take_sample(list(ranks))
    still = network.describe(ranks, again, network.take_sample(list(ranks)), 1)
    (row,) = [each for each in still.connections if (each.near, each.far) == (name, peer)]
    assert (row.moved, row.passed_bytes) == (False, 0)


def test_without_netlink_the_tables_of_proc_are_read_and_that_is_said(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> list[TcpSocket]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(network, "list_tcp", refuse)
    ranks: dict[int, int | None] = {os.getpid(): 0}
    sample = network.take_sample(list(ranks))
    seen = network.describe(ranks, sample, sample, 0)
    assert seen.source == "proc"
    assert "Operation not permitted" in str(seen.note)
    assert [each.heard_s for each in seen.connections if str(pair[0].getsockname()[1]) in each.near] == [None]


def test_connections_are_bounded_and_the_stuck_ones_are_kept(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "MOST_CONNECTIONS", 1)
    pair[0].sendall(b"x")
    ranks: dict[int, int | None] = {os.getpid(): 0}
    sample = network.take_sample(list(ranks))
    seen = network.describe(ranks, sample, sample, 0)
    assert len(seen.connections) == 1
    assert seen.connections[0].unread or seen.connections[0].unacknowledged
    assert seen.left_out >= 1


@pytest.mark.parametrize("data", [b"", bytes(4), b"\x03\x00\x01\x00", b"\xff\xff\x01\x00ab"])
def test_attributes_of_any_kind_end(data: bytes) -> None:
    assert len(list(netlink._attributes(data))) <= 1


def test_tables_of_proc_that_are_missing_are_a_problem(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list_tcp_from_proc(1, tmp_path)
