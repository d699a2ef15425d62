"""A fresh virtual environment for one entry, and its end."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.matrix.entries import Entry, find_python
from tests.unmeasured import unmeasured

ROOT = Path(__file__).parents[2]
PREFIX = "ddm-"
"""Short: the paths of Unix sockets below it have to stay under 108 bytes."""
SPACE = 16 << 30
"""A torch with CUDA unpacks to 5 to 8 GB, and its wheels take 2 to 4 more while they are installed."""
INSTALL_S = 1800.0
TREE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "benchmarks",
    "checks",
    "ddpdoctor",
    "docs",
    "plugins",
    "pyproject.toml",
    "scripts",
    "tests",
)
"""What is copied of a checkout: what is changed in it while an entry is tried, is no part of that entry."""


class CannotInstall(Exception):
    """There can be no such environment here; the message says why."""


@contextlib.contextmanager
def make_environment(entry: Entry) -> Iterator[tuple[Path, float]]:
    """Install torch, ddpdoctor from a copy of this checkout and what the tests need; remove it all afterwards.

    Yields:
        The directory, which has the environment in ``env`` and the copy in ``tree``, and how many seconds the
        installation took.

    Raises:
        CannotInstall: no such Python, no such torch, no space.
    """
    remove_stale()
    python = find_python(entry.python)
    if python is None:
        raise CannotInstall(f"no Python {entry.python} on this machine")
    place = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    try:
        free = shutil.disk_usage(place).free
        if free < SPACE:
            raise CannotInstall(f"{free / 2**30:.0f} GiB free in {place.parent}, {SPACE >> 30} are needed")
        started = time.monotonic()
        (place / "tmp").mkdir()
        tree = copy_tree(place)
        _call([python, "-m", "venv", str(place / "env")], place)
        # Compiling all of torch takes minutes; what is imported of it is compiled by the first step.
        pip = [
            str(place / "env/bin/python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-cache-dir",
            "--no-compile",
        ]
        _call([*pip, f"torch=={entry.torch}", "-e", f"{tree}[tests]"], place)
        yield place, time.monotonic() - started
    finally:
        end_processes(place)
        shutil.rmtree(place, ignore_errors=True)


def copy_tree(place: Path, root: Path = ROOT) -> Path:
    """Copy what an entry is tried with, without caches; return where it is."""
    tree = place / "tree"
    tree.mkdir()
    for name in TREE:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy2(source, tree / name)
    return tree


def make_variables(place: Path) -> dict[str, str]:
    """Return the environment variables of what runs there."""
    path = f"{place / 'env/bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    # Without bytecode every process of every job would compile torch anew.
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in unmeasured().items() if name not in dropped}
    return {**kept, "PATH": path, "TMPDIR": str(place / "tmp")}


def end_processes(place: Path) -> list[str]:
    """End whatever still runs from there; return the command lines."""
    ended = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if words[0].startswith(f"{place}/".encode()):
                    ended.append(b" ".join(words).decode(errors="replace").strip())
                    os.kill(int(process.name), signal.SIGKILL)
    return ended


def remove_stale() -> None:
    """Remove what a killed run has left."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        owner = path.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            end_processes(path)
            shutil.rmtree(path, ignore_errors=True)


def _call(command: list[str], place: Path) -> None:
    log = place / "install.log"
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=make_variables(place),
                cwd=place, timeout=INSTALL_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise CannotInstall(f"the installation took more than {INSTALL_S:.0f} s") from error
    if done.returncode != 0:
        raise CannotInstall(explain_failure(log.read_text(errors="replace")))


def explain_failure(text: str) -> str:
    """Return what pip gives as its reason."""
    errors = re.findall(r"^ERROR: (.*)", text, re.MULTILINE)
    lines = text.strip().splitlines() or ["pip said nothing"]
    return (errors or lines)[-1].strip()[:300]
