"""Imported by the forkserver alone, before it forks: torch, and what the agent and the ranks need beside it.

Python's garbage collector goes through all objects again and again while so many are made that stay; without it the
import takes a sixth less. What is there afterwards is kept out of its sight for good (``gc.freeze``), so that ranks
do not copy the pages of all modules when theirs runs.
"""

from __future__ import annotations

import gc
import importlib
from contextlib import suppress

MODULES = (
    "torch",
    "torch.distributed",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "ddpdoctor.launch.agent",
    "ddpdoctor.launch.elastic",
    "ddpdoctor.launch.meeting.party",
    "ddpdoctor.launch.smoke",
)
"""Nothing of these starts a thread or touches a device, or forking were unsafe."""


def load() -> None:
    """Import them; one that cannot be is missed, and explained, by the first process that needs it."""
    gc.disable()
    try:
        for name in MODULES:
            with suppress(ImportError):
                importlib.import_module(name)
        gc.freeze()
    finally:
        gc.enable()


load()
