"""A private socket that answers."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from ddpdoctor.watch.listening import Listener


def ask(address: Path, question: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(30)
        peer.connect(str(address))
        peer.sendall(question)
        return b"".join(iter(lambda: peer.recv(4096), b""))


def test_each_question_gets_its_answer_until_it_is_closed(tmp_path: Path) -> None:
    address = tmp_path / "s"
    listener = Listener(address, lambda question: question.upper(), "test")
    listener.open()
    assert stat.S_IMODE(address.stat().st_mode) == 0o600
    assert [ask(address, b"one"), ask(address, b"two")] == [b"ONE", b"TWO"]
    listener.close()
    with pytest.raises(ConnectionError):
        ask(address, b"three")


def test_who_goes_away_in_between_takes_nobody_else_the_answer(tmp_path: Path) -> None:
    address = tmp_path / "s"
    listener = Listener(address, lambda _: b"x" * (1 << 20), "test")
    listener.open()
    with socket.socket(socket.AF_UNIX) as rude:
        rude.connect(str(address))
        rude.sendall(b"?")
    assert len(ask(address, b"?")) == 1 << 20
    listener.close()


def test_a_place_that_is_taken_is_an_error_of_open(tmp_path: Path) -> None:
    (tmp_path / "s").touch()
    listener = Listener(tmp_path / "s", lambda _: b"", "test")
    with pytest.raises(OSError, match="in use"):
        listener.open()
    listener.close()
