"""Directories of dumps become one log of calls; many files are read by several processes."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import re
import sys
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

from ddpdoctor.evidence.collectives import CallLog, CallTable, ProcessGroup, RankCalls
from ddpdoctor.gather.opening import UNREADABLE, open_log, read_some
from ddpdoctor.gather.recorder.pickles import NotPlain, read_pickle
from ddpdoctor.gather.recorder.rows import LARGEST_RANK, Rows

PICKLE_LIMIT, JSON_LIMIT = 128 << 20, 32 << 20
"""Bytes of one dump, decompressed; torch's default of 2,000 entries takes 0.3 MB pickled, 1.2 MB as JSON."""
PARALLEL_FROM = 16 << 20
"""Bytes of all dumps from which further processes pay: one costs some 50 ms to start."""
CHUNK = 16
"""Dumps that a process reads before it hands over what they hold."""
MOST_PROCESSES = 8

_PICKLED = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_NAMED_RANK = re.compile(r"rank[_-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(?<!\d)(\d{1,7})(?:\.[A-Za-z]\w{0,9}){0,3}$")


@dataclass(slots=True)
class _Part:
    """What one process read."""

    log: CallLog
    found: list[tuple[int, str, int, int]] = field(default_factory=list)
    """Rank, file, largest rank that the dump names, and how much it tells: for each row of the log."""


def is_dump(head: bytes) -> bool:
    """Whether a pickle begins like a dump of the recorder."""
    return head.startswith(_PICKLED) and (
        b"collective_seq_id" in head or (b"version" in head and b"pg_config" in head)
    )


def looks_like_dump(data: object) -> bool:
    """Whether JSON is a dump of the recorder."""
    return isinstance(data, dict) and isinstance(data.get("entries"), list) and "pg_config" in data


def read_dumps(
    files: Sequence[tuple[Path, str]], lost: list[str], *, processes: int | None = None
) -> CallLog | None:
    """Read dumps of one job, one file for each rank.

    Args:
        files: paths, and how the evidence names them.
        lost: gets a sentence for each that cannot be used.
        processes: that read at one time; None: as many as there are processors, where it pays.

    Returns:
        None where not one could be read.
    """
    chunks = [files[n : n + CHUNK] for n in range(0, len(files), CHUNK)]
    count = _count_processes(files) if processes is None else processes
    table, parts = CallTable(), []
    for part in _read_parallel(chunks, count) if count > 1 and len(chunks) > 1 else map(_read_chunk, chunks):
        rows = table.adopt(part.log)
        parts += list(zip(rows, part.found, strict=True))
    lost += table.lost
    table.lost.clear()
    if not parts:
        return None
    kept = _choose(parts, lost)
    ranks = [row for row, _ in kept]
    table.world = max(max(row.rank, largest) for row, (_, _, largest, _) in kept) + 1
    return _unify_groups(table.log(ranks))


def _count_processes(files: Sequence[tuple[Path, str]]) -> int:
    # A fork while other threads hold locks can stand still; elsewhere a process is too dear.
    if not sys.platform.startswith("linux") or threading.active_count() > 1:
        return 1
    total = 0
    for path, _ in files:
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return min(MOST_PROCESSES, len(os.sched_getaffinity(0))) if total >= PARALLEL_FROM else 1


def _read_parallel(chunks: Sequence[Sequence[tuple[Path, str]]], count: int) -> Iterable[_Part]:
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        futures = [pool.submit(_read_chunk, chunk) for chunk in chunks]
        for chunk, future in zip(chunks, futures, strict=True):
            try:
                yield future.result()
            except BrokenProcessPool:
                names = ", ".join(name for _, name in chunk[:3])
                yield _Part(CallLog(lost=(f"the process that read {names} and others died",)))


def _read_chunk(files: Sequence[tuple[Path, str]]) -> _Part:
    table = CallTable()
    ranks: list[RankCalls] = []
    found = []
    for path, name in files:
        try:
            rank = read_rank(path)
            if rank is None:
                table.lost.append(f"{name} does not show which rank it belongs to: no number in its name")
                continue
            rows = _read_file(path, table)
            groups = [
                table.group(each, description, members)
                for each, (description, _, members) in rows.members.items()
            ]
            if rows.odd:
                table.lost.append(f"{name}: {rows.odd} entries could not be parsed")
            row = dataclasses.replace(
                rows.finish(rank, name, groups=groups), written_ns=path.stat().st_mtime_ns
            )
            ranks.append(row)
            largest = max((max(each[1], default=0) for each in rows.members.values()), default=0)
            # Where two dumps are of one rank, the one with call sites and more rows is used.
            found.append((rank, name, largest, len(row.calls) + (rows.stacked << 40)))
        except (NotPlain, RecursionError) as problem:
            table.lost.append(
                f"{name} {problem if isinstance(problem, NotPlain) else 'is nested too deeply'}"
            )
        except (*UNREADABLE, ValueError, MemoryError) as problem:
            table.lost.append(f"{name} cannot be read: {getattr(problem, 'strerror', None) or problem}")
    order = sorted(range(len(ranks)), key=lambda n: (ranks[n].rank, ranks[n].attempt, ranks[n].source))
    return _Part(table.log(ranks), [found[n] for n in order])


def _read_file(path: Path, table: CallTable) -> Rows:
    with open_log(path) as stream:
        head = read_some(stream, 16)
        limit = PICKLE_LIMIT if head.startswith(_PICKLED) else JSON_LIMIT
        data = head + read_some(stream, limit)
    if len(data) > limit:
        raise NotPlain(f"is larger than {limit >> 20} MiB")
    if not data:
        raise NotPlain("is empty")
    rows = Rows(table)
    if head.startswith(_PICKLED):
        read_pickle(data, rows)
        return rows
    take_entries(json.loads(data), rows)
    return rows


def take_entries(whole: object, rows: Rows, last: int | None = None) -> None:
    """Take what a dump says that was read from JSON.

    Args:
        whole: the dump.
        rows: gets its groups and entries.
        last: take this many of the newest entries.

    Raises:
        NotPlain: it is none.
    """
    if not isinstance(whole, dict) or not looks_like_dump(whole):
        raise NotPlain("is not a Flight Recorder dump")
    rows.set_groups(whole["pg_config"])
    for entry in whole["entries"][-last:] if last else whole["entries"]:
        if isinstance(entry, dict):
            rows.take(entry)
        else:
            rows.odd += 1


def read_rank(path: Path) -> int | None:
    """Return the rank that the name of a dump tells, whatever stands before it; None where it tells none.

    torch writes ``<prefix><rank>``; collectors add endings, or a folder for each rank.
    """
    name = path.name
    for pattern, text in (
        (_NAMED_RANK, name),
        (_LAST_NUMBER, name),
        (_NAMED_RANK, path.absolute().parent.name),
    ):
        hits = list(pattern.finditer(text))
        if hits and int(hits[-1][1]) <= LARGEST_RANK:
            return int(hits[-1][1])
    return None


_Row = tuple[RankCalls, tuple[int, str, int, int]]


def _choose(parts: Sequence[_Row], lost: list[str]) -> list[_Row]:
    """Keep one dump for each rank: the latest, and of several up to the same call the one that tells most."""
    best: dict[int, _Row] = {}
    for row in parts:
        rank = row[1][0]
        known = best.get(rank)
        if known is None:
            best[rank] = row
            continue
        last, other = _last_begun(row[0]), _last_begun(known[0])
        alike = last == other
        better = row[1][3] > known[1][3] if alike else last > other
        kept, left = (row, known) if better else (known, row)
        best[rank] = (_join_times(kept[0], left[0]), kept[1]) if alike else kept
        lost.append(f"there are several dumps of rank {rank}: {kept[1][1]} is used and not {left[1][1]}")
    return [best[rank] for rank in sorted(best)]


def _last_begun(row: RankCalls) -> int:
    return max(row.begun_ns, default=0) if row.begun_ns else 0


def _join_times(row: RankCalls, other: RankCalls) -> RankCalls:
    """Return a rank's calls with how long it had called nothing, where another dump of it has the same last call."""
    times = [each.written_ns for each in (row, other) if each.written_ns is not None]
    if len(times) < 2 or not row.begun_ns:
        return row
    still = max(times) - min(times) + max(row.still_ns or 0, other.still_ns or 0)
    return dataclasses.replace(row, written_ns=max(times), still_ns=still)


def _unify_groups(log: CallLog) -> CallLog:
    """Give groups whose members one rank does not tell those that all others agree on."""
    told: dict[str, set[ProcessGroup]] = {}
    for group in log.groups:
        if group.ranks is not None:
            told.setdefault(group.name, set()).add(group)
    known = {name: next(iter(groups)) for name, groups in told.items() if len(groups) == 1}
    if all(group.ranks is not None or group.name not in known for group in log.groups):
        return log
    groups = tuple(known.get(group.name, group) if group.ranks is None else group for group in log.groups)
    table = CallTable()
    table.world = log.world
    return table.log(table.adopt(dataclasses.replace(log, groups=groups)))
