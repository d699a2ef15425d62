"""Hostile and odd files cost what their size allows, and a report says where that was not enough."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpdoctor import cli
from ddpdoctor.aftermath import logs
from ddpdoctor.aftermath.logs import LogReader
from ddpdoctor.evidence.texts.entries import ENTRIES
from ddpdoctor.source.files import budget
from ddpdoctor.source.gather import read_sources
from tests.lint.judging import RULES
from tests.marks import sampled
from tests.patterns.counting import count_events

HEAD = "import torch\nimport torch.distributed as dist\ndist.init_process_group('gloo')\nrank = dist.get_rank()\n"
OPERATIONS = ("all_reduce", "broadcast", "barrier", "all_gather", "reduce")


def repeat(text: str, count: int) -> str:
    return "".join(
        text.format(i=i, one=OPERATIONS[i % 5], other=OPERATIONS[(i + 1) % 5]) for i in range(count)
    )


SCRIPTS: dict[str, str] = {
    "sides that differ": repeat("if rank == {i}:\n    dist.{one}(x)\nelse:\n    dist.{other}(x)\n", 1500),
    "one long chain": "if rank < 0:\n    pass\n" + repeat("elif rank == {i}:\n    dist.{one}(x)\n", 900),
    "comments": "x = 1  # ddpdoctor: " + "ignore[" * 100_000 + "\n",
    "a comment in each line": repeat("x = 1  # ddpdoctor: ignore[COL001\n", 20_000),
    "comments on their own": "x = 1\n" + repeat("# ddpdoctor: ignore[COL001]\n", 20_000),
    "loops": repeat("for i in range(rank):\n    dist.all_reduce(x)\n    if x:\n        break\n", 2000),
    "wrappers": repeat("m{i} = torch.nn.parallel.DistributedDataParallel(n{i})\nl{i} = m{i}.module(x)\nl{i}.backward()\n", 600),
    "functions": repeat("def f{i}():\n    f{i}x()\n    dist.{one}(x)\n", 1500),
    "branches that return": "def f():\n" + repeat("    if x == rank + {i}:\n        return\n    dist.{one}(x)\n", 1500) + "f()\n",
}  # fmt: skip
EVENTS = 10_000_000
"""Calls of Python's that reading one of the scripts may take, generators' and built-in ones too."""


@pytest.mark.unmeasured
@pytest.mark.parametrize("name", SCRIPTS)
def test_lint_is_bounded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "STEPS", 20_000)  # a twentieth, for the time of the test
    monkeypatch.setattr(budget, "STEPS_PER_LINE", 10)
    script = tmp_path / "train.py"
    script.write_text(HEAD + SCRIPTS[name])
    assert count_events(lambda: read_sources([str(script)], RULES), EVENTS) > 100


def test_lint_says_where_its_budget_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(budget, "STEPS", 100)
    monkeypatch.setattr(budget, "STEPS_PER_LINE", 1)
    Path("train.py").write_text(HEAD + repeat("x{i} = x + {i}\n", 100))
    code = cli.main(["lint", "train.py", "--json", "report.json"])
    printed = capsys.readouterr()
    report = json.loads(Path("report.json").read_text())
    assert code == 3
    assert report["verdict"]["status"] == "unknown"
    assert "healthy" not in printed.out
    assert "train.py: not read: " in printed.err
    assert "stopped after" in report["evidence"]["sources"][0]["skipped"][0]


def test_what_lint_found_before_its_budget_bit_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(HEAD + "if rank == 0:\n    dist.barrier()\n" + SCRIPTS["wrappers"])
    assert cli.main(["lint", "train.py"]) == 1
    assert "train.py:6:5 COL002" in capsys.readouterr().out


def make_hostile_lines() -> list[str]:
    """One line for each entry of the table: its gates and anchor again and again, so that its pattern is tried."""
    return [(" ".join([*(entry.gates or ()), entry.anchor, ""]) * 400)[:4000] for entry in ENTRIES]


@pytest.mark.unmeasured
def test_a_log_of_sockets_is_read_in_steps_that_its_size_allows() -> None:
    """It took a minute; now its lines cost what any others cost, and only so many of them are read."""
    reader = LogReader("job.log")
    line = b"ncclSocket" * 400 + b" connection\n"
    reader.take(line * 250)
    facts = reader.finish()
    assert (facts.bytes, facts.unread) == (len(line) * 250, 0)


@pytest.mark.unmeasured
@pytest.mark.parametrize(
    "text", [*sampled(make_hostile_lines(), 4), "Traceback (most recent call last)", "", "x"]
)
def test_each_log_has_a_budget(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "BUDGET", 200_000)
    monkeypatch.setattr(logs, "PIECE", 20_000)
    reader = LogReader("job.log")
    data = text.encode() + b"\n"
    data *= 1 + 400_000 // len(data)
    reader.take(data)
    reader.take(b"RuntimeError: Socket Timeout\n")
    facts = reader.finish()
    assert facts.bytes == len(data) + 29
    assert facts.lines == data.count(b"\n") + 1
    assert reader._left > -4 * (logs.PIECE + logs.LINE_COST * logs.PIECE / len(text + "\n")) * (
        logs.PIECES_HELD + 1
    )
    # The end is read whatever came before.
    assert "store-socket-timed-out" in {each.match.entry for each in facts.texts}


def test_analyze_says_where_its_budget_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "BUDGET", 100_000)
    monkeypatch.setattr(logs, "PIECE", 10_000)
    log = tmp_path / "job.log"
    log.write_text(
        "worker group successfully finished\n"
        + "Setting OMP_NUM_THREADS environment variable for each process to be 1 \n" * 20_000
    )
    code = cli.main(["analyze", str(log), "--json", str(tmp_path / "report.json")])
    printed = capsys.readouterr()
    report = json.loads((tmp_path / "report.json").read_text())
    assert code == 3
    assert report["verdict"]["status"] == "unknown"
    assert "✓ healthy" not in printed.out
    assert "in the middle were not analyzed" in printed.err
    assert any(
        "in the middle were not analyzed" in row["reason"]
        for row in report["checks"]
        if row["status"] == "unknown"
    )
