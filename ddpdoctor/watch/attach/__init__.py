"""Diagnosing a running job: finding its ranks in /proc, and sampling them without touching them."""
