"""Diagnosing from Python: what the commands call, and what ``import ddpdoctor`` offers (docs/api.md)."""
