"""Name look-ups end in time, whatever the resolver does."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from ddpdoctor.gather.deadline import Later, ToolError, call_within, run_tool
from ddpdoctor.gather.network.dns import resolve


def test_a_name_and_a_literal_resolve() -> None:
    found = resolve(2, "localhost", "master")
    assert found.error is None
    assert set(found.addresses) & {"127.0.0.1", "::1"}
    assert resolve(2, "10.1.2.3", "peer", 4).addresses == ("10.1.2.3",)
    assert resolve(2, "10.1.2.3", "peer", 4).of_node == 4


def test_an_unknown_name_has_the_resolvers_own_words() -> None:
    found = resolve(0, "no-such-host.invalid", "master")
    assert found.addresses == ()
    assert "gai error" in (found.error or "") or "no answer" in (found.error or "")


@pytest.mark.parametrize("name", ["x" * 300, "a..b", "bad name", "\0"])
def test_impossible_names_do_not_raise(name: str) -> None:
    assert resolve(0, name, "master").error


def test_a_resolver_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(*_: Any) -> list[Any]:
        release.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    start = time.monotonic()
    found = resolve(0, "slow.example", "master", limit_s=0.1)
    release.set()
    assert time.monotonic() - start < 30
    assert found.error == "no answer within 0.1 s"


def test_errors_and_values_pass_through() -> None:
    assert call_within(30, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        call_within(30, lambda: 1 // 0)
    assert Later(lambda: 1 // 0).result_or(5, 30) == 5


def test_tools() -> None:
    assert run_tool(["echo", "hello"], 30) == "hello\n"
    with pytest.raises(ToolError, match="exited with code 3: sorry"):
        run_tool(["sh", "-c", "echo sorry >&2; exit 3"], 30)
    with pytest.raises(ToolError, match="no-such-tool"):
        run_tool(["no-such-tool-xyz"], 30)


def test_a_tool_that_hangs_is_killed_with_its_children() -> None:
    with pytest.raises(ToolError, match=r"did not respond within 0\.2 s"):
        run_tool(["sh", "-c", "sleep 600 & sleep 600"], 0.2)
