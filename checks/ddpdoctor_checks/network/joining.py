"""Whether all nodes and ranks came to the rendezvous."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddpdoctor.evidence import Evidence, RankSet, Rendezvous
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, check
from ddpdoctor_checks.common.commands import FIXED, meeting_point, repeat_launch
from ddpdoctor_checks.common.places import Places, join_endpoint, require
from ddpdoctor_checks.common.wording import FEW, choose_form, count_of, format_age, join_words, name_set


@check("NET006", family="network", needs=("rendezvous",), id="net.rendezvous.complete")
def find_ranks_missing(evidence: Evidence) -> Iterable[Finding]:
    """Fewer ranks joined than the world size within the limit."""
    if not evidence.rendezvous:
        yield from _count_started(evidence)
        return
    best = max(evidence.rendezvous, key=lambda each: (len(each.joined_ranks), len(each.joined_nodes)))
    joined = RankSet().union(
        *(each.joined_ranks for each in evidence.rendezvous if _same_meeting(each, best))
    )
    if len(best.joined_ranks) >= best.expected_ranks or len(joined) >= best.expected_ranks:
        return
    yield _describe_missing(evidence, best, joined)


def _count_started(evidence: Evidence) -> Iterable[Finding]:
    """Judge a world that needs no meeting of nodes by the ranks that reported."""
    launch = evidence.launch
    if launch.nnodes > 1:
        raise CannotLook("no node recorded its rendezvous")
    require(evidence, "ranks", "the ranks")
    started = RankSet(rank.rank for rank in evidence.ranks)
    if len(started) >= launch.world_size:
        return
    endpoint = join_endpoint(meeting_point(launch)[0], launch.master_port or 0)
    waited = max(
        (each.duration_s or 0.0 for each in evidence.stages if each.stage == "rendezvous"), default=0.0
    )
    limit = max((each.limit_s or 0.0 for each in evidence.stages if each.stage == "rendezvous"), default=0.0)
    option = next((each.limit_option for each in evidence.stages if each.stage == "rendezvous"), None)
    view = Rendezvous(
        0, launch.backend, endpoint, 1, (0,), launch.world_size, started, waited, limit, limit_option=option
    )
    yield _describe_missing(evidence, view, started)


def _same_meeting(one: Rendezvous, other: Rendezvous) -> bool:
    return one.endpoint == other.endpoint and bool(set(one.joined_nodes) & set(other.joined_nodes))


def _describe_missing(evidence: Evidence, best: Rendezvous, joined: RankSet) -> Finding:
    places = Places(evidence)
    numbered = evidence.launch.rdzv_backend in FIXED
    """Nodes have numbers beforehand; else they get them in the order in which they come."""
    came = sorted({*best.joined_nodes, best.node} if numbered else set(best.joined_nodes))
    absent = sorted(set(range(best.expected_nodes)) - set(came))
    lacking = RankSet.span(best.expected_ranks).minus(joined)
    if numbered and len(joined) == 0 and best.expected_nodes > 1:
        lacking = lacking.minus(places.ranks([best.node]))
    lacking = lacking.minus(best.own_ranks)
    early = best.limit_option == "--timeout"
    waited = format_age(best.waited_s) + (", when --timeout ended the wait" if early else "")
    alone = best.expected_nodes > 1 and set(best.joined_nodes) <= {best.node}
    if alone:
        others = best.expected_nodes - 1
        whom = choose_form(others, "did not see the other node", f"saw none of the other {others:,} nodes")
        message = f"{places.host(best.node)} {whom} at {best.endpoint} within {waited}."
    elif evidence.launch.launcher == "env" and not joined:
        who = f"{name_set(best.own_ranks)} on {places.host(best.node)}"
        message = f"{who} saw no other rank within {waited}: {best.error or 'nothing answered'}."
    else:
        share = f"{len(joined):,} of {count_of(best.expected_ranks, 'rank')} joined the rendezvous"
        never = "had not joined" if early else "never joined"
        by_rank = evidence.launch.launcher != "ddpdoctor" and not absent
        missing = (
            f"{name_set(lacking)} {never}"
            if by_rank
            else _name_missing(places, best, absent, lacking, never, numbered=numbered)
        )
        message = f"{share} at {best.endpoint} within {waited}: {missing}."
    return Finding(
        message=message,
        ranks=lacking,
        victims=joined,
        nodes=places.hosts(absent) if numbered else (),
        confidence="medium" if alone or early else "high",
        evidence=tuple(_quote_views(places, evidence)),
        fix=_fix_missing(evidence, best, absent),
        details={
            "endpoint": best.endpoint,
            "joined": str(joined),
            "missing": str(lacking),
            "expected": best.expected_ranks,
            "missing_nodes": absent,
            "waited_s": best.waited_s,
        },
    )


def _name_missing(
    places: Places, best: Rendezvous, absent: Sequence[int], lacking: RankSet, never: str, *, numbered: bool
) -> str:
    if not absent:
        did = choose_form(best.expected_nodes, "their node", "all nodes")
        return f"{name_set(lacking)} {never}, although {did} did"
    if not numbered:
        came = join_words(places.hosts(sorted(best.joined_nodes)))
        return f"only {came} joined, {count_of(len(absent), 'node')} of {best.expected_nodes:,} did not"
    who = f"{choose_form(len(absent), 'node', 'nodes')} {RankSet(absent).listed()}"
    if len(RankSet(absent).ranges) > FEW:
        who = count_of(len(absent), "node")
    known = [places.host(node) for node in absent if node in places.facts]
    return f"{who}{f' ({join_words(known)})' if known else ''} with {name_set(lacking)} {never}"


def _quote_views(places: Places, evidence: Evidence) -> Iterable[EvidenceItem]:
    for view in evidence.rendezvous[:16]:
        error = f"; {view.error}" if view.error else ""
        yield EvidenceItem(
            "rendezvous",
            f"{places.host(view.node)} saw "
            f"{len(view.joined_nodes)} of {count_of(view.expected_nodes, 'node')}, "
            f"{len(view.joined_ranks):,} of {count_of(view.expected_ranks, 'rank')} in {view.waited_s:.1f} s "
            f"(limit {view.limit_s:.3g} s){error}",
            ranks=view.joined_ranks,
        )
    for link in evidence.links[:64]:
        if link.kind == "rendezvous" and not link.ok:
            where = f"{link.address or places.host(link.target)}:{link.port or '?'}"
            yield EvidenceItem("link", f"{places.host(link.source)} -> {where}: {link.error or 'failed'}")
    for match in evidence.host_matches[:16]:
        if not match.matches:
            names = ", ".join(match.names)
            text = f"{places.host(match.node)} does not recognize itself as {match.endpoint}: it is {names}"
            yield EvidenceItem("host-match", text)
    for gone in evidence.exits[:16]:
        if gone.stage == "rendezvous" and not gone.finished:
            how = f"signal {gone.signal}" if gone.signal is not None else f"status {gone.exit_code}"
            yield EvidenceItem(
                "exit", f"rank {gone.rank} (pid {gone.pid}) exited with {how}", RankSet([gone.rank])
            )


def _fix_missing(evidence: Evidence, best: Rendezvous, absent: Sequence[int]) -> tuple[Fix, ...]:
    launch = evidence.launch
    if launch.launcher in ("srun", "mpirun"):
        return (Fix("check whether all tasks were started, and start the job again", repeat_launch(launch)),)
    if launch.launcher == "env":
        lacking = RankSet.span(best.expected_ranks).minus(best.joined_ranks).minus(best.own_ranks)
        return tuple(
            Fix(
                f"start rank {rank} too, and with the same MASTER_ADDR and MASTER_PORT",
                repeat_launch(launch, rank=rank),
            )
            for rank in list(lacking)[:4]
        )
    if best.expected_nodes == 1:
        return (
            Fix(
                "start it again with fewer ranks to see whether the number matters",
                "ddpdoctor check --nproc 1",
            ),
        )
    if not absent:
        line = "sudo dmesg --ctime | grep -i 'killed process'"
        return (
            Fix("check on their nodes whether the kernel killed them", line),
            Fix("then start it again", repeat_launch(launch)),
        )
    if launch.rdzv_backend in FIXED:
        fixes = [
            Fix(f"start it on node {node} too", repeat_launch(launch, node_rank=node)) for node in absent[:4]
        ]
    else:
        fixes = [Fix("start it on the missing nodes too, with the same command", repeat_launch(launch))]
    if 0 < len(best.joined_nodes) < best.expected_nodes:
        few = len(best.joined_nodes)
        fixes.append(
            Fix(
                f"if only {count_of(few, 'node is', 'nodes are')} intended, pass that number on each of them",
                repeat_launch(replace(launch, nnodes=few, world_size=few * launch.nproc)),
            )
        )
    return tuple(fixes)
