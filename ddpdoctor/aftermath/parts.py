"""What single files of a job hold, before it is put together: whose words they are is still open."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpdoctor.aftermath.errorfiles import ErrorFile
from ddpdoctor.aftermath.given_files import Place
from ddpdoctor.aftermath.logs import LogFacts
from ddpdoctor.aftermath.tracebacks import Told

LAUNCHERS = (
    "torch/distributed/run.py",
    "torch/distributed/launch.py",
    "torch/distributed/launcher/api.py",
    "torch/distributed/elastic/agent/",
)
"""Files of which one stands in every stack of the elastic agent, and in none of a rank."""
PASSED_ON = ("ChildFailedError", "SignalException")
"""What the agent raises when its workers failed, or when it was told to end."""


@dataclass(slots=True)
class Log:
    """One log that was read."""

    facts: LogFacts
    place: Place | None = None
    changed_s: float | None = None
    """When the file was last written, seconds since the epoch."""
    node: int = 0
    hosts: list[str] = field(default_factory=list)
    """Hosts that its blocks of failures name, in order."""

    @property
    def name(self) -> str:
        """How the evidence names the file."""
        return self.facts.name

    @property
    def last_attempt(self) -> int | None:
        """Attempt of its block of failures; None where it has none."""
        if not self.facts.agent.failures:
            return None
        return max(0, self.facts.attempt_at(self.facts.agent.failures[0].line) - 1)

    def attempt_at(self, line: int) -> int:
        """Return the attempt to which a line belongs; what comes late belongs to the last one."""
        if self.place is not None:
            return self.place.attempt
        attempt, last = self.facts.attempt_at(line), self.last_attempt
        return attempt if last is None else min(attempt, last)


@dataclass(frozen=True, slots=True)
class Error:
    """One error file that was read."""

    name: str
    error: ErrorFile
    place: Place | None = None


def is_launchers(told: Told) -> bool:
    """Whether a traceback is the elastic agent's."""
    files = [frame.file for frame in told.parts[-1].frames]
    return any(part in file for file in files for part in LAUNCHERS)


def is_passed_on(told: Told) -> bool:
    """Whether an exception of the agent only says that its workers failed or that it was told to end."""
    return told.parts[-1].type.rpartition(".")[2] in PASSED_ON


def name_hosts(logs: list[Log]) -> list[str]:
    """Return the hosts of all logs in order, and tell each log its node.

    A log of torchrun's tree is of the host whose block names the tree's error files, else of the only host; a
    tree that nothing places is a node of its own where there are several trees and no host is known.
    """
    hosts: list[str] = []
    runs: dict[str, str] = {}
    for log in logs:
        log.hosts = list(dict.fromkeys(row.host for row in log.facts.agent.failures if row.host))
        hosts += [host for host in log.hosts if host not in hosts]
        for row in log.facts.agent.failures:
            parts = (row.error_file or "").split("/")
            if len(parts) > 3 and row.host:
                runs[parts[-4]] = row.host
    trees = list(dict.fromkeys(log.place.run for log in logs if log.place is not None))
    for log in logs:
        own = log.hosts[0] if log.hosts else runs.get(log.place.run) if log.place is not None else None
        if own is not None:
            log.node = hosts.index(own)
        elif log.place is not None and not hosts and len(trees) > 1:
            log.node = trees.index(log.place.run)
    return hosts
