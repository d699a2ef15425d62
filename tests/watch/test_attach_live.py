"""``ddpdoctor attach`` with real jobs: spawned ranks that nobody prepared, and a live ``ddpdoctor run``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.watch.live.stacks import find_py_spy, take_stacks
from tests.watch.injecting import line_of, write
from tests.watch.launching import LIMIT_S, doctor, environ, finish, start, wait_for

pytestmark = pytest.mark.skipif(find_py_spy() is None, reason="no py-spy")
SPAWN = """
    import os
    import time
    from pathlib import Path

    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    def work(rank):
        store = f"file://{os.environ['OUT']}/store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
        dist.barrier()
        Path(os.environ["OUT"], f"ready-{rank}").touch()
        if rank == 1:
            time.sleep(10_000)  # sleeps
        dist.all_reduce(torch.ones(1))  # waits

    if __name__ == "__main__":
        mp.spawn(work, nprocs=2)
"""
WATCHED = """
    import os
    import time
    from pathlib import Path

    import torch
    import torch.distributed as dist

    import ddpdoctor

    dist.init_process_group("gloo")
    ddpdoctor.mark_phase("evaluation")
    dist.barrier()
    rank = dist.get_rank()
    Path(os.environ["OUT"], f"ready-{rank}").touch()
    if rank == 1:
        while not Path(os.environ["OUT"], "go").exists():
            time.sleep(0.2)  # sleeps
    dist.all_reduce(torch.ones(1))  # waits
    dist.destroy_process_group()
"""


def attach(folder: Path, target: str, *options: str) -> tuple[int, dict[str, Any], str]:
    """Attach; return the exit code, the report and what was said on stderr."""
    report = folder / "attached.json"
    done = subprocess.run(
        [sys.executable, "-m", "ddpdoctor", "attach", target, *options, "--json", str(report)],
        cwd=folder,
        env=environ(folder),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    found = json.loads(report.read_text()) if report.exists() else {}
    return done.returncode, found, done.stderr


def ready(folder: Path) -> bool:
    return all((folder / f"ready-{rank}").exists() for rank in range(2))


@pytest.mark.long
def test_spawned_ranks_that_hang_are_found_and_named(tmp_path: Path) -> None:
    script = write(tmp_path, SPAWN)
    out = tmp_path / "out"
    job = start([sys.executable, str(script)], out, tmp_path)
    try:
        wait_for(lambda: ready(out) or job.poll() is not None, "both ranks are there")
        if not take_stacks([job.pid])[job.pid].frames:
            pytest.skip("py-spy has no permission to read processes here")
        code, report, err = attach(tmp_path, str(job.pid))
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    assert code == 1, err
    assert "numbered in the order in which their processes started" in err
    first = report["findings"][0]
    assert (first["code"], first["ranks"], first["victims"], first["confidence"]) == (
        "COL009",
        [1],
        [0],
        "medium",
    )
    lines = {(place["role"], place["line"]) for place in first["where"]}
    assert {("culprit", line_of(script, "# sleeps")), ("victim", line_of(script, "# waits"))} <= lines


def test_a_live_run_is_looked_at_and_goes_on(tmp_path: Path) -> None:
    script = write(tmp_path, WATCHED)
    out = tmp_path / "out"
    command = doctor(
        out, "--on-hang", "report", "--dump-signal", "USR1", "--standalone", "--nproc", "2", str(script)
    )
    job = start(command, out, tmp_path)
    run = out / "run"
    try:
        wait_for(lambda: ready(out) or job.poll() is not None, "both ranks are there")
        _, report, err = attach(tmp_path, str(run), "--dump")
        assert f"snapshot saved in {run}/snapshots/asked-0001.json; the job is still running" in err
        (look,) = report["evidence"]["standstills"]
        waiting = look["stands"][0]
        assert (waiting["rank"], waiting["call"]["op"], waiting["watched"]) == (0, "all_reduce", True)
        assert waiting["call"]["ordinal"] > 1
        job.send_signal(signal.SIGUSR1)
        wait_for(lambda: (run / "snapshots" / "asked-0002.json").exists(), "the signal asks for a look")
        _, report, _ = attach(tmp_path, str(run))
        (look,) = report["evidence"]["standstills"]
        assert all(stand["watched"] for stand in look["stands"])
        marks = [each["milestones"] for each in report["evidence"]["processes"]]
        assert [[each["detail"] for each in made] for made in marks] == [["evaluation"]] * 2
        assert job.poll() is None
    finally:
        (out / "go").touch()
        ended = finish(job, out)
    assert ended.code == 0, ended.stderr
    final = json.loads((run / "report.json").read_text())
    assert [
        each for each in final["findings"] if each["state"] == "active" and each["severity"] == "error"
    ] == []
    code, _, err = attach(tmp_path, str(run), "--dump")
    assert code == 3
    assert "there is no live run" in err
