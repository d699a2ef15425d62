"""Probes: what each rank of the tiny world runs. They emit evidence and draw no conclusion.

Importing this package imports torch; the forkserver preloads it.
"""
