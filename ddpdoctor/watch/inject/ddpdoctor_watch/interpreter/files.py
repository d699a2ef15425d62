"""Files that a rank writes over, reads as checkpoints, renames and deletes, and directories that it makes or deletes.

Seen by an audit hook: that stands on no stack while the program's call is made. It can never be taken out again,
so it is put in once, in ranks only, and looks at nothing but the name of most events. Even so each event costs half a
microsecond, and ``id()``, ``sys._getframe()`` and a frame's ``f_code`` are events: what runs in each step uses few of
them (tests/watch/test_inject_cost.py). What torch writes in C++
comes from `note_saving`. With each use goes how often this rank has met the others by then: two uses on
two ranks between the same meetings are in no order.
"""

from __future__ import annotations

import os
import stat
import sys

from ..core import budget, describe, frames, journal, lifetime, progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from ddpdoctor.facts import ownership
else:
    from .. import ownership

EACH = 6
"""Uses of one path and of one kind that are written down."""
OF_A_LINE = 30
"""Paths that one line writes and that are written down: an archive has thousands."""
LOOKED_AT = 3_000
"""Files opened to be written over that are looked at, from when on only what torch saves is; as many changes of
directories."""
PATHS = 600
"""Paths of which something is written down."""
_FRAMES = 6
_DEPTH = 24

CHECKPOINTS = (
    ".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".npy", ".npz", ".pkl", ".pickle", ".h5", ".pt2", ".tar", ".model",
)  # fmt: skip
"""Endings of files that are taken for checkpoints when they are read."""
_WATCHED = frozenset({
    "open", "os.rename", "shutil.rmtree", "os.mkdir", "os.symlink", "os.link", "os.remove", "os.rmdir",
    "fcntl.flock", "fcntl.lockf",
})  # fmt: skip
_OTHERS = frozenset({"shutil", "tempfile", "importlib._bootstrap_external", "_frozen_importlib_external"})
"""Modules that make and delete files of their own: unique names, and compiled modules."""
_APART = ("/proc/", "/sys/", "/dev/fd/")
_TOOLS = {
    "numpy": "numpy.save",
    "safetensors": "safetensors",
    "zipfile": "zipfile",
    "tarfile": "tarfile",
    "urllib": "urllib",
    "gdown": "gdown",
    "wget": "wget",
}
"""Packages through which a file is written -> how they are called in the report; the outermost counts."""
_BUILDS = ("torch.utils.cpp_extension", "torch._inductor")
"""Modules of torch that build what the program runs: all ranks write the same sources, and the build has locks."""
_UNLOCK = 8
"""fcntl.LOCK_UN, for flock and lockf."""

count_meetings: Callable[[], tuple[int, int]] | None = None
"""Returns how many synchronization points this rank has passed; set once torch is imported."""
_installed = False
_active = False
_uses: dict[tuple[str, str], int] = {}
"""Kind and path -> uses so far."""
_reads: dict[str, int] = {}
"""Path as it was given -> reads so far: asked for each file of a data set, so without resolving the path."""
_lines: dict[object, int] = {}
_written: dict[str, None] = {}
_locks = False
"""A lock of a file is held, by this rank's last word on it."""
_opened = 0
_changed = 0
"""What was made that must be new, and files and empty directories deleted."""
_ours = ""
"""The run directory, whose files are none of the program's."""


def install() -> None:
    """See what this rank does with files from now on, but at level off."""
    if budget.level == budget.OFF:
        return
    global _installed, _active, _ours
    _ours = os.path.realpath(os.path.dirname(journal.folder())) + os.sep
    _active = True
    if not _installed:
        _installed = True
        sys.addaudithook(_make_hook())


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A child of a rank is no rank."""
    global _active
    _active = False


def note_saving(is_path: Any, frame: FrameType, args: Any) -> None:
    """See a file that torch.save writes in C++: from a function that it asks first and that does not raise."""
    if is_path and _active and frame.f_code.co_name == "_open_zipfile_writer":
        _note_write(args[0], frame, "torch.save")


def note_safetensors(_: Any, frame: FrameType | None, args: Any) -> None:
    """See a file that safetensors writes in Rust, in the same way."""
    for _depth in range(3):
        if not _active or frame is None:
            return
        if frame.f_code.co_name == "save_file":
            _note_write(frame.f_locals.get("filename"), frame, "safetensors")
            return
        frame = frame.f_back


@lifetime.at(lifetime.ENDING)
def note_end() -> None:
    """Write down how large what was written is in the end, and when that was written to last."""
    rows: list[list[object]] = []
    for path in _written:
        try:
            found = os.stat(path)
        except OSError:
            continue
        rows.append([path, found.st_size, found.st_mtime_ns, found.st_dev, found.st_ino])
    if rows:
        _written.clear()
        journal.write("files", {"ends": rows})


def _make_hook() -> Any:
    """Return the hook, which has all it needs with it: it is called until the interpreter is gone."""
    cut = os.O_TRUNC
    frame_of, failed = sys._getframe, journal.failed
    watched = _WATCHED
    only_new = os.O_CREAT | os.O_EXCL
    endings = CHECKPOINTS

    def hook(event: str, args: Any) -> None:
        if event not in watched or not _active:
            return
        try:
            if event != "open":
                _take_other(event, args, frame_of(1))
                return
            path, _, flags = args
            if flags & cut:
                if _opened < LOOKED_AT:
                    _note_write(path, frame_of(1), None)
            elif type(path) is str and path.endswith(endings) and not flags & 3:
                _note_read(path, frame_of(1))
            elif flags & only_new == only_new:
                _note_change(path, -1, True, frame_of(1))
        except Exception as error:
            failed("files", error)

    return hook


def _take_other(event: str, args: Any, frame: FrameType) -> None:
    global _locks, _opened
    if event == "os.rename":
        _opened += 1
        if _opened > LOOKED_AT:
            return
        path = _locate(args[1])
        source = _locate(args[0])
        if path is None or source is None or not (source in _written or path.endswith(CHECKPOINTS)):
            return
        size = os.stat(source).st_size if os.path.exists(source) else None
        _write("replace", path, frame, None, size=size)
        _written[path] = None
    elif event == "shutil.rmtree":
        path = _locate(args[0])
        if path is not None:
            _write("remove", path, frame, None, size=1 if os.path.lexists(path) else 0)
    elif event != "fcntl.flock" and event != "fcntl.lockf":
        linked = event == "os.symlink" or event == "os.link"
        _note_change(args[1 if linked else 0], args[-1], linked or event == "os.mkdir", frame)
    else:
        _locks = not args[1] & _UNLOCK


def _note_change(path: Any, folder: int, makes: bool, frame: FrameType) -> None:
    """Note a directory, link or file that must be new, or what is deleted alone: not by shutil.rmtree or tempfile."""
    global _changed
    _changed += 1
    if folder != -1 or _changed > LOOKED_AT or (not makes and os.path.islink(path)):
        return
    if frame.f_globals.get("__name__") in _OTHERS:
        return
    found = _locate(path)
    if found is not None and os.path.lexists(found) != makes:
        _write("make" if makes else "delete", found, frame, None)


def _note_write(path: Any, frame: FrameType, via: str | None) -> None:
    global _opened
    _opened += 1
    found = _locate(path)
    # tempfile opens a directory by name, and gives an opener that makes the file in it.
    if found is None or os.path.isdir(found):
        return
    if _write("write", found, frame, via):
        _written[found] = None


def _note_read(path: str, frame: FrameType) -> None:
    count = _reads.get(path, 0)
    if count >= EACH or (not count and len(_reads) >= PATHS):
        return
    _reads[path] = count + 1
    found = _locate(path)
    if found is not None:
        _write("read", found, frame, None)


def _locate(path: Any) -> str | None:
    """Return the real path of a regular file or a directory, or of one that is not there yet."""
    if isinstance(path, bytes) or hasattr(path, "__fspath__"):
        path = os.fsdecode(path)
    if type(path) is not str or path.startswith(_APART):
        return None
    found = os.path.realpath(path)
    if found.startswith(_ours):
        return None
    try:
        mode = os.stat(found).st_mode
    except OSError:
        return found
    return found if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else None


def _write(op: str, path: str, frame: FrameType, via: str | None, size: int | None = None) -> bool:
    count = _uses.get((op, path), 0)
    if count >= EACH or (not count and len(_uses) >= PATHS):
        return False
    own, near, tool = _find_way(frame)
    if own is not None and not count:
        line = op, own.f_code, own.f_lineno
        _lines[line] = _lines.get(line, 0) + 1
        if _lines[line] > OF_A_LINE:
            return False
    _uses[op, path] = count + 1
    journal.write(
        "file",
        {
            "op": op,
            "path": path,
            "phase": _read_phase(),
            "locked": _locks,
            "via": via or tool,
            "near": near,
            "size": size,
            "frames": describe.list_stack(own)[:_FRAMES] if own is not None else [],
        },
    )
    return True


def _find_way(frame: FrameType | None) -> tuple[FrameType | None, bool, str | None]:
    """Return the user's frame, whether he calls the standard library or a known tool himself, and which tool."""
    near, tool, roots = True, None, frames.find_roots()
    for _ in range(_DEPTH):
        if frame is None:
            break
        owner = ownership.find_owner(frame.f_code.co_filename, roots)
        module = str(frame.f_globals.get("__name__", ""))
        root = module.partition(".")[0]
        if root in _TOOLS:
            tool = _TOOLS[root]
        elif owner in (ownership.PACKAGE, ownership.TORCH):
            near = near and root == "torch" and not module.startswith(_BUILDS)
        elif owner == ownership.USER:
            return frame, near, tool
        frame = frame.f_back
    return None, False, tool


def _read_phase() -> list[int]:
    """Return how often this rank has met others: public collectives, groups and wrappers made, steps."""
    called, made = count_meetings() if count_meetings is not None else (0, 0)
    return [called, made, progress.steps]
