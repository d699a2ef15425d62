"""Where correct code comes from: repositories, packages of the registry, and the project's own healthy jobs."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.faults.truth import load_all

HERE = Path(__file__).resolve().parent
LISTED = HERE / "repositories.json"
SEEN_BELOW = 128
"""First byte of the hash of a name: below it, rules may be written against what they miss there."""


@dataclass(frozen=True, slots=True)
class Source:
    """One repository or package, unpacked."""

    name: str
    root: Path
    version: str
    """A commit, or a version of a package."""
    project: str = ""
    """The repository that a package is made from: both are of one half."""

    @property
    def half(self) -> str:
        """Whether rules may be written against it."""
        return half_of(self.project or self.name)

    @property
    def draw(self) -> int:
        """A number that nobody chose, by which samples are drawn; no part of it decides the half."""
        return int.from_bytes(hashlib.sha256((self.project or self.name).encode()).digest()[1:5], "big")


def half_of(name: str) -> str:
    """Return the half that a repository belongs to, for ever."""
    return "seen" if hashlib.sha256(name.encode()).digest()[0] < SEEN_BELOW else "unseen"


def read_list() -> dict[str, list[dict[str, str]]]:
    """Return what is listed: ``repositories`` with their commits, ``packages`` with their versions."""
    listed: dict[str, list[dict[str, str]]] = json.loads(LISTED.read_text())
    return listed


def unpack_own(folder: Path) -> Iterator[Source]:
    """Yield the project's own healthy jobs, each as a source of its own."""
    for truth in load_all():
        if truth.is_healthy:
            root = folder / truth.name
            root.mkdir(parents=True)
            for path in truth.folder.glob("*.py"):
                (root / path.name).write_text(path.read_text())
            yield Source(f"own/{truth.name}", root, "here")


def unpack_repositories(store: Path | None, folder: Path, only: str = "") -> Iterator[Source]:
    """Yield the repositories that are listed; say on stderr which cannot be had.

    Args:
        store: has clones, as ``owner+name/repo``, ``owner/name`` or either with ``.git``; None clones from GitHub.
        folder: to unpack in; what is there of an earlier time is used.
        only: a part of the names.
    """
    for entry in read_list()["repositories"]:
        name, commit = entry["name"], entry["commit"]
        if only and only not in name:
            continue
        root = folder / name.replace("/", "+") / commit[:12]
        if not root.exists():
            directory = find_clone(store, name) if store is not None else _clone(name, folder)
            if directory is None or not export(directory, commit, root, entry.get("path", "")):
                print(f"not here: {name} {commit[:12]}", file=sys.stderr)
                continue
        yield Source(name, root, commit)


def find_clone(store: Path, name: str) -> Path | None:
    """Return the git directory of a repository in a folder of clones."""
    for base in (store / name.replace("/", "+") / "repo", store / name, store / name.replace("/", "+")):
        for directory in (base / ".git", base):
            if (directory / "HEAD").is_file():
                return directory
    return None


def export(directory: Path, commit: str, root: Path, path: str = "") -> bool:
    """Unpack the Python files of a commit.

    Args:
        directory: of git.
        commit: its name.
        root: where to.
        path: only what is below it.
    """
    pattern = f"{path}/*.py" if path else "*.py"
    done = subprocess.run(
        ["git", f"--git-dir={directory}", "archive", commit, "--", pattern],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        return False
    root.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive.getmembers():
            _write(root, member.name, archive.extractfile(member) if member.isfile() else None)
    return True


def unpack_packages(folder: Path, only: str = "") -> Iterator[Source]:
    """Yield the packages that are listed, downloaded from the registry that pip is set up for.

    Args:
        folder: to unpack in; what is there of an earlier time is used.
        only: a part of the names.
    """
    for entry in read_list()["packages"]:
        name, version = entry["name"], entry["version"]
        if only and only not in name:
            continue
        root = folder / f"{name}-{version}"
        if not root.exists() and not _download(name, version, root, folder):
            print(f"not here: {name} {version}", file=sys.stderr)
            continue
        yield Source(name, root, version, entry["project"])


def _clone(name: str, folder: Path) -> Path | None:
    target = folder / f"{name.replace('/', '+')}.git"
    if not target.exists():
        command = [
            "git",
            "clone",
            "-q",
            "--bare",
            "--filter=blob:none",
            f"https://github.com/{name}",
            str(target),
        ]
        if subprocess.run(command, check=False, timeout=600).returncode:
            return None
    return target


def _download(name: str, version: str, root: Path, folder: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-d",
            place,
        ]
        for form in (["--only-binary", ":all:"], ["--no-binary", ":all:"]):
            done = subprocess.run([*command, *form, f"{name}=={version}"], capture_output=True, check=False)
            found = list(Path(place).iterdir())
            if done.returncode == 0 and found:
                _unpack(found[0], root)
                return True
    return False


def _unpack(path: Path, root: Path) -> None:
    if path.suffix == ".whl" or path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for item in archive.infolist():
                _write(root, item.filename, archive.open(item))
    else:
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                _write(
                    root,
                    member.name.partition("/")[2],
                    archive.extractfile(member) if member.isfile() else None,
                )


def _write(root: Path, name: str, file: object) -> None:
    """Write one Python file of an archive, never outside the folder."""
    path = Path(name)
    if not isinstance(file, io.IOBase | zipfile.ZipExtFile) or not re.search(r"\.py$", name):
        return
    if path.is_absolute() or ".." in path.parts:
        return
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(file.read())
