"""Dials, pushes and the choice of pairs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from ddpdoctor.gather.network.pairs import (
    LARGE_SIZES,
    Listener,
    choose_pairs,
    describe_sample,
    dial,
    push_large,
)

LIMIT_S = 30.0


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener("secret") as made:
        yield made


def test_a_dial_with_the_token_is_answered(listener: Listener) -> None:
    link = dial(0, 1, "127.0.0.1", listener.port, "ephemeral", "secret", LIMIT_S)
    assert (link.ok, link.error, link.source, link.target, link.kind) == (True, None, 0, 1, "ephemeral")
    assert link.seconds is not None
    assert link.clock_error_s is not None
    assert abs(link.clock_offset_s or 0.0) <= link.clock_error_s + 1e-3  # NTP may slew
    assert dial(0, 1, "localhost", listener.port, "ephemeral", "secret", LIMIT_S).ok


def test_a_dial_with_another_token_is_not(listener: Listener) -> None:
    link = dial(0, 1, "127.0.0.1", listener.port, "ephemeral", "wrong", LIMIT_S)
    assert not link.ok
    assert link.error


def test_without_a_token_an_open_connection_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert dial(0, 1, "127.0.0.1", port, "rendezvous", None, LIMIT_S).ok


def test_a_closed_port_refuses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    link = dial(2, 3, "127.0.0.1", port, "ephemeral", "secret", LIMIT_S)
    assert (link.ok, link.error) == (False, "Connection refused")


def test_something_else_that_is_silent_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = dial(0, 1, "127.0.0.1", server.getsockname()[1], "ephemeral", "secret", 0.2)
    assert (link.ok, link.error) == (False, "no answer within 0.2 s")


def test_a_name_without_an_address_is_an_error() -> None:
    link = dial(0, 1, "no-such-host.invalid", 1, "ephemeral", "secret", LIMIT_S)
    assert not link.ok
    assert link.error


def test_large_pushes_come_through(listener: Listener) -> None:
    link = push_large(0, 1, "127.0.0.1", listener.port, "secret", limit_s=LIMIT_S)
    assert (link.ok, link.kind, link.bytes_passed, link.bytes_failed) == (
        True,
        "large",
        LARGE_SIZES[-1],
        None,
    )
    assert link.mtu is None or link.mtu > 0


def test_the_sizes_on_both_sides_of_the_break_are_told() -> None:
    """A peer that swallows whatever is larger than 5,000 bytes stands in for a path-MTU black hole."""
    stop = threading.Event()
    with Listener("secret") as behind, socket.create_server(("127.0.0.1", 0)) as front:
        front.settimeout(0.1)

        def forward() -> None:
            kept = []
            while not stop.is_set():
                try:
                    peer, _ = front.accept()
                except TimeoutError:
                    continue
                peer.settimeout(LIMIT_S)
                data = peer.recv(65536)
                time.sleep(0.05)  # let the rest of the burst arrive
                if len(data) > 5000:
                    kept.append(peer)
                    continue
                with peer, socket.create_connection(("127.0.0.1", behind.port)) as onward:
                    onward.sendall(data)
                    peer.sendall(onward.recv(64))
            for peer in kept:
                peer.close()

        thread = threading.Thread(target=forward)
        thread.start()
        try:
            link = push_large(
                0,
                1,
                "127.0.0.1",
                front.getsockname()[1],
                "secret",
                sizes=(1 << 10, 1 << 15, 1 << 20),
                limit_s=2.0,
            )
        finally:
            stop.set()
            thread.join()
    assert (link.ok, link.bytes_passed, link.bytes_failed) == (False, 1 << 10, 1 << 15)
    assert link.error == "no answer within 2 s"


def test_many_dial_at_once(listener: Listener) -> None:
    links = []
    threads = [
        threading.Thread(
            target=lambda: links.append(
                push_large(0, 1, "127.0.0.1", listener.port, "secret", limit_s=LIMIT_S)
            )
        )
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [link.ok for link in links] == [True] * 16


def test_a_wanted_port_that_is_taken_is_refused(listener: Listener) -> None:
    with pytest.raises(OSError, match="in use"):
        Listener("secret", port=listener.port)


def test_closing_frees_the_port_and_ends_the_threads() -> None:
    before = threading.active_count()
    first = Listener("secret", kind="rendezvous")
    assert dial(0, 1, "127.0.0.1", first.port, "rendezvous", "secret", LIMIT_S).ok
    with socket.create_connection(("127.0.0.1", first.port)):  # a peer that says nothing
        first.close()
        first.close()
    with Listener("secret", port=first.port) as again:
        assert again.port == first.port
    end = time.monotonic() + LIMIT_S
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_hostile_peers_do_not_stop_the_listener(listener: Listener) -> None:
    for junk in (b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 100):
        with socket.create_connection(("127.0.0.1", listener.port)) as peer:
            peer.sendall(junk)
    assert dial(0, 1, "127.0.0.1", listener.port, "ephemeral", "secret", LIMIT_S).ok


@pytest.mark.parametrize("nodes", [0, 1, 2, 3, 64])
def test_all_ordered_pairs_of_few_nodes(nodes: int) -> None:
    pairs = choose_pairs(nodes)
    assert len(pairs) == len(set(pairs)) == max(0, nodes * (nodes - 1))
    assert all(i != j for i, j in pairs)


@pytest.mark.parametrize("nodes", [65, 100, 128, 1000])
def test_a_sample_of_many_nodes_covers_each_in_both_directions(nodes: int) -> None:
    pairs = choose_pairs(nodes)
    assert pairs == choose_pairs(nodes)
    assert {i for i, _ in pairs} == {j for _, j in pairs} == set(range(nodes))
    assert all(i != j and (j, i) in set(pairs) for i, j in pairs[:: nodes // 8])
    assert all((i, (i + 1) % nodes) in set(pairs) for i in range(0, nodes, nodes // 8))
    assert len(pairs) <= nodes * 2 * nodes.bit_length()


def test_the_sample_is_stated() -> None:
    assert describe_sample(4, 12) == "all 12 ordered pairs"
    assert describe_sample(128, 1664) == "1,664 of 16,256 ordered pairs"
