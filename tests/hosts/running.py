"""Running a job with `ddpdoctor run` on all hosts as people do, and looking at what each prints, writes and leaves."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

from ddpdoctor.report.schema import load_schema
from tests.unmeasured import unmeasured

from .harness import Host, Hosts, Result, Running

LIMIT_S = 150.0
"""For one job, however busy the machine is; alone each takes 4 to 20 s."""
PORT = 29521
PATIENCE = ("--nodes-wait", "60")
"""On a busy machine a node may need longer than the 3 s that people wait; the wait ends when all have told."""

TRAIN = """\
import datetime
import os
import time

import torch
import torch.distributed as dist
from tests.unmeasured import unmeasured
from tests.unmeasured import unmeasured

GATE = os.environ["GATE"]


def encode(step, rank):
    if step == 5 and rank == int(os.environ.get("FAILING", "-1")):
        return {}[f"label of token=hunter2{rank}"]  # FAULT
    return float(rank)


def main():
    limit = datetime.timedelta(seconds=float(os.environ.get("LIMIT", "300")))
    dist.init_process_group("gloo", timeout=limit)
    rank = dist.get_rank()
    for step in range(int(os.environ.get("STEPS", "8"))):
        value = torch.tensor([encode(step, rank)])
        dist.all_reduce(value)  # WAITING
        if step == 5:
            open(f"{GATE}.{rank}", "w").close()
        time.sleep(0.02)
    dist.destroy_process_group()


main()
"""
"""Ranks that add up a number a few times; FAILING raises at step 5, and who has passed it leaves a file."""

ENDLESS = {"STEPS": "1000000"}


def line_of(mark: str) -> int:
    """Return the line of `TRAIN` that ends with a mark."""
    return next(n for n, line in enumerate(TRAIN.splitlines(), 1) if line.endswith(f"# {mark}"))


@dataclass(frozen=True)
class Ran:
    """What the command on one host printed and wrote."""

    host: str
    result: Result
    directory: Path
    """Its run directory."""
    report: dict[str, Any] | None
    """None where it was killed before it could write one."""

    @property
    def first(self) -> dict[str, Any]:
        """Its first finding."""
        assert self.report is not None, self.result.describe()
        assert self.report["findings"], self.result.describe()
        found: dict[str, Any] = self.report["findings"][0]
        return found

    def member(self, node: int) -> dict[str, Any]:
        """What it knows of a node."""
        assert self.report is not None
        (found,) = [each for each in self.report["evidence"]["members"] if each["node"] == node]
        member: dict[str, Any] = found
        return member


class Jobs:
    """Runs one job on hosts; each has a working directory of its own."""

    def __init__(self, folder: Path, hosts: Hosts, *, nproc: int = 1, rendezvous: str = "static") -> None:
        self.folder, self.hosts, self.nproc, self._rendezvous = folder, hosts, nproc, rendezvous
        (folder / "train.py").write_text(TRAIN, encoding="utf-8")

    def options(self, host: Host) -> list[str]:
        """Return torchrun's options on a host."""
        world = ["--nnodes", str(len(self.hosts)), "--nproc-per-node", str(self.nproc)]
        head = self.hosts[0].name
        if self._rendezvous == "static":
            where = ["--node-rank", str(host.index), "--master-addr", head, "--master-port", str(PORT)]
            return [*world, *where]
        return [*world, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{head}:{PORT}", "--rdzv-id", "job"]

    def start(
        self, *more: str, env: Mapping[str, str] | None = None, plain: Sequence[str] = ()
    ) -> list[Running]:
        """Start the command on all hosts.

        Args:
            more: options of ours.
            env: variables of the script.
            plain: names of hosts on which torchrun itself is started.
        """
        given: dict[str, str | None] = {name: None for name in os.environ.keys() - unmeasured().keys()}
        given.update(env or {}, GATE=str(self.folder / "gate"))
        started = []
        for host in self.hosts:
            (self.folder / host.name).mkdir()
            ours = ["ddpdoctor", "run", *PATIENCE, *more]
            words = ["torch.distributed.run"] if host.name in plain else ours
            command: list[str | Path] = [
                sys.executable,
                "-m",
                *words,
                *self.options(host),
                self.folder / "train.py",
            ]
            started.append(host.start(command, env=given, cwd=self.folder / host.name))
        return started

    def await_steps(self, started: Sequence[Running]) -> None:
        """Wait until every rank has passed step 5."""
        wanted = [self.folder / f"gate.{rank}" for rank in range(self.nproc * len(self.hosts))]
        deadline = time.monotonic() + LIMIT_S
        while not all(path.exists() for path in wanted):
            assert time.monotonic() < deadline, [running.stderr for running in started]
            assert all(running.alive() for running in started), [running.stderr for running in started]
            time.sleep(0.05)

    def finish(self, started: Sequence[Running]) -> list[Ran]:
        """Wait for the first hosts' commands, all under one limit; every one must end."""
        deadline = time.monotonic() + LIMIT_S
        results = [running.wait(max(0.0, deadline - time.monotonic())) for running in started]
        for result in results:
            assert not result.timed_out, result.describe()
        return [self._read(host, result) for host, result in zip(self.hosts, results, strict=False)]

    def _read(self, host: Host, result: Result) -> Ran:
        runs = self.folder / host.name / "ddpdoctor-runs"
        directory = next(iter(runs.glob("*")), self.folder)
        report = None
        if (directory / "report.json").exists():
            report = json.loads((directory / "report.json").read_text(encoding="utf-8"))
            jsonschema.validate(report, load_schema())
        return Ran(host.name, result, directory, report)


def analyze(jobs: Jobs, *paths: Path) -> dict[str, Any]:
    """Return the report of `ddpdoctor analyze` on run directories."""
    out = jobs.folder / "analyzed.json"
    command: list[str | Path] = [sys.executable, "-m", "ddpdoctor", "analyze", *paths, "--json", out]
    result = jobs.hosts[0].run(command, timeout=LIMIT_S, cwd=jobs.folder)
    assert result.returncode in (0, 1), result.describe()
    report: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    jsonschema.validate(report, load_schema())
    return report
