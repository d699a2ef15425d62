"""A device touched on its own: compute, copies to it and back, copies to its peers; contents compared.

The caller runs this in a process that can be killed: a sick GPU or driver hangs in uninterruptible calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from ddpdoctor.evidence import SmokeResult
from ddpdoctor.launch.defects import pass_defect
from ddpdoctor.launch.probes.base import word_exception
from ddpdoctor.launch.probes.exact_values import make_pattern

SIDE = 256
"""Rows of the matrices: several tiles of every GPU's multiply kernel, 17 million multiplications."""

COPY_BYTES = 8 * 1024 * 1024
"""Larger than the chunks (up to 4 MiB) in which drivers stage pageable copies."""


class WrongContentsError(Exception):
    """A device gave other values than it must."""


def smoke_device(node: int, device: str) -> list[SmokeResult]:
    """Touch ``device`` and return one row for each trial; no exception leaves this function.

    Args:
        node: number of this node, for the rows.
        device: as torch writes it, ``cpu`` or ``cuda:1``.
    """
    return [
        _measure(node, device, kind, peer, trial) for kind, peer, trial in list_trials(torch.device(device))
    ]


def list_trials(device: torch.device) -> Iterator[tuple[str, str | None, Callable[[], None]]]:
    """Yield kind, peer and trial; a trial raises when something is wrong.

    Peers are all other visible GPUs: every pair of a node is tried in both directions once all its devices
    have been touched.
    """
    yield "compute", None, partial(check_compute, device)
    if device.type == "cpu":
        return
    yield "copy", None, partial(check_copy, device)
    if device.type == "cuda":
        for index in range(torch.cuda.device_count()):
            if index != device.index:
                peer = torch.device("cuda", index)
                yield "peer-copy", str(peer), partial(check_peer_copy, device, peer)


def check_compute(device: torch.device) -> None:
    """Multiply two matrices of small integers and derive the product; both results are exact integers.

    Entries are 0 to 3 and 256 terms are summed, so every value is at most 2,304: exact in float32, and also
    where TF32 (10 bits) or bfloat16 (8 bits) replaces the *factors*, which sums in float32.

    Raises:
        WrongContentsError: a value is not what it must be.
        RuntimeError: the device refuses (no kernel image, out of memory, ECC …).
    """
    rows = torch.arange(SIDE, dtype=torch.float64)
    left, right = (rows[:, None] + rows) % 4, (rows[:, None] * 3 + rows) % 4
    weight = left.to(device, torch.float32).requires_grad_()
    product = weight @ right.to(device, torch.float32)
    product.sum().backward()
    _compare(product.detach(), left @ right, "product of two matrices")
    assert weight.grad is not None  # for the type checker: backward has just filled it
    _compare(weight.grad, right.sum(1).expand(SIDE, SIDE), "gradient of a product")


def check_copy(device: torch.device) -> None:
    """Copy a pattern to the device and back and compare every byte.

    Raises:
        WrongContentsError: other bytes came back.
        RuntimeError: the device refuses.
    """
    sent = make_pattern(1, COPY_BYTES, torch.uint8)
    _compare(sent.to(device), sent, "copy to the device and back")


def check_peer_copy(device: torch.device, peer: torch.device) -> None:
    """Copy a pattern from ``device`` to ``peer`` and compare there.

    Raises:
        WrongContentsError: other bytes arrived.
        RuntimeError: a device refuses.
    """
    sent = make_pattern(device.index + 2, COPY_BYTES, torch.uint8)
    _compare(sent.to(device).to(peer), sent, f"copy from {device} to {peer}")


def _compare(got: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    arrived, wanted = got.to("cpu"), expected.to(got.dtype)
    if torch.equal(arrived, wanted):
        return
    wrong = arrived != wanted
    first = int(wrong.flatten().nonzero()[0])
    raise WrongContentsError(
        f"{what}: {int(wrong.sum())} of {wrong.numel()} elements differ, the first at {first}: expected "
        f"{wanted.flatten()[first].item():g}, got {arrived.flatten()[first].item():g}"
    )


def _measure(node: int, device: str, kind: str, peer: str | None, trial: Callable[[], None]) -> SmokeResult:
    begun, error = time.perf_counter(), None
    try:
        trial()
    except WrongContentsError as problem:
        error = str(problem)
    except Exception as problem:
        pass_defect(problem)
        error = word_exception(problem)
    seconds = time.perf_counter() - begun
    return SmokeResult(
        node=node, device=device, ok=error is None, seconds=seconds, error=error, kind=kind, peer=peer
    )
