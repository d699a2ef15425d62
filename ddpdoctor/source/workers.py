"""Work on many files by several processes, which inherit the syntax trees instead of being sent them."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

Row = TypeVar("Row")
MOST_WORKERS = 16
"""Each holds what it touches of all trees once more."""
PARTS = 4
"""Parts of the work for each worker, so that one with the longest files does not keep the others waiting."""
_inherited: Callable[[int], Any] | None = None


@contextmanager
def no_collection() -> Iterator[None]:
    """Let the cyclic garbage collector rest: it would walk millions of nodes again and again, none of them garbage."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def count_workers() -> int:
    """Return how many processes may share the work: one where processes cannot be forked safely."""
    if "fork" not in multiprocessing.get_all_start_methods() or threading.active_count() > 1:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return min(cores, MOST_WORKERS)


def share_work(work: Callable[[int], Row], sizes: Sequence[int], workers: int) -> list[Row]:
    """Return ``work(i)`` for all i, in their order.

    Args:
        work: called in forked children, which inherit all that it refers to; its results are sent back.
        sizes: how much work each i is, in whatever unit.
        workers: how many processes; with one, or where a child dies, the work is done here.
    """
    global _inherited
    everything = range(len(sizes))
    if workers < 2 or len(sizes) < 2:
        return [work(i) for i in everything]
    order = sorted(everything, key=lambda i: -sizes[i])
    count = min(len(order), workers * PARTS)
    parts = [order[start::count] for start in range(count)]
    _inherited = work
    gc.freeze()  # children do not write to the pages of what they inherit by looking for garbage in it
    try:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
            done = {i: row for rows in pool.map(_work_on, parts) for i, row in rows}
        return [done[i] for i in everything]
    except (BrokenProcessPool, OSError):  # killed for memory, or no process could be started
        return [work(i) for i in everything]
    finally:
        gc.unfreeze()
        _inherited = None


def _work_on(part: Sequence[int]) -> list[tuple[int, Any]]:
    assert _inherited is not None
    return [(i, _inherited(i)) for i in part]
