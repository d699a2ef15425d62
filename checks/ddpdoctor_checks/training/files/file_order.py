"""Files and directories over which ranks race: which uses on different ranks are in no order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import FileUse, SharedFile
from ddpdoctor_checks.common.frames import user_line

_SAVERS = ("torch.save", "safetensors", "numpy.save")
_CHECKPOINTS = (
    ".pt", ".pth", ".pt2", ".ckpt", ".safetensors", ".npy", ".npz", ".pkl", ".pickle", ".h5", ".bin",
)  # fmt: skip
_FETCHERS = ("zipfile", "tarfile", "urllib", "gdown", "wget")
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar", ".zst")
_NOTES = (
    ".json", ".jsonl", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".txt", ".log", ".csv", ".tsv", ".md", ".html", ".out",
    ".err",
)  # fmt: skip
"""Texts of which every rank mostly writes the same."""
_LOCKS = (".lock", ".lck", ".pid")
_BELOW = "/"


@dataclass(frozen=True, slots=True)
class Race:
    """Ranks that use files in no order, from one line of the user's."""

    files: tuple[SharedFile, ...]
    uses: tuple[FileUse, ...]
    """Uses of the first file: one of each rank, in order of time."""
    kind: str = "other"
    """checkpoint, download, text or other."""
    seen: bool = False
    """Whether a reading began while the file was still being written."""

    @property
    def ranks(self) -> RankSet:
        """Ranks that take part in it."""
        return RankSet(use.rank for use in self.uses)


def find_overwritten(evidence: Evidence) -> list[Race]:
    """Return the files that several ranks write, each from its beginning."""
    return _find(evidence, lambda file: _meet(file, "write"))


def find_replaced(evidence: Evidence) -> list[Race]:
    """Return the checkpoints to whose name several ranks rename files of their own that differ in size."""

    def race(file: SharedFile) -> Sequence[FileUse]:
        uses = _meet(file, "replace")
        return uses if len({use.size for use in uses if use.size is not None}) > 1 else ()

    return [found for found in _find(evidence, race) if found.kind == "checkpoint"]


def find_removed(evidence: Evidence) -> list[Race]:
    """Return the directories that several ranks delete, or that one deletes while others write into it."""
    found = _find(evidence, _meet_removing)
    known = {file.path for race in found for file in race.files}
    for node in evidence.training:
        for file in node.files:
            if file.path in known:
                continue
            removing = [use for use in file.uses if use.operation == "remove" and use.size and not use.locked]
            inside = [
                use
                for other in node.files
                if other.path.startswith(file.path + _BELOW)
                for use in other.uses
                if use.operation in ("write", "replace") and not use.locked
            ]
            uses = _choose(removing[:1], inside)
            if uses:
                found.append(Race((file,), uses))
    return found


def find_read_early(evidence: Evidence) -> list[Race]:
    """Return the checkpoints that a rank reads in no order with the one rank that writes them, and after it.

    The writer's use is the first of the race.
    """
    found = []
    for node in evidence.training:
        for file in node.files:
            found += _read_early(file)
    return _merge(found)


def _read_early(file: SharedFile) -> list[Race]:
    writes = [use for use in file.uses if use.operation == "write"]
    if len({use.rank for use in writes}) != 1 or any(use.operation == "replace" for use in file.uses):
        return []
    last = writes[-1]
    reads: dict[int, FileUse] = {}
    for use in file.uses:
        later = use.operation == "read" and use.rank != last.rank and use.at.wall_ns > last.at.wall_ns
        if later and use.phase == last.phase and not use.locked and not last.locked:
            reads.setdefault(use.rank, use)
    if not reads or not last.phase:
        return []
    first = min(use.at.wall_ns for use in reads.values())
    seen = file.written_ns is not None and file.written_ns > first
    uses = (last, *sorted(reads.values(), key=lambda use: use.at.wall_ns))
    return [Race((file,), uses, "checkpoint", seen)]


def _meet_removing(file: SharedFile) -> Sequence[FileUse]:
    uses = _meet(file, "remove")
    return uses if any(use.size for use in uses) else ()


def _choose(removing: Sequence[FileUse], inside: Sequence[FileUse]) -> tuple[FileUse, ...]:
    """Return a deletion, and the uses of other ranks that are in no order with it."""
    for first in removing:
        others: dict[int, FileUse] = {}
        for use in inside:
            if use.rank != first.rank and first.phase and use.phase == first.phase:
                others.setdefault(use.rank, use)
        if others:
            return (first, *others.values())
    return ()


def _find(evidence: Evidence, race: Callable[[SharedFile], Sequence[FileUse]]) -> list[Race]:
    found = []
    for node in evidence.training:
        for file in node.files:
            uses = race(file)
            if uses:
                found.append(Race((file,), tuple(uses), _name_kind(file, uses)))
    return _merge(found)


def _merge(races: Iterable[Race]) -> list[Race]:
    """Return one race for each line, with all its files."""
    merged: dict[object, Race] = {}
    for race in races:
        line = user_line(race.uses[0].frames)
        key = (line.file, line.line, race.ranks) if line is not None else (race.files[0].path, race.ranks)
        known = merged.get(key)
        merged[key] = (
            Race(
                (*known.files, *race.files), known.uses, min(known.kind, race.kind, key=_KINDS.index),
                known.seen or race.seen,
            )
            if known is not None
            else race
        )  # fmt: skip
    return list(merged.values())


_KINDS = ("download", "checkpoint", "other", "text")


def _meet(file: SharedFile, operation: str) -> Sequence[FileUse]:
    """Return the first uses of one kind by several ranks that nothing puts in order."""
    if file.size == 0 or PurePath(file.path).suffix in _LOCKS:
        return ()  # a flag, or a lock: only that it is there counts
    groups: dict[tuple[int, ...], dict[int, FileUse]] = {}
    for use in file.uses:
        if use.operation == operation and use.phase and not use.locked:
            groups.setdefault(use.phase, {}).setdefault(use.rank, use)
    for uses in groups.values():
        if len(uses) > 1:
            return sorted(uses.values(), key=lambda use: use.at.wall_ns)
    return ()


def _name_kind(file: SharedFile, uses: Sequence[FileUse]) -> str:
    suffix = PurePath(file.path).suffix.lower()
    via = {use.via for use in uses}
    if via & {*_SAVERS} or (suffix in _CHECKPOINTS and not via & {*_FETCHERS}):
        return "checkpoint"
    if via & {*_FETCHERS} or suffix in _ARCHIVES:
        return "download"
    return "text" if suffix in _NOTES else "other"
