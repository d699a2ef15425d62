"""Speeds of the machine itself, measured beside the collectives: what there is to expect."""

from __future__ import annotations

import socket
import threading
import time

import torch
import torch.distributed as dist

from ddpdoctor.evidence import Baseline
from ddpdoctor.launch.context import RankContext

COPY_BYTES = 32 * 1024 * 1024
"""Read and written 64 MiB: more than a core's share of any last-level cache, so that memory is measured."""

LOOPBACK_BYTES = 8 * 1024 * 1024
"""About 3 ms over a loopback socket, and more than its buffers hold (6 MiB, net.ipv4.tcp_rmem)."""

CHUNK_BYTES = 1024 * 1024
"""Bytes of one chunk, as gloo sends (its segments of an all_reduce)."""

REPEATS = 3
"""The best counts: other work can only make a copy slower."""


def measure_baselines(ctx: RankContext) -> None:
    """Measure on local rank 0 of each node while the other ranks wait, and emit a `Baseline` for each."""
    if ctx.local_rank == 0:
        ctx.emit(
            "baselines",
            Baseline(ctx.node, "memory-copy", measure_memory_copy(), "32 MiB, torch copy_, bytes copied"),
        )
        ctx.emit(
            "baselines",
            Baseline(ctx.node, "loopback-copy", measure_loopback(), "8 MiB through a TCP socket pair"),
        )
    dist.barrier()


def measure_memory_copy(count: int = COPY_BYTES) -> float:
    """Return GB/s (1e9 bytes copied a second) of a copy in main memory with one thread's torch."""
    source, target = torch.ones(count, dtype=torch.uint8), torch.zeros(count, dtype=torch.uint8)
    return count / min(_time_copy(source, target) for _ in range(REPEATS)) / 1e9


def _time_copy(source: torch.Tensor, target: torch.Tensor) -> float:
    begun = time.perf_counter()
    target.copy_(source)
    return time.perf_counter() - begun


def measure_loopback(count: int = LOOPBACK_BYTES) -> float:
    """Return GB/s between two threads through a TCP connection of the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname(), timeout=10)
        far, _ = server.accept()
    far.settimeout(10)
    with near, far:
        return max(_time_loopback(near, far, count) for _ in range(REPEATS))


def _time_loopback(near: socket.socket, far: socket.socket, count: int) -> float:
    block = memoryview(bytearray(CHUNK_BYTES))

    def send() -> None:
        for _ in range(count // CHUNK_BYTES):
            near.sendall(block)

    sender = threading.Thread(target=send, daemon=True)
    arrived = memoryview(bytearray(CHUNK_BYTES))
    begun, received = time.perf_counter(), 0
    sender.start()
    while received < count:
        received += far.recv_into(arrived) or _give_up()
    seconds = time.perf_counter() - begun
    sender.join()
    return count / seconds / 1e9


def _give_up() -> int:
    raise ConnectionError("the loopback connection was closed")
