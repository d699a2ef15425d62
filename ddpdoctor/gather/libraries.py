"""Communication libraries: those mapped into processes, in wheels, and on a search path."""

from __future__ import annotations

import contextlib
import importlib.metadata
import mmap
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ddpdoctor.evidence.facts import Library
from ddpdoctor.gather.network.listeners import PROC
from ddpdoctor.gather.scrub import scrub_paths
from ddpdoctor.gather.versions import NCCL_WHEELS

NAMES = ("libnccl", "librccl", "libmpi", "libucc", "libfabric", "libnccl-net")
"""Libraries of interest by file name before ``.so``; an exact match, so libmpi_cxx is none."""

_FILE = re.compile(rf"^(?P<name>{'|'.join(map(re.escape, NAMES))})\.so(?:\.(?P<version>[\d.]+))?$")
_NCCL_TEXT = re.compile(rb"NCCL version (\d+\.\d+\.\d+)")
_MAX_SEARCH = 512 << 20
"""Larger files are not searched for a version text; libnccl of 2.27 has about 300 MB."""


def gather_libraries(
    environ: Mapping[str, str], pids: Iterable[int] = (), proc: Path = PROC
) -> tuple[Library, ...]:
    """Return the communication libraries of this node, each path once, loaded ones first.

    Args:
        environ: variables of the ranks; LD_PRELOAD and LD_LIBRARY_PATH are looked along.
        pids: running ranks whose mapped libraries are wanted.
        proc: where the process file system is.
    """
    found = [each for pid in pids for each in mapped_libraries(pid, proc)]
    found += wheel_libraries()
    found += searched_libraries(environ)
    kept: dict[tuple[str, str | None, str], Library] = {}
    for each in found:
        kept.setdefault((each.path, each.version, each.source), each)  # two wheels may own one file
    return tuple(kept.values())


def mapped_libraries(pid: int | str = "self", proc: Path = PROC) -> tuple[Library, ...]:
    """Return the communication libraries that a process has mapped; empty where that may not be read."""
    try:
        lines = (proc / str(pid) / "maps").read_text(errors="replace").splitlines()
    except OSError:
        return ()
    paths = dict.fromkeys(fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6)
    return tuple(
        made for path in paths if (made := _describe(path.removesuffix(" (deleted)"), "loaded")) is not None
    )


def wheel_libraries() -> tuple[Library, ...]:
    """Return the libnccl of each NCCL wheel that is installed; two of them are a conflict to look at."""
    found = []
    for name in NCCL_WHEELS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError, OSError):
            wheel = importlib.metadata.distribution(name)
            path = str(wheel.locate_file("nvidia/nccl/lib/libnccl.so.2"))
            found.append(Library("libnccl", scrub_paths(os.path.realpath(path)), wheel.version, "wheel"))
    return tuple(found)


def searched_libraries(environ: Mapping[str, str]) -> tuple[Library, ...]:
    """Return what LD_PRELOAD names and what LD_LIBRARY_PATH would find before torch's own (ld.so(8))."""
    found = []
    for path in re.split(r"[ :]", environ.get("LD_PRELOAD", "")):
        made = _describe(path, "search-path") if os.path.isabs(path) else None
        if made is not None:
            found.append(made)
    for folder in filter(None, environ.get("LD_LIBRARY_PATH", "").split(":")):
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        real = dict.fromkeys(os.path.realpath(os.path.join(folder, n)) for n in names if _FILE.match(n))
        found += [made for path in real if (made := _describe(path, "search-path")) is not None]
    return tuple(found)


def _describe(path: str, source: str) -> Library | None:
    match = _FILE.match(os.path.basename(path))
    if match is None:
        return None
    version = match["version"]
    if version is None or "." not in version:  # libnccl.so.2 says the major version only
        version = _wheel_version(path) or _search_version(path) or version
    return Library(match["name"], scrub_paths(path), version, source)


def _wheel_version(path: str) -> str | None:
    """Return the wheel's version for a library that lies in site-packages/nvidia/nccl."""
    for name in NCCL_WHEELS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError, OSError):
            wheel = importlib.metadata.distribution(name)
            if os.path.realpath(str(wheel.locate_file("nvidia/nccl/lib/libnccl.so.2"))) == os.path.realpath(
                path
            ):
                return wheel.version
    return None


def _search_version(path: str) -> str | None:
    """Look for the text ``NCCL version 2.x.y`` that every libnccl prints when asked for its version."""
    if not os.path.basename(path).startswith("libnccl."):
        return None
    with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
        if 0 < os.fstat(file.fileno()).st_size <= _MAX_SEARCH:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                match = _NCCL_TEXT.search(data)
                return match[1].decode() if match else None
    return None
