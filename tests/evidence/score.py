"""Reads the corpus with `ddpdoctor analyze` and says how often it was right: ``python -m tests.evidence.score``.

What it said of single cases is shown of the half only that rules may be written from; of the other, with
``--show-unseen``, which is for whoever writes no rules.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.evidence.corpus import FACTS, HALVES, VERDICTS, Case, load_all
from tests.parts import replace_part

HEADING = "## Evidence of NCCL jobs"
WORDS = """\
How `ddpdoctor analyze` diagnoses the evidence that NCCL jobs left behind (`tests/evidence/nccl`): logs, kernel logs, nccl-tests, RAS and Flight Recorder dumps, written after public incidents with
their stated causes; the templates are those of the programs, all names are invented. A fixed hash splits the cases: rules are written with the *seen* half only.
60 of the seen cases were written from public threads before the rules were read: on first contact 44 were right (failed jobs: 38 of 53), 3 misleading, one of them at high confidence; 24 more, after the rules were fixed: 21 right (failed jobs: 14 of 17), none at high confidence.
50 more: on first contact 38 right (failed jobs: 25 of 35), 3 misleading, none at high confidence; 20 more, after the rules were fixed: 18 right (failed jobs: 15 of 15), none misleading.
55 more: on first contact 35 right (failed jobs: 21 of 37), 2 misleading, one of them at high confidence.
61 more, of both halves: on first contact 48 right (failed jobs: 33 of 44), 3 misleading, one of them at high confidence. Two unseen cases that misled at high confidence
were read after that measurement, count as seen and were mended.
50 more, of many frameworks, drivers and fabrics: on first contact 31 right (failed jobs: 18 of 37), 1 misleading, none at high confidence.
40 more, of both halves, many of them of logs in which only affected ranks speak: on first contact 32 right (failed jobs: 26 of 31), 2 misleading, none at high confidence.

*Right*: the first cause has one of the case's codes; where the cause cannot be known from the evidence (*untold*), also no cause at all; where nothing is wrong (*healthy*), no warning or
error. *Abstained*: no cause named in a job that failed. *Misleading*: a code that sends the owner the wrong way. *Place*: the ranks, host or device of the truth, where the class is right.
*Decisive line*: the report shows it."""


@dataclass(frozen=True, slots=True)
class Score:
    """What was said of one case."""

    case: Case
    status: str
    """Of the verdict; "no report" where nothing was written."""
    code: str | None
    """Of the first cause; None where none was named."""
    confidence: str | None
    right: bool
    place: bool | None
    """None where the truth names none, or the class is wrong."""
    shown: bool | None
    """The decisive line is somewhere in the report; None where the case has none."""

    @property
    def misleads(self) -> bool:
        """A code that sends the owner the wrong way."""
        return self.code in self.case.misleading

    @property
    def misleads_surely(self) -> bool:
        """The same at high confidence."""
        return self.misleads and self.confidence == "high"

    @property
    def abstained(self) -> bool:
        """No cause was named."""
        return self.code is None and self.status != "healthy"

    @property
    def healthy_on_failed(self) -> bool:
        """A job that failed was called healthy."""
        return self.case.verdict != "healthy" and self.status == "healthy"


def score_report(case: Case, report: dict[str, Any] | None) -> Score:
    """Compare one report with the truth."""
    if report is None:
        return Score(case, "no report", None, None, False, None, None)
    status = str(report["verdict"]["status"])
    first = next(
        (
            finding
            for finding in report["findings"]
            if finding["role"] == "cause" and finding["severity"] != "info" and finding["state"] == "active"
        ),
        None,
    )
    code = str(first["code"]) if first is not None else None
    named = code in case.codes
    if case.verdict == "healthy":
        right = code is None or named
    else:
        right = named or (
            status != "healthy" and code is None and (case.verdict == "untold" or not case.codes)
        )
    place = _compare_place(case, first) if first is not None and named else None
    shown = None if case.decisive is None else any(case.decisive in text for text in _texts(report))
    return Score(case, status, code, str(first["confidence"]) if first else None, right, place, shown)


def _compare_place(case: Case, first: dict[str, Any]) -> bool | None:
    """Whether the ranks are those of the truth, or else its hosts and device are named."""
    words = [*case.hosts, *([case.device] if case.device else [])]
    if case.ranks is None and not words:
        return None
    told = list(_texts(first))
    named = bool(words) and all(any(word in text for text in told) for word in words)
    return named if case.ranks is None else set(first["ranks"]) == set(case.ranks) or named


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def analyze(case: Case) -> dict[str, Any] | None:
    """Return the report on a case as a user would ask for it: of its log, or of the folder with all of it."""
    from ddpdoctor import cli

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / case.name
        shutil.copytree(case.folder, folder, ignore=shutil.ignore_patterns(FACTS))
        given = folder / case.files[0].name if len(case.files) == 1 else folder
        out = Path(scratch) / "report.json"
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            cli.main(["analyze", str(given), "--json", str(out), "--quiet", "--no-color"])
        report: dict[str, Any] | None = json.loads(out.read_text()) if out.exists() else None
    return report


def try_case(case: Case) -> Score:
    """Analyze a case and compare."""
    return score_report(case, analyze(case))


def summarise(scores: Sequence[Score]) -> list[list[str]]:
    """Return the rows of the table: a name, then a cell for each half."""
    halves = [[each for each in scores if each.case.half == half] for half in HALVES]

    def row(name: str, *cells: str) -> list[str]:
        return [name, *cells]

    def share(part: Iterable[bool]) -> str:
        values = list(part)
        return f"{sum(values)} of {len(values)}" + (f" ({sum(values) / len(values):.0%})" if values else "")

    rows = [row("right", *(share(each.right for each in half) for half in halves))]
    for verdict in VERDICTS:
        rows.append(
            row(
                f"right: {verdict}",
                *(share(each.right for each in half if each.case.verdict == verdict) for half in halves),
            )
        )
    failed = [[each for each in half if each.case.verdict == "failed"] for half in halves]
    broken = [[each for each in half if each.case.verdict != "healthy"] for half in halves]
    fine = [[each for each in half if each.case.verdict == "healthy"] for half in halves]
    for level in ("high", "medium", "low"):
        said = [[each.right for each in half if each.confidence == level] for half in halves]
        rows.append(row(f"right of what was said at {level} confidence", *map(share, said)))
    rows += [
        row("abstained: failed", *(share(each.abstained for each in half) for half in failed)),
        row(
            "misleading at high confidence",
            *(share(each.misleads_surely for each in half) for half in halves),
        ),
        row("misleading", *(share(each.misleads for each in half) for half in halves)),
        row(
            "called healthy: failed and untold",
            *(share(each.healthy_on_failed for each in half) for half in broken),
        ),
        row("alarms: healthy", *(share(not each.right for each in half) for half in fine)),
        row(
            "right place", *(share(each.place for each in half if each.place is not None) for half in halves)
        ),
        row(
            "decisive line shown",
            *(share(bool(each.shown) for each in half if each.case.decisive is not None) for half in broken),
        ),
    ]
    return rows


def describe(score: Score) -> str:
    """Return one case as a line: what was said and what is true."""
    said = f"{score.code} ({score.confidence})" if score.code else score.status
    true = " or ".join(score.case.codes) or "no code"
    mark = "right" if score.right else "MISLEADING" if score.misleads else "wrong"
    return f"{mark:<10} {score.case.name:<42} {score.case.verdict:<8} said {said:<24} true {true}"


def make_section(scores: Sequence[Score]) -> str:
    """Return the part of the page on accuracy; the cases of the half that nobody looks at are not in it."""
    table = [["", *HALVES], ["---"] * 3, *summarise(scores)]
    parts = [HEADING, WORDS, "\n".join(f"| {' | '.join(row)} |" for row in table)]
    wrong = [each for each in scores if each.case.half == "seen" and not each.right]
    if wrong:
        parts.append("Not right, of the seen half:")
        parts.append(
            "\n".join(
                f"* `{each.case.name}`: said {each.code or each.status}, true "
                f"{' or '.join(each.case.codes) or 'no code'} ([source]({each.case.source}))"
                for each in wrong
            )
        )
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Read what was chosen; return 0 where everything is right, 1 where something is not."""
    options = _make_parser().parse_args(arguments)
    cases = [
        case
        for case in load_all()
        if options.half in (case.half, "both")
        and (not options.only or any(text in case.name or text in case.codes for text in options.only))
    ]
    if not cases:
        print("no such case", file=sys.stderr)
        return 2
    with ProcessPoolExecutor(max_workers=options.jobs) as pool:
        scores = list(pool.map(try_case, cases))
    for score in scores:
        if (score.case.half == "seen" or options.show_unseen) and (options.verbose or not score.right):
            print(describe(score))
    widths = (46, 22, 22)
    for row in [["", *HALVES], *summarise(scores)]:
        print("".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    if options.markdown is not None:
        page = options.markdown.read_text() if options.markdown.exists() else ""
        options.markdown.write_text(replace_part(page, make_section(scores)))
    return 0 if all(score.right for score in scores) else 1


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.score", description=main.__doc__)
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="part of a name, or a code; repeatable"
    )
    parser.add_argument("--half", choices=(*HALVES, "both"), default="both", help="which cases (both)")
    parser.add_argument("--show-unseen", action="store_true", help="single cases of the unseen half as well")
    parser.add_argument("--verbose", action="store_true", help="also the cases that are right")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (2)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the part of the page there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
