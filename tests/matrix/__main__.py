"""Tries ddpdoctor with every torch and Python that it is for: ``python -m tests.matrix``, or ``make matrix``.

Each entry gets a fresh environment in a temporary directory, one after the other. What is kept of a run that was
stopped is not tried again, unless ddpdoctor has changed since.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.machine import read_commit
from tests.matrix.entries import Entry, choose_entries
from tests.matrix.environment import CannotInstall, end_processes, make_environment, make_variables
from tests.matrix.page import make_page
from tests.matrix.results import RESULTS, Shown, fingerprint, make_shown, read_all, read_result

STEPS = ("facts", "check", "hosts", "attach", "dumps", "lint", "fidelity", "warnings", "cases", "tests")
"""Those of `tests.matrix.steps`, which imports what only the environments have."""
STEP_S = 3600.0
"""For a whole step: none takes a third of it on two busy cores."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Try what was chosen; return 0 where everything is right, 1 where something is not, 2 for a wrong option."""
    options = _make_parser().parse_args(arguments)
    # Ended by a supervisor or a closed terminal, it takes its environment down as well.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        entries = choose_entries(options.only)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.page_only:
        _write_page(options.page, options.results)
        return 0
    for entry in entries:
        try_entry(entry, options.steps or STEPS, options.results, again=options.again)
        _write_page(options.page, options.results)
    results = [read_result(entry, options.results) for entry in entries]
    wrong = [result for result in results if not result.is_right]
    return 1 if wrong else 0


def try_entry(entry: Entry, steps: Sequence[str], folder: Path, *, again: bool) -> None:
    """Try the steps of one entry that are not known yet, and keep what each showed at once."""
    source = fingerprint()
    result = read_result(entry, folder)
    known = {name for name, shown in result.steps.items() if shown.source == source and not again}
    todo = [name for name in steps if name not in known]
    if todo and "facts" not in todo:
        todo.insert(0, "facts")  # compiles what jobs load
    if not todo:
        print(f"{entry.name}: known", flush=True)
        return
    print(f"{entry.name}: installing", flush=True)
    try:
        with make_environment(entry) as (place, seconds):
            result.why_not, result.install_s = None, round(seconds)
            print(f"{entry.name}: installed in {seconds:.0f} s", flush=True)
            for name in todo:
                shown = try_step(name, place, source)
                result.steps[name] = shown
                result.date, result.commit = _today(), read_commit()
                result.keep(folder)
                print(
                    f"{entry.name}: {name:<9} {shown.outcome:<6} {shown.text} ({shown.seconds:.0f} s)",
                    flush=True,
                )
                for note in shown.notes:
                    print(f"    {note}", flush=True)
    except CannotInstall as error:
        print(f"{entry.name}: {error}", flush=True)
        if not result.steps:
            result.why_not, result.date = str(error), _today()
            result.keep(folder)


def try_step(name: str, place: Path, source: str) -> Shown:
    """Run one step in the environment; one that fails itself is wrong, and the others go on."""
    told = place / "shown.json"
    told.unlink(missing_ok=True)
    command = [str(place / "env/bin/python"), "-m", "tests.matrix.steps", name, str(told)]
    with (place / "output").open("w+b") as output:
        step = subprocess.Popen(
            command, cwd=place / "tree", env=make_variables(place), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            step.wait(STEP_S)
        end_processes(place)
        step.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    if not told.exists():
        last = tuple(text.strip().splitlines()[-12:])
        return Shown("wrong", "the step failed", last, source=source)
    shown = make_shown(json.loads(told.read_text()))
    return Shown(shown.outcome, shown.text, shown.notes, shown.details, shown.seconds, source)


def _write_page(page: Path | None, folder: Path) -> None:
    if page is not None:
        page.write_text(make_page(read_all(folder)))


def _today() -> str:
    return datetime.now(timezone.utc).date().isoformat()


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], metavar="ENTRY",
        help="a version of torch (2.4.1, 2.4), or an entry (2.13.0-py3.12); repeatable",
    )  # fmt: skip
    parser.add_argument("--steps", action="append", choices=STEPS, help="only this step; repeatable")
    parser.add_argument("--again", action="store_true", help="also what is known of the same ddpdoctor")
    parser.add_argument(
        "--page-only", action="store_true", help="try nothing, write the page from what is kept"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page there")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where results are kept")
    return parser


if __name__ == "__main__":
    sys.exit(main())
