"""What holds for all tests."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.unmeasured import unmeasured

MEASURED = "tests/launch/"
"""Tests of which the processes that they start are measured as well. Coverage doubles what such a process takes, mostly
while it imports torch, and what others start covers nothing that these do not."""
_hooks: dict[str, str] = {}
"""Variables that make coverage start in each Python, while they are taken out."""

# A shell lets what it starts in the background ignore interrupts, and whatever that starts inherits it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let coverage start in what the test starts, fixtures included, or not."""
    if item.nodeid.startswith(MEASURED):
        os.environ.update(_hooks)
    else:
        _hooks.update({name: os.environ[name] for name in set(os.environ) - set(unmeasured())})
        for name in _hooks:
            os.environ.pop(name, None)


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
