"""Who sent the signals that ended processes of a job: what the senders themselves wrote down.

The hook writes every ``os.kill`` and ``os.killpg`` before it happens. Where torchrun's agent is watched and wrote
nothing of the kind, a request to end did not come from it.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.job import Moment, ProcessRecord

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
    """Of the call, where the process sends it to itself."""


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
    return [_name_sender(record, by_target, by_pid, told) for record in processes]


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
    if parent is None or parent.pid not in agents or not _was_silent(record, parent.pid, by_target):
        return record
    # Its agent saw the end, so it was alive and would have written down what it sent.
    if record.signal in _REQUESTED:
        return dataclasses.replace(record, signal_sender=UNSEEN)
    if record.signal == signal.SIGKILL:
        return dataclasses.replace(record, signal_sender=UNSEEN_OR_KERNEL)
    return record


def _was_silent(record: ProcessRecord, agent: int, by_target: dict[tuple[int, int], list[Kill]]) -> bool:
    """Whether an agent had sent a process nothing before its end."""
    sent = [kill for (target, _), kills in by_target.items() if target == record.pid for kill in kills]
    return not any(kill.sender == agent and _within(kill.at, record) for kill in sent)


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
    if pid == record.parent:
        return f"its parent (pid {pid})"
    if sender.role == "rank" and sender.rank is not None:
        return f"rank {sender.rank} (pid {pid})"
    return f"pid {pid} ({sender.script or (sender.command[0] if sender.command else sender.role)})"
