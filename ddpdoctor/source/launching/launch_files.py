"""Files that start jobs: which these are, and what each of them asks for and starts."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddpdoctor.evidence.sources import IgnoreComment, SourcePlace
from ddpdoctor.source.files.comments import read_ignore
from ddpdoctor.source.files.enclosing import MOST_BYTES
from ddpdoctor.source.files.reading import NEWLINE
from ddpdoctor.source.launching.manifests import read_manifest
from ddpdoctor.source.launching.shell import Command, Setting, read_shell
from ddpdoctor.source.launching.slurm import Asked, read_directives
from ddpdoctor.source.launching.starters import Starter, find_starters

SHELLS = (".sh", ".bash", ".sbatch", ".slurm", ".job")
MANIFESTS = (".yaml", ".yml")
ENDINGS = (*SHELLS, *MANIFESTS)
FIRST_LINE = re.compile(rb"#!.{0,80}\b(?:ba|z|da|k)?sh\b")
STARTS = re.compile(rb"\btorchrun\b|torch\.distributed\.(?:run|launch)\b|\baccelerate\s+launch\b")
CONFIGURES = re.compile(rb"^(?:distributed_type|compute_environment)\s*:", re.MULTILINE)
"""Keys of a configuration of Accelerate."""


@dataclass(frozen=True, slots=True)
class Job:
    """One command that starts ranks, with what it runs on."""

    starter: Starter
    gpus: tuple[int, int] | None = None
    """The GPUs of a node, and the line that says so."""
    nodes: tuple[int, int] | None = None
    """The nodes that are asked for, and the line that says so."""
    managed: bool = False
    """Whether an operator starts it, which gives torchrun its options by the environment (PET_*)."""


@dataclass(slots=True)
class LaunchFile:
    """A file that starts a job, as far as it could be read without running it."""

    name: str
    lines: list[str] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    """All commands of a shell script."""
    settings: list[Setting] = field(default_factory=list)
    asked: Asked = field(default_factory=lambda: Asked({}))
    late: list[int] = field(default_factory=list)
    """Lines of ``#SBATCH`` that sbatch does not read."""
    ignores: tuple[IgnoreComment, ...] = ()
    problem: str | None = None
    unrelated: bool = False
    """Whether it starts no ranks."""

    def place(self, line: int, text: str = "") -> SourcePlace:
        """Return a place in it.

        Args:
            line: its number.
            text: where in the line.
        """
        raw = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        bare = raw.expandtabs().lstrip()
        column = raw.find(text) if text and text in raw else len(raw) - len(raw.lstrip())
        return SourcePlace(
            self.name, line, column + 1, bare.rstrip(), None, None, len(raw.expandtabs()) - len(bare)
        )

    def place_of(self, starter: Starter, *options: str) -> SourcePlace:
        """Return where a command has one of some options; where it begins to start ranks if it has none."""
        first, last = starter.command.first, starter.command.last
        lines = range(first, last + 1)
        for option in options:
            pattern = re.compile(
                rf"(?<![\w-]){re.escape(option).replace('-', '[-_]')}(?![\w-])".replace(r"\[-_]", "[-_]")
            )
            for line in lines:
                if 0 < line <= len(self.lines) and (match := pattern.search(self.lines[line - 1])):
                    return self.place(line, match[0])
        for line in lines:
            if 0 < line <= len(self.lines) and STARTS.search(self.lines[line - 1].encode()):
                return self.place(line)
        return self.place(first)


def is_launch_file(path: Path) -> bool:
    """Whether a file is a shell script, or a manifest or configuration, by its name or its first line.

    Args:
        path: of the file.
    """
    if path.suffix in ENDINGS:
        return True
    if path.suffix:
        return False
    try:
        with path.open("rb") as file:
            return FIRST_LINE.match(file.read(100)) is not None
    except OSError:
        return False


def read_launch_file(path: Path, name: str) -> LaunchFile:
    """Read a file; nothing of it is run.

    Args:
        path: of the file.
        name: under which it is told.
    """
    try:
        if not os.path.isfile(path):
            return LaunchFile(name, problem="not a regular file")
        if path.stat().st_size > MOST_BYTES:
            return LaunchFile(name, problem=f"larger than {MOST_BYTES >> 20} MiB")
        data = path.read_bytes()
    except (OSError, ValueError) as problem:
        return LaunchFile(name, problem=getattr(problem, "strerror", None) or str(problem))
    return parse_launch_file(data, name)


def parse_launch_file(data: bytes, name: str) -> LaunchFile:
    """Read the text of a file.

    Args:
        data: the text.
        name: under which it is told; its ending decides what it is.
    """
    manifest = name.endswith(MANIFESTS)
    if manifest and b"{{" in data:
        return LaunchFile(name, unrelated=True)  # a template, which is no YAML yet
    if not STARTS.search(data) and not (manifest and CONFIGURES.search(data)):
        return LaunchFile(name, unrelated=True)
    lines = NEWLINE.split(data.decode("utf-8-sig", errors="replace"))
    launch = LaunchFile(name, lines, ignores=tuple(_find_ignores(name, lines)))
    if manifest:
        _read_manifest(launch)
    else:
        _read_shell(launch)
    launch.unrelated = not launch.jobs
    return launch


def _read_shell(launch: LaunchFile) -> None:
    script = read_shell(launch.lines)
    launch.commands, launch.settings, launch.late = script.commands, script.settings, script.late
    launch.asked = asked = read_directives(script.directives)
    nodes = asked.number("nodes")
    for starter in find_starters(script.commands):
        visible = starter.command.variables.get("CUDA_VISIBLE_DEVICES")
        gpus = asked.gpus
        if visible is not None:
            gpus = (
                (visible[0].count(",") + 1, visible[1]) if re.fullmatch(r"\d+(?:,\d+)*", visible[0]) else None
            )
        launch.jobs.append(Job(starter, gpus, (nodes, asked.line("nodes")) if nodes is not None else None))


def _read_manifest(launch: LaunchFile) -> None:
    found = read_manifest("\n".join(launch.lines))
    if isinstance(found, str):
        launch.problem = found
        return
    for pod in found:
        launch.settings += pod.settings
        nodes = (pod.replicas, pod.line) if pod.replicas is not None else None
        launch.jobs += [Job(each, pod.gpus, nodes, managed=pod.managed) for each in pod.starters]


def _find_ignores(name: str, lines: Sequence[str]) -> list[IgnoreComment]:
    """Return the comments that suppress findings: of their own line, or of the next command where they stand alone."""
    found = []
    for number, line in enumerate(lines, 1):
        if "ddpdoctor:" not in line:
            continue
        first = last = number
        if line.lstrip().startswith("#"):
            first = last = next(
                (n for n in range(number + 1, len(lines) + 1) if lines[n - 1].strip(" #\t")), number
            )
        while last < len(lines) and lines[last - 1].rstrip().endswith("\\"):
            last += 1
        place = SourcePlace(name, number, line.index("ddpdoctor:") + 1, line.strip())
        comment = read_ignore(line, place, first, last)
        if comment is not None:
            found.append(comment)
    return found
