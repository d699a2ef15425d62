"""Checks of a job: why it ended, why it does not get on, what its recorded calls show, what it does wrong in silence.

Each package builds on those before it: `calls`, `blame`, then `hangs` and `recorder`, `silent`, `ends`.
"""
