"""When ranks that make no progress are said to hang, for `run`, snapshots and what a job left behind alike."""

from __future__ import annotations

STALL_S = 10.0
"""Seconds without progress before which no rank is suspected (--stall-after)."""
HANG_S = 300.0
"""Seconds without progress after which a stall is a hang, where no deadlock is proven (--hang-timeout)."""
