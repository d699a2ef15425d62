"""CPU and memory limits of the control groups that this process is in, version 1 and 2."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_V1_UNLIMITED = 1 << 60
"""Version 1 says "no limit" as the largest page-aligned number (0x7FFFFFFFFFFFF000 with 4 KiB pages); nothing
real comes near 2^60 bytes."""


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """What the control groups allow; None means no limit."""

    cpus: float | None = None
    """Cores."""
    memory: int | None = None
    """Bytes."""


def read_limits(root: Path = Path("/")) -> CgroupLimits:
    """Return the tightest limit between this process's groups and the top of what is mounted here.

    /proc/self/cgroup says which group, /proc/self/mountinfo where the hierarchy is mounted and which part of
    it: inside a container the group's own directory is often the root of the mount (cgroups(7)).

    Args:
        root: where proc and sys are mounted; a test gives another.
    """
    cpus: list[float] = []
    memory: list[int] = []
    for folder in _folders(root, "cpu"):
        quota = _read_quota(folder)
        if quota is not None:
            cpus.append(quota)
    for folder in _folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _read_number(folder / name)
            if limit is not None and limit < _V1_UNLIMITED:
                memory.append(limit)
    return CgroupLimits(min(cpus, default=None), min(memory, default=None))


def find_cgroup_files(controller: str, names: tuple[str, ...], root: Path = Path("/")) -> Iterator[Path]:
    """Yield the files of this process's groups that have one of ``names``, its own group's first.

    Args:
        controller: name of the controller in version 1, e.g. ``memory``.
        names: file names of both versions.
        root: where proc and sys are mounted; a test gives another.
    """
    for folder in _folders(root, controller):
        for name in names:
            path = folder / name
            if os.path.exists(path):
                yield path


def _read_quota(folder: Path) -> float | None:
    words = _read(folder / "cpu.max").split()  # version 2: "max 100000" or "200000 100000"
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        return int(words[0]) / int(words[1])
    quota, period = _read_number(folder / "cpu.cfs_quota_us"), _read_number(folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _read_number(path: Path) -> int | None:
    try:
        return int(_read(path))
    except ValueError:
        return None


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the directories of this process's group for ``controller`` and of those above it."""
    groups = _own_groups(root)
    for version, mounted, point, names in _mounts(root):
        wanted = "" if version == 2 else controller
        own = groups.get(wanted) if version == 2 or controller in names else None
        if own is None:
            continue
        folder = root / point.lstrip("/")
        inside = _relative(own, mounted)
        parts = [part for part in inside.split("/") if part]
        for depth in range(len(parts), -1, -1):
            yield folder.joinpath(*parts[:depth])


def _relative(group: str, mounted: str) -> str:
    """Return the group's path below the mount's root; empty when it does not lie below it."""
    mounted = mounted.rstrip("/")
    if mounted and group != mounted and not group.startswith(mounted + "/"):
        return ""
    inside = group[len(mounted) :]
    return "" if ".." in inside.split("/") else inside


def _own_groups(root: Path) -> dict[str, str]:
    """Return controller -> group; the one of version 2 is under the empty name."""
    groups: dict[str, str] = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            groups[""] = path
        for name in filter(None, controllers.split(",")):
            groups[name] = path
    return groups


def _mounts(root: Path) -> Iterator[tuple[int, str, str, tuple[str, ...]]]:
    """Yield version, root in the hierarchy, mount point and controllers of each cgroup mount (proc(5))."""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        yield (2 if kind[0] == "cgroup2" else 1), fields[3], fields[4], tuple(kind[2].split(","))
