"""The functions of ``import ddpdoctor``: each returns a `Report`, or raises a `DoctorError` that says what to do.

Keywords are the long options of the command line with underscores. Settings in pyproject.toml are not read: a call does
what its arguments say.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ddpdoctor.errors import UsageError

if TYPE_CHECKING:
    from ddpdoctor.api.linting import Correction
    from ddpdoctor.judge.selection import Selection
    from ddpdoctor.plugins import Plugins
    from ddpdoctor.report.model import Report

Path = str | os.PathLike[str]
Words = str | Sequence[str]
"""Codes, prefixes or names: a sequence, or one string with commas."""


def check(
    nproc: int | str | None = None,
    *,
    nnodes: int | None = None,
    node_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    rdzv_backend: str | None = None,
    rdzv_endpoint: str | None = None,
    rdzv_id: str | None = None,
    local_addr: str | None = None,
    backend: str | None = None,
    model: str | None = None,
    strategy: Words = (),
    only: Words = (),
    skip: Words = (),
    full: bool = False,
    collectives: Words = (),
    sizes: Sequence[int] = (),
    iters: int | None = None,
    join_timeout: float | None = None,
    stage_timeout: Mapping[str, float] | None = None,
    timeout: float | None = None,
    select: Words | None = None,
    ignore: Words = (),
) -> Report:
    """Launch a small test job on this machine and diagnose machine, network, backends, collectives and DDP.

    It runs in a process of its own, which leaves nothing behind. For several nodes call it on each.

    Args:
        nproc: ranks on this node: a number, ``auto``, ``gpu`` or ``cpu``.
        nnodes: nodes in all.
        node_rank: of this node, from 0.
        master_addr: rendezvous host of a static rendezvous.
        master_port: its port.
        rdzv_backend: ``c10d`` or ``static``.
        rdzv_endpoint: ``host:port`` of the rendezvous.
        rdzv_id: of this launch, the same on all nodes.
        local_addr: address of this node for the others.
        backend: ``gloo``, ``nccl`` …; chosen from the devices if not given.
        model: ``package.module:factory`` of your model.
        strategy: also try ``fsdp2``, ``tp``, ``pp``, ``dcp``.
        only: stages to run: facts, smoke, tcp, rendezvous, backends, collectives, ddp, bandwidth, strategies.
        skip: stages to omit.
        full: the long bandwidth sweep.
        collectives: operations of the sweep.
        sizes: total bytes of the sweep, ascending.
        iters: timed iterations for each size.
        join_timeout: seconds to wait for the other nodes.
        stage_timeout: stage -> seconds.
        timeout: seconds for the whole.
        select: codes, prefixes or names of findings to keep.
        ignore: those to leave out.

    Raises:
        UsageError: an argument has an impossible value, or contradicts another or the machine.
        DoctorError: torch is missing, or nothing could be looked at.
    """
    from ddpdoctor.api.checking import check_apart
    from ddpdoctor.api.requests import choose_stages, require_known_words, require_valid
    from ddpdoctor.launch.request import CheckRequest

    request = CheckRequest(
        nproc=nproc,
        nnodes=nnodes,
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
        rdzv_backend=rdzv_backend,
        rdzv_endpoint=rdzv_endpoint,
        rdzv_id=rdzv_id,
        local_addr=local_addr,
        backend=backend,
        model=model,
        stages=choose_stages(_split(only), _split(skip), _split(strategy)),
        strategies=tuple(_split(strategy)),
        full=full,
        collectives=tuple(_split(collectives)),
        sizes=tuple(sizes),
        iterations=iters,
        join_timeout=join_timeout,
        limits=dict(stage_timeout or {}),
        timeout=timeout,
    )
    require_known_words(request)
    require_valid(request, os.environ)
    return check_apart(request, None if select is None else _split(select), _split(ignore))


def lint(
    *paths: Path,
    text: str | None = None,
    select: Words | None = None,
    ignore: Words = (),
    questions: bool = False,
    exclude: Words = (),
    per_file_ignores: Mapping[str, Words] | None = None,
    baseline: Path | None = None,
) -> Report:
    """Read training scripts and notebooks without running them. Needs no torch.

    Args:
        paths: scripts, notebooks, directories.
        text: a script that is no file; findings name it ``<stdin>``.
        select: codes, prefixes or names of findings to keep.
        ignore: those to leave out.
        questions: keep what is likely and not decided by the files.
        exclude: patterns of paths that are not read.
        per_file_ignores: pattern of paths -> what does not count there.
        baseline: file of ``ddpdoctor lint --write-baseline``: findings that are known already.

    Raises:
        UsageError: nothing was given, a path does not exist, everything is excluded, or a word is no code.
        DoctorError: nothing of what was given could be read.
    """
    from ddpdoctor.api.linting import LintRequest, drop_questions, lint_sources
    from ddpdoctor.api.rendering import clean_report

    names = _name_paths(paths, text, "ddpdoctor.lint('train.py')")
    plugins, selection = _load(select, ignore)
    request = LintRequest(
        paths=names,
        text=(text or "").encode(),
        exclude=tuple(_split(exclude)),
        per_file_ignores=tuple((each, _split(words)) for each, words in (per_file_ignores or {}).items()),
        baseline=None if baseline is None else os.fspath(baseline),
    )
    report = lint_sources(request, plugins, selection)
    if report is None:
        raise UsageError("nothing was read: all given files are excluded", hint="change exclude")
    return clean_report(report if questions else drop_questions(report))


def analyze(*paths: Path, text: str | None = None, select: Words | None = None, ignore: Words = ()) -> Report:
    """Diagnose a finished job from what it left behind. Needs no torch.

    Args:
        paths: run directories, logs, error files, Flight Recorder dumps, stack dumps, archives, or folders of them.
        text: a log that is no file.
        select: codes, prefixes or names of findings to keep.
        ignore: those to leave out.

    Raises:
        UsageError: nothing was given, a path does not exist, or a word is no code.
        DoctorError: nothing of what was given could be read.
    """
    from ddpdoctor.api.analyzing import analyze_sources, sort_paths
    from ddpdoctor.api.rendering import clean_report

    sources = sort_paths(_name_paths(paths, text, "ddpdoctor.analyze('train.log')"))
    plugins, selection = _load(select, ignore)
    piped = None if text is None else io.BytesIO(text.encode())
    return clean_report(analyze_sources(sources, plugins, selection, piped=piped))


def load_report(path: Path) -> Report:
    """Read a report that a command saved: a file of ``--json``, or a run directory.

    Raises:
        UsageError: there is no such file.
        DoctorError: it cannot be read, or is not a report that this version knows.
    """
    from ddpdoctor.aftermath.saved import read_report

    name = os.fspath(path)
    return read_report(os.path.join(name, "report.json") if os.path.isdir(name) else name)


def render(report: Report, format: str = "text", *, width: int = 80, verbosity: int = 0) -> str:
    """Return a report as text in one format, without secrets.

    Args:
        report: what to show.
        format: text, json, html, junit, sarif, github, markdown, prometheus, or a plugin's.
        width: columns of the text.
        verbosity: -1 for the verdict alone, 1 for every check.

    Raises:
        OutputError: there is no such format, or its renderer failed.
    """
    from ddpdoctor.api.rendering import make_options, render_report
    from ddpdoctor.plugins import load_plugins

    plugins = load_plugins()
    options = make_options(width=width, verbosity=verbosity, pages=plugins.checks.pages)
    return render_report(report, format, plugins.renderers, options)


def corrections(report: Report) -> Iterator[Correction]:
    """Yield what ``ddpdoctor lint --fix`` would write, file by file; nothing is written.

    A file that has changed since it was read is skipped.
    """
    from ddpdoctor.api.linting import make_corrections

    yield from make_corrections(report, lambda _: None)


def _load(select: Words | None, ignore: Words) -> tuple[Plugins, Selection]:
    from ddpdoctor.api.choosing import make_selection, name_codes
    from ddpdoctor.plugins import load_plugins

    plugins = load_plugins()
    kept = None if select is None else _split(select)
    return plugins, make_selection(kept, _split(ignore), name_codes(plugins))


def _name_paths(paths: Sequence[Path], text: str | None, hint: str) -> tuple[str, ...]:
    """Return the paths as the readers take them; ``-`` is the text.

    Raises:
        UsageError: there is nothing to read.
    """
    names = tuple(os.path.join(".", "-") if os.fspath(each) == "-" else os.fspath(each) for each in paths)
    if text is not None:
        return (*names, "-")
    if not names:
        raise UsageError("neither a path nor a text was given", hint=hint)
    return names


def _split(words: Words) -> list[str]:
    given = words.split(",") if isinstance(words, str) else words
    return [word.strip() for word in given if word.strip()]
