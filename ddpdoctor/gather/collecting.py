"""What to bring from a node whose job died, in one archive: vendors' tools, kernel log, limits, files that are named.

Read-only and bounded: each tool has a time limit, each file a size, and the whole has one. Text is scrubbed by lines;
dumps of torch's recorder, which are no text, are taken as they are, and the list of contents says so.
"""

from __future__ import annotations

import io
import os
import resource
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from ddpdoctor.gather.deadline import ToolError, run_tool
from ddpdoctor.gather.opening import UNREADABLE, open_log, read_some
from ddpdoctor.gather.recorder import is_dump
from ddpdoctor.gather.regular import open_regular
from ddpdoctor.gather.scrub import scrub
from ddpdoctor.gather.variables import allowed_variables

TOOL_LIMIT_S = 20.0
"""nvidia-smi on a node with a lost GPU takes several seconds; one that hangs in its driver is left."""
MEBI = 1 << 20
FILE_LIMIT = 64 * MEBI
"""Bytes of one file: the first quarter, and the end, where a job died."""
TOOL_OUTPUT = 4 * MEBI
MOST_FILES = 4096
DEEPEST = 8
DUMPS = "/tmp", "nccl_trace_rank_"
"""Where torch's recorder writes where nothing else is said (TORCH_NCCL_DEBUG_INFO_TEMP_FILE)."""
CONTENTS = "collected.txt"

TOOLS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("kernel.log", ("journalctl", "-k", "-o", "short-iso", "--no-pager", "--since", "-3 days")),
    ("dmesg.log", ("dmesg", "-T")),
    ("nvidia-smi.txt", ("nvidia-smi",)),
    ("nvidia-smi-q.txt", ("nvidia-smi", "-q")),
    ("nvidia-smi-topo.txt", ("nvidia-smi", "topo", "-m")),
    ("nvidia-smi-nvlink.txt", ("nvidia-smi", "nvlink", "--errorcounters")),
    ("dcgmi-health.txt", ("dcgmi", "health", "-c")),
    (
        "fabricmanager.log",
        ("journalctl", "-u", "nvidia-fabricmanager", "-o", "short-iso", "--no-pager", "-n", "2000"),
    ),
    ("ncclras.txt", ("ncclras", "-v")),
    ("rocm-smi.txt", ("rocm-smi", "--showallinfo")),
    ("ibstat.txt", ("ibstat",)),
    ("ibv_devinfo.txt", ("ibv_devinfo",)),
    ("ip-link.txt", ("ip", "-s", "link")),
    ("ip-addr.txt", ("ip", "addr")),
    ("df-shm.txt", ("df", "-k", "/dev/shm", "/tmp")),
    ("processes.txt", ("ps", "-eo", "pid,ppid,stat,etime,rss,comm")),
)
"""Files of the archive, and the command whose output each holds. Nothing here changes or loads a device: a diagnosis
such as ``dcgmi diag`` needs a GPU of its own, and is left to whoever drains the node."""


@dataclass(slots=True)
class Collected:
    """What an archive holds."""

    archive: Path
    taken: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Tools that are not there or failed, and files that could not be read, one sentence each."""
    bytes: int = 0


class _Full(Exception):
    """The limit of the whole was reached."""


class _Archive:
    """Writes members, each private and without an owner's name."""

    def __init__(self, tar: tarfile.TarFile, top: str, limit: int, found: Collected) -> None:
        self._tar, self._top, self._left, self._found = tar, top, limit, found

    def put(self, name: str, data: bytes, changed: float) -> None:
        """Add a file.

        Raises:
            _Full: there is no room for it.
        """
        if len(data) > self._left:
            raise _Full
        self._left -= len(data)
        member = tarfile.TarInfo(f"{self._top}/{name}")
        member.size, member.mtime, member.mode = len(data), int(changed), 0o600
        self._tar.addfile(member, io.BytesIO(data))
        self._found.taken.append(name)
        self._found.bytes += len(data)


def collect(
    out: Path,
    paths: Sequence[Path],
    *,
    host: str,
    limit: int,
    tools: Sequence[tuple[str, tuple[str, ...]]] = TOOLS,
    note: Callable[[str], None] = lambda text: None,
) -> Collected:
    """Write the archive.

    Args:
        out: must not exist yet.
        paths: logs, dumps and folders of them.
        host: name of this node, that of the archive's top folder.
        limit: bytes of all files together, before compression.
        tools: names in the archive, and commands.
        note: told what is done now.

    Raises:
        OSError: the archive cannot be written, or exists.
    """
    found = Collected(out)
    handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _write(handle, found, paths, host, limit, tools, note)
    except BaseException:
        out.unlink(missing_ok=True)  # half an archive says nothing of what is missing in it
        raise
    return found


def _write(
    handle: int,
    found: Collected,
    paths: Sequence[Path],
    host: str,
    limit: int,
    tools: Sequence[tuple[str, tuple[str, ...]]],
    note: Callable[[str], None],
) -> None:
    with os.fdopen(handle, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as tar:
        archive = _Archive(tar, host, limit, found)
        now = time.time()
        archive.put("environment.txt", _describe_environment(), now)
        for name, command in tools:
            note(" ".join(command))
            _put_tool(archive, name, command, found, now)
        try:
            for path, name in _list_files([*paths, *_list_dumps()], found):
                note(str(path))
                _put_file(archive, path, name, found)
        except _Full:
            found.missing.append(
                f"the limit of {limit // MEBI} MB is reached: further files are skipped (--limit)"
            )
        found.missing = list(dict.fromkeys(found.missing))
        _put_contents(tar, host, found, now)


def _describe_environment() -> bytes:
    """Return allow-listed variables, limits, memory and clock."""
    lines = [f"{name}={value}" for name, value in allowed_variables(os.environ).items()]
    for name, kind in (("open files", resource.RLIMIT_NOFILE), ("locked memory", resource.RLIMIT_MEMLOCK)):
        soft, hard = (
            value if value != resource.RLIM_INFINITY else "unlimited" for value in resource.getrlimit(kind)
        )
        lines.append(f"limit of {name}: {soft} soft, {hard} hard")
    for path in (
        "/proc/meminfo",
        "/proc/driver/nvidia/version",
        "/proc/version",
        "/proc/uptime",
        "/etc/os-release",
    ):
        try:
            lines += [f"{path}:", *Path(path).read_text(errors="replace").splitlines()[:60]]
        except OSError:
            continue
    return ("\n".join(map(scrub, lines)) + "\n").encode()


def _put_tool(archive: _Archive, name: str, command: Sequence[str], found: Collected, now: float) -> None:
    if shutil.which(command[0]) is None:
        found.missing.append(f"{command[0]} is not installed")
        return
    try:
        output = run_tool(command, TOOL_LIMIT_S)
    except ToolError as problem:
        found.missing.append(scrub(str(problem)))
        output = problem.output  # nvidia-smi names a lost GPU there
    if output:
        data = output.encode("utf-8", "replace")[-TOOL_OUTPUT:]
        try:
            archive.put(name, _scrub_text(data), now)
        except _Full:
            found.missing.append(f"{name} is skipped: the limit is reached")


def _list_dumps() -> list[Path]:
    folder, start = DUMPS
    try:
        with os.scandir(folder) as entries:
            return sorted(
                Path(e.path) for e in entries if e.name.startswith(start) and e.stat().st_uid == os.getuid()
            )
    except OSError:
        return []


def _list_files(paths: Sequence[Path], found: Collected) -> Iterator[tuple[Path, str]]:
    """Yield ordinary files and their names in the archive; links are not followed."""
    seen: set[tuple[int, int]] = set()
    count = 0
    for number, path in enumerate(paths):
        top = f"files/{number}-{path.resolve().name}"
        for file, name in _walk(path, top) if os.path.isdir(path) else [(path, top)]:
            try:
                about = file.stat()
            except OSError as problem:
                found.missing.append(f"{file} cannot be read: {problem.strerror}")
                continue
            if (about.st_dev, about.st_ino) in seen or (about.st_dev, about.st_ino) == _identify(
                found.archive
            ):
                continue
            seen.add((about.st_dev, about.st_ino))
            count += 1
            if count > MOST_FILES:
                found.missing.append(f"more than {MOST_FILES} files were given: the rest is skipped")
                return
            yield file, name


def _walk(top: Path, name: str) -> Iterator[tuple[Path, str]]:
    for folder, folders, files in os.walk(top):
        here = Path(folder)
        inside = here.relative_to(top)
        folders[:] = sorted(each for each in folders if not os.path.islink(here / each))
        if len(inside.parts) >= DEEPEST:
            folders.clear()
        for each in sorted(files):
            if not os.path.islink(here / each):
                yield here / each, (Path(name) / inside / each).as_posix()


def _identify(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_dev, about.st_ino


def _put_file(archive: _Archive, path: Path, name: str, found: Collected) -> None:
    try:
        with open_regular(path) as raw:
            head, size, changed = (
                raw.read(64 << 10),
                os.fstat(raw.fileno()).st_size,
                os.fstat(raw.fileno()).st_mtime,
            )
        if is_dump(head):
            if size > FILE_LIMIT:
                found.missing.append(f"{path} is larger than {FILE_LIMIT // MEBI} MB and is skipped")
                return
            with open_regular(path) as raw:
                archive.put(name, raw.read(FILE_LIMIT + 1)[:FILE_LIMIT], changed)
            return
        with open_log(path) as stream:
            first = read_some(stream, FILE_LIMIT // 4)
            last, cut = _read_end(stream)
    except (*UNREADABLE, ValueError) as problem:
        found.missing.append(f"{path} cannot be read: {getattr(problem, 'strerror', None) or problem}")
        return
    if b"\0" in first[:4096]:
        found.missing.append(f"{path} is binary and is skipped")
        return
    text = _scrub_text(first)
    if last:
        gap = f"\n[... {cut:,} bytes omitted by ddpdoctor collect ...]\n".encode() if cut else b""
        text += gap + _scrub_text(last)
    archive.put(name, text, changed)


def _read_end(stream: io.BufferedIOBase) -> tuple[bytes, int]:
    """Return the end of what is left of a stream, and how many bytes lie before it."""
    kept, total = bytearray(), 0
    room = FILE_LIMIT - FILE_LIMIT // 4
    while part := read_some(stream, MEBI):
        total += len(part)
        kept += part
        if len(kept) > 2 * room:
            del kept[:-room]
    return bytes(kept[-room:]), max(0, total - room)


def _scrub_text(data: bytes) -> bytes:
    """Return text scrubbed line by line, and with its line ends."""
    lines = data.decode("utf-8", "replace").splitlines(keepends=True)
    return "".join(scrub(line.rstrip("\r\n")) + line[len(line.rstrip("\r\n")) :] for line in lines).encode()


def _put_contents(tar: tarfile.TarFile, host: str, found: Collected, now: float) -> None:
    shown = datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    zone = time.strftime("%Z (UTC%z)", time.localtime(now))
    lines = [
        f"collected by ddpdoctor on {host} at {shown}; times without a time zone are {zone}",
        (
            "text is scrubbed of secrets, user names and home directories; Flight Recorder dumps are as "
            "torch wrote them"
        ),
        "",
        *(f"  {name}" for name in found.taken),
        "",
        *(f"not available: {scrub(sentence)}" for sentence in found.missing),
    ]
    data = ("\n".join(lines) + "\n").encode()
    member = tarfile.TarInfo(f"{host}/{CONTENTS}")
    member.size, member.mtime, member.mode = len(data), int(now), 0o600
    tar.addfile(member, io.BytesIO(data))
