"""One cluster for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .cluster import Cluster, unavailable_reason


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Return two nodes that take jobs."""
    reason = unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(2) as made:
        yield made
