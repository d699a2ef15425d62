"""``ddpdoctor demo incident``: what two nodes leave behind when a GPU falls off the bus, for `analyze` to read."""

from __future__ import annotations

import json
import time
from pathlib import Path

NODES, EACH = ("node-a", "node-b"), 8
LOST_RANK = 11
"""GPU 3 of the second node."""
LIMIT_S = 600
"""Timeout of the process group, in seconds."""
STEPS = 240
BUS = ("07", "0b", "48", "4c", "88", "8b", "c8", "cb")
"""PCI buses of the GPUs of a node."""
SILENT_S = 41
"""How long the node still writes after its GPU is lost."""
AGO_S = 7200


def write_incident(folder: Path, now: float | None = None) -> None:
    """Write logs, kernel logs and recorder dumps of a job of 16 ranks on two nodes.

    Args:
        folder: exists, and is empty.
        now: seconds since the epoch; the incident lies two hours before.
    """
    lost = float(int((time.time() if now is None else now) - AGO_S))
    for node, host in enumerate(NODES):
        own = folder / host
        own.mkdir()
        (own / "train.log").write_text(_train_log(node, host, lost), encoding="utf-8")
        (own / "dmesg.txt").write_text(_kernel_log(node, lost), encoding="utf-8")
    dumps = folder / NODES[0] / "nccl_trace"
    dumps.mkdir()
    for rank in range(EACH):
        (dumps / f"rank_{rank}.json").write_text(json.dumps(_dump(rank, lost)), encoding="utf-8")


def _train_log(node: int, host: str, lost: float) -> str:
    """Return a log: NCCL sets up, steps are made, and then nothing more, or a timeout."""
    first = node * EACH
    begun = lost - 2 * STEPS
    lines = [
        f"{host}:{4000 + rank}:{4100 + rank} [{rank - first}] NCCL INFO ncclCommInitRankConfig "
        f"comm 0x55d0c8b3e{rank:03x} rank {rank} nranks {len(NODES) * EACH} cudaDev {rank - first} "
        f"nvmlDev {rank - first} busId {BUS[rank - first]}000 commId 0x1f2e3d4c5b6a7988 - Init COMPLETE"
        for rank in range(first, first + EACH)
    ]
    last = lost + (SILENT_S if node else 0)
    steps = int((last - begun) // 2)
    lines += [
        f"{_clock(begun + 2 * step)},{step % 10}00 INFO train: step {step} loss {8.0 / (1 + step / 40):.4f}"
        for step in range(0, steps + 1, 10)
    ]
    if node:
        lines.append(f"{_clock(last)},000 WARNING loader: batch 0 of the next step is late")
        return "\n".join(lines) + "\n"
    late = lost + LIMIT_S
    stamp = _c10d(late)
    for rank in range(EACH):
        lines.append(
            f"[rank{rank}]:[E{stamp}.{rank:03d}426000 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught "
            f"collective operation timeout: WorkNCCL(SeqNum={STEPS + 1}, OpType=ALLREDUCE, NumelIn=26214400, "
            f"NumelOut=26214400, Timeout(ms)={LIMIT_S * 1000}) ran for {LIMIT_S * 1000 + 12 + rank} milliseconds "
            "before timing out."
        )
    for rank in range(EACH):
        lines.append(
            f"[rank{rank}]:[E{stamp}.{rank:03d}931000 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) "
            f"Rank {rank}] failure detected by watchdog at work sequence id: {STEPS + 1} PG status: "
            f"last enqueued work: {STEPS + 1}, last completed work: {STEPS}"
        )
    return "\n".join(lines) + "\n"


def _kernel_log(node: int, lost: float) -> str:
    lines = [f"[{_weekday(lost - 86_400)}] mlx5_core 0000:5e:00.0 ib0: Link up"]
    if node:
        bus = BUS[LOST_RANK - EACH]
        lines += [
            f"[{_weekday(lost)}] NVRM: GPU at PCI:0000:{bus}:00: GPU-5a3e6d11-7c1f-3d12-9d0c-1a2b3c4d5e6f",
            f"[{_weekday(lost)}] NVRM: Xid (PCI:0000:{bus}:00): 79, pid='<unknown>', name=<unknown>, "
            "GPU has fallen off the bus.",
        ]
    return "\n".join(lines) + "\n"


def _dump(rank: int, lost: float) -> dict[str, object]:
    """Return a dump of torch's Flight Recorder in its JSON form: the last calls of a rank."""
    first = STEPS - 8
    entries = []
    for number in range(first, STEPS + 2):
        done = number <= STEPS
        begun = lost - 2 * (STEPS + 1 - number)
        entries.append(
            {
                "record_id": number,
                "pg_id": 0,
                "process_group": ["0", "default_pg"],
                "collective_seq_id": number,
                "p2p_seq_id": 0,
                "op_id": number,
                "profiling_name": "nccl:all_reduce",
                "time_created_ns": int(begun * 1e9),
                "input_sizes": [[26214400]],
                "input_dtypes": ["Float"],
                "output_sizes": [[26214400]],
                "output_dtypes": ["Float"],
                "state": "completed" if done else "started",
                "time_discovered_started_ns": int((begun + 0.1) * 1e9),
                "time_discovered_completed_ns": int((begun + 1.5) * 1e9) if done else None,
                "retired": done,
                "timeout_ms": LIMIT_S * 1000,
                "is_p2p": False,
            }
        )
    members = list(range(len(NODES) * EACH))
    return {
        "version": "2.10",
        "rank": rank,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(members)}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": STEPS + 1,
                "last_started_collective": STEPS + 1,
                "last_completed_collective": STEPS,
            }
        },
        "entries": entries,
    }


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _weekday(seconds: float) -> str:
    return time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(seconds))


def _c10d(seconds: float) -> str:
    """Return a time as c10d writes it: month without a leading zero, day, clock."""
    parts = time.localtime(seconds)
    return f"{parts.tm_mon}{parts.tm_mday:02d} {time.strftime('%H:%M:%S', parts)}"
