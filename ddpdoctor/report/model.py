"""The report: one object, one JSON form (``schema_version`` 1.1), from which every output is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.judge.finding import Finding
from ddpdoctor.judge.runner import CheckRow
from ddpdoctor.judge.suppression import Remark
from ddpdoctor.judge.verdict import Verdict

SCHEMA = "ddpdoctor.report"
SCHEMA_VERSION = "1.1"
MEASURED = ("bandwidth", "pairs", "baselines", "links")
"""Evidence kinds that the JSON form holds under ``measurements`` instead of ``evidence``."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the world."""

    host: str
    ranks: RankSet
    devices: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the report form."""
        return {"host": self.host, "ranks": list(self.ranks), "devices": list(self.devices), **self.facts}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Node:
        """Read the report form."""
        rest = {k: v for k, v in data.items() if k not in ("host", "ranks", "devices")}
        return cls(data["host"], RankSet(data["ranks"]), tuple(data.get("devices", ())), rest)


@dataclass(frozen=True, slots=True)
class World:
    """What was launched."""

    size: int
    nodes: tuple[Node, ...]
    backend: str | None = None
    torch: str | None = None
    python: str | None = None
    launcher: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the report form."""
        return {
            "size": self.size,
            "nodes": [node.to_dict() for node in self.nodes],
            "backend": self.backend,
            "torch": self.torch,
            "python": self.python,
            "launcher": self.launcher,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> World:
        """Read the report form."""
        rest = {key: data.get(key) for key in ("backend", "torch", "python", "launcher")}
        return cls(data["size"], tuple(Node.from_dict(node) for node in data["nodes"]), **rest)


@dataclass(frozen=True, slots=True)
class Job:
    """How a watched job ended (run, attach, analyze)."""

    exit_code: int | None
    signal: int | None = None
    stopped_by: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the report form."""
        return {"exit_code": self.exit_code, "signal": self.signal, "stopped_by": self.stopped_by}


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one command found out."""

    version: str
    """Version of ddpdoctor that wrote it."""
    command: str
    invocation: tuple[str, ...]
    """The command line, scrubbed."""
    started_at: str
    """RFC 3339, UTC, microseconds."""
    duration_s: float
    verdict: Verdict
    world: World
    checks: tuple[CheckRow, ...]
    findings: tuple[Finding, ...]
    """Root cause first."""
    evidence: Evidence
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds per stage (slowest node) and of ddpdoctor's own phases."""
    job: Job | None = None
    interrupted: str | None = None
    """Name of the signal that ended the command early."""
    remarks: tuple[Remark, ...] = ()
    """On what the user has told not to count: comments, settings and a baseline."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form that the schema describes."""
        evidence = self.evidence.to_dict()
        measurements: dict[str, Any] = {kind: evidence.pop(kind) for kind in MEASURED}
        measurements["timings"] = dict(self.timings)
        data: dict[str, Any] = {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "tool": {"name": "ddpdoctor", "version": self.version},
            "command": self.command,
            "invocation": list(self.invocation),
            "started_at": self.started_at,
            "duration_s": self.duration_s,
            "verdict": self.verdict.to_dict(),
            "world": self.world.to_dict(),
            "checks": [row.to_dict() for row in self.checks],
            "findings": [finding.to_dict() for finding in self.findings],
            "measurements": measurements,
            "evidence": evidence,
        }
        if self.job is not None:
            data["job"] = self.job.to_dict()
        if self.interrupted is not None:
            data["interrupted"] = self.interrupted
        if self.remarks:
            data["remarks"] = [remark.to_dict() for remark in self.remarks]
        return data

    @classmethod
    def from_dict(cls, data: Any) -> Report:
        """Read the JSON form; keys that are not known are ignored.

        Raises:
            ValueError: it is not a report, or of a major version that this program does not know.
        """
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError("not a ddpdoctor report")
        if str(data.get("schema_version", "")).split(".")[0] != SCHEMA_VERSION.split(".")[0]:
            raise ValueError(
                f"report of schema version {data.get('schema_version')}, this version reads {SCHEMA_VERSION}"
            )
        try:
            return cls._from_dict(data)
        except (KeyError, TypeError, AttributeError) as problem:
            raise ValueError(f"damaged report: {type(problem).__name__}: {problem}") from problem

    @classmethod
    def _from_dict(cls, data: dict[str, Any]) -> Report:
        measurements = data["measurements"]
        measured = {kind: measurements[kind] for kind in MEASURED if kind in measurements}
        job = data.get("job")
        return cls(
            version=data["tool"]["version"],
            command=data["command"],
            invocation=tuple(data["invocation"]),
            started_at=data["started_at"],
            duration_s=data["duration_s"],
            verdict=Verdict.from_dict(data["verdict"]),
            world=World.from_dict(data["world"]),
            checks=tuple(CheckRow.from_dict(row) for row in data["checks"]),
            findings=tuple(Finding.from_dict(item) for item in data["findings"]),
            evidence=Evidence.from_dict({**data["evidence"], **measured}),
            timings=dict(measurements.get("timings", {})),
            job=None if job is None else Job(job.get("exit_code"), job.get("signal"), job.get("stopped_by")),
            interrupted=data.get("interrupted"),
            remarks=tuple(Remark.from_dict(item) for item in data.get("remarks", ())),
        )
