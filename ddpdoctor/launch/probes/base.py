"""What all probes share: their error, how an exception is worded, and keeping random state untouched."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

_UNSUPPORTED = (
    "does not support",
    "doesn't support",
    "not supported",
    "unsupported",
    "not implemented",
    "unimplemented",
    "cannot use reduceop",
    "invalid scalar type",
    "invalid reduction operation",
    "unhandled reduceop",
    "unconvertible nccl type",
    "is only available",
    "only supports",
)
"""Wordings with which ProcessGroup and its backends refuse a call before anything was sent. From
ProcessGroup.hpp ("Backend X does not support Y"), ProcessGroupGloo.cpp ("Invalid scalar type", "Cannot use
ReduceOp.AVG with Gloo", "Unhandled ReduceOp"), ProcessGroupNCCL.cpp ("Unconvertible NCCL type") and
ProcessGroupMPI.cpp ("MPI process group does not support")."""

MAX_TEXT = 600
"""Characters of an exception's message that are kept; c10d appends C++ stacks of several kilobytes."""


class ProbeError(Exception):
    """A probe cannot go on: ranks may be out of step. What was seen until then has been emitted."""


def word_exception(problem: BaseException) -> str:
    """Return one line for an exception: its type and the first lines of its message."""
    text = " ".join(str(problem).split("Exception raised from")[0].split())
    text = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " …"
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__


def find_refusal(problem: BaseException) -> str | None:
    """Return the backend's own words if ``problem`` says that it does not have the operation, else None.

    A refusal is raised by the argument checks of every rank before anything is sent, so that ranks stay in
    step and the probe may go on.
    """
    text = word_exception(problem)
    if isinstance(problem, NotImplementedError) or any(word in text.lower() for word in _UNSUPPORTED):
        return text
    return None


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Leave the generators of Python, torch (CPU and the current GPU) and NumPy, if loaded, as they were."""
    python_state, cpu_state = random.getstate(), torch.get_rng_state()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    cuda_state = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python_state)
        torch.set_rng_state(cpu_state)
        if numpy is not None and numpy_state is not None:
            numpy.random.set_state(numpy_state)
        if cuda_state is not None:
            torch.cuda.set_rng_state(cuda_state)


def agree_on_all(flags: Sequence[bool], device: str) -> list[bool]:
    """Return for each flag whether it is set on every rank. A collective call."""
    votes = torch.tensor([int(flag) for flag in flags], dtype=torch.int32, device=device)
    dist.all_reduce(votes, op=dist.ReduceOp.MIN)
    return [bool(vote) for vote in votes.tolist()]


def synchronize(device: str) -> None:
    """Wait until the work queued on ``device`` has been done; nothing to wait for on the CPU."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif not device.startswith("cpu"):
        torch.get_device_module(torch.device(device)).synchronize()
