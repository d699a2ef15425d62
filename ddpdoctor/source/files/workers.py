"""Work on many files by several processes, which inherit the syntax trees instead of being sent them."""

from __future__ import annotations

import contextlib
import gc
import heapq
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from ddpdoctor.evidence.codec import decode, encode

Row = TypeVar("Row")
MOST_WORKERS = 16
"""Each holds what it touches of all trees once more."""


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
    if sys.platform != "linux" or threading.active_count() > 1:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return min(cores, MOST_WORKERS)


def share_work(work: Callable[[int], Row], kind: type[Row], sizes: Sequence[int], workers: int) -> list[Row]:
    """Return ``work(i)`` for all i, in their order.

    Plain children and pipes: a pool keeps threads and queues that outlive an interrupt, or whoever started them. This
    process does a part itself: each further one copies the pages to which it writes.

    Args:
        work: called here and in forked children, which inherit all that it refers to and send its results back.
        kind: what it returns, a class of evidence.
        sizes: how much work each i is, in whatever unit.
        workers: how many processes, this one included; where a child dies or fails, its work is done here.
    """
    count = min(workers, len(sizes))
    if count < 2:
        return [work(i) for i in range(len(sizes))]
    parts = _divide(sizes, count)
    done: dict[int, Row] = {}
    children: list[tuple[int, int]] = []
    gc.freeze()  # children do not write to the pages of what they inherit by looking for garbage in it
    try:
        with _no_interrupt():  # between the start of a child and the note of it
            for part in parts[1:]:
                children.append(_start(work, part))
        done.update({i: work(i) for i in parts[0]})
        for _, pipe in children:
            done.update({int(i): decode(kind, row) for i, row in _receive(pipe)})
    except OSError:  # no process or pipe could be made; what is missing is done below
        pass
    finally:
        gc.unfreeze()
        _end(children)
    return [done[i] if i in done else work(i) for i in range(len(sizes))]


def _divide(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Return parts of much the same size, each with its largest piece first: the next goes to who has least."""
    parts: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, number) for number in range(count)]
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        load, number = loads[0]
        parts[number].append(i)
        heapq.heapreplace(loads, (load + 1 + sizes[i], number))
    return parts


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Let Ctrl-C wait. A mask of the main thread is not enough: threads of C libraries take the signal as well."""
    if threading.current_thread() is not threading.main_thread():
        yield  # which no interrupt reaches
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    if came:
        signal.raise_signal(signal.SIGINT)


def _start(work: Callable[[int], object], part: Sequence[int]) -> tuple[int, int]:
    """Start a child that does one part; return its number and the pipe from which its results come."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ended by Ctrl-C without a word
        data = json.dumps([(i, encode(work(i))) for i in part]).encode()
        with os.fdopen(writing, "wb") as stream:
            stream.write(data)
    finally:
        os._exit(0)  # nothing of what the parent has opened is flushed or ended twice


def _receive(pipe: int) -> list[tuple[int, Any]]:
    """Return the results that a child has sent; none where it died or failed before."""
    with os.fdopen(pipe, "rb", closefd=False) as stream:
        data = stream.read()
    try:
        return list(json.loads(data))
    except ValueError:  # killed before, or while it was sending
        return []


def _end(children: Sequence[tuple[int, int]]) -> None:
    """End what still runs, which after an interrupt all do, and take in how each child ended."""
    for child, pipe in children:
        os.close(pipe)
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(child, 0)
