"""From evidence to a report: judging it and describing the world that it came from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import ddpdoctor
from ddpdoctor.evidence import Evidence, NodeFacts, RankSet
from ddpdoctor.evidence.job import REQUESTS
from ddpdoctor.judge.registry import Registry
from ddpdoctor.judge.runner import CheckRow, run_checks
from ddpdoctor.judge.selection import Selection
from ddpdoctor.judge.suppression import Suppressor
from ddpdoctor.judge.verdict import order_findings, reach_verdict
from ddpdoctor.report.model import Job, Node, Report, World
from ddpdoctor.report.summary import describe_stop

EVERYTHING = Selection()
"""No --select and no --ignore."""


def build_report(
    evidence: Evidence,
    *,
    registry: Registry,
    started_at: datetime,
    duration_s: float,
    timings: dict[str, float] | None = None,
    interrupted: str | None = None,
    invocation: Sequence[str] = (),
    selection: Selection = EVERYTHING,
    extra_rows: Sequence[CheckRow] = (),
    job: Job | None = None,
    suppressor: Suppressor | None = None,
) -> Report:
    """Judge evidence and put everything into one report.

    Args:
        evidence: all that was seen.
        registry: the checks to run.
        started_at: when the command began, with a time zone.
        duration_s: seconds that gathering took; the time for judging is added.
        timings: seconds per stage.
        interrupted: name of the signal that ended the command early.
        invocation: the command line, already scrubbed.
        selection: codes that the user wants to see.
        extra_rows: rows that no check made, such as plugins that could not be loaded.
        job: how a watched job ended.
        suppressor: what the user has told not to count.
    """
    began = time.perf_counter()
    checks = selection.choose_checks(registry.checks_of(evidence.launch.command))
    rows, findings = run_checks(checks, evidence, review=suppressor.review if suppressor else None)
    looked = {code for row in rows if row.status in ("pass", "fail") for code in row.codes}
    rows = [_forgive_plugin(row) for row in rows] + list(extra_rows)
    one_job = evidence.launch.command != "lint"
    ordered = order_findings(selection.choose_findings(findings), registry.checks, related=one_job)
    world = describe_world(evidence)
    scope = describe_scope(evidence, world)
    verdict = reach_verdict(
        rows,
        ordered,
        scope=scope,
        failure=describe_failure(evidence),
        stopped=describe_stop(evidence),
        elsewhere=next((end.stopped_elsewhere for end in evidence.job if end.stopped_elsewhere), None),
    )
    judging = time.perf_counter() - began
    return Report(
        version=ddpdoctor.__version__,
        command=evidence.launch.command,
        invocation=tuple(invocation),
        started_at=format_time(started_at),
        duration_s=round(duration_s + judging, 6),
        verdict=verdict,
        world=world,
        checks=tuple(rows),
        findings=tuple(ordered),
        evidence=evidence,
        timings={**(timings or {}), "judge": round(judging, 6)},
        job=job,
        interrupted=interrupted,
        remarks=suppressor.remarks({code for code in looked if selection.wants(code)}) if suppressor else (),
    )


def describe_failure(evidence: Evidence) -> str | None:
    """Return words on how the watched job failed; None where it did not, was interrupted, or there is none."""
    ends = [end for end in evidence.job if end.interrupted not in REQUESTS]
    for end in ends:
        if end.signal is not None:
            return f"signal {end.signal}"
        if end.exit_code:
            return f"exit code {end.exit_code}"
    return None


def _forgive_plugin(row: CheckRow) -> CheckRow:
    """A third party's check that raises or hangs is shown, but does not cost the verdict."""
    if row.status != "error" or row.source == ddpdoctor.__name__:
        return row
    return CheckRow(
        row.id, row.codes, row.family, row.status, row.reason, row.duration_s, row.source, required=False
    )


def format_time(moment: datetime) -> str:
    """Return RFC 3339 in UTC with microseconds.

    Raises:
        ValueError: the time has no zone.
    """
    if moment.tzinfo is None:
        raise ValueError("a time without zone")
    utc = moment.astimezone(timezone.utc)
    return utc.strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"


def describe_world(evidence: Evidence) -> World:
    """Return what was launched, as far as the evidence tells."""
    launch = evidence.launch
    ranks: dict[int, list[int]] = {}
    for rank in evidence.ranks:
        ranks.setdefault(rank.node, []).append(rank.rank)
    nodes = tuple(_describe_node(facts, ranks.get(facts.node), evidence) for facts in evidence.nodes)
    versions = evidence.nodes[0].versions if evidence.nodes else {}
    if not nodes:  # a job that was watched, not examined
        nodes = _describe_hosts(evidence)
        known = {name: [getattr(p, name) for p in evidence.processes] for name in ("torch", "python")}
        versions = {name: found for name, each in known.items() if (found := next(filter(None, each), None))}
    return World(
        size=launch.world_size,
        nodes=nodes,
        backend=launch.backend if launches_ranks(evidence) else None,
        torch=versions.get("torch"),
        python=versions.get("python"),
        launcher=launch.launcher,
    )


def _describe_hosts(evidence: Evidence) -> tuple[Node, ...]:
    """Return the hosts on which ranks of a watched job ran; of those that were not heard, what others knew."""
    hosts: dict[tuple[int, str], list[int]] = {}
    for process in evidence.processes:
        if process.rank is not None and process.is_rank:
            hosts.setdefault((process.node, process.host), []).append(process.rank)
    heard = {node for node, _ in hosts}
    for member in evidence.members:
        if member.node not in heard and member.host:
            hosts[(member.node, member.host)] = list(member.ranks)
    return tuple(
        Node(host, RankSet(ranks), facts={"node": node}) for (node, host), ranks in sorted(hosts.items())
    )


def _describe_node(facts: NodeFacts, ranks: list[int] | None, evidence: Evidence) -> Node:
    """Ranks that never reported are those that the launch puts on the node."""
    nproc = evidence.launch.nproc
    expected = range(facts.node * nproc, (facts.node + 1) * nproc) if launches_ranks(evidence) else ()
    shown: dict[str, Any] = {"node": facts.node}
    if facts.system is not None:
        shown["system"] = facts.system
    if facts.cpus is not None:
        shown["cores"] = facts.cpus.affinity
    if facts.memory_total is not None:
        shown["memory"] = facts.memory_total
    return Node(
        host=facts.host,
        ranks=RankSet(expected if ranks is None else ranks),
        devices=tuple(f"{d.kind}:{d.index} {d.name or ''}".strip() for d in facts.devices),
        facts=shown,
    )


def launches_ranks(evidence: Evidence) -> bool:
    """Whether the selected stages need a world at all (facts, smoke and tcp do not)."""
    stages = evidence.launch.stages
    return not stages or any(stage not in ("facts", "smoke", "tcp") for stage in stages)


def describe_scope(evidence: Evidence, world: World) -> str:
    """Return words on what was examined, e.g. ``4 ranks on 1 node, gloo, torch 2.13.0``."""
    if evidence.launch.command == "lint":
        read = sum(each.problem is None for each in evidence.sources)
        return f"{read} file{'s' if read != 1 else ''} read"
    count = evidence.launch.nnodes
    nodes = f"{count} node{'s' if count != 1 else ''}"
    if not launches_ranks(evidence):
        parts = [f"{nodes}, no ranks launched"]
    else:
        parts = [f"{world.size} rank{'s' if world.size != 1 else ''} on {nodes}"]
        if world.backend:
            parts.append(world.backend)
    if world.torch:
        parts.append(f"torch {world.torch}")
    return ", ".join(parts)
