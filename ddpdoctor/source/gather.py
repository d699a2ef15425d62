"""From paths to evidence: reads scripts and notes what ranks reach unevenly."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ddpdoctor.evidence.sources import SourceFile
from ddpdoctor.judge.rules import LintRule
from ddpdoctor.source.files.belonging import read_imported
from ddpdoctor.source.files.budget import SHARES, OverBudgetError, describe_cut, limit_steps, size_budget
from ddpdoctor.source.files.comments import find_ignores
from ddpdoctor.source.files.reading import ENDINGS as SCRIPTS
from ddpdoctor.source.files.reading import (
    STDIN,
    TOO_DEEP,
    Script,
    find_files,
    nothing,
    parse_script,
    read_script,
)
from ddpdoctor.source.files.workers import count_workers, no_collection, share_work
from ddpdoctor.source.launching.launch_files import ENDINGS as LAUNCHES
from ddpdoctor.source.launching.launch_files import LaunchFile, is_launch_file, read_launch_file
from ddpdoctor.source.reach.paths import PathReader
from ddpdoctor.source.resolve.names import Files
from ddpdoctor.source.rules import FactFinder, describe_failure, find_in_launch, order_facts

Row = TypeVar("Row")
TOGETHER = 0.5
"""The rules of all files cost so much of what the other rules do, which look at one file after the other."""
MANY_LINES = 10_000
"""Number of lines from which on further processes save more time than they cost."""


def read_sources(
    paths: Sequence[str],
    rules: Sequence[LintRule],
    *,
    stdin: bytes = b"",
    excluded: Callable[[str], bool] = nothing,
) -> tuple[SourceFile, ...]:
    """Read files, directories and standard input; one row for each file, in the order given.

    Args:
        paths: names of files and directories; ``-`` is what ``stdin`` holds.
        rules: what to look for beside uneven collectives.
        stdin: the text of a script.
        excluded: whether the user has excluded a path.
    """
    scripts: dict[str, Script] = {}
    launches: dict[str, LaunchFile] = {}
    files: dict[str, Path] = {}
    order: dict[str, None] = {}
    with no_collection():
        for given in paths:
            if given == STDIN:
                scripts.setdefault("<stdin>", parse_script(stdin, "<stdin>"))
                order["<stdin>"] = None
                continue
            for path in find_files(Path(given), excluded, (*SCRIPTS, *LAUNCHES)):
                name = name_path(path)
                if name in order:
                    continue
                if is_launch_file(path):
                    launch = read_launch_file(path, name)
                    if launch.unrelated and os.path.isdir(given):
                        continue  # of the many scripts and settings of a project those count that start a job
                    launches[name] = launch
                else:
                    scripts[name], files[name] = read_script(path, name), path
                order[name] = None
        read_imported(scripts, files)
        lines = sum(script.size for script in scripts.values())
        workers = count_workers() if lines >= MANY_LINES else 1
        rows = judge_scripts(list(scripts.values()), rules, workers=workers)
        rows += judge_launches(list(launches.values()), list(scripts.values()), rules)
    found = {row.name: row for row in rows}
    return tuple(found[name] for name in order)


def judge_scripts(
    scripts: Sequence[Script], rules: Sequence[LintRule], *, workers: int = 1
) -> tuple[SourceFile, ...]:
    """Return what the scripts show, read together.

    Args:
        scripts: of different names.
        rules: what to look for beside uneven collectives.
        workers: processes that share the work.
    """
    sizes = [script.size for script in scripts]
    reader = _prepare(scripts)
    finder = FactFinder(reader.files, rules)
    modules = {module.script.name: module for module in reader.files.modules}
    finder.prepare()

    def judge(number: int) -> SourceFile:
        return judge_script(number - 1) if number else judge_together()

    def judge_together() -> SourceFile:
        cut: list[str] = []
        whole = size_budget(sum(sizes), len(scripts))
        with limit_steps(SHARES * whole):
            facts = finder.find_together(whole, cut)
        return SourceFile("", facts=facts, skipped=tuple(cut))

    def judge_script(number: int) -> SourceFile:
        script = scripts[number]
        module = modules.get(script.name)
        if module is None:
            return SourceFile(script.name, script.problem)
        cut: list[str] = []
        budget = size_budget(sizes[number])
        try:
            with limit_steps(SHARES * budget):
                facts = finder.find(module, budget, cut)
            uneven = _limit(lambda: reader.find(module), "uneven collectives", budget, cut)
            ignores = _limit(lambda: find_ignores(script), "comments", budget, cut)
            return SourceFile(
                script.name,
                uneven=uneven,
                facts=facts,
                ignores=ignores,
                skipped=(*script.skipped, *cut),
                unrelated=script.unrelated,
            )
        except RecursionError:
            return SourceFile(script.name, TOO_DEEP)

    together, *rows = share_work(judge, SourceFile, [int(TOGETHER * sum(sizes)), *sizes], workers)
    return tuple(_join(row, script, together) for row, script in zip(rows, scripts, strict=True))


def _join(row: SourceFile, script: Script, together: SourceFile) -> SourceFile:
    """Return what a file shows by itself with what the rules of all files see in it."""
    if row.problem is not None or script.tree is None or not script.tree.body:
        return row
    facts = [*row.facts, *(fact for fact in together.facts if fact.place.file == row.name)]
    first = len(script.skipped)
    skipped = (*row.skipped[:first], *together.skipped, *row.skipped[first:])
    return replace(row, facts=order_facts(facts), skipped=skipped)


def judge_launches(
    launches: Sequence[LaunchFile], scripts: Sequence[Script], rules: Sequence[LintRule]
) -> tuple[SourceFile, ...]:
    """Return what files show that start jobs.

    Args:
        launches: the files.
        scripts: what is read together with them.
        rules: what to look for.
    """
    rows = []
    for launch in launches:
        cut: list[str] = []
        facts = find_in_launch(launch, scripts, rules, cut)
        rows.append(
            SourceFile(
                launch.name,
                launch.problem,
                facts=facts,
                ignores=launch.ignores,
                skipped=tuple(cut),
                unrelated=launch.unrelated,
            )
        )
    return tuple(rows)


def _limit(part: Callable[[], tuple[Row, ...]], name: str, budget: float, cut: list[str]) -> tuple[Row, ...]:
    """Return what a part finds; nothing where that costs more than a budget, or fails, which is noted."""
    try:
        with limit_steps(budget):
            return part()
    except OverBudgetError:
        cut.append(describe_cut(name, budget))
    except RecursionError:
        raise
    except Exception as problem:
        cut.append(describe_failure(name, problem))
    return ()


def _prepare(scripts: Sequence[Script]) -> PathReader:
    """Build what is known of all files; one that is nested too deeply is left out."""
    try:
        return PathReader(Files(scripts))
    except RecursionError:
        for script in scripts:
            try:
                PathReader(Files([script]))
            except RecursionError:
                script.tree, script.problem = None, TOO_DEEP
        return PathReader(Files(scripts))


def name_path(path: Path) -> str:
    """Return a path relative to the working directory where it lies below it."""
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except (ValueError, OSError):
        return path.as_posix()
