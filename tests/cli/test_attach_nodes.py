"""What attach kept on several nodes, read together by analyze."""

from __future__ import annotations

import argparse
import json
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ddpdoctor import cli
from ddpdoctor.cli.attach import make_report
from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.standstill import Stand, Standstill
from ddpdoctor.gather.launcher import detect_launcher
from ddpdoctor.judge.selection import Selection
from ddpdoctor.plugins import load_plugins
from ddpdoctor.testing import STARTED
from ddpdoctor.watch.attach.jobs import FoundJob, FoundRank
from ddpdoctor.watch.attach.processes import Seen
from tests.checks.test_hangs_unwatched import outside, waits


def attach_on(
    folder: Path, node: int, stands: Sequence[Stand], monkeypatch: pytest.MonkeyPatch, *, stage: str = "look"
) -> Path:
    """Write what attach keeps on a node with two of four ranks."""
    host = f"node-{'ab'[node]}"
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    seen = []
    for local, stand in enumerate(stands):
        environ = {
            "RANK": str(stand.rank), "LOCAL_RANK": str(local), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": str(node), "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "node-a",
            "MASTER_PORT": "29500",
        }  # fmt: skip
        process = Seen(
            stand.pid, 1, 5, command=("python", "train.py"), python=True, place=detect_launcher(environ)
        )
        seen.append(FoundRank(process, stand.rank, local))
    look = Standstill(
        # Clocks of two nodes differ; a hang does not.
        Moment(1_700_000_000_000_000_000 + node * 3_600 * 10**9, 1),
        100.0 + node,
        0.0,
        tuple(replace(stand, node=node, host=host) for stand in stands),
        4,
        1.0,
        node=node,
        stage=stage,
    )
    options = argparse.Namespace(invocation=["ddpdoctor", "attach"])
    report = make_report(
        FoundJob(tuple(seen), 4, "torchrun"), look, STARTED, 1.0, options, load_plugins(), Selection()
    )
    path = folder / host
    path.mkdir()
    (path / "report.json").write_text(json.dumps(report.to_dict()))
    return path


def analyze(capsys: pytest.CaptureFixture[str], *paths: Path) -> tuple[int, str]:
    code = cli.main(["analyze", *map(str, paths)])
    return code, " ".join(capsys.readouterr().out.split())


def test_the_rank_of_another_node_is_named_with_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = attach_on(tmp_path, 0, [waits(0), waits(1)], monkeypatch)
    second = attach_on(tmp_path, 1, [waits(2), outside(3)], monkeypatch)
    for order in ((first, second), (second, first)):
        code, text = analyze(capsys, *order)
        assert code == 1
        assert (
            "Ranks 0-2 wait in all_reduce (train.py:88, step); rank 3 on node-b has been in read_shard"
            in text
        )
        assert "nodes node-a, node-b" in text or "nodes node-b, node-a" in text


def test_one_node_alone_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = attach_on(tmp_path, 0, [waits(0), waits(1)], monkeypatch)
    code, text = analyze(capsys, first)
    assert code == 3
    assert "ranks 2-3 on other nodes were not seen: attach there as well" in text


def test_all_in_one_call_on_both_nodes_is_nobodys_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = attach_on(tmp_path, 0, [waits(0), waits(1)], monkeypatch)
    second = attach_on(tmp_path, 1, [waits(2), waits(3)], monkeypatch)
    code, text = analyze(capsys, first, second)
    assert code == 1
    assert "COL005" in text
    assert "low confidence" in text
