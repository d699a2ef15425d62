"""Reading the files that were sorted; one that cannot be read costs nothing but itself."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from ddpdoctor.aftermath.enveloped import choose_unwrapping
from ddpdoctor.aftermath.errorfiles import read_error
from ddpdoctor.aftermath.given_files import HEAD, JSON_LIMIT, Source
from ddpdoctor.aftermath.joining.join import join_logs
from ddpdoctor.aftermath.lines import looks_labelled
from ddpdoctor.aftermath.logs import LogFacts, LogReader, read_told
from ddpdoctor.aftermath.parts import Error, Log
from ddpdoctor.aftermath.stretches import read_stretches
from ddpdoctor.aftermath.toolfiles import SIZE_LIMIT as SIZE_OF_TOOLS
from ddpdoctor.aftermath.toolfiles import read_tool
from ddpdoctor.evidence import Evidence
from ddpdoctor.gather.opening import UNREADABLE, open_log, read_some

SIZE_LIMIT = 64 << 30
"""Bytes of one log that are read, decompressed: at 100 MB/s ten minutes. A small compressed file may hold more."""


def read_sources(
    sources: Sequence[Source],
    *,
    cwd: Path,
    lost: Sequence[str] = (),
    stdin: io.BufferedIOBase | None = None,
    note: Callable[[str], None] = lambda text: None,
    cut: list[str] | None = None,
) -> Evidence | None:
    """Read logs and error files of one job; None where not one could be read.

    Args:
        sources: files of the kinds ``log`` and ``error-file``.
        cwd: folder against which files are named.
        lost: what could not be looked at, one sentence each.
        stdin: a log that comes from a pipe.
        note: told which file is being read.
        cut: takes a sentence for each log of which a part was not read.
    """
    logs: list[Log] = []
    errors: list[Error] = []
    said = list(lost)
    for source in sources:
        note(source.name)
        try:
            if source.kind == "error-file":
                with open_log(source.path) as stream:
                    data = json.loads(read_some(stream, JSON_LIMIT))
                errors.append(Error(source.name, read_error(data), source.place))
            else:
                logs.append(_read_file(source, said))
        except (*UNREADABLE, ValueError, RecursionError) as problem:
            said.append(f"{source.name} cannot be read: {getattr(problem, 'strerror', None) or problem}")
    if stdin is not None:
        note("stdin")
        logs.append(Log(_read(stdin, "stdin", said)))
    if cut is not None:
        cut += [describe_unread(log.facts) for log in logs if log.facts.unread]
    if not logs and not errors:
        return None
    return join_logs(logs, errors, cwd=cwd, lost=said)


def describe_unread(facts: LogFacts) -> str:
    """Return words on the part of a log that was not read closely."""
    size = f"{facts.unread / 1e6:,.1f} of {facts.bytes / 1e6:,.1f} MB"
    return (
        f"{facts.name}: {size} in the middle were not analyzed: too many lines before them needed a close "
        "reading"
    )


def _read_file(source: Source, said: list[str]) -> Log:
    changed = source.path.stat().st_mtime
    with open_log(source.path) as stream:
        log = Log(_read(stream, source.name, said), source.place, changed)
    if log.facts.bytes <= SIZE_OF_TOOLS:
        with open_log(source.path) as stream:
            log.facts.texts += read_told(read_tool(read_some(stream, SIZE_OF_TOOLS)) or [], source.name)
    return log


def _read(stream: io.BufferedIOBase, name: str, said: list[str]) -> LogFacts:
    """Read one log; where it breaks off, as a truncated compressed file does, keep what came before."""
    first = read_some(stream, HEAD)
    unwrap = choose_unwrapping(first) or bytes
    reader = LogReader(name, labelled=looks_labelled(unwrap(first)))
    try:
        for data in read_stretches(stream, first, SIZE_LIMIT):
            reader.take(unwrap(data))
    except UNREADABLE as problem:
        said.append(f"{name} is truncated: {getattr(problem, 'strerror', None) or problem}")
    facts = reader.finish()
    if facts.unread:
        said.append(describe_unread(facts))
    if facts.bytes >= SIZE_LIMIT:
        said.append(f"{name}: only the first {SIZE_LIMIT >> 30} GiB were read")
    return facts
