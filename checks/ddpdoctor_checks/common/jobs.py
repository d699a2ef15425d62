"""Which reports have the rows of checks of jobs, and what checks of a training read."""

from __future__ import annotations

JOB = ("run", "attach", "analyze")
"""Commands that look at a job."""
TRAINING = ("training",)
"""Evidence without which a check of a training is left out."""
