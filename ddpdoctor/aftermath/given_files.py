"""Which files of what is given can be read, and as what; nothing in them is ever executed or unpickled."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from ddpdoctor.aftermath.archives import unpack
from ddpdoctor.aftermath.errorfiles import looks_like_error
from ddpdoctor.aftermath.stackfiles import looks_like_stacks
from ddpdoctor.gather.opening import UNREADABLE, open_log, read_some
from ddpdoctor.gather.recorder import is_dump, looks_like_dump
from ddpdoctor.gather.regular import open_regular

ARCHIVE = "archive"
MOST_ARCHIVES = 1024
"""One of each node."""
HEAD = 64 << 10
"""Bytes that are looked at to tell what a file is."""
MOST_FILES = 20_000
"""Files of a tree: 1024 ranks, three files each, over some restarts."""
DEEPEST = 8
"""Levels of folders; torchrun's trees have four."""
JSON_LIMIT = 16 << 20
"""Bytes of an error file; torch's hold one traceback."""
BINARY_SHARE = 0.1
"""Share of control characters above which a file is no log; a log with some binary output stays one."""

_PLACE = re.compile(r"(?:^|/)(?P<run>[^/]+)/attempt_(?P<attempt>\d{1,6})/(?P<local>\d{1,6})/[^/]+$")
"""torchrun --log-dir: <run id>_<random>/attempt_<n>/<local rank>/ (DefaultLogsSpecs of torch)."""
_NAMED = re.compile(
    r"\.(?:log|txt|out|err|json|stdout|stderr|pickle|pkl|bin|dump|trace)(?:\.\d{1,4})?(?:\.(?:gz|bz2|xz))?$|(?:^|/)[^./]+$"
)
"""Files of a folder that may be logs; one that is named itself is read whatever it is called."""
_DUMPS = re.compile(r"recorder-\d{1,7}$")
"""Dumps in a run directory: with ``--debug`` torch is told to put them there, and adds the rank."""
_CONTROL = bytes(set(range(32)) - {7, 8, 9, 10, 12, 13, 27}) + b"\x7f"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file stood in a tree of torchrun's logs."""

    run: str
    attempt: int
    local_rank: int


@dataclass(frozen=True, slots=True)
class Source:
    """A file that can be read."""

    path: Path
    name: str
    """Name of the file in the evidence."""
    kind: str
    """log, error-file, recorder (a dump of the Flight Recorder), stacks, report or run-directory."""
    place: Place | None = None


@dataclass(slots=True)
class Sources:
    """What was given, sorted."""

    found: list[Source] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """One sentence each."""
    cut: list[str] = field(default_factory=list)
    """One sentence for each log of which a part was not read."""
    unpacked: list[tempfile.TemporaryDirectory[str]] = field(default_factory=list)
    """Folders of archives, which live as long as this."""

    def add(self, path: Path, *, named: bool) -> None:
        """Sort one path; a folder is walked.

        Args:
            path: exists, or did a moment ago.
            named: the user named it himself, so it is read whatever its name.
        """
        if os.path.isdir(path):
            self._walk(path)
            return
        reason = _refuse(path)
        if reason is not None:
            self.skipped.append(f"{path} {reason}")
            return
        try:
            kind = _tell(path)
        except UNREADABLE as problem:
            self.skipped.append(f"{path} cannot be read: {getattr(problem, 'strerror', None) or problem}")
            return
        if kind in ("log", "error-file", "recorder", "stacks", "report"):
            self.found.append(Source(path, str(path), kind, read_place(path)))
        elif kind == ARCHIVE:
            self._unpack(path)
        elif kind != "empty" or named:
            self.skipped.append(f"{path} {kind}" if kind != "empty" else f"{path} is empty")

    def _unpack(self, path: Path) -> None:
        """Add what an archive holds, under the archive's name."""
        if len(self.unpacked) >= MOST_ARCHIVES or any(
            path.is_relative_to(each.name) for each in self.unpacked
        ):
            self.skipped.append(f"{path} is an archive inside an archive, or one too many")
            return
        folder = tempfile.TemporaryDirectory(prefix="ddpdoctor-archive-", ignore_cleanup_errors=True)
        self.unpacked.append(folder)
        try:
            unpack(path, Path(folder.name), self.skipped)
        except UNREADABLE as problem:
            self.skipped.append(f"{path} cannot be read: {getattr(problem, 'strerror', None) or problem}")
            return
        before, said = len(self.found), len(self.skipped)
        self._walk(Path(folder.name))
        own = str(path)
        self.found[before:] = [
            dataclasses.replace(each, name=each.name.replace(folder.name, own, 1))
            for each in self.found[before:]
        ]
        self.skipped[said:] = [each.replace(folder.name, own) for each in self.skipped[said:]]

    def _walk(self, top: Path) -> None:
        if is_run_directory(top):
            self._add_run(top)
            return
        before, others = len(self.found), 0
        for folder, folders, files in os.walk(top, onerror=self._complain):
            here = Path(folder)
            folders.sort()
            if len(here.relative_to(top).parts) >= DEEPEST:
                folders.clear()
            for name in [each for each in folders if is_run_directory(here / each)]:
                self._add_run(here / name)
                folders.remove(name)
            for name in sorted(files):
                if len(self.found) - before >= MOST_FILES:
                    self.skipped.append(f"{top} has more than {MOST_FILES} files: the rest is skipped")
                    return
                if _NAMED.search(name):
                    self.add(here / name, named=False)
                else:
                    others += 1
        if others:
            self.skipped.append(f"{top}: {others} files are skipped because their names are not log names")
        if len(self.found) == before and not others:
            self.skipped.append(f"{top} contains no log")

    def _add_run(self, path: Path) -> None:
        """Add a run directory, and the dumps of torch's recorder that lie in it; its logs it has judged itself."""
        self.found.append(Source(path, str(path), "run-directory"))
        try:
            names = sorted(each.name for each in path.iterdir() if _DUMPS.match(each.name))
        except OSError as problem:
            self._complain(problem)
            return
        for name in names[:MOST_FILES]:
            self.add(path / name, named=False)

    def _complain(self, problem: OSError) -> None:
        self.skipped.append(f"{problem.filename} cannot be read: {problem.strerror}")


def is_run_directory(path: Path) -> bool:
    """Whether a folder is one that ``ddpdoctor run`` made."""
    return os.path.isdir(path / "processes") or _is_report(path / "report.json")


def _is_report(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return b'"ddpdoctor.report"' in file.read(4096)
    except OSError:
        return False


def read_place(path: Path) -> Place | None:
    """Return where a file stands in a tree of torchrun's logs; None where it stands in none."""
    found = _PLACE.search(path.absolute().as_posix())
    return Place(found["run"], int(found["attempt"]), int(found["local"])) if found else None


def _refuse(path: Path) -> str | None:
    """Say why a file must not be opened: a pipe blocks, a device never ends."""
    try:
        mode = path.stat().st_mode
    except OSError as problem:
        return f"cannot be read: {problem.strerror}"
    if stat.S_ISREG(mode):
        return None
    return "is not a regular file"


def _tell(path: Path) -> str:
    """Return a file's kind, or why it is none that can be read."""
    with open_log(path) as stream:
        head = read_some(stream, HEAD)
        more = head.lstrip()[:1] == b"{" and not _is_json_dump(head)
        whole = head + read_some(stream, JSON_LIMIT) if more else head
    return tell_kind(head, whole)


def _is_json_dump(head: bytes) -> bool:
    return b'"collective_seq_id"' in head and b'"profiling_name"' in head


def tell_kind(head: bytes, whole: bytes) -> str:
    """Return ``log``, ``error-file``, ``recorder``, ``stacks``, ``report``, ``archive``, ``empty``, or why it is none.

    Args:
        head: how it begins.
        whole: all of it, where it may be JSON.
    """
    if not head:
        return "empty"
    if head[:4096].lstrip()[:1] == b"{":
        if b'"ddpdoctor.report"' in head[:4096]:
            return "report"
        if _is_json_dump(head):
            return "recorder"
        try:
            data = json.loads(whole)
            if looks_like_error(data):
                return "error-file"
            if looks_like_dump(data):
                return "recorder"
        except (ValueError, RecursionError):
            pass  # a log whose first line is a dictionary
    if head.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        return "recorder" if is_dump(head) else "is a pickle, which is never loaded"
    if head.startswith(b"PK\x03\x04"):
        return "is a zip archive: unpack it first"
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return "is compressed with zstd: unpack it first (zstd -d)"
    if head[257:262] == b"ustar":
        return ARCHIVE
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is UTF-16: convert it to UTF-8 first (iconv -f UTF-16 -t UTF-8)"
    if looks_like_stacks(head):
        return "stacks"
    control = len(head) - len(head.translate(None, _CONTROL))
    return "is binary" if control > BINARY_SHARE * len(head) else "log"
