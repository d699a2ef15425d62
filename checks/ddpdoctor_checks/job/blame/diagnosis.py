"""What the judgement on a job is made of: groups of processes that failed alike, the cause, the victims."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.job import REQUESTS, JobEnd
from ddpdoctor_checks.job.blame.conditions import INT, TERM, Context
from ddpdoctor_checks.job.blame.failures import Failure, Level
from ddpdoctor_checks.job.blame.views import Clock, View, Views

NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
"""What differs between equal messages of two ranks: addresses, process ids, ports."""


@dataclass(slots=True)
class Group:
    """Processes that failed alike."""

    code: str | None
    level: Level
    failures: list[Failure]
    first: Failure

    @property
    def ranks(self) -> RankSet:
        """Ranks of the processes."""
        known = [each.rank for each in self.failures if each.rank is not None]
        return RankSet([*known, *(rank for each in self.failures for rank in each.told)])


@dataclass(slots=True)
class Diagnosis:
    """The judgement on one attempt of a job."""

    evidence: Evidence
    views: Views
    clock: Clock
    context: Context
    attempt: int = 0
    job: JobEnd | None = None
    failures: list[Failure] = field(default_factory=list)
    """Failures of ranks, in no order."""
    beside: list[Failure] = field(default_factory=list)
    """Failures of launchers and other processes, where no rank failed on its own account."""
    cause: Group | None = None
    others: list[Group] = field(default_factory=list)
    """Failures of their own that came later, in order."""
    victims: list[Failure] = field(default_factory=list)
    suspects: RankSet = field(default_factory=RankSet)
    """Ranks that are at fault although others complained."""
    reason: str | None = None
    """Why no cause can be named although the job failed."""
    repeats: tuple[tuple[int, str], ...] = ()
    """Attempt and fingerprint of its failure, for each attempt that failed."""
    earlier: tuple[tuple[int, Group], ...] = ()
    """Other attempts that failed, and what failed first in each."""
    all_failures: tuple[Failure, ...] = ()
    """Failures of ranks, in all attempts."""
    recovered: bool = False
    """A later attempt ended well."""
    world: RankSet = field(init=False)
    """Ranks of the job."""

    def __post_init__(self) -> None:
        self.world = self._count_world()

    def _count_world(self) -> RankSet:
        known = [view.rank for view in self.views.ranks if view.rank is not None]
        sizes = [
            v.process.world_size for v in self.views.ranks if v.process is not None and v.process.world_size
        ]
        size = max([self.evidence.launch.world_size, *sizes, *[rank + 1 for rank in known]])
        return RankSet.span(size)

    def host(self, view: View) -> str:
        """Return where a process ran."""
        return view.host or f"node {view.node}"


def fingerprint(group: Group) -> str:
    """Return eight hex digits that are equal for equal failures: code, type and the user's line."""
    line = group.first.line
    place = f"{line.file}:{line.line}" if line is not None else NUMBERS.sub("#", group.first.words)
    text = f"{group.code}|{group.first.type}|{place}"
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]


def was_asked(job: JobEnd | None) -> bool:
    """Whether the job as a whole was asked to end: by Ctrl-C, a signal to its launcher, or by us in a hang."""
    return job is not None and (job.stopped or job.interrupted in REQUESTS or job.signal in (INT, TERM))


def interrupted_by_user(diagnosis: Diagnosis) -> bool:
    """Whether the job was stopped by Ctrl-C or a request to end, before anything had failed."""
    return was_asked(diagnosis.job) and diagnosis.cause is None
