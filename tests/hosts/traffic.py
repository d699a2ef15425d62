"""Traffic between simulated hosts, to see what a network lets through; used by the tests of the harness."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from .harness import Host

PORT = 29400
PEER = Path(__file__).with_name("peer.py")
# What a probe waits for packets that never come: longer than the first repeat of a lost SYN (1 s).
LOST_LIMIT_S = 2
GENEROUS_S = 60.0


def wait_until(condition: Callable[[], bool], limit_s: float = GENEROUS_S) -> bool:
    """Give True as soon as the condition holds, False when it does not within the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def serve(host: Host, port: int = PORT) -> None:
    """Start a server on a host and wait until it listens."""
    host.start([sys.executable, PEER, "serve", str(port)])
    assert wait_until(lambda: port in {listener.port for listener in host.listeners()})


def send(
    source: Host, target: str, size: int = 1, *, port: int = PORT, bind: str = "", limit_s: int = 30
) -> str:
    """Send bytes from a host to an address or name and give the first word that the client says."""
    return seconds_or_error(source, target, size, port=port, bind=bind, limit_s=limit_s).split()[0]


def seconds_or_error(
    source: Host, target: str, size: int, *, port: int = PORT, bind: str = "", limit_s: int = 30
) -> str:
    """Send bytes as `send` does and give all that the client says: ``ok SECONDS``, or the error's name."""
    words = ["send", target, str(port), str(size), str(limit_s), *([bind] if bind else [])]
    result = source.run([sys.executable, PEER, *words], timeout=GENEROUS_S)
    assert result.returncode == 0, result.describe()
    return result.stdout.strip()


def seconds(source: Host, target: Host, size: int) -> float:
    """Give the seconds that a transfer between two hosts takes."""
    word, figure = seconds_or_error(source, target.address, size).split()
    assert word == "ok"
    return float(figure)
