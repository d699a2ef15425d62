"""Exit codes: the one table in docs/reference/exit-codes.md, and each command run into each of its codes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ddpdoctor_checks
from ddpdoctor.cli import attach, demo, targets
from ddpdoctor.cli.commands import COMMANDS
from ddpdoctor.errors import DoctorError, OutputError
from ddpdoctor.evidence import PortProbe
from ddpdoctor.plugins import CHECKS, Entry
from ddpdoctor.report.json_renderer import JsonRenderer
from ddpdoctor.report.registry import RenderOptions
from ddpdoctor.testing import make_world
from tests.cli.conftest import Run, Stage
from tests.report.samples import sample_healthy, sample_problems, sample_unknown
from tests.watch.injecting import environment

ROOT = Path(__file__).parents[2]
WRONG = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n"
RIGHT = "import torch.distributed as dist\ndist.barrier()\n"
FAILED = (
    'Traceback (most recent call last):\n  File "/job/train.py", line 2, in <module>\n    f()\nKeyError: 1\n'
)
DONE = "[default] worker group successfully finished. Waiting 300 seconds for other agents to finish.\n"


def read_table() -> dict[str, dict[str, bool]]:
    """Command -> code -> whether the table says that the command can end with it."""
    text = (ROOT / "docs" / "reference" / "exit-codes.md").read_text()
    head, _, *rows = [line for line in text.splitlines() if line.startswith("|")][:10]
    columns = [re.findall(r"`(\w+)`", cell) for cell in head.split("|")[2:-1]]
    table: dict[str, dict[str, bool]] = {name: {} for column in columns for name in column}
    for row in rows:
        code, *cells = [cell.strip() for cell in row.split("|")[1:-1]]
        for column, cell in zip(columns, cells, strict=True):
            for name in column:
                table[name][code] = cell != "–"
    return table


def start(arguments: list[str], folder: Path, **options: Any) -> int:
    command = [sys.executable, "-m", "ddpdoctor", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment(None), capture_output=True, timeout=120, check=False, **options
    )
    return done.returncode


Make = Callable[["Bench"], int]


class Bench:
    """What a case needs to run a command into one of its codes."""

    def __init__(
        self, run: Run, stage: Stage, entries: list[Entry], folder: Path, patch: pytest.MonkeyPatch
    ) -> None:
        self.run, self.stage, self.entries, self.folder, self.patch = run, stage, entries, folder, patch

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name

    def check(self, *words: str, error: BaseException | None = None, **world: Any) -> int:
        self.stage.error = error
        self.stage.evidence = make_world(**world)
        return self.run("check", *words).code

    def attach(self, made: object, *words: str) -> int:
        def observe(*_: object) -> object:
            if isinstance(made, BaseException):
                raise made
            return None if made is None else SimpleNamespace(stands=[])

        self.patch.setattr(targets, "find_targets", lambda *_, **__: [SimpleNamespace(pid=7, numbered="")])
        self.patch.setattr(attach, "_observe", observe)
        self.patch.setattr(attach, "make_report", lambda *_, **__: made)
        return self.run("attach", *words).code

    def fail(self, place: str, error: BaseException, *words: str) -> int:
        def stop(*_: object, **__: object) -> None:
            raise error

        self.patch.setattr(f"ddpdoctor.{place}", stop)
        return self.run(*words).code

    def interrupt(self, place: str, *words: str) -> int:
        return self.fail(place, KeyboardInterrupt(), *words)

    def without_checks(self, *words: str) -> int:
        self.entries[:] = [Entry("ddpdoctor", CHECKS, "builtin", lambda: lambda registry: None)]
        return self.run(*words).code

    def demo(self, code: int, found: str | None) -> int:
        self.patch.setattr(
            "ddpdoctor.cli.demo.subprocess.run", lambda *_, **__: SimpleNamespace(returncode=code)
        )
        self.patch.setattr(demo, "_read_code", lambda _: found)
        return self.run("demo", "hidden-exception").code

    def report(self, text: str | None = None) -> str:
        saved = JsonRenderer().render(sample_problems(), RenderOptions())
        return self.write("saved.json", saved if text is None else text)

    def job(self, *words: str) -> int:
        return start(["run", "--run-dir", str(self.folder / "out"), *words], self.folder)

    def python(self, text: str) -> int:
        return self.job("--", sys.executable, "-c", text)


MAKES = "watch.rundir.make_run_directory"
TAKEN = (PortProbe(0, 29500, "taken", holder_pid=7),)

CASES: dict[tuple[str, str], Make] = {
    ("check", "0"): lambda b: b.check(),
    ("check", "1"): lambda b: b.check(ports=TAKEN),
    ("check", "2"): lambda b: b.check("--nproc", "no"),
    ("check", "3"): lambda b: b.check(error=RuntimeError("boom")),
    ("check", "130"): lambda b: b.check(error=KeyboardInterrupt()),
    ("attach", "0"): lambda b: b.attach(sample_healthy()),
    ("attach", "1"): lambda b: b.attach(sample_problems()),
    ("attach", "2"): lambda b: b.run("attach", "7", "--all").code,
    ("attach", "3"): lambda b: b.attach(sample_unknown()),
    ("attach", "130"): lambda b: b.attach(KeyboardInterrupt()),
    ("analyze", "0"): lambda b: b.run("analyze", b.write("a.log", DONE)).code,
    ("analyze", "1"): lambda b: b.run("analyze", b.write("a.log", FAILED)).code,
    ("analyze", "2"): lambda b: b.run("analyze", "nowhere.log").code,
    ("analyze", "3"): lambda b: b.run("analyze", b.write("a.log", "hello\n")).code,
    ("analyze", "130"): lambda b: b.interrupt("api.analyzing.analyze_sources", "analyze", b.write("a.log", DONE)),
    ("collect", "0"): lambda b: b.run("collect", b.write("a.log", DONE), "--out", "x.tar.gz").code,
    ("collect", "2"): lambda b: b.run("collect", "nowhere.log").code,
    ("collect", "3"): lambda b: b.run("collect", "--out", "nowhere/x.tar.gz").code,
    ("collect", "130"): lambda b: b.interrupt("gather.collecting.run_tool", "collect", "--out", "x.tar.gz"),
    ("lint", "0"): lambda b: b.run("lint", b.write("a.py", RIGHT)).code,
    ("lint", "1"): lambda b: b.run("lint", b.write("a.py", WRONG)).code,
    ("lint", "2"): lambda b: b.run("lint", "nowhere.py").code,
    ("lint", "3"): lambda b: b.run("lint", b.write("a.py", RIGHT), b.write("b.py", "import torch\nif x\n")).code,
    ("lint", "130"): lambda b: b.interrupt("api.linting.lint_sources", "lint", b.write("a.py", RIGHT)),
    ("completion", "0"): lambda b: b.run("completion", "bash").code,
    ("completion", "2"): lambda b: b.run("completion", "tcsh").code,
    ("completion", "3"): lambda b: b.fail("cli.completion.print_text", OutputError("full"), "completion", "bash"),
    ("completion", "130"): lambda b: b.interrupt("cli.completion.build_parser", "completion", "bash"),
    ("report", "0"): lambda b: b.run("report", b.report()).code,
    ("report", "2"): lambda b: b.run("report", "nowhere.json").code,
    ("report", "3"): lambda b: b.run("report", b.report("{}")).code,
    ("report", "130"): lambda b: b.interrupt("aftermath.saved.read_report", "report", b.report()),
    ("explain", "0"): lambda b: b.run("explain", "COL002").code,
    ("explain", "2"): lambda b: b.run("explain", "COL999").code,
    ("explain", "3"): lambda b: b.without_checks("explain", "COL002"),
    ("explain", "130"): lambda b: b.interrupt("cli.explain.load_index", "explain", "COL002"),
    ("list", "0"): lambda b: b.run("list").code,
    ("list", "2"): lambda b: b.run("list", "--select", "ENX").code,
    ("list", "3"): lambda b: b.without_checks("list"),
    ("list", "130"): lambda b: b.interrupt("cli.listing.load_index", "list"),
    ("demo", "0"): lambda b: b.demo(1, "ERR001"),
    ("demo", "1"): lambda b: b.demo(1, "ERR005"),
    ("demo", "2"): lambda b: b.run("demo", "nothing").code,
    ("demo", "3"): lambda b: b.run("demo", "hidden-exception", "--directory", "/proc/nothing/here").code,
    ("demo", "130"): lambda b: b.demo(130, None),
    ("run", "0"): lambda b: b.python("pass"),
    ("run", "1"): lambda b: b.job("nowhere.py"),
    ("run", "2"): lambda b: b.job("--no-such-option", "a.py"),
    ("run", "3"): lambda b: b.fail(MAKES, DoctorError("no"), "run", "--", sys.executable, "-c", "0"),
    ("run", "126"): lambda b: b.job("--", str(b.folder)),
    ("run", "127"): lambda b: b.job("--", "no-such-command-here"),
    ("run", "128 + n"): lambda b: b.python("import os; os.kill(os.getpid(), 9)"),
    ("run", "130"): lambda b: b.interrupt(MAKES, "run", "--", sys.executable, "-c", "0"),
    ("run", "any other"): lambda b: b.python("raise SystemExit(7)"),
}  # fmt: skip
EXPECTED = {"128 + n": 137, "any other": 7}


@pytest.fixture
def bench(
    run: Run, stage: Stage, entries: list[Entry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bench:
    entries[:] = [Entry("ddpdoctor", CHECKS, "builtin", lambda: ddpdoctor_checks.register)]
    return Bench(run, stage, entries, tmp_path, monkeypatch)


@pytest.mark.parametrize(("command", "code"), CASES)
def test_each_command_ends_with_each_of_its_codes(bench: Bench, command: str, code: str) -> None:
    expected = EXPECTED.get(code)
    assert CASES[command, code](bench) == (int(code) if expected is None else expected)


def test_the_table_in_the_docs_has_what_is_tried_here_and_nothing_else() -> None:
    told = {
        (command, part.strip())
        for command, codes in read_table().items()
        for code, given in codes.items()
        if given
        for part in code.split(",")
    }
    assert told == set(CASES)
    assert {command for command, _ in told} == set(COMMANDS)


def test_no_other_page_has_a_table_of_its_own() -> None:
    for page in (*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")):
        for line in page.read_text().splitlines():
            if re.search(r"[Ee]xit codes?\b.*\b0\b.*\b1\b.*\b2\b.*\b3\b", line):
                raise AssertionError(f"{page.name}: {line}")
