"""How long a job stands still before `ddpdoctor run` names what holds it."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.figures import BenchmarkError, Figure
from benchmarks.machine import ROOT
from benchmarks.timing import wait_for

NAME = "hangs"
SCRIPT = ROOT / "benchmarks" / "standing.py"
PROOF_BAR_S, STALL_BAR_S = 3.0, 15.0
KINDS = ("branch", "uneven", "receive")
LIMIT_S = 120.0


def measure(folder: Path, rounds: int = 3) -> list[Figure]:
    """Let jobs of three ranks hang in different ways, and time the line that names it.

    Raises:
        BenchmarkError: a hang was not named, or named as something else.
    """
    proofs = {kind: [time_one(folder / f"{kind}-{n}", kind, "COL0") for n in range(rounds)] for kind in KINDS}
    stalls = [time_one(folder / f"stall-{n}", "stall", "suspected") for n in range(rounds)]
    return [
        *(_figure(f"deadlock ({kind}) named after", times, PROOF_BAR_S) for kind, times in proofs.items()),
        _figure("stalled rank suspected after", stalls, STALL_BAR_S),
    ]


def _figure(what: str, times: list[float], bar: float) -> Figure:
    how = f"since the last rank began to wait; median of {len(times)}, {min(times):.2f}-{max(times):.2f} s"
    return Figure(NAME, what, statistics.median(times), "s", bar, how)


def time_one(folder: Path, kind: str, word: str) -> float:
    """Return the seconds from the last rank's standstill to the line that names it.

    When that rank stood still is what its look says: the newest beginning or end of a call of any rank.

    Raises:
        BenchmarkError: no such line came.
    """
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "ddpdoctor", "run", "--run-dir", "run", "--standalone", "--nproc", "3"]
    job = subprocess.Popen(
        [*command, str(SCRIPT), kind],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    assert job.stderr is not None
    said, lines = None, []
    limit = threading.Timer(LIMIT_S, job.terminate)
    limit.start()
    try:
        for line in job.stderr:
            lines.append(line)
            if said is None and line.startswith(f"ddpdoctor: {word}"):
                said = time.time()
                if kind == "stall":
                    job.terminate()
    finally:
        limit.cancel()
        job.terminate()
        wait_for(job, kind)
    if said is None:
        raise BenchmarkError(f"the hang of {kind} was not named:\n{''.join(lines[-15:])}")
    looks = [json.loads(path.read_text()) for path in sorted((folder / "run" / "looks").iterdir())]
    first = looks[0]
    return float(said - (first["at"]["wall_ns"] / 1e9 - first["still_s"]))
