"""What NCCL chose or was given on one host and not on another: only all logs together show it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ddpdoctor_checks
from ddpdoctor.plugins import CHECKS, Entry
from tests.cli.conftest import Run

HOST = """\
{host}:410:410 [0] NCCL INFO NCCL version {version}+cuda12.4
{host}:410:488 [0] NCCL INFO NCCL_PROTO set by environment to {proto}.
{host}:410:488 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to {host}-eth0
{host}:410:488 [0] NCCL INFO Using network {network}
{host}:410:488 [0] NCCL INFO ncclCommInitRank comm 0x5581 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 18000 commId 0x5b - Init START
"""
LATE = (
    "[rank0]:[E1218 20:27:22.100000000 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600081 "
    "milliseconds before timing out.\n"
)
RAISED = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 9, in <module>
[rank0]:     raise ValueError("no such column: text")
[rank0]: ValueError: no such column: text
"""


@pytest.fixture(autouse=True)
def builtin(entries: list[Entry]) -> None:
    entries[:] = [Entry("ddpdoctor", CHECKS, "builtin", lambda: ddpdoctor_checks.register)]


def make_host(rank: int, *, version: str = "2.21.5", proto: str = "Simple", network: str = "IB") -> str:
    return HOST.format(host=f"node-{'ab'[rank]}", rank=rank, version=version, proto=proto, network=network)


def analyze(run: Run, *texts: str) -> dict[str, Any]:
    names = [f"{number}.log" for number in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        Path(name).write_text(text)
    run("analyze", *names, "--json", "report.json")
    report: dict[str, Any] = json.loads(Path("report.json").read_text())
    return report


@pytest.mark.parametrize(
    ("other", "code", "words"),
    [
        ({"network": "Socket"}, "NET016", "NCCL did not choose the same network on all hosts: IB on node-a"),
        ({"version": "2.19.3"}, "ENV005", "The version of NCCL is not the same on all hosts: "),
        ({"proto": "LL128"}, "ENV004", "NCCL_PROTO is not the same on all hosts: "),
    ],
)
def test_a_choice_that_differs_explains_a_timeout(
    run: Run, tmp_path: Path, other: dict[str, str], code: str, words: str
) -> None:
    report = analyze(run, make_host(0) + LATE, make_host(1, **other))
    first = report["findings"][0]
    assert (first["code"], first["confidence"], first["ranks"]) == (code, "medium", [])
    assert first["message"].startswith(words)
    [value] = other.values()
    assert f"{value} on node-b (1.log:" in first["message"]


def test_it_explains_a_job_without_an_end_with_low_confidence(run: Run, tmp_path: Path) -> None:
    first = analyze(run, make_host(0), make_host(1, network="Socket"))["findings"][0]
    assert (first["code"], first["confidence"]) == ("NET016", "low")


def test_hosts_that_agree_are_not_to_blame(run: Run, tmp_path: Path) -> None:
    codes = {each["code"] for each in analyze(run, make_host(0) + LATE, make_host(1))["findings"]}
    assert codes == {"COL005"}


def test_an_exception_of_its_own_goes_before(run: Run, tmp_path: Path) -> None:
    report = analyze(run, make_host(0) + RAISED, make_host(1, network="Socket"))
    assert report["verdict"]["code"] == "ERR001"
