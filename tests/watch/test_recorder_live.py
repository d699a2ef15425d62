"""torch's recorder asked in jobs that stand still: the bucket is named, dumps are kept, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from ddpdoctor.gather.recorder import read_dumps
from tests.watch.injecting import line_of, read_journals, write
from tests.watch.launching import DOCTOR, LIMIT_S, environ, wait_for
from tests.watch.test_hangs_live import doctor

TRAINING = """
    import os
    import time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    layers = [torch.nn.Linear(300, 300) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
    for step in range(4):
        loss = model(torch.ones(2, 300)).sum()
        if step == 2 and dist.get_rank() == 1:
            time.sleep(600)  # sleeps
        loss.backward()  # waits
        total = torch.zeros(7)
        dist.all_reduce(total)
"""


def test_a_hang_in_backward_names_the_bucket_and_keeps_what_the_recorders_hold(tmp_path: Path) -> None:
    done, report = doctor(
        tmp_path, TRAINING, "--stall-after", "4", "--hang-timeout", "6", "--on-hang", "abort"
    )
    script = tmp_path / "train.py"
    assert done.returncode == 1
    first = report["findings"][0]
    assert (first["code"], first["ranks"], first["victims"]) == ("COL009", [1], [0])
    assert "in the backward pass of DistributedDataParallel, in bucket all_reduce #" in first["message"]
    assert {place["line"] for place in first["where"]} >= {
        line_of(script, "# sleeps"),
        line_of(script, "# waits"),
    }
    (look,) = [each for each in report["evidence"]["standstills"] if each["stage"] == "confirmed"]
    waiting, sleeping = (stand["recorder"] for stand in look["stands"])
    bucket = waiting["open"][0]
    # The last layers come first; a bucket holds whole parameters, 300 x 300 and 300 at most together with the next.
    assert bucket["elements"] % 300 == 0
    assert f"#{bucket['sequence']} of {bucket['elements']:,} float32 values" in first["message"]
    assert (bucket["op"], bucket["dtype"], bucket["own"]) == ("all_reduce", "float32", False)
    assert sleeping == {"problem": None, "open": []}
    own = [call for stand in look["stands"] for call in stand["recent"] if call["op"] == "all_reduce"]
    assert [call["over"] for call in own] == [True] * 4
    kept = sorted((tmp_path / "run" / "recorder").iterdir())[-1]
    lost: list[str] = []
    log = read_dumps([(path, path.name) for path in sorted(kept.iterdir())], lost)
    assert log is not None
    assert [rank.rank for rank in log.ranks] == [0, 1]
    assert not lost
    assert "WorkerServer" not in done.stderr
    _assert_nothing_left(tmp_path / "run")


def _sockets(run: Path) -> list[str]:
    told = [event for journal in read_journals(run) for event in journal.all("recorder")]
    assert all("socket" in event for event in told), told
    return [event["socket"] for event in told]


def _assert_nothing_left(run: Path) -> None:
    sockets = _sockets(run)
    assert len(sockets) == 2
    assert not [path for path in sockets if os.path.exists(os.path.dirname(path))]


@pytest.mark.long
def test_a_look_that_is_asked_for_has_the_recorders_and_the_job_goes_on(tmp_path: Path) -> None:
    script = write(tmp_path, TRAINING)
    run = tmp_path / "run"
    job = subprocess.Popen(
        [*DOCTOR, "--on-hang", "report", "--run-dir", str(run), "--nproc", "2", "--standalone", str(script)],
        cwd=tmp_path,
        env=environ(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: _count_forwards(run) >= 2, "the ranks did not come to the hang")
        end = time.monotonic() + LIMIT_S
        opened: list[object] = []
        while not opened:
            assert time.monotonic() < end
            asked = subprocess.run(
                [*DOCTOR[:-1], "attach", str(run), "--dump"],
                cwd=tmp_path,
                env=environ(tmp_path),
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
            looks = sorted((run / "snapshots").glob("asked-*.json"))
            assert looks, asked.stderr
            stands = json.loads(looks[-1].read_text())["stands"]
            assert all(stand["recorder"]["problem"] is None for stand in stands)
            opened = stands[0]["recorder"]["open"]
        assert sorted(path.name for path in (run / "recorder" / looks[-1].stem).iterdir()) == [
            "rank_0",
            "rank_1",
        ]
        assert job.poll() is None
    finally:
        job.terminate()
        job.wait(LIMIT_S)
    _assert_nothing_left(run)


def _count_forwards(run: Path) -> int:
    """How many ranks have run the model."""
    return sum(
        event["name"] == "first-forward"
        for journal in read_journals(run)
        for event in journal.all("milestone")
    )


@pytest.mark.long
def test_after_a_kill_of_everything_no_socket_is_left(tmp_path: Path) -> None:
    script = write(tmp_path, TRAINING)
    run = tmp_path / "run"
    job = subprocess.Popen(
        [*DOCTOR, "--run-dir", str(run), "--nproc", "2", "--standalone", str(script)],
        cwd=tmp_path,
        env=environ(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: _count_forwards(run) >= 2, "the ranks did not begin")
        ranks = [journal.start["pid"] for journal in read_journals(run) if journal.role == "rank"]
        launcher = [journal.start["pid"] for journal in read_journals(run) if journal.role == "launcher"]
        for pid in (job.pid, *launcher, *ranks):
            os.kill(pid, signal.SIGKILL)
    finally:
        job.kill()
        job.wait(LIMIT_S)
    wait_for(lambda: not any(map(psutil.pid_exists, ranks)), "ranks stayed")
    sockets = _sockets(run)
    wait_for(lambda: not any(os.path.exists(os.path.dirname(path)) for path in sockets), "sockets stayed")
