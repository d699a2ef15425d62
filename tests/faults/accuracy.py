"""Runs the cases under `ddpdoctor run` and says how often it was right: ``python -m tests.faults.accuracy``.

``--plain`` runs them without ddpdoctor and only tells whether each fails as its truth says.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from benchmarks.machine import describe_machine
from ddpdoctor.evidence.codec import decode, encode
from tests.faults.reading import HEADING, make_section, read_cases, try_programs
from tests.faults.score import Score, score_trial
from tests.faults.trial import DOCTOR, Trial, fails_as_told, find_obstacle, try_case, try_plain
from tests.faults.truth import HALVES, Truth, find_half, load_all
from tests.parts import replace_part, take_parts

COLUMNS = (
    "case",
    "true",
    "said",
    "detected",
    "class",
    "ranks",
    "line",
    "content",
    "exit",
    "false alarms",
    "verdict",
    "s",
)
HEAD = """# Accuracy

Each case is a script in `tests/faults/cases`, with its ground truth next to it: the code, the root-cause ranks, the line
(by a marker in the source), what the finding has to carry (parameter names, a port), the exit code. Healthy ones are
made to look suspicious. `make accuracy` runs them all under `ddpdoctor run` and writes this page; sharded training has
a section of its own below.

*said* is the code of the first finding; *class*, *ranks*, *line* and *content* are evaluated on that one alone. A false
alarm is any further warning or error whose code the truth does not allow. A dash: the truth says nothing about it.
*verdict*: for hangs, seconds without progress at the end of the snapshot that the finding is based on (`make bench
ARGS="--only hangs"` measures to the printed line); stalls without a proven deadlock run with `--stall-after 4 --hang-timeout 8`
and count to the end of the latter. *s*: the whole run, with the start of the job.
"""
HALVES_HEAD = """\
Measured on {today}, {cases} cases. Rules were written with those of the cases in view whose name has an even CRC-32 (*seen*), and
with the others hidden; scripts and truths were written before, by an author who had not seen the rules."""
_COUNT = re.compile(r"\d+ of \d+|\d+ in \d+|on \d+ of \d+")
CONFIDENCES = ("high", "medium", "low")
PROOF_S = 3.0
"""A provable deadlock is to be named within so long of the last rank blocking."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was chosen; return 0 where everything is right, 1 where something is not."""
    options = _make_parser().parse_args(arguments)
    chosen = [
        truth
        for truth in load_all()
        if (not options.only or _matches(truth, options.only)) and not _matches(truth, options.skip)
    ]
    if not chosen:
        print("no such case", file=sys.stderr)
        return 2
    section = make_section(read_cases(chosen), try_programs())
    if options.lint_only:
        print(section)
        if options.markdown is not None:
            options.markdown.write_text(replace_part(options.markdown.read_text(), section))
        return 0
    old = options.markdown.read_text() if options.markdown is not None and options.markdown.exists() else ""
    others = take_parts(old, HEADING)
    obstacles = {truth.name: find_obstacle(truth) for truth in chosen}
    able = [truth for truth in chosen if obstacles[truth.name] is None]
    left_out = [f"{name}: {why}" for name, why in obstacles.items() if why is not None]
    if options.plain:
        return _check_plain(able, left_out, options.jobs)
    doctor = shlex.split(options.command) if options.command else DOCTOR
    places = {truth.name: place for place, truth in enumerate(able)}
    scores = [score for score in read_kept(options.kept) if score.name in places]
    known = {score.name for score in scores}
    left = [truth for truth in able if truth.name not in known]
    for truth, trial in _try_all(left, partial(try_case, doctor=doctor), options.jobs):
        score = score_trial(truth, trial)
        if options.kept is not None:
            with options.kept.open("a") as file:
                file.write(json.dumps(encode(score)) + "\n")
        hidden = options.halves is not None and not options.unseen and find_half(truth.name) != HALVES[0]
        # A false alarm costs more than a blind case: it is shown and can be examined.
        shown = not hidden or bool(truth.is_healthy and score.false_alarms)
        if shown:
            _print_row(score)
        scores = sorted([*scores, score], key=lambda each: places[each.name])
        if (
            options.markdown is not None and options.halves is None
        ):  # each time: a run that is cut leaves what it has seen
            page = make_page(scores, left_out) + others
            options.markdown.write_text(replace_part(page, section))
        if options.outputs is not None and shown:
            options.outputs.mkdir(parents=True, exist_ok=True)
            (options.outputs / f"{truth.name}.txt").write_text(trial.output)
            (options.outputs / f"{truth.name}.json").write_text(json.dumps(trial.report, indent=1))
    print("\n".join(["", *summarise(scores), *(f"left out: {text}" for text in left_out)]))
    if options.halves is not None:
        part = make_halves(options.halves, scores)
        print(part)
        if options.markdown is not None:
            options.markdown.write_text(replace_part(old, part))
    return 0 if all(score.is_right for score in scores) else 1


def read_kept(path: Path | None) -> list[Score]:
    """Return the scores of a run that was cut; a line that it had not ended is taken out of the file."""
    if path is None or not path.exists():
        return []
    whole = path.read_text().rpartition("\n")
    path.write_text(whole[0] + whole[1])
    return [decode(Score, json.loads(line)) for line in whole[0].splitlines()]


def _try_all(
    truths: Sequence[Truth], try_one: Callable[[Truth], Trial], jobs: int
) -> Iterator[tuple[Truth, Trial]]:
    """Run the cases, those that wait most of the time several at once, and all others one after the other."""
    waiting = [truth for truth in truths if truth.waits]
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        running = {pool.submit(try_one, truth): truth for truth in waiting}
        for done in as_completed(running):
            yield running[done], done.result()
    for truth in truths:
        if not truth.waits:
            yield truth, try_one(truth)


def summarise(scores: Sequence[Score]) -> list[str]:
    """Return the counts, one text each."""
    broken = [score for score in scores if score.detected is not None]
    rows = [f"detected {_count(score.detected for score in broken)}"]
    parts: dict[str, Callable[[Score], bool | None]] = {
        "right class": lambda score: score.code,
        "right ranks": lambda score: score.ranks,
        "right line": lambda score: score.line,
        "right content": lambda score: score.content,
    }
    rows += [f"{name} {_count(map(part, broken))}" for name, part in parts.items()]
    for level in CONFIDENCES:
        # In a healthy job whatever is said is wrong.
        said = [bool(score.code) for score in scores if score.confidence == level]
        rows.append(f"right of what was said at {level} confidence {_count(said)}")
    healthy = [score for score in scores if score.detected is None]
    alarmed = sum(bool(score.false_alarms) for score in healthy)
    rows.append(f"false alarms on {alarmed} of {len(healthy)} healthy jobs")
    alarms = sum(len(score.false_alarms) for score in broken)
    rows.append(f"false findings beside the cause {alarms} in {len(broken)} broken jobs")
    proved = sorted(score.verdict_s for score in broken if score.proved and score.verdict_s is not None)
    if proved:
        soon = sum(each <= PROOF_S for each in proved)
        rows.append(
            f"proven deadlocks named within {PROOF_S:.0f} s of the last rank blocking {soon} of {len(proved)} "
            f"(median {proved[len(proved) // 2]:.1f} s, longest {proved[-1]:.1f} s)"
        )
    rows.append(f"right exit code {_count(score.exit for score in scores)}")
    rows.append(f"everything right {_count(score.is_right for score in scores)}")
    return rows


def make_page(scores: Sequence[Score], left_out: Sequence[str]) -> str:
    """Return the page as Markdown, with the date and the machine."""
    today = datetime.now(timezone.utc).date().isoformat()
    machine = [f"* {fact}" for fact in (f"measured on {today} (UTC)", *describe_machine())]
    counts = [f"* {row}" for row in summarise(scores)]
    table = [_join(COLUMNS), _join(["---"] * len(COLUMNS)), *(_join(_cells(score)) for score in scores)]
    wrong = [f"* `{score.name}`: {'; '.join(score.notes)}" for score in scores if score.notes]
    parts = [HEAD.rstrip(), "\n".join(machine), "\n".join(counts), "\n".join(table)]
    if wrong:
        parts.append("## What was not right\n\n" + "\n".join(wrong))
    if left_out:
        parts.append("## Left out on this machine\n\n" + "\n".join(f"* {text}" for text in left_out))
    return "\n\n".join(parts) + "\n"


def make_halves(title: str, scores: Sequence[Score]) -> str:
    """Return a part of the page: counts for the half of some cases that rules were written with, and for the other."""
    halves = {half: [score for score in scores if find_half(score.name) == half] for half in HALVES}
    rows = [dict(_name_count(row) for row in summarise(own)) for own in halves.values()]
    names = dict.fromkeys(name for row in rows for name in row)
    table = [_join(["", *halves]), _join(["---"] * (1 + len(halves)))]
    table += [_join([name, *(row.get(name, "-") for row in rows)]) for name in names]
    wrong = [
        f"* `{score.name}` ({score.expected}): {'; '.join(score.notes)}"
        for score in halves["seen"]
        if score.notes
    ]
    today = datetime.now(timezone.utc).date().isoformat()
    parts = [f"## {title}", HALVES_HEAD.format(today=today, cases=len(scores)), "\n".join(table)]
    return "\n\n".join([*parts, *(["Not right in the seen half:", "\n".join(wrong)] if wrong else [])]) + "\n"


def _name_count(row: str) -> tuple[str, str]:
    """Part ``right class 3 of 4`` into its name and its count."""
    found = _COUNT.search(row)
    return (row[: found.start()].strip(), row[found.start() :]) if found else (row, "")


def _check_plain(truths: Sequence[Truth], left_out: Sequence[str], jobs: int) -> int:
    wrong = 0
    for truth, trial in _try_all(truths, try_plain, jobs):
        fits = fails_as_told(truth, trial)
        wrong += not fits
        print(
            f"{'ok  ' if fits else 'NOT '} {truth.name:<28} exit {trial.exit_code} {trial.seconds:5.1f} s",
            flush=True,
        )
        if not fits:
            print("      " + "\n      ".join(trial.output.splitlines()[-40:]))
    print(f"{len(truths) - wrong} of {len(truths)} fail as they say", *left_out, sep="\n")
    return 1 if wrong else 0


def _matches(truth: Truth, patterns: Sequence[str]) -> bool:
    return any(pattern in truth.name or truth.code.startswith(pattern) for pattern in patterns)


def _cells(score: Score) -> list[str]:
    said = (score.detected, score.code, score.ranks, score.line, score.content, score.exit)
    marks = [{True: "yes", False: "**no**", None: "-"}[value] for value in said]
    alarms = ", ".join(score.false_alarms) or "-"
    verdict = f"{score.verdict_s:.1f}" if score.verdict_s is not None else "-"
    return [score.name, score.expected, score.got, *marks, alarms, verdict, f"{score.seconds:.1f}"]


def _print_row(score: Score) -> None:
    mark = "right" if score.is_right else "WRONG"
    told = f"{score.name:<28} {score.expected:<8} {score.got:<9} {score.seconds:5.1f} s"
    if score.verdict_s is not None:
        told += f", {'proved' if score.proved else 'held'} for {score.verdict_s:.1f} s"
    alarms = f"  false alarms: {', '.join(score.false_alarms)}" if score.false_alarms else ""
    print(f"{mark} {told}{alarms}{'  ' if score.notes else ''}{'; '.join(score.notes)}", flush=True)


def _count(values: Iterable[bool | None]) -> str:
    told = [value for value in values if value is not None]
    return f"{sum(told)} of {len(told)}"


def _join(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.accuracy", description=main.__doc__)
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="part of a name, or a code; repeatable"
    )
    parser.add_argument(
        "--skip", action="append", default=[], metavar="TEXT", help="leave these out, as with --only"
    )
    parser.add_argument("--plain", action="store_true", help="without ddpdoctor: does each fail as it says?")
    parser.add_argument("--lint-only", action="store_true", help="only read the scripts, which takes seconds")
    parser.add_argument("--command", metavar="WORDS", help="what to try instead of this ddpdoctor's run")
    parser.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="cases that mostly wait run so many at once (2)"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there as well")
    parser.add_argument(
        "--halves",
        metavar="TITLE",
        help="count the cases' two halves apart, in a part of the page of this title; of the unseen half only false "
        "alarms on healthy jobs are shown",
    )
    parser.add_argument(
        "--unseen",
        action="store_true",
        help="with --halves: show each case of the unseen half, not only totals",
    )
    parser.add_argument(
        "--kept",
        type=Path,
        metavar="FILE",
        help="keep the score of each case there, and run only cases that it does not have: continues what was cut",
    )
    parser.add_argument("--outputs", type=Path, metavar="DIR", help="keep what each case printed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
