"""What is known of each process of a job, in one place, and how the times of nodes compare."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.job import (
    CrashRecord,
    ExceptionRecord,
    MemoryRecord,
    Moment,
    ProcessRecord,
    TextMatch,
    WrapperFacts,
)

CLOCK_TOLERANCE_S = 1.0
"""Seconds by which clocks of nodes may differ unnoticed: as in ENV015 (chrony and ntpd keep a cluster within
milliseconds; above a second logs cannot be ordered)."""

LOADER = "loader-worker"
"""Role of a DataLoader's worker."""

_LAST_WORDS = re.compile(r"\s{0,8}(?:terminate called |what\(\):)")
"""What libstdc++ prints of an exception that nothing in a process caught."""

Key = tuple[int, int]
"""Node and process id."""


@dataclass(slots=True)
class View:
    """One process and all that was seen of it; a rank of which only texts are known has no record."""

    node: int
    pid: int | None = None
    rank: int | None = None
    attempt: int = 0
    host: str = ""
    role: str = "rank"
    process: ProcessRecord | None = None
    exceptions: list[ExceptionRecord] = field(default_factory=list)
    crash: CrashRecord | None = None
    texts: list[TextMatch] = field(default_factory=list)
    wrappers: list[WrapperFacts] = field(default_factory=list)
    workers: list[View] = field(default_factory=list)
    """Loader workers that belong to it."""

    @property
    def variables(self) -> dict[str, str]:
        """Its allow-listed environment."""
        return self.process.variables if self.process is not None else {}

    def reached(self, milestone: str) -> bool:
        """Whether it is known to have reached a milestone."""
        return self.process is not None and any(each.name == milestone for each in self.process.milestones)


def _aborted(view: View) -> bool:
    return view.process is not None and view.process.signal == signal.SIGABRT


class Views:
    """All processes of the evidence of a job, folded once."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self._by_key: dict[Key, View] = {}
        self._by_rank: dict[tuple[int, int], View] = {}
        self._workers: list[View] = []
        self.loose: list[TextMatch] = []
        """Texts of the job that belong to no process, such as those of a launcher's log or of the kernel."""
        for process in evidence.processes:
            self._add(process)
        self._adopt_workers()
        for exception in evidence.exceptions:
            self._find(exception).exceptions.append(exception)
        for crash in evidence.crashes:
            self._find(crash).crash = crash
        for facts in evidence.wrappers:
            self._find(facts).wrappers.append(facts)
        for text in evidence.texts:
            self._place(text)
        self._give_last_words()
        self.memory: dict[int, MemoryRecord] = {record.node: record for record in evidence.memory}

    def _add(self, process: ProcessRecord) -> None:
        role = "rank" if process.is_rank else process.role
        view = View(process.node, process.pid, process.rank, process.attempt, process.host, role, process)
        self._by_key[(process.node, process.pid)] = view
        if role == LOADER:
            self._workers.append(view)
        elif role == "rank" and process.rank is not None:
            self._by_rank.setdefault((process.attempt, process.rank), view)

    def _adopt_workers(self) -> None:
        for worker in self._workers:
            process = worker.process
            parent = None
            if process is not None and process.parent is not None:
                parent = self._by_key.get((worker.node, process.parent))
            if parent is None and worker.rank is not None:
                parent = self._by_rank.get((worker.attempt, worker.rank))
            if parent is not None and parent is not worker:
                parent.workers.append(worker)

    def _find(self, record: ExceptionRecord | CrashRecord | WrapperFacts) -> View:
        """Return the process of a record; one that nobody else has seen is made."""
        known = self._by_key.get((record.node, record.pid)) if record.pid > 0 else None
        if known is None and record.rank is not None:
            known = self._by_rank.get((record.attempt, record.rank))
        if known is None:
            known = View(record.node, record.pid or None, record.rank, record.attempt, record.host)
            if record.rank is not None:
                self._by_rank[(record.attempt, record.rank)] = known
            # Parsed from a log that names neither rank nor process: each record stands for itself.
            key = (record.node, record.pid) if record.pid > 0 else (record.node, -1 - len(self._by_key))
            self._by_key[key] = known
        return known

    def _place(self, text: TextMatch) -> None:
        known = self._by_key.get((text.node, text.pid)) if text.pid is not None else None
        if known is None and text.rank is not None:
            known = self._by_rank.get((text.attempt, text.rank))
            if known is None:
                known = View(text.node, text.pid, text.rank, text.attempt, text.host)
                self._by_rank[(text.attempt, text.rank)] = known
                self._by_key[(text.node, text.pid or -1 - len(self._by_key))] = known
        if known is None and text.pid is not None and text.host:
            # NCCL names host and process; which rank that is, nothing says.
            known = View(text.node, text.pid, None, text.attempt, text.host)
            self._by_key[(text.node, text.pid)] = known
        if known is None:
            self.loose.append(text)
        else:
            known.texts.append(text)

    def _give_last_words(self) -> None:
        """Give what std::terminate printed to the ranks that aborted, where they share their launcher's streams.

        It is printed by the process that then raises SIGABRT (libstdc++'s verbose terminate handler). Where fewer
        such texts were printed than ranks aborted, nothing tells whose they are.
        """
        for launcher in self.others:
            words = [
                text for text in launcher.texts if text.stream != "exception" and _LAST_WORDS.match(text.text)
            ]
            aborted = [view for view in self.ranks if view.node == launcher.node and _aborted(view)]
            if not words or not aborted or any(view.texts for view in aborted):
                continue
            if len(aborted) == 1 or all(text.count >= len(aborted) for text in words):
                for view in aborted:
                    view.texts.extend(words)
                launcher.texts = [text for text in launcher.texts if text not in words]

    @property
    def all(self) -> list[View]:
        """Every process that is known."""
        return list(self._by_key.values())

    @property
    def ranks(self) -> list[View]:
        """The rank processes, and what is known of ranks without a process."""
        return [view for view in self._by_key.values() if view.role == "rank"]

    @property
    def others(self) -> list[View]:
        """Launchers and other processes, without loader workers."""
        return [view for view in self._by_key.values() if view.role not in ("rank", LOADER)]

    def is_above(self, one: View, other: View) -> bool:
        """Whether one process started another, itself or through others that are known."""
        seen: set[int] = set()
        above = other.process.parent if other.process is not None else None
        while above is not None and above not in seen and one.node == other.node:
            if above == one.pid:
                return True
            seen.add(above)
            parent = self._by_key.get((one.node, above))
            above = parent.process.parent if parent is not None and parent.process is not None else None
        return False

    def find_pid(self, node: int, pid: int) -> View | None:
        """Return the process with this id on a node."""
        return self._by_key.get((node, pid))


class Clock:
    """Times of several nodes on one axis."""

    def __init__(self, evidence: Evidence) -> None:
        self._offsets = {n.node: n.clock_offset_s or 0.0 for n in evidence.nodes}
        self._errors = {n.node: n.clock_error_s for n in evidence.nodes if n.clock_offset_s is not None}
        for member in evidence.members:
            if member.clock_offset_s is not None:
                self._offsets[member.node] = member.clock_offset_s
                self._errors[member.node] = member.clock_error_s
        self._references: dict[int, tuple[int, int]] = {}

    def seconds(self, node: int, moment: Moment) -> float:
        """Return seconds since the epoch; on one node in the order of its monotonic clock."""
        wall = moment.wall_ns
        if moment.mono_ns is not None:
            reference = self._references.setdefault(node, (moment.wall_ns, moment.mono_ns))
            wall = reference[0] + moment.mono_ns - reference[1]
        return wall / 1e9 - self._offsets.get(node, 0.0)

    def tolerance(self, one: int, other: int) -> float:
        """Return the seconds within which events on two nodes cannot be ordered; 0 on one node."""
        if one == other:
            return 0.0
        errors = [self._errors.get(node) for node in (one, other)]
        if any(error is None for error in errors):
            return CLOCK_TOLERANCE_S
        return sum(error for error in errors if error is not None)
