"""The page docs/compatibility.md, made from what is kept of each entry."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tests.matrix.results import Result, Shown

COLUMNS = {
    "facts": "build",
    "check": "check, 4 ranks",
    "hosts": "check, 2 hosts",
    "cases": "fault cases",
    "attach": "attach",
    "dumps": "recorder dumps",
    "lint": "lint",
    "fidelity": "same job",
    "warnings": "warnings",
    "tests": "unit tests",
}
SPEED = "bw."
"""Checks of bandwidth: whether they can tell depends on what else the machine does."""
UNASKED = ("no --", "not selected", "single node")
"""Reasons of checks that the matrix does not ask for, or that one node has nothing for."""
HEAD = """# Compatibility

The package asks for torch 2.4 and Python 3.10 or newer. `make matrix` tries it with the last release of each minor version of torch on
Python 3.11, and with torch 2.13.0 on the other Pythons, and writes this page. Each row is a fresh environment with torch as the
package index has it: on Linux a CUDA build (the column *build* says so), used here **without a GPU**, as on a login node: NCCL is built and
cannot be used. All jobs use gloo. **No row says anything about NCCL on real devices.**

**Bold** is not what it should be, and is explained below the table; a dash was not tried. Each row names the commit that it was measured with; "and earlier":
some of its steps were tried again later than others.

| column | tried |
| --- | --- |
| check, 4 ranks | `ddpdoctor check --nproc 4`: healthy, exit code 0, every result exact, nothing left behind; how many checks ran of those there are |
| check, 2 hosts | the same with one rank on each of two hosts made of network namespaces (needs root) |
| fault cases | scripts of `tests/faults` under `ddpdoctor run`, right in everything that their truth says: of each family the first case of every second code, and as many healthy ones as a family has on average |
| attach | `ddpdoctor attach` at a job of torchrun that deadlocks: the code that was found, with the right rank |
| recorder dumps | `ddpdoctor analyze` of Flight Recorder dumps that this torch wrote of a gloo job, as pickle and as JSON |
| lint | broken scripts found of those that can be read, and false alarms on the healthy ones |
| same job | a training under `run` and under torchrun: numbers to the last bit, output and exit code |
| warnings | those that ddpdoctor causes under `PYTHONWARNINGS=always`, in `check`, `run`, `analyze`, `lint` and `report` |
| unit tests | the tests that start no jobs |

```
make matrix                                   # all: some hours, mostly downloads; 16 GB of disk at a time
make matrix ARGS="--only 2.4.1 --only 2.15.0" # the two corners
make matrix ARGS="--only 2.4 --steps check"   # one step; --again where nothing has changed
```

A run that was stopped resumes where it was: results are kept in `tests/matrix/results`, one file for each row, and are used again as long as
`ddpdoctor/` and `checks/` are the same. No environment outlives its row. The matrix is not part of `make test`, which has to end within
15 minutes ([ADR 0017](adr/0017-matrix.md)); before a release CI runs the two corners as a job of its own.
"""


def make_page(results: Sequence[Result]) -> str:
    """Return the page as Markdown."""
    rows = [("torch", "Python", *COLUMNS.values(), "date", "ddpdoctor"), ("---",) * (len(COLUMNS) + 4)]
    rows += [_make_row(result) for result in results]
    parts = [HEAD.rstrip(), "\n".join(f"| {' | '.join(row)} |" for row in rows)]
    parts += _explain_wrong(results)
    parts += _explain_missing(results)
    return "\n\n".join(parts) + "\n"


def _make_row(result: Result) -> tuple[str, ...]:
    cells = [_make_cell(result.steps.get(name)) for name in COLUMNS]
    # Steps that were tried again have another ddpdoctor than those that were not.
    mixed = len({shown.source for shown in result.steps.values()}) > 1
    commit = f"{result.commit} and earlier" if mixed else result.commit or "-"
    return (result.entry.torch, result.entry.python, *cells, result.date or "not run", commit)


def _make_cell(shown: Shown | None) -> str:
    if shown is None:
        return "-"
    text = _escape(shown.text)
    return f"**{text}**" if shown.outcome == "wrong" else text


def _explain_wrong(results: Iterable[Result]) -> list[str]:
    """Return the section on what is not as it should be."""
    lines = []
    for result in results:
        name = _name(result)
        if result.why_not:
            lines.append(f"* {name}: not run: {_escape(result.why_not)}")
        for step, shown in result.steps.items():
            if shown.outcome == "wrong":
                lines.append(f"* {name}, {COLUMNS[step]}: {_escape(shown.text)}")
                lines += [f"  * {_escape(note)}" for note in shown.notes]
    return ["## What was not right", "\n".join(lines)] if lines else []


def _explain_missing(results: Sequence[Result]) -> list[str]:
    """Return the section on what some versions lack, in the words of the reports."""
    run = [result for result in results if "check" in result.steps]
    silent = {_name(result): find_silent(result.steps["check"]) for result in run}
    everywhere = set.intersection(*(set(each) for each in silent.values())) if silent else set()
    lacking: dict[str, list[str]] = {}
    for name, rows in silent.items():
        for row, reason in rows.items():
            if row not in everywhere and not row.startswith(SPEED) and not reason.startswith(UNASKED):
                lacking.setdefault(f"`{row}` did not run: {_escape(reason)}", []).append(name)
    for result in run:
        for call, reason in result.steps["check"].details.get("unsupported", {}).items():
            lacking.setdefault(f"collective `{call}`: {_escape(reason)}", []).append(_name(result))
    for result in results:
        for step, shown in result.steps.items():
            if shown.outcome != "wrong":
                for note in shown.notes:
                    lacking.setdefault(f"{COLUMNS[step]}: {_escape(note)}", []).append(_name(result))
    lines = [f"* {text} ({'; '.join(names)})" for text, names in lacking.items()]
    parts = ["## What a version cannot give", "\n".join(lines)] if lines else []
    unknown = {
        row: reason
        for result in run
        for row, reason in result.steps["check"].details.get("unknown", {}).items()
    }
    machine = sorted(row for row in unknown if row in everywhere or row.startswith(SPEED))
    common = [f"* `{row}`: {_escape(unknown[row])}" for row in machine]
    if common:
        told = "Inconclusive in every row, or, where it is about speed, in some: the machine had other work."
        parts += ["## What this machine cannot give", told, "\n".join(common)]
    return parts


def find_silent(check: Shown) -> Mapping[str, str]:
    """Return the checks that gave no answer, with their reasons."""
    return {**check.details.get("skipped", {}), **check.details.get("unknown", {})}


def _name(result: Result) -> str:
    return f"torch {result.entry.torch} on Python {result.entry.python}"


def _escape(text: str) -> str:
    """Return a text as it can stand in a cell or a list: on one line, and not as markup."""
    return re.sub(r"([|<>*_`\[\]])", r"\\\1", " ".join(text.split()))
