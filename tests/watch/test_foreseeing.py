"""``run`` reads the script: what will hang later is said at once, and a failure that says nothing gets its line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.watch.launching import DOCTOR, finish, start

SCRIPT = """\
import torch, torch.distributed as dist
import steps
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2))
steps.save()
dist.destroy_process_group()
"""
STEPS = (
    "import torch.distributed as dist\ndef save():\n    if dist.get_rank() == 0:\n        dist.barrier()\n"
)


def test_what_will_hang_is_said_early_and_explains_the_failure(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "steps.py").write_text(STEPS)
    command = [*DOCTOR, "--run-dir", "kept", "--nproc", "2", "train.py"]
    ended = finish(start(command, tmp_path / "out", tmp_path), tmp_path / "out")
    stderr = ended.stderr.decode()
    early = stderr.index("lint: barrier at steps.py:4 is called only where dist.get_rank() == 0")
    assert early < stderr.index("ddpdoctor ✖ COL002")
    report = json.loads((tmp_path / "kept/report.json").read_text())
    assert ended.code == 1
    assert report["verdict"]["code"] == "COL002"
    places = {(each["file"], each["line"]) for each in report["findings"][0]["where"]}
    assert {("steps.py", 4), ("steps.py", 3)} <= places
