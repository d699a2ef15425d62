"""From evidence to a report: judging it and describing the world that it came from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import ddpdoctor
from ddpdoctor.evidence import Evidence, NodeFacts, RankSet
from ddpdoctor.evidence.job import REQUESTS
from ddpdoctor.judge.defects import describe_defects, set_aside
from ddpdoctor.judge.finding import QUESTION
from ddpdoctor.judge.phases import add_phases
from ddpdoctor.judge.registry import Registry
from ddpdoctor.judge.runner import CheckRow, run_checks
from ddpdoctor.judge.selection import Selection
from ddpdoctor.judge.suppression import Suppressor
from ddpdoctor.judge.verdict import order_findings, reach_verdict
from ddpdoctor.report.model import Job, Node, Report, World
from ddpdoctor.report.summary import describe_partial, describe_read, describe_stop, name_good
from ddpdoctor.report.words import count

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
    judged = set_aside(evidence)
    review = suppressor.review if suppressor else None
    rows, findings = run_checks(checks, judged, review=review, wanted=selection.wants)
    looked = {code for row in rows if row.status in ("pass", "fail") for code in row.codes}
    rows = [_forgive_plugin(row) for row in rows] + list(extra_rows)
    one_job = evidence.launch.command != "lint"
    ordered = order_findings(findings, registry.checks, related=one_job)
    running = evidence.launch.command == "attach"
    if running or describe_failure(evidence) or describe_stop(evidence):
        ordered = add_phases(ordered, evidence)
    asked = sum(each.role == QUESTION and each.state == "active" for each in ordered)
    world = describe_world(evidence)
    scope = describe_scope(evidence, world)
    verdict = reach_verdict(
        rows,
        ordered,
        scope=scope,
        failure=describe_failure(evidence),
        stopped=describe_stop(evidence),
        elsewhere=next((end.stopped_elsewhere for end in evidence.job if end.stopped_elsewhere), None),
        unseen=describe_unseen(evidence),
        broken=describe_defects(evidence),
        good=name_good(evidence.launch.command, asked),
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


def describe_away(evidence: Evidence) -> str | None:
    """Return words on ranks that ran in a cluster outside of the watched command; None where there are none."""
    cluster = next((each.cluster for each in evidence.processes if each.cluster), None)
    if cluster is None or any(each.is_rank for each in evidence.processes):
        return None
    return (
        f"saw no rank: the workers ran in the {cluster}, which was started outside of this command; while "
        "they run, run `ddpdoctor attach` on their nodes"
    )


def describe_unseen(evidence: Evidence) -> str | None:
    """Return words on why nobody can say that a job of the past ended well; None where its end was seen, and was good.

    What no check knows is not what did not happen: a log may end in the middle, or report what no rule knows. Of source
    they say that not all of it was read.
    """
    if evidence.launch.command == "lint":
        unread = sum(each.problem is not None or bool(each.skipped) for each in evidence.sources)
        which = f"{unread} of {count(len(evidence.sources), 'file')}"
        return f"no issues found in what was read, but {which} could not be read in full" if unread else None
    partial = describe_partial(evidence)
    if partial is not None:
        return f"{partial}: nothing was found there"
    away = describe_away(evidence)
    if away is not None:
        return away
    if evidence.launch.command == "run" and any(
        e.exit_code is None and e.signal is None for e in evidence.job
    ):
        return "no failure was found, but not every task reported its exit status"
    if evidence.launch.command != "analyze":
        return None
    if any(line.trouble for end in evidence.job for line in end.notable):
        return "no check recognizes this failure, but the log reports trouble"
    if not evidence.job:
        return "no failure was found, but nothing given here shows how the job ended"
    codes = {end.exit_code for end in evidence.job if end.signal is None}
    if 0 in codes and not codes - {0, None}:
        return None
    return "no failure was found, but the log does not show how the job ended"


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
        raise ValueError("a time without time zone")
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


def _count_heard(heard: set[int], size: int, kind: str) -> str:
    """Return ``4 ranks``, or ``2 of 4 ranks`` where the others were not heard; nobody heard means nobody was asked."""
    total = f"{size} {kind}{'s' if size != 1 else ''}"
    return f"{len(heard)} of {total}" if 0 < len(heard) < size else total


def describe_scope(evidence: Evidence, world: World) -> str:
    """Return words on what was examined, e.g. ``4 ranks on 1 node, gloo, torch 2.13.0``."""
    if evidence.launch.command == "lint":
        return describe_read(evidence.sources)
    examined = evidence.launch.command == "check"
    heard = {rank.rank for rank in evidence.ranks} if examined else set()
    hosts = (
        {node.node for node in evidence.nodes} | {rank.node for rank in evidence.ranks} if examined else set()
    )
    nodes = _count_heard(hosts, evidence.launch.nnodes, "node")
    if not launches_ranks(evidence):
        parts = [f"{nodes}, no ranks launched"]
    else:
        parts = [f"{_count_heard(heard, world.size, 'rank')} on {nodes}"]
        if world.backend:
            parts.append(world.backend)
    if world.torch:
        parts.append(f"torch {world.torch}")
    return ", ".join(parts)
