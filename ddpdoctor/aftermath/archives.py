"""Archives of evidence, unpacked with care: ordinary files only, bounded, below a private folder of our own."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path, PurePosixPath

from ddpdoctor.gather.opening import UNREADABLE, open_log

MOST_MEMBERS = 20_000
MEMBER_LIMIT = 2 << 30
"""Bytes of one file."""
TOTAL_LIMIT = 8 << 30
"""Bytes of all files of an archive: a small archive may hold zeros without end."""
DEEPEST = 16
NAME_LIMIT = 255
CHUNK = 1 << 20


def unpack(archive: Path, folder: Path, skipped: list[str]) -> int:
    """Unpack the ordinary files of a tar archive, compressed or not; return how many there are.

    Links, devices, names that lead out of the folder, and what lies beyond the limits are left out.

    Args:
        archive: the file.
        folder: an empty, private one.
        skipped: takes a sentence for each kind of thing that was left out.

    Raises:
        OSError, EOFError: it cannot be read, or nothing can be written.
    """
    count, total, odd = 0, 0, 0
    try:
        with open_log(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for number, member in enumerate(tar):
                if number >= MOST_MEMBERS:
                    skipped.append(f"{archive} has more than {MOST_MEMBERS} members: the rest is skipped")
                    break
                if member.isdir():
                    continue
                parts = _safe_parts(member.name) if member.isreg() else None
                if parts is None:
                    odd += 1
                    continue
                if member.size > MEMBER_LIMIT or total + member.size > TOTAL_LIMIT:
                    skipped.append(
                        f"{archive}: {'/'.join(parts)} and what follows is too large and is skipped"
                    )
                    break
                if _write(tar, member, folder.joinpath(*parts)):
                    count += 1
                    total += member.size
                else:
                    odd += 1
    except tarfile.TarError as problem:
        skipped.append(f"{archive} is truncated: {problem}")
    except UNREADABLE as problem:
        if not count:
            raise
        skipped.append(f"{archive} is truncated: {getattr(problem, 'strerror', None) or problem}")
    if odd:
        skipped.append(
            f"{archive}: {odd} members that are not regular files, or point outside of it, are skipped"
        )
    return count


def _safe_parts(name: str) -> tuple[str, ...] | None:
    """Return the parts of a member's name; None where it leads out of the folder, or is no usable name."""
    path = PurePosixPath(name)
    parts = tuple(part for part in path.parts if part != ".")
    bad = path.is_absolute() or not parts or len(parts) > DEEPEST
    if bad or any(
        part == ".." or "\0" in part or "\\" in part or len(os.fsencode(part)) > NAME_LIMIT for part in parts
    ):
        return None
    return parts


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> bool:
    """Write one member; return whether it was a new file."""
    source = tar.extractfile(member)
    if source is None:
        return False
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except (FileExistsError, NotADirectoryError):
        return False
    with os.fdopen(handle, "wb") as file:
        left = member.size
        while left > 0 and (part := source.read(min(CHUNK, left))):
            file.write(part)
            left -= len(part)
    changed = min(max(0.0, float(member.mtime)), 4e9)
    os.utime(target, (changed, changed))  # times of lines without a year go by it
    return True
