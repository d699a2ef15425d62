"""Files of a ``file://`` rendezvous that the environment names, as they are before anything is launched."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ddpdoctor.evidence.facts import RendezvousFile
from ddpdoctor.gather.network.listeners import PROC, open_targets, process_ids
from ddpdoctor.gather.scrub import scrub_paths

VARIABLES = (
    "INIT_METHOD",
    "DIST_URL",
    "DIST_INIT_METHOD",
    "TORCH_INIT_METHOD",
    "PET_RDZV_ENDPOINT",
    "MASTER_ADDR",
)
"""Where scripts and launchers put an ``init_method``; only values of ``file://`` are looked at."""


def find_rendezvous_files(
    environ: Mapping[str, str], options: Mapping[str, str] | None = None, proc: Path = PROC
) -> tuple[RendezvousFile, ...]:
    """Return the rendezvous files that variables and options name.

    Args:
        environ: variables of the launching process.
        options: option -> value of the command line, e.g. ``{"--rdzv-endpoint": "file:///tmp/x"}``.
        proc: where the process file system is.
    """
    named = {**{name: environ[name] for name in VARIABLES if name in environ}, **(options or {})}
    found = []
    for name, value in named.items():
        if value.startswith("file://"):
            found.append(_look(unquote(urlsplit(value).path), name, proc))
    return tuple(found)


def _look(path: str, named_by: str, proc: Path) -> RendezvousFile:
    shown = scrub_paths(path)
    try:
        state = os.stat(path)
    except OSError:
        return RendezvousFile(shown, named_by)
    real = os.path.realpath(path)
    holders = tuple(
        pid for pid in process_ids(proc) if pid != os.getpid() and real in open_targets(pid, proc)
    )
    return RendezvousFile(
        shown, named_by, True, state.st_size, max(0.0, time.time() - state.st_mtime), holders
    )  # fmt: skip
