"""Checks of a job: why it ended, why it hangs, what its recorded calls show, and silent failures.

Each package builds on those before it: `calls`, `blame`, then `hangs` and `recorder`, `silent`, `ends`.
"""
