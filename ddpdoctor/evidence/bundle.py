"""All evidence of one command in one object, and how parts of it become one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddpdoctor.evidence.codec import decode, encode
from ddpdoctor.evidence.collectives import CallLog
from ddpdoctor.evidence.facts import Launch, NodeFacts, RankFacts
from ddpdoctor.evidence.job import (
    CrashRecord,
    ExceptionRecord,
    JobEnd,
    MemoryRecord,
    ProcessRecord,
    Rerun,
    TextMatch,
    WrapperFacts,
)
from ddpdoctor.evidence.members import JobNode, choose_members
from ddpdoctor.evidence.network import HostMatch, Link, PortProbe, Rendezvous, Resolution
from ddpdoctor.evidence.ranks import RankSet
from ddpdoctor.evidence.sources import SourceFile
from ddpdoctor.evidence.stages import Defect, RankError, RankExit, SmokeResult, StageRecord
from ddpdoctor.evidence.standstill import Standstill
from ddpdoctor.evidence.training.fingerprints import Training
from ddpdoctor.evidence.training.references import Reference
from ddpdoctor.evidence.world import (
    BackendResult,
    BandwidthRow,
    Baseline,
    CollectiveCase,
    Experiment,
    InitResult,
    ModelResult,
    PairRow,
    RankMessage,
)


@dataclass(frozen=True, slots=True)
class Absent:
    """Why a kind of evidence is missing."""

    reason: str
    applicable: bool = True
    """False: it was not asked for or does not apply, so nothing that needs it is unknown."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen. Each field but ``launch``, ``extra`` and ``absent`` is an evidence kind.

    A kind is *present* when something was gathered, or when it was looked for and nothing was there: only
    ``absent`` says that nobody could look.
    """

    launch: Launch = field(default_factory=Launch)
    nodes: tuple[NodeFacts, ...] = ()
    ranks: tuple[RankFacts, ...] = ()
    stages: tuple[StageRecord, ...] = ()
    errors: tuple[RankError, ...] = ()
    exits: tuple[RankExit, ...] = ()
    defects: tuple[Defect, ...] = ()
    smoke: tuple[SmokeResult, ...] = ()
    resolutions: tuple[Resolution, ...] = ()
    ports: tuple[PortProbe, ...] = ()
    links: tuple[Link, ...] = ()
    host_matches: tuple[HostMatch, ...] = ()
    rendezvous: tuple[Rendezvous, ...] = ()
    backends: tuple[BackendResult, ...] = ()
    collectives: tuple[CollectiveCase, ...] = ()
    initialisations: tuple[InitResult, ...] = ()
    experiments: tuple[Experiment, ...] = ()
    model: tuple[ModelResult, ...] = ()
    bandwidth: tuple[BandwidthRow, ...] = ()
    pairs: tuple[PairRow, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    strategies: tuple[Experiment, ...] = ()
    processes: tuple[ProcessRecord, ...] = ()
    exceptions: tuple[ExceptionRecord, ...] = ()
    crashes: tuple[CrashRecord, ...] = ()
    wrappers: tuple[WrapperFacts, ...] = ()
    texts: tuple[TextMatch, ...] = ()
    memory: tuple[MemoryRecord, ...] = ()
    job: tuple[JobEnd, ...] = ()
    reruns: tuple[Rerun, ...] = ()
    references: tuple[Reference, ...] = ()
    members: tuple[JobNode, ...] = ()
    calls: tuple[CallLog, ...] = ()
    standstills: tuple[Standstill, ...] = ()
    training: tuple[Training, ...] = ()
    sources: tuple[SourceFile, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    """What gatherers of third parties saw: ``<distribution>/<gatherer>`` -> node, as text -> plain data."""
    absent: dict[str, Absent] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; rank sets are texts such as ``0-2,4``. Of recorded calls only the last are kept."""
        calls = tuple(log.shorten() for log in self.calls)
        data: dict[str, Any] = encode(dataclasses.replace(self, calls=calls) if calls else self)
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Evidence:
        """Read what `to_dict` gave.

        Raises:
            ValueError: the data does not fit.
        """
        return decode(cls, data)


KINDS = tuple(f.name for f in dataclasses.fields(Evidence) if f.name not in ("launch", "extra", "absent"))
"""Names of the evidence kinds."""
JOB_KINDS = (
    "processes", "exceptions", "crashes", "wrappers", "texts", "memory", "job", "reruns", "references", "members",
    "calls", "standstills", "training", "sources",
)  # fmt: skip
"""Those of a job, watched or read, of which `check` has none; the others are of the tiny world and its machine."""


def merge_evidence(parts: Sequence[Evidence]) -> Evidence:
    """Join the evidence of several ranks or nodes into one.

    Results of one experiment on different ranks are folded, so that a case that passed everywhere stays one
    row whatever the world size. The launch is that of the first part. A kind is absent in the whole only
    where it is absent or empty in every part; that somebody could not look counts more than that it did not
    apply to others.

    Args:
        parts: at least one.

    Raises:
        ValueError: no part was given.
    """
    if not parts:
        raise ValueError("nothing to merge")
    joined: dict[str, Any] = {
        kind: tuple(item for part in parts for item in getattr(part, kind)) for kind in KINDS
    }
    for kind, keys in _FOLDED.items():
        joined[kind] = _fold_rows(joined[kind], keys)
    joined["members"] = choose_members([part.members for part in parts])
    absent: dict[str, Absent] = {}
    for part in parts:
        for kind, why in part.absent.items():
            known = absent.get(kind)
            if not joined.get(kind) and (known is None or (why.applicable and not known.applicable)):
                absent[kind] = why
    extra: dict[str, Any] = {}
    for part in parts:
        for key, by_node in part.extra.items():
            extra.setdefault(key, {}).update(by_node)
    return Evidence(launch=parts[0].launch, absent=absent, extra=extra, **joined)


_FOLDED: dict[str, tuple[str, ...]] = {
    "backends": ("backend",),
    "collectives": ("op", "backend", "dtype", "count", "reduction", "group"),
    "initialisations": ("method",),
    "experiments": ("name",),
    "strategies": ("name",),
    "model": ("factory",),
}
"""Kinds whose rows are folded over ranks, and the fields that tell one row from another."""


_SOMEWHERE = ("asked", "find_unused_needed")
"""Truth values that hold for the whole when they hold on one rank."""
_EVERYWHERE = ("built", "device_present", "static_graph_ok")
"""Truth values that hold for the whole only when they hold on all ranks."""


def _fold_rows(rows: Sequence[Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, key) for key in keys), []).append(row)
    return tuple(group[0] if len(group) == 1 else _fold_group(group) for group in groups.values())


def _fold_group(group: Sequence[Any]) -> Any:
    """Fold rows of one key: rank sets united, equal messages joined, the first non-empty value kept."""
    changes: dict[str, Any] = {}
    for each in dataclasses.fields(group[0]):
        values = [getattr(row, each.name) for row in group]
        if isinstance(values[0], RankSet):
            changes[each.name] = RankSet().union(*values)
        elif each.name == "failures":
            changes[each.name] = fold_messages(message for value in values for message in value)
        elif each.name in ("unused", "errors"):
            changes[each.name] = _fold_over_ranks([row for value in values for row in value])
        elif each.name == "largest_difference":
            known = [v for v in values if v is not None]
            changes[each.name] = next(filter(math.isnan, known), max(known, default=None))
        elif each.name in _SOMEWHERE or each.name in _EVERYWHERE:
            known = [v for v in values if v is not None]
            decide = any if each.name in _SOMEWHERE else all
            changes[each.name] = decide(known) if known else None
        else:
            changes[each.name] = next((v for v in values if v not in (None, (), {})), values[0])
    return dataclasses.replace(group[0], **changes)


def _fold_over_ranks(rows: Sequence[Any]) -> tuple[Any, ...]:
    """Join rows that differ in nothing but their ``ranks``."""
    groups: dict[Any, list[RankSet]] = {}
    for row in rows:
        groups.setdefault(dataclasses.replace(row, ranks=RankSet()), []).append(row.ranks)
    return tuple(dataclasses.replace(row, ranks=RankSet().union(*sets)) for row, sets in groups.items())


def fold_messages(messages: Iterable[RankMessage]) -> tuple[RankMessage, ...]:
    """Join messages of equal text over ranks, in order of first appearance."""
    groups: dict[str, list[RankSet]] = {}
    for message in messages:
        groups.setdefault(message.text, []).append(message.ranks)
    return tuple(RankMessage(RankSet().union(*sets), text) for text, sets in groups.items())


def renumber_node(evidence: Evidence, node: int) -> Evidence:
    """Return one node's evidence under another node number.

    For launches without ``--node-rank``, where the number is known only after the nodes have met. The
    evidence must be of one node: every ``node`` field and every link's ``source`` becomes ``node``.
    """
    changes: dict[str, Any] = {}
    for kind in KINDS:
        rows = getattr(evidence, kind)
        if isinstance(rows, tuple) and rows and kind != "members":
            names = {each.name for each in dataclasses.fields(rows[0])}
            own = "node" if "node" in names else "source" if kind == "links" else None
            if own is not None:
                changes[kind] = tuple(dataclasses.replace(row, **{own: node}) for row in rows)
    if evidence.calls:
        changes["calls"] = tuple(
            dataclasses.replace(log, ranks=tuple(dataclasses.replace(row, node=node) for row in log.ranks))
            for log in evidence.calls
        )
    extra = {key: {str(node): data for data in by_node.values()} for key, by_node in evidence.extra.items()}
    return dataclasses.replace(evidence, extra=extra, **changes)
