"""Skips what needs several hosts, with the reason, where this machine cannot simulate them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .harness import Hosts, unavailable_reason
from .traffic import serve


@pytest.fixture(scope="session", autouse=True)
def _hosts_can_be_simulated() -> None:
    reason = unavailable_reason()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def pair() -> Iterator[Hosts]:
    """Two hosts, each with a server on PORT."""
    with Hosts(2) as hosts:
        for host in hosts:
            serve(host)
        yield hosts
