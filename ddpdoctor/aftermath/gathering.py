"""All that was given to `ddpdoctor analyze`, as one evidence: runs, logs, dumps and stacks joined."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddpdoctor.aftermath.dumps import read_recorder, read_stack_files
from ddpdoctor.aftermath.given_files import Sources
from ddpdoctor.aftermath.joining.file_nodes import name_by_paths
from ddpdoctor.aftermath.joining.timeline import join_timelines
from ddpdoctor.aftermath.read import read_sources
from ddpdoctor.aftermath.runs import read_run
from ddpdoctor.evidence import Evidence, merge_evidence
from ddpdoctor.evidence.bundle import renumber_node
from ddpdoctor.evidence.nodes import describe_launch, join_evidence
from ddpdoctor.evidence.rounds import number_rounds


def gather(sources: Sources, *, stdin: io.BufferedIOBase | None = None) -> Evidence | None:
    """Read everything; None where nothing could be read.

    Args:
        sources: what was given; what cannot be read is added to them.
        stdin: a log that is piped in.
    """
    lost = sources.skipped
    parts: list[Evidence] = []
    names: list[str] = []
    for source in sources.found:
        if source.kind in ("report", "run-directory"):
            part = read_run(source, lost)
            if part is not None:
                parts.append(part)
                names.append(source.name)
    files = [source for source in sources.found if source.kind in ("log", "error-file")]
    logged = (
        read_sources(files, cwd=Path.cwd(), lost=[] if parts else lost, stdin=stdin, cut=sources.cut)
        if files or stdin
        else None
    )
    if logged is not None:
        parts.append(logged)
        names.append("logs")
    numbered = _number_nodes(*_join_known(parts, names)) if parts else []
    for part in (read_recorder(sources, lost), read_stack_files(sources, lost)):
        if part is not None:
            numbered.append(part)
    if not numbered:
        return None
    whole = merge_evidence(numbered)
    world = max(part.launch.world_size for part in numbered)
    whole = dataclasses.replace(whole, launch=dataclasses.replace(whole.launch, world_size=world))
    ends = whole.job
    if ends:
        timeline = join_timelines([end.timeline for end in ends], whole.calls)
        ends = (dataclasses.replace(ends[0], timeline=timeline), *ends[1:])
    if ends and lost and parts[0] is not logged:
        ends = (dataclasses.replace(ends[0], lost=(*ends[0].lost, *lost)), *ends[1:])
    return number_rounds(dataclasses.replace(whole, job=ends))


def _join_known(parts: Sequence[Evidence], names: Sequence[str]) -> tuple[list[Evidence], list[str]]:
    """Join the run directories of one job that know which node each is."""
    known = [part for part in parts if part.members]
    if not known:
        return list(parts), list(names)
    first = next(name for part, name in zip(parts, names, strict=True) if part.members)
    rest = [(part, name) for part, name in zip(parts, names, strict=True) if not part.members]
    joined = describe_launch(join_evidence(known))
    return [joined, *(part for part, _ in rest)], [first, *(name for _, name in rest)]


def _number_nodes(parts: Sequence[Evidence], names: Sequence[str]) -> list[Evidence]:
    """Give run directories of several hosts a node each; those of one host stay together.

    Hosts that are all called alike, as in containers, are told apart where one local rank is another rank in each;
    the names of the directories then name them.
    """
    known: list[tuple[frozenset[str], dict[int, int]]] = []
    placed: list[int] = []
    for part in parts:
        own = frozenset(process.host for process in part.processes if process.host)
        places = {
            process.local_rank: process.rank
            for process in part.processes
            if process.local_rank is not None and process.rank is not None
        }
        fits = (n for n, (hosts, others) in enumerate(known) if hosts == own and _agree(places, others))
        node = next(fits, len(known))
        if node == len(known):
            known.append((own, {}))
        known[node][1].update(places)
        placed.append(node)
    paths = name_by_paths(names)
    alike = [hosts for hosts, _ in known]
    made = []
    for part, node in zip(parts, placed, strict=True):
        name = paths[placed.index(node)]
        changed = _rename_host(part, name) if alike.count(alike[node]) > 1 and alike[node] and name else part
        known_nodes = {process.node for process in part.processes} or {0}
        made.append(
            renumber_node(changed, node) if len(known_nodes) == 1 and node not in known_nodes else changed
        )
    return made


def _agree(places: Mapping[int, int], others: Mapping[int, int]) -> bool:
    return all(others.get(local, rank) == rank for local, rank in places.items())


def _rename_host(part: Evidence, host: str) -> Evidence:
    kinds = ("processes", "exceptions", "crashes", "wrappers", "texts", "memory")
    changed: dict[str, Any] = {
        kind: tuple(dataclasses.replace(row, host=host) for row in getattr(part, kind)) for kind in kinds
    }
    return dataclasses.replace(part, **changed)
