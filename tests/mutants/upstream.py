"""Corrections that public projects made: is the mistake found in what was before, and not in what came after?

``python -m tests.mutants.upstream --store DIR``
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.programs import list_files
from tests.mutants.reading import Said, read
from tests.mutants.score import HALVES
from tests.mutants.sources import export, find_clone, half_of
from tests.parts import replace_part

HEADING = "## Mistakes that public projects corrected"
LISTED = Path(__file__).resolve().parent / "upstream.json"
WORDS = """\
Commits that corrected a mistake of a distributed job; the whole repository is read as it was before and after, as `ddpdoctor lint .` does. *Found*: a finding of the
code is gone with the correction. *After*: whether that file has another of the code. Rules may be
written against those of the seen half, of which repositories are by a hash of their names. *Blind*: collected from histories without knowing what `lint` can find,
also where only a run shows the mistake; the others were searched for by words of its codes, such as `set_epoch` and `map_location`, and are easier.
`python -m tests.mutants.upstream --store DIR --markdown docs/accuracy.md` makes this section from clones."""


@dataclass(frozen=True, slots=True)
class Fix:
    """One correction."""

    name: str
    commit: str
    path: str
    code: str
    words: str
    """What was wrong."""
    blind: bool = False
    """Whether it was collected from histories without knowing what `lint` can find."""

    @property
    def link(self) -> str:
        """Return the commit as Markdown."""
        return f"[{self.name} {self.commit[:7]}](https://github.com/{self.name}/commit/{self.commit})"


@dataclass(frozen=True, slots=True)
class Tried:
    """What was said of one correction."""

    fix: Fix
    found: bool
    """Whether the correction made a finding of the code go away."""
    asked: bool
    """Whether it made a question of the code go away."""
    after: int
    """Findings of the code that are left in the files of those which went away."""
    others: tuple[str, ...]
    """Other codes of which a finding went away from the corrected file."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Try all corrections and print one line for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.upstream", description=main.__doc__)
    parser.add_argument("--store", type=Path, required=True, metavar="DIR", help="clones of the repositories")
    parser.add_argument("--only", default="", metavar="TEXT", help="part of a name or a code")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="replace the section of this page")
    options = parser.parse_args(arguments)
    tried = []
    for fix in read_fixes():
        if options.only in f"{fix.name} {fix.code} {fix.commit}":
            one = try_fix(fix, options.store)
            if one is None:
                print(f"not here: {fix.name} {fix.commit[:12]}", file=sys.stderr)
                continue
            tried.append(one)
            others = f"; others: {', '.join(one.others)}" if one.others else ""
            print(
                f"{_mark(one):<10} {half_of(fix.name):<6} {fix.code} {fix.name} {fix.path}: {fix.words}{others}",
                flush=True,
            )
    found = sum(one.found for one in tried)
    silent = sum(one.found and not one.after for one in tried)
    print(f"found before {found} of {len(tried)}, silent after {silent} of these")
    if options.markdown is not None:
        page = options.markdown.read_text()
        options.markdown.write_text(replace_part(page, make_section(tried)))
    return 0


def read_fixes() -> list[Fix]:
    """Return what is listed."""
    return [Fix(**entry) for entry in json.loads(LISTED.read_text())]


def try_fix(fix: Fix, store: Path) -> Tried | None:
    """Lint a repository before and after a correction; None where it cannot be had."""
    directory = find_clone(store, fix.name)
    if directory is None:
        return None
    said: list[list[Said]] = []
    with tempfile.TemporaryDirectory(prefix="ddr-upstream-") as place:
        for commit in (f"{fix.commit}^", fix.commit):
            root = Path(place, str(len(said)))
            if not export(directory, commit, root) or not (root / fix.path).exists():
                return None
            said.append(read(root, list_files(root)))
    before, after = said
    gone = _count(before) - _count(after)
    files = {file for code, file, asks in gone if code == fix.code and not asks}
    asked = any(code == fix.code and asks for code, _, asks in gone)
    left = sum(each.code == fix.code and each.file in files and not each.question for each in after)
    others = {code for code, file, asks in gone if file == fix.path and not asks} - {fix.code}
    return Tried(fix, bool(files), asked, left, tuple(sorted(others)))


def make_section(tried: Sequence[Tried]) -> str:
    """Return the part of the page on accuracy."""
    found = sum(one.found for one in tried)
    asked = sum(one.asked and not one.found for one in tried)
    rows = [f"* found before {found} of {len(tried)}; {asked} more asked by `--questions`"]
    for half in HALVES:
        part = [one for one in tried if half_of(one.fix.name) == half]
        blind = [one for one in part if one.fix.blind]
        rows.append(
            f"* of the {half} half {sum(one.found for one in part)} of {len(part)}, of the blind ones "
            f"{sum(one.found for one in blind)} of {len(blind)}"
        )
    rows.append(f"* silent after {sum(one.found and not one.after for one in tried)} of these {found}")
    table = [
        "| correction | code | what was wrong | blind | before | after |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for one in tried:
        after = ("silent" if not one.after else "fewer") if one.found else "-"
        how = "yes" if one.fix.blind else "-"
        table.append(
            f"| {one.fix.link} | {one.fix.code} | {one.fix.words} | {how} | {_mark(one)} | {after} |"
        )
    return "\n\n".join([HEADING, WORDS, "\n".join(rows), "\n".join(table)]) + "\n"


def _count(said: Sequence[Said]) -> Counter[tuple[str, str, bool]]:
    """Count what is said by its code, its file and whether it asks: a correction moves lines."""
    return Counter((each.code, each.file, each.question) for each in said)


def _mark(one: Tried) -> str:
    return "found" if one.found else "asked" if one.asked else "**missed**"


if __name__ == "__main__":
    sys.exit(main())
