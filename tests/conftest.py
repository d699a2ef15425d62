"""What holds for all tests."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator

import pytest

# A shell lets what it starts in the background ignore interrupts, and whatever that starts inherits it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _unmeasured(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave out of coverage what is marked so. pytest-cov's own mark stops one of the two that measure a worker."""
    if request.node.get_closest_marker("unmeasured") is None:
        yield
        return
    tracers = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    yield
    sys.settrace(tracers[0])
    threading.settrace(tracers[1])
