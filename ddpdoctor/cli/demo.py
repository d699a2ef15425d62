"""``ddpdoctor demo [FAULT]``: a small broken job under `run`, its diagnosis, and the corrected code."""

from __future__ import annotations

import argparse
import difflib
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.cli.arguments import options as common
from ddpdoctor.cli.arguments.parsing import add_option
from ddpdoctor.errors import EXIT_FINDINGS, EXIT_OK, DoctorError, UsageError

if TYPE_CHECKING:
    from ddpdoctor.text.paper import Paper

EXAMPLES = (
    ("ddpdoctor demo", "list the demonstrations"),
    ("ddpdoctor demo guarded-collective", "run one: the verdict, and the corrected code"),
    ("ddpdoctor demo unsharded-data --fixed", "the corrected script: no findings"),
)
SCRIPTS = Path(__file__).with_name("demos")
BROKEN, FIXED = "train.py", "fixed.py"


@dataclass(frozen=True, slots=True)
class Demo:
    """One broken script."""

    name: str
    about: str
    code: str
    """What `run` finds in it."""
    nproc: int
    options: tuple[str, ...] = ()
    """Options of `run`."""


DEMOS = (
    Demo(
        "hidden-exception",
        "one rank raises, and the other ranks only report that their peer is gone",
        "ERR001",
        3,
    ),
    Demo(
        "guarded-collective",
        "a collective inside `if rank == 0`: the other ranks are blocked elsewhere",
        "COL002",
        4,
    ),
    Demo("uneven-batches", "DataLoaders of different lengths: one rank leaves the loop early", "DAT003", 3),
    Demo(
        "stalled-loader",
        "one rank waits for a file that is never written",
        "COL009",
        3,
        ("--stall-after", "4", "--hang-timeout", "8", "--on-hang", "abort"),
    ),
    Demo("bypassed-wrapper", "training calls model.module: gradients are never reduced", "DDP005", 2),
    Demo("unfrozen-layer", "a layer unfrozen after DDP wrapping is never reduced", "DDP006", 2),
    Demo("unused-layer", "a layer that the forward pass never uses, in a one-step job", "DDP001", 2),
    Demo("unsharded-data", "every rank reads the whole dataset", "DAT001", 2),
    Demo("epoch-not-set", "every epoch has the same order", "DAT002", 2),
)
"""Scripts in the order of the list: failures, hangs, and what ends with exit code 0."""
INCIDENT = Demo(
    "incident",
    "what two nodes leave behind when a GPU falls off the bus: logs, kernel logs, dumps",
    "BKD010",
    16,
)
"""No script: files for `analyze`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``demo``."""
    parser.add_argument(
        "fault", nargs="?", metavar="FAULT", help="name of a demo; without it, all demos are listed"
    )
    add_option(parser, "--fixed", action="store_true", help="run the corrected script instead")
    add_option(
        parser,
        "--directory",
        metavar="DIR",
        help="directory for the script and the run directory (a temporary one)",
    )
    common.add_verbosity_options(parser)


def run(options: argparse.Namespace) -> int:
    """List the demonstrations, or run one.

    Returns:
        0 where the diagnosis is as it should be, 1 where it is another one.

    Raises:
        UsageError: there is no such demonstration.
        DoctorError: the directory cannot be used.
    """
    from ddpdoctor.cli.output.display import Display, print_text
    from ddpdoctor.launch.torchcheck import require_installed_torch

    paper = Display.of(sys.stdout, no_color=getattr(options, "no_color", False)).paper()
    if getattr(options, "fault", None) is None:
        _put_list(paper)
        print_text(paper.text())
        return EXIT_OK
    demo = _find(options.fault)
    if demo is INCIDENT:
        return _analyze_incident(options)
    require_installed_torch()
    fixed = bool(getattr(options, "fixed", False))
    folder = _lay_out(demo, getattr(options, "directory", None))
    command = _make_command(demo, fixed=fixed, plain=bool(getattr(options, "no_color", False)))
    print_text(f"{demo.name}: {demo.about}\n$ cd {folder}; ddpdoctor {' '.join(command)}\n\n")
    sys.stdout.flush()
    code = subprocess.run([sys.executable, "-m", "ddpdoctor", *command], cwd=folder, check=False).returncode
    if code == 130:
        raise KeyboardInterrupt
    found = _read_code(folder / "run")
    expected = None if fixed else demo.code
    _put_end(paper, demo, found, fixed=fixed)
    print_text("\n" + paper.text())
    return EXIT_OK if found == expected else EXIT_FINDINGS


def _analyze_incident(options: argparse.Namespace) -> int:
    """Write an incident and analyze it."""
    from ddpdoctor.cli.incident import write_incident
    from ddpdoctor.cli.output.display import print_text

    if getattr(options, "fixed", False):
        raise UsageError(
            "the incident has no corrected script: a GPU is broken", hint="ddpdoctor demo incident"
        )
    folder = _make_folder(INCIDENT, getattr(options, "directory", None))
    try:
        (folder / INCIDENT.name).mkdir()
        write_incident(folder / INCIDENT.name)
    except OSError as problem:
        raise DoctorError(
            f"the incident cannot be written to {folder}: {problem.strerror or problem}"
        ) from problem
    plain = ["--no-color"] if getattr(options, "no_color", False) else []
    command = ["analyze", INCIDENT.name, "--html", "incident.html", "--json", "report.json", *plain]
    print_text(f"{INCIDENT.name}: {INCIDENT.about}\n$ cd {folder}; ddpdoctor {' '.join(command)}\n\n")
    sys.stdout.flush()
    code = subprocess.run([sys.executable, "-m", "ddpdoctor", *command], cwd=folder, check=False).returncode
    if code == 130:
        raise KeyboardInterrupt
    return EXIT_OK if _read_code(folder) == INCIDENT.code else EXIT_FINDINGS


def _find(name: str) -> Demo:
    from ddpdoctor.text.suggest import closest

    word = name.strip().lower()
    for demo in (*DEMOS, INCIDENT):
        if word in (demo.name, demo.code.lower()):
            return demo
    near = closest(word, [demo.name for demo in (*DEMOS, INCIDENT)])
    raise UsageError(
        f"there is no demo {name!r}", hint=f"ddpdoctor demo {near}" if near else "ddpdoctor demo"
    )


def _lay_out(demo: Demo, directory: str | None) -> Path:
    """Copy both scripts to a directory of their own: what lies below site-packages is not taken for the user's."""
    folder = _make_folder(demo, directory)
    try:
        for name in (BROKEN, FIXED):
            (folder / name).write_text(_read(demo, name), encoding="utf-8")
    except OSError as problem:
        raise DoctorError(
            (
                f"the scripts cannot be written to {directory or tempfile.gettempdir()}: "
                f"{problem.strerror or problem}"
            ),
            hint=f"ddpdoctor demo {demo.name} --directory DIR",
        ) from problem
    return folder


def _make_folder(demo: Demo, directory: str | None) -> Path:
    """Return an empty directory: the one that was asked for, or a temporary one."""
    try:
        if directory is None:
            return Path(tempfile.mkdtemp(prefix=f"ddpdoctor-demo-{demo.name}-"))
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty", hint=f"ddpdoctor demo {demo.name} --directory NEW")
    except OSError as problem:
        raise DoctorError(
            f"{directory or tempfile.gettempdir()} cannot be used: {problem.strerror or problem}",
            hint=f"ddpdoctor demo {demo.name} --directory DIR",
        ) from problem
    return folder


def _read(demo: Demo, name: str) -> str:
    return (SCRIPTS / demo.name / name).read_text(encoding="utf-8")


def _make_command(demo: Demo, *, fixed: bool, plain: bool) -> list[str]:
    color = ["--no-color"] if plain else []
    words = ["--run-dir", "run", *color, *demo.options, "--nproc", str(demo.nproc)]
    return ["run", *words, FIXED if fixed else BROKEN]


def _read_code(run: Path) -> str | None:
    """Return the code of the verdict; None for a healthy job.

    Raises:
        DoctorError: there is no report.
    """
    try:
        data = json.loads((run / "report.json").read_bytes())
        code = data["verdict"]["code"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise DoctorError("the run wrote no report", hint="rerun the same command with -vv") from problem
    return None if code is None else str(code)


def _put_list(paper: Paper) -> None:
    for demo in (*DEMOS, INCIDENT):
        paper.put(demo.about, label=f"{demo.name} [{demo.code}]", indent=2, hang=6)
    paper.gap()
    paper.put("ddpdoctor demo NAME runs one, ddpdoctor demo NAME --fixed the corrected script")


def _put_end(paper: Paper, demo: Demo, found: str | None, *, fixed: bool) -> None:
    expected = None if fixed else demo.code
    if found != expected:
        paper.put(f"expected {expected or 'healthy'}, found {found or 'healthy'}", style="yellow")
    if fixed:
        return
    paper.put("the corrected code", style="bold")
    lines = difflib.unified_diff(
        _read(demo, BROKEN).splitlines(), _read(demo, FIXED).splitlines(), BROKEN, FIXED, n=2, lineterm=""
    )
    for line in lines:
        paper.put_verbatim(line, indent=2, style={"-": "red", "+": "green"}.get(line[:1]))
