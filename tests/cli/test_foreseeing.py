"""What `run` says of a script before the job has come so far."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

import pytest

from ddpdoctor.cli.running.foreseeing import Foresight
from ddpdoctor.cli.running.preparing import Tools
from ddpdoctor.evidence import Evidence, Launch
from ddpdoctor.judge.runner import CheckRow
from ddpdoctor.judge.selection import Selection
from ddpdoctor.judge.verdict import Verdict
from ddpdoctor.plugins import load_plugins
from ddpdoctor.watch.commandline import Split
from tests.report.parts import make_report
from tests.watch.test_foreseeing import STEPS

SCRIPT = f"{STEPS}\ndist.init_process_group('gloo')\nsave()\n"


def begin(split: Split, said: list[str], **options: object) -> Foresight:
    """Return what has read the script, and what it says."""

    def load() -> Tools:
        return Tools(load_plugins(), Selection(), ())

    foresight = Foresight(argparse.Namespace(**options), split, load, said.append)
    foresight.start()
    for thread in threading.enumerate():
        if thread.name == "ddpdoctor-foresight":
            thread.join()
    return foresight


def read(split: Split, **options: object) -> list[str]:
    """Return what is said once the script has been read."""
    said: list[str] = []
    begin(split, said, **options)
    return said


@pytest.mark.parametrize(
    ("torchrun", "variable", "several"),
    [
        ((), None, False),
        ((), "2", True),
        (("--nproc-per-node", "1"), "2", False),
        (("--nproc-per-node", "gpu"), None, True),
        (("--nnodes=2",), None, True),
        (("--nnodes", "1:1", "--master-addr", "--nnodes"), None, False),
    ],
)
def test_said_only_where_somebody_can_wait(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    torchrun: tuple[str, ...],
    variable: str | None,
    several: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PET_NPROC_PER_NODE", raising=False)
    if variable is not None:
        monkeypatch.setenv("PET_NPROC_PER_NODE", variable)
    Path("train.py").write_text(SCRIPT)
    split = Split((), torchrun, ("train.py",))
    assert [("COL002" in line) for line in read(split)] == [True] * several
    assert read(split, no_lint=True) == []


EVALUATED = """\
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, models

dist.init_process_group("gloo")
model = DDP(models.resnet18())
data = datasets.MNIST("x", train=False)
right = 0
for x, y in DataLoader(data, 8, sampler=DistributedSampler(data, shuffle=False)):
    right += (model(x).argmax(1) == y).sum().item()
if right > 100:
    best = right
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("status", "passed", "ranks", "options", "said"),
    [
        ("healthy", "COL002", "2", {}, True),
        ("healthy", "NUM005", "2", {}, False),  # the run has looked
        ("problems", "COL002", "2", {}, False),
        ("healthy", "COL002", "1", {}, False),
        ("healthy", "COL002", "2", {"no_lint": True}, False),
    ],
)
def test_warnings_that_no_check_of_a_healthy_run_looked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    passed: str,
    ranks: str,
    options: dict[str, object],
    said: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(EVALUATED)
    lines: list[str] = []
    foresight = begin(Split((), ("--nproc-per-node", ranks), ("train.py",)), lines, **options)
    assert lines == []  # a warning is no reason to stop a job that has just begun
    row = CheckRow("one", (passed,), "silent", "pass", None, 0.0, "ddpdoctor")
    evidence = Evidence(launch=Launch("run", nproc=2, world_size=2))
    report = make_report(evidence, verdict=Verdict(status, "", None, 1, 1), rows=(row,))
    assert foresight.join(report).findings == ()
    assert ["NUM005" in line and "ddpdoctor lint train.py" in line for line in lines] == [True] * said
