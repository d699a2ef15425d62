"""``ddpdoctor analyze`` on what a dead NCCL job left behind: the shapes of its lines, and who is blamed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ddpdoctor_checks
from ddpdoctor.plugins import CHECKS, Entry
from tests.cli.conftest import Run

INIT = "".join(
    f"{host}:{pid}:{pid + 90} [{device}] NCCL INFO comm 0x55d0c8b3e{rank} rank {rank} nranks 4 cudaDev {device} busId "
    f"1{device}000 - Init COMPLETE\n"
    for rank, (host, pid, device) in enumerate(
        [("node-a", 4711, 0), ("node-a", 4712, 1), ("node-b", 811, 0), ("node-b", 812, 1)]
    )
)
FAILED = (
    "{prefix}node-b:811:930 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.4.16.8<40211> "
    "with error 12, opcode 0, len 0, vendor err 129\n"
    "{prefix}node-b:811:930 [0] NCCL INFO include/net.h:32 -> 6\n"
)
LOST = "node-a:4711:4801 [0] misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer node-b<45123>\n"
LATE = (
    "[rank{0}]:[E1218 20:27:21.426415540 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600081 "
    "milliseconds before timing out.\n"
)
STATUS = (
    "[rank{0}]:[E1218 20:27:22.1 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {0}] failure detected by "
    "watchdog at work sequence id: 12 PG status: last enqueued work: {1}, last completed work: {2}\n"
)


@pytest.fixture(autouse=True)
def builtin(entries: list[Entry]) -> None:
    entries[:] = [Entry("ddpdoctor", CHECKS, "builtin", lambda: ddpdoctor_checks.register)]


def analyze(run: Run, **files: str) -> dict[str, Any]:
    for name, text in files.items():
        Path(name.replace("_", "-") + ".log").write_text(text)
    run("analyze", *(name.replace("_", "-") + ".log" for name in files), "--json", "report.json")
    report: dict[str, Any] = json.loads(Path("report.json").read_text())
    return report


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[1,2]<stderr>:",
        "[default0]:",
        "[2025-06-03 10:00:01] ",
        "(RayTrainWorker pid=811, ip=10.0.0.2) ",
        "worker-1  | ",
        "[pod/worker-1/main] ",
        "2026-11-20T10:00:01.123456789Z stderr F ",
        "epoch 3:  41%|####      | 12/30\r",
    ],
)
def test_warning_is_found_behind_every_prefix_and_has_its_rank(run: Run, tmp_path: Path, prefix: str) -> None:
    first = analyze(run, job=INIT + "step 1\n" + FAILED.format(prefix=prefix) + LOST)["findings"][0]
    assert (first["code"], first["ranks"], first["confidence"]) == ("NET016", [2], "medium")
    assert "Got completion from peer 10.4.16.8<40211> with error 12" in first["message"]


def test_warning_that_another_process_cut_into_is_found(run: Run, tmp_path: Path) -> None:
    line = INIT + LOST.rstrip("\n") + FAILED.format(prefix="")
    assert analyze(run, job=line)["verdict"]["code"] == "NET016"


def test_process_is_named_where_its_rank_is_not_known(run: Run, tmp_path: Path) -> None:
    first = analyze(run, job=FAILED.format(prefix=""))["findings"][0]
    assert (first["code"], first["ranks"]) == ("NET016", [])
    assert first["message"].startswith("Process 811 on node-b failed:")


def test_lost_peer_alone_is_no_cause_and_never_healthy(run: Run, tmp_path: Path) -> None:
    verdict = analyze(run, job=INIT + LOST)["verdict"]
    assert (verdict["status"], verdict["code"]) == ("unknown", None)


def test_warning_that_nobody_knows_is_shown_and_never_healthy(run: Run, tmp_path: Path) -> None:
    report = analyze(run, job="step 1\nnode-a:1:2 [0] new.cc:7 NCCL WARN Something entirely new 12\nstep 2\n")
    assert report["verdict"]["status"] == "unknown"
    (line,) = report["evidence"]["job"][0]["notable"]
    assert (line["line"], "entirely new" in line["text"]) == (2, True)


def test_lines_worth_reading_are_those_that_one_rank_says(run: Run, tmp_path: Path) -> None:
    noise = "".join(
        f"[rank{rank}]: ERROR retrying the tracker, attempt {n}\n" for n in range(300) for rank in range(8)
    )
    report = analyze(run, job=noise + "[rank5]: ERROR cannot parse shard 17\n" + noise)
    lines = report["evidence"]["job"][0]["notable"]
    assert len(lines) <= 10
    assert any("cannot parse shard" in line["text"] for line in lines)


def test_kernel_of_a_node_decides_over_time_outs(run: Run, tmp_path: Path) -> None:
    kernel = (
        "[Mon Mar  2 04:11:09 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen "
        "off the bus.\n"
    )
    report = analyze(run, train=INIT + LATE.format(0) + LATE.format(1) + LOST, node_b_dmesg=kernel)
    first = report["findings"][0]
    assert (first["code"], first["confidence"], first["nodes"]) == ("BKD010", "high", ["node-b"])
    assert first["victims"] == [0, 1]


def test_xid_of_a_program_gives_way_to_its_exception(run: Run, tmp_path: Path) -> None:
    kernel = "kernel: NVRM: Xid (PCI:0000:5d:00): 31, pid=4711, name=python, MMU Fault\n"
    report = analyze(run, train=LATE.format(0), node_a_dmesg=kernel)
    assert report["verdict"]["code"] == "ERR007"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ((11, 11), "COL002"),
        ((3904955349522264369, 3904955349522264369), "COL005"),
        ((12, 11), "COL005"),
    ],
)
def test_counters_of_watchdogs(run: Run, tmp_path: Path, status: tuple[int, int], code: str) -> None:
    first = analyze(run, job=LATE.format(0) + STATUS.format(0, 12, 11) + STATUS.format(1, *status))[
        "findings"
    ][0]
    assert (first["code"], first["confidence"] != "high") == (code, True)
    if code == "COL002":
        assert "it never issued it, or is blocked inside it" in first["message"]


def test_rank_that_had_started_the_call_was_inside_it(run: Run, tmp_path: Path) -> None:
    inside = STATUS.format(1, "11, last started work: 12", 11)
    first = analyze(run, job=LATE.format(0) + STATUS.format(0, 12, 11) + inside)["findings"][0]
    assert (first["code"], first["ranks"]) == ("COL005", [1])


def test_blocked_watchdog_is_a_consequence_of_a_time_out(run: Run, tmp_path: Path) -> None:
    stuck = "[rank0]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 0] Heartbeat monitor timed out! Process will be terminated\n"
    assert analyze(run, job=stuck)["verdict"]["code"] == "ERR011"
    assert analyze(run, job=stuck + LATE.format(1))["verdict"]["code"] == "COL005"


def test_loopback_is_wrong_on_several_nodes_only(run: Run, tmp_path: Path) -> None:
    chosen = "{0}:7:7 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\n"
    refused = (
        "{0}:7:9 [0] include/socket.h:403 NCCL WARN Connect to 127.0.0.1<49333> failed : Connection refused\n"
    )
    alone = chosen.format("node-a") + refused.format("node-a")
    assert analyze(run, job=alone)["verdict"]["code"] is None
    assert analyze(run, job=alone + chosen.format("node-b"))["verdict"]["code"] == "NET003"


def test_node_whose_runs_of_nccl_tests_are_slow_is_named(run: Run, tmp_path: Path) -> None:
    def output(nodes: str, speed: float) -> str:
        ranks = "".join(
            f"#  Rank {n:2} Group  0 Pid {700 + n:6} on {node:>10} device  0 [0x07] NVIDIA A100-SXM4-80GB\n"
            for n, node in enumerate(nodes.split())
        )
        return f"{ranks}# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {speed}\n"

    slow = analyze(
        run, one=output("a b", 87), two=output("c d", 88), three=output("b e", 49), four=output("e c", 48)
    )
    assert (slow["findings"][0]["code"], slow["findings"][0]["nodes"]) == ("PRF002", ["e"])
    even = analyze(
        run, one=output("a b", 87), two=output("c d", 88), three=output("b e", 86), four=output("e c", 89)
    )
    assert even["findings"] == []


SHM = "node-a:4711:4801 [0] misc/shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-KWfVyt to 5967876 bytes\n"
FULL = "node-b:811:930 [0] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes\n"
RAISED = """[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 31, in <module>
[rank1]:     step(batch)
[rank1]: KeyError: 'label'
"""


def test_job_that_died_of_what_a_check_only_warns_of_fails(run: Run) -> None:
    Path("a.log").write_text(SHM)
    code = run("analyze", "a.log", "--json", "report.json").code
    (first, *_) = json.loads(Path("report.json").read_text())["findings"]
    assert (code, first["code"], first["severity"]) == (1, "ENV008", "error")


@pytest.mark.parametrize(
    ("text", "code", "confidence", "doubt"),
    [
        (SHM, "ENV008", "medium", ""),
        (SHM + FULL, "ENV008", "medium", ""),  # it came later
        (RAISED, "ERR001", "high", ""),
        (LATE.format(0) + RAISED, "ERR001", "medium", "it follows a lost peer or a timeout"),
        (LATE.format(1) + RAISED, "COL005", "medium", ""),  # its own watchdog had aborted the call
        (FULL + RAISED, "ERR001", "medium", "another cause is reported"),
        (RAISED.replace("KeyError: 'label'", "RuntimeError: CUDA driver error"), "ERR001", "medium", "CUDA"),
    ],
    ids=["one", "later", "exception", "after a loss", "after its own", "beside", "of the stack"],
)
def test_sure_is_only_what_nothing_else_can_have_brought_about(
    run: Run, text: str, code: str, confidence: str, doubt: str
) -> None:
    (first, *_) = analyze(run, train=text)["findings"]
    assert (first["code"], first["confidence"]) == (code, confidence), first["message"]
    assert doubt in first["message"]
    assert ("Not certain" in first["message"]) == bool(doubt)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("slurmstepd: error: *** JOB 7 ON node-a CANCELLED AT 2026-05-06T10:00:21 DUE TO TIME LIMIT ***\n", "ERR005"),
        ("srun: error: Node failure on node-b\n" + FAILED.format(prefix=""), "NET015"),
        ("      Reason:       OOMKilled\n" + LOST, "ERR002"),
        ("  Remote daemon: [[63066,0],3] on node node-b\n" + LOST, "NET015"),
        ("mpirun noticed that process rank 3 with PID 811 on node node-b exited on signal 6 (Aborted).\n"
         + FAILED.format(prefix=""), "NET016"),
        ("train.sh: line 12: 31415 Killed                  python train.py\n" + LOST, "ERR005"),
    ],
)  # fmt: skip
def test_who_manages_nodes_and_processes_says_why_they_ended(run: Run, text: str, code: str) -> None:
    assert analyze(run, train=text)["findings"][0]["code"] == code


CALL = (
    "[rank{0}]:[E1218 20:27:21.4 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=12, OpType={1}, NumelIn={2}, NumelOut={2}, Timeout(ms)=600000) ran for 600081 milliseconds\n"
)


@pytest.mark.parametrize(
    ("calls", "code", "ranks"),
    [
        ([("ALLREDUCE", 8), ("BROADCAST", 8), ("ALLREDUCE", 8)], "COL003", [1]),
        ([("ALLREDUCE", 8), ("ALLREDUCE", 8), ("ALLREDUCE", 16)], "COL003", [2]),
        ([("ALLREDUCE", 8), ("ALLREDUCE", 8), ("ALLREDUCE", 8)], "COL005", []),
        ([("ALLTOALL", 8), ("ALLTOALL", 8), ("ALLTOALL", 16)], "COL005", []),  # sizes of it may differ
        ([("ALLREDUCE", 8), ("BROADCAST", 8)], "COL005", []),  # of two ranks it cannot be told
    ],
)
def test_ranks_that_timed_out_in_different_calls_of_one_number_do_not_match(
    run: Run, calls: list[tuple[str, int]], code: str, ranks: list[int]
) -> None:
    text = "".join(CALL.format(rank, op, size) for rank, (op, size) in enumerate(calls))
    (first, *_) = analyze(run, train=text)["findings"]
    assert (first["code"], first["ranks"]) == (code, ranks), first["message"]
    assert first["confidence"] != "high"


def test_calls_of_several_groups_are_not_compared(run: Run) -> None:
    text = "".join(
        CALL.format(rank, op, 8) for rank, op in enumerate(["ALLREDUCE", "BROADCAST", "ALLREDUCE"])
    )
    text += STATUS.format(0, 12, 11) + STATUS.format(1, 12, 11).replace(
        "PG ID 0 PG GUID 0(default_pg)", "PG ID 3 PG GUID 3(tp)"
    )
    assert analyze(run, train=text)["findings"][0]["code"] != "COL003"


START = (
    "{host}:{pid}:{pid} [0] NCCL INFO Bootstrap : Using {interface}<0>\n"
    "{host}:{pid}:99 [0] NCCL INFO comm 0x55d rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0xabc - Init START\n"
)


@pytest.mark.parametrize(
    ("interface", "told"),
    [
        ("docker0:172.17.0.1", True),
        ("br-0123456789ab:172.18.0.1", True),
        ("virbr0:192.168.122.1", True),
        ("lo:127.0.0.1", True),
        ("br0:10.0.0.2", False),  # a bridge that holds the node's own address
        ("eth0:172.17.0.1", False),
    ],
)
def test_interface_that_no_other_node_reaches_is_the_cause(
    run: Run, tmp_path: Path, interface: str, told: bool
) -> None:
    a = START.format(host="node-a", pid=4711, interface="eth0:10.0.0.1", rank=0)
    b = START.format(host="node-b", pid=811, interface=interface, rank=1)
    first = analyze(run, node_a=a, node_b=b + LATE.format(1))["findings"][0]
    assert (first["code"] == "NET003") is told, first
    if told:
        assert first["ranks"] == [1]
        assert "an address was advertised that no other node reaches" in first["message"]


def test_interface_is_no_cause_on_one_node_or_beside_an_exception(run: Run, tmp_path: Path) -> None:
    lines = [
        START.format(host="node-a", pid=pid, interface="docker0:172.17.0.1", rank=rank)
        for rank, pid in enumerate((7, 8))
    ]
    assert all(
        each["code"] != "NET003" for each in analyze(run, job="".join(lines) + LATE.format(1))["findings"]
    )
    raised = "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/app/train.py\", line 3, in <module>\n[rank1]: KeyError: 'x'\n"
    other = START.format(host="node-b", pid=811, interface="docker0:172.17.0.1", rank=1)
    found = analyze(run, node_a=lines[0], node_b=other + raised)["findings"][0]
    assert (found["code"], found["ranks"]) == ("ERR001", [1])
