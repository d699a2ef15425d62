"""Opening torch's store within a limit, and sending texts through it."""

from __future__ import annotations

import random
import socket
import string
import time
from collections.abc import Iterator

import pytest
from torch._C._distributed_c10d import TCPStore

from ddpdoctor.launch.meeting.store import PIECE, open_store, receive_parcel, send_parcel, serve_store


@pytest.fixture
def server() -> Iterator[TCPStore]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store
    del store


@pytest.fixture
def client(server: TCPStore) -> TCPStore:
    return open_store("127.0.0.1", server.port)


def make_text(length: int) -> str:
    """Return a text that does not get much shorter when it is compressed."""
    return "".join(random.Random(1).choices(string.ascii_letters, k=length))


@pytest.mark.parametrize("gently", [True, False])
@pytest.mark.parametrize("text", ["", "short", make_text(20_000)], ids=["empty", "short", "long"])
def test_parcels_arrive_as_they_were_sent(
    server: TCPStore, client: TCPStore, text: str, gently: bool
) -> None:
    send_parcel(client, "key", text, gently=gently)
    assert receive_parcel(server, "key") == text


def test_gentle_parcels_have_no_large_piece_and_others_go_at_once(client: TCPStore) -> None:
    text = make_text(20_000)
    send_parcel(client, "gentle", text, gently=True)
    count = int(client.get("gentle"))
    assert count > 10
    assert max(len(client.get(f"gentle/{number}")) for number in range(count)) == PIECE
    send_parcel(client, "swift", text, gently=False)
    assert client.get("swift") == b"1"


def test_parcel_is_there_only_when_it_is_complete(client: TCPStore) -> None:
    send_parcel(client, "other", "x", gently=True)
    assert not client.check(["key"])
    client.set("key/0", "half of it")
    assert not client.check(["key"])


def test_port_at_which_nobody_listens_is_refused_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        begun = time.monotonic()
        with pytest.raises(ConnectionRefusedError):
            open_store("127.0.0.1", unused.getsockname()[1])
        assert time.monotonic() - begun < 10


def test_what_accepts_and_says_nothing_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            open_store("127.0.0.1", silent.getsockname()[1], 1.0)
        assert time.monotonic() - begun < 20


def test_taken_port_cannot_be_served() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder, pytest.raises(Exception, match="EADDRINUSE"):
        serve_store("127.0.0.1", holder.getsockname()[1])
