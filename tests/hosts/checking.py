"""Running `ddpdoctor check` on all hosts as people do, and looking at what each prints, writes and leaves."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

from ddpdoctor.report.schema import load_schema

from .harness import Host, Hosts, Result, Running

LIMIT_S = 75.0
"""For one command, however busy the machine is; alone each takes 2 to 10 s. gloo itself gives up after 77 s."""
PORT = 29517
QUICK = ("--skip", "collectives,ddp,bandwidth")
"""What these tests are about shows before the collectives, DDP and bandwidth."""
MISSING = ("--join-timeout", "5")
"""Where somebody never comes, the others need not be patient."""

Options = Callable[[Host], Sequence[str]]
Environment = Callable[[Host], Mapping[str, str | None]]


@dataclass(frozen=True)
class Told:
    """What the command on one host printed and wrote."""

    host: str
    result: Result
    name: str
    """Of its own file: ``node-0``."""
    own: dict[str, Any]
    """What this node saw."""
    merged: dict[str, Any] | None
    """report.json, which the hosting node writes."""
    page: str | None
    """report.html likewise."""

    @property
    def headline(self) -> str:
        return self.result.stdout.splitlines()[0]

    def findings(self, code: str) -> list[dict[str, Any]]:
        """Return the findings of one code in the report of all nodes, else in this node's own."""
        return [each for each in (self.merged or self.own)["findings"] if each["code"] == code]


class Doctor:
    """Examines hosts; each has a working directory of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = 0

    def start(
        self,
        hosts: Sequence[Host] | Hosts,
        options: Options,
        *,
        env: Environment | None = None,
        launcher: Options | None = None,
    ) -> list[Running]:
        """Start the command on all ``hosts``; ``launcher`` gives the words before ``-m ddpdoctor``."""
        self._runs += 1
        started = []
        for host in hosts:
            place = self._place(host)
            place.mkdir(parents=True)
            words = launcher(host) if launcher is not None else ()
            command = [sys.executable, *words, "-m", "ddpdoctor", "check", *options(host)]
            started.append(host.start(command, env=env(host) if env else None, cwd=place))
        return started

    def finish(self, hosts: Sequence[Host] | Hosts, started: Sequence[Running]) -> list[Told]:
        """Wait for all under one limit; every one must end, say how it stands, and leave nothing behind."""
        deadline = time.monotonic() + LIMIT_S
        results = [running.wait(max(0.0, deadline - time.monotonic())) for running in started]
        told = [self._read(host, result) for host, result in zip(hosts, results, strict=True)]
        for host in hosts:
            left = host.leftovers()
            assert not left, left
        return told

    def ask(
        self,
        hosts: Sequence[Host] | Hosts,
        options: Options,
        *,
        env: Environment | None = None,
        launcher: Options | None = None,
    ) -> list[Told]:
        """Examine the hosts: `start` and `finish`."""
        return self.finish(hosts, self.start(hosts, options, env=env, launcher=launcher))

    def _place(self, host: Host) -> Path:
        return self._folder / f"run-{self._runs}" / host.name

    def _read(self, host: Host, result: Result) -> Told:
        text = result.describe()
        assert not result.timed_out, text
        assert "Traceback" not in result.stdout + result.stderr, text
        assert result.stdout.startswith("ddpdoctor "), text
        place = self._place(host)
        (own,) = place.glob("ddpdoctor-runs/*/node-*.json")
        merged = own.with_name("report.json")
        page = own.with_name("report.html")
        return Told(
            host.name,
            result,
            own.stem,
            _load(own),
            _load(merged) if merged.exists() else None,
            page.read_text(encoding="utf-8") if page.exists() else None,
        )


def _load(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(report, load_schema())
    return report


def static(hosts: Hosts, *more: str, nodes: int | None = None, nproc: int = 1) -> Options:
    """Options of a static rendezvous at the first host."""
    where = ["--master-addr", hosts[0].name, "--master-port", str(PORT)]
    world = ["--nnodes", str(nodes or len(hosts)), "--nproc", str(nproc)]
    return lambda host: [*world, "--node-rank", str(host.index), *where, *(more or QUICK)]


def c10d(count: int, endpoint: str, *more: str) -> Options:
    """Options of a c10d rendezvous, the same on all hosts."""
    where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{endpoint}:{PORT}"]
    return lambda host: ["--nnodes", str(count), "--nproc", "1", *where, *(more or QUICK)]


def require_healthy(told: Sequence[Told], hosting: int = 0) -> dict[str, Any]:
    """Assert that all say that all is well, and return the report of the hosting node."""
    for each in told:
        assert each.result.returncode == 0, _describe(told)
        assert each.headline.startswith("ddpdoctor ✓ healthy"), _describe(told)
    return _require_report(told, hosting)


def require_named(
    told: Sequence[Told],
    code: str,
    *,
    exit_code: int = 1,
    nodes: Sequence[str] | None = None,
    ranks: Sequence[int] | None = None,
    hosting: int = 0,
    unheard: Sequence[str] = (),
) -> dict[str, Any]:
    """Assert that all name the same cause first, and return it as the hosting node wrote it.

    Args:
        told: what each host said.
        code: of the first finding, on every host.
        exit_code: on every host.
        nodes: hosts that it names, in any order.
        ranks: ranks that it names.
        hosting: which of the hosts writes the report of all.
        unheard: hosts of which it holds nothing.
    """
    for each in told:
        assert each.result.returncode == exit_code, _describe(told)
        assert code in each.headline, _describe(told)
    first: dict[str, Any] = _require_report(told, hosting, unheard)["findings"][0]
    _compare(first, code, nodes, ranks)
    return first


def require_alone(
    told: Told, code: str, *, nodes: Sequence[str] | None = None, ranks: Sequence[int] | None = None
) -> dict[str, Any]:
    """Assert that a host that met nobody names a cause, and return it as it wrote it."""
    assert told.result.returncode == 1, told.result.describe()
    assert code in told.headline, told.result.describe()
    first: dict[str, Any] = told.own["findings"][0]
    _compare(first, code, nodes, ranks)
    return first


def _describe(told: Sequence[Told]) -> str:
    return "\n".join(each.result.describe() for each in told)


def _compare(
    first: Mapping[str, Any], code: str, nodes: Sequence[str] | None, ranks: Sequence[int] | None
) -> None:
    assert first["code"] == code, first
    assert nodes is None or sorted(first["nodes"]) == sorted(nodes), first
    assert ranks is None or first["ranks"] == list(ranks), first


def _require_report(told: Sequence[Told], hosting: int, unheard: Sequence[str] = ()) -> dict[str, Any]:
    """Return the report of all nodes, which the hosting one and nobody else has written."""
    for number, each in enumerate(told):
        assert (each.merged is not None) == (number == hosting), _describe(told)
        assert (each.page is not None) == (number == hosting), _describe(told)
    merged, page = told[hosting].merged, told[hosting].page
    assert merged is not None
    assert page is not None
    assert page.startswith("<!doctype html>")
    names = {node["host"] for node in merged["world"]["nodes"]}
    assert names == {each.host for each in told} - set(unheard), names
    return merged
