"""What `run` says of a script before the job has come so far."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

import pytest

from ddpdoctor.cli.running.foreseeing import Foresight
from ddpdoctor.cli.running.preparing import Tools
from ddpdoctor.judge.selection import Selection
from ddpdoctor.plugins import load_plugins
from ddpdoctor.watch.commandline import Split
from tests.watch.test_foreseeing import STEPS

SCRIPT = f"{STEPS}\ndist.init_process_group('gloo')\nsave()\n"


def read(split: Split, **options: object) -> list[str]:
    """Return what is said once the script has been read."""
    said: list[str] = []

    def load() -> Tools:
        return Tools(load_plugins(), Selection(), ())

    foresight = Foresight(argparse.Namespace(**options), split, load, said.append)
    foresight.start()
    for thread in threading.enumerate():
        if thread.name == "ddpdoctor-foresight":
            thread.join()
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
