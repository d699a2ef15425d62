"""Examining a job that runs already: finding its ranks in /proc, and looking at them without touching them."""
