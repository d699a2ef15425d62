"""What ranks wrote down of files, folded to those that several of them used (`ddpdoctor.evidence.training`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddpdoctor.evidence.training.fingerprints import FileUse, SharedFile
from ddpdoctor.facts.events import File, FileEvent
from ddpdoctor.watch.readers.records import Shortener, read_moment

KINDS = frozenset({"file", "files"})
"""Events that tell of files."""
PATHS = 60
"""Paths that are kept."""
USES = 64
"""Uses of one path that are kept."""
_ALONE = frozenset({"make", "delete"})
"""What one rank does that makes another fail, which leaves no use of its own."""
_CHANGES = frozenset({"write", "replace", "remove"}) | _ALONE
_OPERATIONS = _CHANGES | {"read"}


@dataclass(slots=True)
class RankFiles:
    """What one rank did with files."""

    uses: list[File] = field(default_factory=list)
    ends: dict[str, tuple[int, int, tuple[int, int]]] = field(default_factory=dict)
    """Path -> bytes, time of the last write, and which file it is."""

    def take(self, event: FileEvent) -> None:
        """Take one event; raises one of `events.DAMAGED` where it is not as the hook writes it."""
        if event["event"] == "file":
            self.uses.append(event)
            return
        for path, size, written, device, inode in event["ends"]:
            self.ends[str(path)] = max(0, int(size)), max(0, int(written)), (int(device), int(inode))


def fold_files(ranks: Mapping[int, RankFiles], shorten: Shortener) -> tuple[SharedFile, ...]:
    """Return the paths that several ranks used, those that most ranks changed first; of a node's only rank, all.

    Args:
        ranks: by their number, of one node.
        shorten: names files and reads source lines.
    """
    rows: dict[str, list[tuple[int, File]]] = {}
    for rank, files in ranks.items():
        for event in files.uses:
            if event["op"] in _OPERATIONS:
                rows.setdefault(str(event["path"]), []).append((rank, event))
    removed = {path for path, uses in rows.items() if any(event["op"] == "remove" for _, event in uses)}
    kept = {
        path: uses
        for path, uses in rows.items()
        if any(event["op"] in _CHANGES for _, event in uses)
        and (len(ranks) == 1 or _is_shared(path, uses, removed))
    }
    order = sorted(kept, key=lambda path: (-len({rank for rank, _ in kept[path]}), path))[:PATHS]
    return tuple(
        found for path in order if (found := _fold_path(path, kept[path], ranks, shorten)) is not None
    )


def _is_shared(path: str, uses: list[tuple[int, File]], removed: set[str]) -> bool:
    """Whether several ranks used a path or may have, or it is in a directory that was deleted."""
    if len({rank for rank, _ in uses}) > 1 or any(event["op"] in _ALONE for _, event in uses):
        return True
    return any(path.startswith(folder + "/") or path == folder for folder in removed)


def _fold_path(
    path: str, uses: list[tuple[int, File]], ranks: Mapping[int, RankFiles], shorten: Shortener
) -> SharedFile | None:
    ends = [files.ends[path] for files in ranks.values() if path in files.ends]
    if len({identity for _, _, identity in ends}) > 1:
        return None  # ranks that see other file systems: two files of one name
    last = max(ends, key=lambda end: end[1], default=None)
    return SharedFile(
        path=shorten(path),
        uses=tuple(_read_use(rank, event, shorten) for rank, event in _choose(uses)),
        size=last[0] if last is not None else None,
        written_ns=last[1] if last is not None else None,
    )


def _choose(uses: list[tuple[int, File]]) -> list[tuple[int, File]]:
    """Return the first uses of each rank, in order of time."""
    per_rank = max(2, USES // max(1, len({rank for rank, _ in uses})))
    counts: dict[int, int] = {}
    chosen = []
    for rank, event in uses:
        counts[rank] = counts.get(rank, 0) + 1
        if counts[rank] <= per_rank:
            chosen.append((rank, event))
    return sorted(chosen, key=lambda use: int(use[1]["wall_ns"]))


def _read_use(rank: int, event: File, shorten: Shortener) -> FileUse:
    size = event.get("size")
    return FileUse(
        rank=rank,
        operation=str(event["op"]),
        at=read_moment(event),
        phase=tuple(max(0, int(each)) for each in event.get("phase") or ()),
        size=None if size is None else max(0, int(size)),
        locked=bool(event.get("locked")),
        via=str(event["via"])[:40] if event.get("via") is not None else None,
        near=bool(event.get("near")),
        frames=shorten.frames(event.get("frames")),
    )
