"""Who sent the signals that ended processes of a job: what the senders themselves wrote down.

The hook writes every ``os.kill`` and ``os.killpg`` before it happens. Where the parent of a process is watched
(torchrun's agent, a script that starts its own ranks) and wrote nothing of the kind, the signal did not come from it.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.job import Milestone, Moment, ProcessRecord

TOLD = "told-to-end"
"""Milestone of a process whose launcher sent it a signal to end."""
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
UNSEEN = "a process that was not watched"
"""The sender of a signal that nobody of the watched processes sent."""
ITSELF = "itself"
UNSEEN_OR_KERNEL = "the kernel or a process that was not watched"
_REQUESTED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that only come from another process; others the kernel and terminals send too (signal(7))."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A signal that a process is about to send."""

    sender: int
    signal: int
    at: Moment
    pid: int | None = None
    pgid: int | None = None
    frames: tuple[Frame, ...] = ()
    """Frames of the call, where the process sends the signal to itself."""


def name_senders(
    processes: Sequence[ProcessRecord], kills: Iterable[Kill], agents: Iterable[int]
) -> list[ProcessRecord]:
    """Fill in who ended the processes that a signal ended.

    Args:
        processes: of one node.
        kills: what they sent.
        agents: processes that are torchrun's agent and wrote everything down that they did.
    """
    by_target: dict[tuple[int, int], list[Kill]] = {}
    for kill in kills:
        target = kill.pid if kill.pid is not None else kill.pgid
        if target is not None:
            by_target.setdefault((target, kill.signal), []).append(kill)
    by_pid = {record.pid: record for record in processes}
    told = set(agents)
    ended = [_learn_kill(record, by_target) for record in processes]
    named = [_name_sender(record, by_target, by_pid, told) for record in ended]
    return [_note_request(record, by_target, by_pid, told) for record in named]


def _learn_kill(record: ProcessRecord, by_target: dict[tuple[int, int], list[Kill]]) -> ProcessRecord:
    """Give a process whose end nobody saw the SIGKILL that it was sent: none can be handled (signal(7))."""
    seen = record.signal is not None or record.exit_code is not None or record.ended is not None
    kills = [kill for kill in by_target.get((record.pid, signal.SIGKILL), ()) if _within(kill.at, record)]
    if seen or record.clean_end or record.running or not kills:
        return record
    return dataclasses.replace(record, signal=int(signal.SIGKILL), ended=kills[0].at)


def _note_request(
    record: ProcessRecord,
    by_target: dict[tuple[int, int], list[Kill]],
    by_pid: dict[int, ProcessRecord],
    agents: set[int],
) -> ProcessRecord:
    """Add when a launcher told a process to end: what it did after that, it did for that."""
    asked = [
        kill
        for signum in _ENDING
        for kill in by_target.get((record.pid, signum), ())
        if _within(kill.at, record) and (kill.sender in agents or _is_above(kill.sender, record, by_pid))
    ]
    if not asked:
        return record
    first = min(asked, key=lambda kill: kill.at.wall_ns)
    made = Milestone(TOLD, first.at, _describe_sender(first.sender, record, by_pid, agents))
    return dataclasses.replace(record, milestones=(*record.milestones, made))


def _name_sender(
    record: ProcessRecord,
    by_target: dict[tuple[int, int], list[Kill]],
    by_pid: dict[int, ProcessRecord],
    agents: set[int],
) -> ProcessRecord:
    if record.signal is None or record.signal_sender is not None:
        return record
    for kill in by_target.get((record.pid, record.signal), ()):
        if _within(kill.at, record):
            call = kill.frames if kill.sender == record.pid else record.exit_call
            sender = _describe_sender(kill.sender, record, by_pid, agents)
            return dataclasses.replace(record, signal_sender=sender, exit_call=call)
    parent = by_pid.get(record.parent) if record.parent is not None else None
    if parent is None or not _was_silent(record, parent.pid, by_target, by_pid):
        return record
    # Its parent saw the end, so it was alive and would have written down what it sent.
    if record.signal in _REQUESTED:
        return dataclasses.replace(record, signal_sender=UNSEEN)
    if record.signal == signal.SIGKILL:
        return dataclasses.replace(record, signal_sender=UNSEEN_OR_KERNEL)
    return record


def _was_silent(
    record: ProcessRecord,
    parent: int,
    by_target: dict[tuple[int, int], list[Kill]],
    by_pid: dict[int, ProcessRecord],
) -> bool:
    """Whether a parent had sent a process nothing before its end, nor to a group that it may have belonged to."""
    return not any(
        kill.sender == parent
        and _within(kill.at, record)
        and (target == record.pid or (kill.pgid is not None and target not in by_pid))
        for (target, _), kills in by_target.items()
        for kill in kills
    )


def _within(at: Moment, record: ProcessRecord) -> bool:
    """Whether a signal was sent in the life of a process: its number may have been another's before."""
    for moment, sign in ((record.started, 1), (record.ended, -1)):
        if moment is not None and sign * (_order(at, moment)) < 0:
            return False
    return True


def _order(one: Moment, other: Moment) -> int:
    if one.mono_ns is not None and other.mono_ns is not None:
        return one.mono_ns - other.mono_ns
    return one.wall_ns - other.wall_ns


def _describe_sender(
    pid: int, record: ProcessRecord, by_pid: dict[int, ProcessRecord], agents: set[int]
) -> str:
    if pid == record.pid:
        return ITSELF
    sender = by_pid.get(pid)
    if sender is None:
        return f"pid {pid}"
    if pid in agents:
        return f"agent (pid {pid})"
    if _is_above(pid, record, by_pid):
        return f"its parent (pid {pid})"
    if sender.role == "rank" and sender.rank is not None:
        return f"rank {sender.rank} (pid {pid})"
    return f"pid {pid} ({sender.script or (sender.command[0] if sender.command else sender.role)})"


def _is_above(pid: int, record: ProcessRecord, by_pid: dict[int, ProcessRecord]) -> bool:
    """Whether a process started another, itself or through a fork server."""
    seen = {record.pid}
    above = record.parent
    while above is not None and above not in seen:
        if above == pid:
            return True
        seen.add(above)
        above = by_pid[above].parent if above in by_pid else None
    return False
