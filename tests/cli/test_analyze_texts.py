"""Texts that users report, pasted into what torchrun prints: the right code comes first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ddpdoctor_checks
from ddpdoctor.plugins import CHECKS, Entry
from tests.cli.conftest import Run
from tests.cli.torchrun_output import ended, raised

GLOO = "/pytorch/third_party/gloo/gloo/transport/tcp"
PEER = f"RuntimeError: [{GLOO}/pair.cc:553] Connection closed by peer [127.0.0.1]:15522."
UNUSED = (
    "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error "
    "indicates that your module has parameters that were not used in producing loss.\n"
    "Parameter indices which did not receive grad for rank {}: 2 3"
)
DIED, BOTH = ended([(0, 1), (1, -15)]), ended([(0, 1), (1, 1)])
REPORTED = {
    "port in use": ("NET001", raised(0, "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use") + DIED),
    "name unknown": ("NET002", "[W1121 socket.cpp:764] [c10d] The IPv6 network addresses of (no-such-host.invalid, 29500) cannot be retrieved (gai error: -2 - Name or service not known).\n" * 3 + raised(0, "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (no-such-host.invalid, 29500).") + DIED),
    "no launcher": ("ENV001", 'Traceback (most recent call last):\n  File "/job/train.py", line 9, in <module>\n    dist.init_process_group("gloo")\nValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set\n'),
    "local rank": ("ENV007", "".join(f"usage: train.py [-h] [--local_rank LOCAL_RANK]\ntrain.py: error: unrecognized arguments: --local-rank={n}\n" for n in (0, 1)) + ended([(0, 2), (1, 2)])),
    "interface": ("NET004", "".join(raised(n, f"RuntimeError: [enforce fail at {GLOO}/device.cc:84] ifa != nullptr. Unable to find address for: eth9") for n in (0, 1)) + BOTH),
    "one device": ("BKD003", raised(1, "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, invalid usage\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000") + ended([(1, 1), (0, -15)])),
    "device assert": ("ERR007", "[rank1]:[E1121 ProcessGroupNCCL.cpp:1182] [Rank 1] NCCL watchdog thread terminated with exception: CUDA error: device-side assert triggered\n" + raised(1, "RuntimeError: CUDA error: device-side assert triggered") + ended([(1, -6), (0, -15)])),
    "watchdog": ("COL005", "[rank0]:[E1218 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=131072000, NumelOut=131072000, Timeout(ms)=600000) ran for 600081 milliseconds before timing out.\n" + ended([(0, -6), (1, -15)])),
    "unused": ("DDP001", raised(0, UNUSED.format(0)) + raised(1, UNUSED.format(1)) + BOTH),
    "attribute": ("DDP014", raised(0, "AttributeError: 'DistributedDataParallel' object has no attribute 'generate'") + raised(1, PEER) + BOTH),
    "other models": ("DDP009", raised(0, "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 128 params, while rank 1 has inconsistent 126 params.") + raised(1, PEER) + BOTH),
    "other sizes": ("COL003", f"terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at {GLOO}/pair.cc:471] op.preamble.length <= op.nbytes. 400 vs 40\n" + raised(1, PEER) + ended([(0, -6), (1, 1)])),
    "shared memory": ("ENV008", raised(1, "RuntimeError: DataLoader worker (pid 2131) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.") + raised(0, PEER) + ended([(1, 1), (0, -15)])),
    "prefix": ("CKP004", raised(0, 'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "weight", "bias". \n\tUnexpected key(s) in state_dict: "module.weight", "module.bias". ') + DIED),
    "no group": ("ENV019", raised(0, "ValueError: Default process group has not been initialized, please make sure to call init_process_group.") + DIED),
    "few came": ("NET006", raised(0, "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 2/3 clients joined.") + DIED),
    "locked memory": ("ENV010", raised(0, "torch.distributed.DistBackendError: NCCL error: unhandled system error\nLast error:\nCall to ibv_reg_mr_iova2 failed with error Cannot allocate memory") + DIED),
    "out of memory": ("ERR002", "slurmstepd: error: Detected 1 oom_kill event in StepId=123.0. Some of the step tasks have been OOM Killed.\n" + ended([(1, -9), (0, -15)])),
    "memory limit of Slurm": ("ERR002", "slurmstepd-node-a: error: StepId=1.0 exceeded memory limit (170766336 > 125829120), being killed\nsrun: Exceeded job memory limit\nsrun: Job step aborted: Waiting up to 17 seconds for job step to finish.\nslurmstepd-node-a: error: *** STEP 1.0 ON node-a CANCELLED AT 2026-11-22T23:24:11 ***\nsrun: error: node-b: task 1: Killed\n"),
    "node that Slurm lost": ("NET015", "".join(raised(n, PEER) for n in (0, 1)) + "srun: error: Node failure on node-b\nsrun: error: node-a: tasks 0-1: Exited with exit code 1\n"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def builtin(entries: list[Entry]) -> None:
    entries[:] = [Entry("ddpdoctor", CHECKS, "builtin", lambda: ddpdoctor_checks.register)]


@pytest.mark.parametrize("name", REPORTED)
def test_reported_text_has_its_code_first(run: Run, tmp_path: Path, name: str) -> None:
    code, text = REPORTED[name]
    (tmp_path / "train.log").write_text(text)
    result = run("analyze", "train.log", "--json", "report.json", "--fail-on", "warning")
    report = json.loads(Path("report.json").read_text())
    assert (result.code, report["verdict"]["code"]) == (1, code), report["verdict"]["headline"]


def watchdog(rank: int, waits: int, enqueued: int, completed: int) -> str:
    head = f"[rank{rank}]:[E603 17:48:01.0 ProcessGroupNCCL.cpp"
    late = (
        f"{head}:632] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={waits}, "
        "OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600068 milliseconds before timing out.\n"
    )
    status = (
        f"{head}:2268] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: "
        f"{waits} PG status: last enqueued work: {enqueued}, last completed work: {completed}\n"
    )
    return late + status


DUMPED = (
    "[rank3]:[E603 17:48:01.3 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump signal "
    "due to a collective timeout from rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: "
    "1579, last completed NCCL work: 1579.This is most likely caused by incorrect usages of collectives.\n"
)


def lag_report(run: Run, text: str) -> dict[str, Any]:
    Path("train.log").write_text(text + ended([(0, -6), (1, -6), (2, -6), (3, -15)]))
    run("analyze", "train.log", "--json", "report.json")
    report: dict[str, Any] = json.loads(Path("report.json").read_text())
    return report


def test_watchdogs_tell_which_rank_lags_behind(run: Run, tmp_path: Path) -> None:
    words = "".join(watchdog(rank, 1580, 1582, 1579) for rank in range(3)) + DUMPED
    first = lag_report(run, words)["findings"][0]
    assert (first["code"], first["ranks"], first["victims"]) == ("COL002", [3], [0, 1, 2])
    assert first["message"] == (
        "Ranks 0-2 wait in allreduce #1580 after 600 s; rank 3 had enqueued #1579 last: it never issued it, "
        "or is blocked inside it."
    )


def test_watchdogs_of_ranks_that_are_level_blame_nobody(run: Run, tmp_path: Path) -> None:
    words = "".join(watchdog(rank, 1580, 1582, 1579) for rank in range(4))
    first = lag_report(run, words)["findings"][0]
    assert (first["code"], first["ranks"]) == ("COL005", [])
    assert "nothing shows which rank is the root cause" in first["message"]


def test_watchdogs_of_other_groups_are_not_compared(run: Run, tmp_path: Path) -> None:
    words = "".join(watchdog(rank, 1580, 1582, 1579) for rank in range(3))
    other = DUMPED.replace("[PG ID 0 PG GUID 0(default_pg) Rank 3]", "[PG ID 5 PG GUID 22(tensor) Rank 0]")
    first = lag_report(run, words + other)["findings"][0]
    assert (first["code"], first["confidence"]) == ("COL005", "medium")
