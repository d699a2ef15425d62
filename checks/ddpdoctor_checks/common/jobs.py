"""Which reports have the rows of checks of jobs."""

from __future__ import annotations

JOB = ("run", "attach", "analyze")
"""Commands that look at a job."""
