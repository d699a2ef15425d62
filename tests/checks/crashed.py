"""Made-up jobs that ended badly, which several tests ask for."""

from __future__ import annotations

from typing import Any

from ddpdoctor.evidence import Evidence, Frame
from ddpdoctor.evidence.job import (
    CrashRecord,
    WrappedParameter,
    WrapperFacts,
)
from ddpdoctor.evidence.texts.matching import find_entry
from tests.checks.jobs import LOOP, Job, join_attempts

UNUSED = (
    find_entry("parameters-unused").example
    + "\nmaking sure all `forward` function outputs participate in calculating loss. \n"
    "Parameter indices which did not receive grad for rank {rank}: 2 3\n In addition, you can set"
)


def said(entry: str) -> tuple[str, str]:
    """Type and message of an exception that prints an entry's example."""
    kind, _, message = find_entry(entry).example.partition(": ")
    return kind, message


def everyone_raises(entry: str, world: int = 2, **launch: object) -> Job:
    job = Job(
        world,
        nproc=1 if launch.get("nnodes") else None,
        launch={k: v for k, v in launch.items() if k != "nnodes"},
    )
    for rank in range(world):
        job.raises(rank, *said(entry), seconds=2 + rank / 100)
    return job


def one_raises(
    type: str, message: str, rank: int = 1, world: int = 4, frames: tuple[Frame, ...] = LOOP, **more: Any
) -> Job:
    job = Job(world).raises(rank, type, message, frames=frames, **more)
    return job.complains([each for each in range(world) if each != rank])


def unused(ranks: range | list[int], world: int = 4, frozen: bool | None = False) -> Job:
    """Two parameters get no gradient; both are frozen, none, or the first alone (None)."""
    job = Job(world)
    for rank in ranks:
        job.raises(rank, "RuntimeError", UNUSED.format(rank=rank), seconds=5 + rank / 1000)
        job.wrappers.append(
            WrapperFacts(
                job.processes[rank].pid, "Net", rank=rank,
                parameters=(
                    WrappedParameter(2, "b.weight", "b", "Linear", False, requires_grad=frozen is False),
                    WrappedParameter(3, "b.bias", "b", "Linear", False, requires_grad=not frozen),
                ),
            )
        )  # fmt: skip
    return job.complains([rank for rank in range(world) if rank not in ranks])


def segfault() -> Job:
    job = Job(2).dies(1, 11).complains([0])
    pid = job.processes[1].pid
    job.crashes.append(
        CrashRecord(
            pid,
            "Fatal Python error: Segmentation fault",
            (Frame("ops.py", 9, "fused"), *LOOP),
            rank=1,
            modules=("fast_ops", "numpy.core"),
            native="fast_ops.so",
        )
    )
    return job


def restarts_of(count: int) -> Evidence:
    return join_attempts(
        *(Job(2, attempt=n).raises(0, "KeyError", "'x'").complains([1]) for n in range(count))
    )


def all_raise(world: int, type: str, message: str) -> Job:
    job = Job(world)
    for rank in range(world):
        job.raises(rank, type, message, 3)
    return job
