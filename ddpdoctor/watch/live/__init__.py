"""Watching a job while it runs: what its ranks do, whether it makes progress, and what to report."""
