"""Who failed, where, and how long before the others: the first words of a finding on a job's end."""

from __future__ import annotations

from ddpdoctor_checks.common.wording import name_set
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.failures import Failure

SECOND = 1.0
"""What times of logs that hold whole seconds cannot tell apart."""


def is_named(diagnosis: Diagnosis, group: Group) -> bool:
    """Whether it says something where it happened: there are several nodes, or the line that decided names its host."""
    first = group.first
    return diagnosis.context.nodes > 1 or bool(
        first.entry is not None and first.exception is None and first.view.host
    )


def name_subject(diagnosis: Diagnosis, group: Group) -> str:
    """Return ``Rank 2 on node-b failed first, 0.38 s before anyone else, at data/vocab.py:57 in encode``."""
    place = _place(group)
    ranks = group.ranks
    many = len(ranks) > 1
    first = group.first
    hosts = tuple(dict.fromkeys(diagnosis.host(each.view) for each in group.failures))
    where = f" on {hosts[0]}" if is_named(diagnosis, group) and len(hosts) == 1 else ""
    if not ranks:
        who = {"launcher": "the launcher"}.get(first.view.role, _name_process(first))
        where = "" if who.endswith(first.view.host) and first.view.host else where
    else:
        who = name_set(ranks)
    if many and ranks == diagnosis.world:
        who = "both ranks" if len(ranks) == 2 else f"all {len(ranks):,} ranks"
    who = who[0].upper() + who[1:] + where
    if group is not diagnosis.cause:
        lag = _lag(diagnosis, group)
        return (
            f"{who} failed too" + (f", {lag} later" if lag else "") + ("," if lag and place else "") + place
        )
    lead = lead_of(diagnosis)
    if many:
        told = f" (rank {first.rank} first)" if first.rank is not None and first.at is not None else ""
        return f"{who} failed in the same way{place}{told}" + (
            f", {lead} before any other rank" if lead else ""
        )
    if lead:
        return f"{who} failed first, {lead} before any other rank" + (f",{place}" if place else "")
    alone = len(diagnosis.world) == 1 or not (diagnosis.victims or diagnosis.others)
    return f"{who} failed{place}" if alone else f"{who} failed first{place}"


def _name_process(failure: Failure) -> str:
    """Return how a process is called of which no rank is known; a line of the kernel is its node's."""
    view = failure.view
    if view.pid is not None and view.host:
        return f"process {view.pid} on {view.host}"
    return f"node {view.host}" if view.host and view.role == "other" else "a process of the job"


def lead_of(diagnosis: Diagnosis) -> str:
    """Return how long before all others the cause was, e.g. ``0.38 s``; empty where clocks cannot tell."""
    group = diagnosis.cause
    if group is None or group.first.at is None:
        return ""
    rest = [*diagnosis.victims, *(each for other in diagnosis.others for each in other.failures)]
    known = [each for each in rest if each.at is not None]
    if not known:
        return ""
    following = min(known, key=lambda each: each.at or 0.0)
    return tell_gap(diagnosis, group.first, following)


def tell_gap(diagnosis: Diagnosis, first: Failure, later: Failure) -> str:
    """Return how much later something happened; empty where clocks cannot tell, or where it was not later."""
    if first.at is None or later.at is None:
        return ""
    coarse = first.coarse or later.coarse
    unsure = diagnosis.clock.tolerance(first.view.node, later.view.node) + (SECOND if coarse else 0.0)
    gap = later.at - first.at
    return format_gap(gap, whole=coarse) if gap > unsure else ""


def format_gap(seconds: float, *, whole: bool = False) -> str:
    """Return a short time: ``0.4 ms``, ``0.38 s``, ``12 s``, ``31 min``; ``2 s`` where only whole ones are known."""
    if whole and seconds < 10:
        return f"{seconds:.0f} s"
    if seconds < 0.01:
        return f"{seconds * 1e3:.2g} ms"
    if seconds < 10:
        return f"{seconds:.2f} s"
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _lag(diagnosis: Diagnosis, group: Group) -> str:
    cause = diagnosis.cause
    if cause is None:
        return ""
    return tell_gap(diagnosis, cause.first, group.first)


def _place(group: Group) -> str:
    line, note = group.first.line, group.first.note
    at = (
        f" at {line.file}:{line.line}" + (f" in {line.function}" if line.function != "<module>" else "")
        if line
        else ""
    )
    return f"{at} ({note})" if note else at
