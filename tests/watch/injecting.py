"""Run programs with the start-up hook in place, and read what it wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpdoctor.facts.events import EVENTS
from tests.unmeasured import unmeasured

INJECT = Path(__file__).parents[2] / "ddpdoctor" / "watch" / "inject"

Event = dict[str, Any]


@dataclass(frozen=True)
class Journal:
    """One process's events."""

    path: Path
    events: tuple[Event, ...]

    def all(self, name: str) -> list[Event]:
        return [event for event in self.events if event["event"] == name]

    def one(self, name: str) -> Event:
        found = self.all(name)
        assert len(found) == 1, (name, self.events)
        return found[0]

    @property
    def start(self) -> Event:
        return self.all("start")[-1]

    @property
    def role(self) -> str:
        """What it turned out to be."""
        told = self.all("role")
        return str(told[-1]["role"] if told else self.start["role"])

    @property
    def fault(self) -> str:
        path = self.path.with_suffix(".fault")
        return path.read_text() if path.exists() else ""


@dataclass(frozen=True)
class Watched:
    """What a program did, and what its processes wrote."""

    returncode: int
    stdout: str
    stderr: str
    processes: tuple[Journal, ...]

    def ranks(self) -> list[Journal]:
        """Ranks by number, as the start event tells them."""
        found = [p for p in self.processes if p.role == "rank"]
        return sorted(found, key=lambda p: (p.start["attempt"], p.start["rank"]))

    def rank(self, number: int) -> Journal:
        (found,) = [p for p in self.ranks() if p.start["rank"] == number]
        return found

    def main(self) -> Journal:
        """The process that the test started."""
        pids = {p.start["pid"] for p in self.processes}
        (found,) = [p for p in self.processes if p.start["ppid"] not in pids]
        return found

    def every(self, name: str) -> list[Event]:
        return [event for process in self.processes for event in process.all(name)]


def environment(run: Path | None, **more: str) -> dict[str, str]:
    """The environment of a job; without a run directory it is not watched."""
    kept = unmeasured("DDPDOCTOR_", "PYTHON", "TORCHELASTIC_")
    # Bytecode is written once, into a place of the tests' own.
    kept["PYTHONPYCACHEPREFIX"] = os.path.join("/tmp", f"ddpdoctor-tests-{os.getuid()}")
    kept["OMP_NUM_THREADS"] = "1"
    if run is not None:
        kept["PYTHONPATH"] = str(INJECT)
        kept["DDPDOCTOR_RUN"] = str(run)
    return {**kept, **more}


def read_journals(run: Path) -> tuple[Journal, ...]:
    """Read all processes' events; lines that were torn are left out."""
    journals = []
    for path in sorted((run / "processes").glob("*.jsonl")):
        events = []
        for line in path.read_text().splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                continue
            check_event(events[-1])
        journals.append(Journal(path, tuple(events)))
    return tuple(journals)


def check_event(event: Event) -> None:
    """Assert that an event has only the fields that its type has, which readers go by."""
    known = EVENTS[event["event"]].__annotations__
    assert event.keys() <= known.keys(), (event["event"], event.keys() - known.keys())


def write(folder: Path, source: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(source))
    return path


def line_of(path: Path, marker: str) -> int:
    """The line of the source that holds a marker."""
    (line,) = [n for n, text in enumerate(path.read_text().splitlines(), 1) if marker in text]
    return line


def launch(
    command: list[str],
    folder: Path,
    *,
    variables: dict[str, str] | None = None,
    check: bool = True,
    timeout: float = 120,
) -> Watched:
    """Run a command under the hook in a folder and read what its processes wrote."""
    run = folder / "run"
    run.mkdir(exist_ok=True)
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(run, **(variables or {})),
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )
    watched = Watched(done.returncode, done.stdout, done.stderr, read_journals(run))
    if check:
        assert not watched.every("trouble"), watched.every("trouble")
    return watched


def python(
    folder: Path, source: str, *arguments: str, variables: dict[str, str] | None = None, check: bool = True
) -> Watched:
    """Run a script by plain python."""
    script = write(folder, source)
    return launch([sys.executable, str(script), *arguments], folder, variables=variables, check=check)


def torchrun(
    folder: Path, source: str, *arguments: str, ranks: int = 2, variables: dict[str, str] | None = None
) -> Watched:
    """Run a script by torch's launcher."""
    script = write(folder, source)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return launch([*command, str(script), *arguments], folder, variables=variables)
