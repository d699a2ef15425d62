"""How large the world is: sizes that disagree between ranks, with the launch, or with themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.commands import repeat_launch
from ddpdoctor_checks.common.places import Places, require
from ddpdoctor_checks.common.wording import (
    describe_groups,
    find_minority,
    fold_values,
    join_words,
    name_set,
    quote,
    tabulate,
)
from ddpdoctor_checks.environment.ranks import find_environments

BELOW = (
    ("RANK", "WORLD_SIZE"),
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("GROUP_RANK", "GROUP_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
"""Pairs of which the first counts from 0 to the second less one."""


@check("ENV003", family="environment", needs=(), id="env.world.consistent")
def find_world_inconsistent(evidence: Evidence) -> Iterable[Finding]:
    """WORLD_SIZE disagrees between ranks, with the launch, or with the processes seen."""
    if evidence.processes:
        raise NotApplicable("not applicable to `run` (only checked before launch by `ddpdoctor check`)")
    environments = find_environments(evidence)
    places = Places(evidence)
    found = False
    uneven = list(_describe_uneven(evidence, places))
    for finding in (
        *(uneven or (*_compare_worlds(evidence, places), *_compare_meetings(evidence, places))),
        *_find_impossible(evidence, places, environments),
    ):
        found = True
        yield finding
    if not found and not evidence.ranks:
        require(evidence, "ranks", "the ranks' world sizes")


def _believed(evidence: Evidence) -> dict[int, str]:
    """Return rank -> the world size that it goes by: the variable where there is one."""
    return {rank.rank: rank.variables.get("WORLD_SIZE", str(rank.world_size)) for rank in evidence.ranks}


def _describe_uneven(evidence: Evidence, places: Places) -> Iterable[Finding]:
    """Note nodes with different numbers of ranks, which torchrun adds up, where all ranks agree on the sum."""
    believed = _believed(evidence)
    on_node = Counter(rank.node for rank in evidence.ranks)
    if len(set(on_node.values())) < 2 or set(believed.values()) != {str(len(believed))}:
        return
    groups = fold_values({node: str(count) for node, count in on_node.items()})
    said = [f"{group.value} on {join_words(places.hosts(group.who), few=3)}" for group in groups]
    odd = find_minority(groups)
    yield Finding(
        message=(
            f"The nodes run different numbers of ranks, {join_words(said)}; all agree on a world size of "
            f"{len(believed):,}."
        ),
        severity="info",
        role="advice",
        ranks=places.ranks(odd),
        nodes=places.hosts(odd),
        evidence=tuple(
            EvidenceItem("ranks", f"{group.value} ranks on {name_set(group.who, 'node')}")
            for group in groups[:16]
        ),
        fix=(
            Fix(
                ("if this is not intended, start all nodes with the same numbers"),
                repeat_launch(evidence.launch),
            ),
        ),
        details={"values": tabulate(groups), "world_size": len(believed)},
    )


def _compare_worlds(evidence: Evidence, places: Places) -> Iterable[Finding]:
    """Compare what the ranks believe, by variable where there is one, with each other and with the launch."""
    believed = {rank.rank: rank.variables.get("WORLD_SIZE", str(rank.world_size)) for rank in evidence.ranks}
    groups = fold_values(believed)
    expected = str(evidence.launch.world_size)
    if not groups or (len(groups) == 1 and groups[0].value == expected):
        return
    right = next((group for group in groups if group.value == expected), None)
    wrong = RankSet().union(*(group.who for group in groups if group is not right))
    yield Finding(
        message=f"WORLD_SIZE is {describe_groups(groups)}; the launch has {expected} "
        f"({evidence.launch.nnodes} x {places.per_node}).",
        ranks=wrong if right is not None or len(groups) == 1 else find_minority(groups),
        nodes=places.hosts(sorted({rank.node for rank in evidence.ranks if rank.rank in wrong})),
        evidence=tuple(
            EvidenceItem("variable", f"WORLD_SIZE={group.value} in {name_set(group.who)}", group.who)
            for group in groups[:16]
        ),
        fix=(Fix("start all nodes with the same numbers", repeat_launch(evidence.launch)),),
        details={"values": tabulate(groups), "expected": expected},
    )


def _compare_meetings(evidence: Evidence, places: Places) -> Iterable[Finding]:
    """Compare for how many nodes they were started; numbers of ranks alone may differ, torchrun adds them up."""
    counts = {view.expected_nodes for view in evidence.rendezvous}
    groups = fold_values({view.node: str(view.expected_ranks) for view in evidence.rendezvous})
    if len(groups) < 2 or len(counts) < 2:
        told = dict(next((view.worlds for view in evidence.rendezvous if view.worlds), ()))
        groups = fold_values({node: str(size) for node, size in told.items()})
    if len(groups) < 2:
        return
    odd = find_minority(groups)
    said = [f"{join_words(places.hosts(group.who), few=3)} for {group.value}" for group in groups]
    yield Finding(
        message=f"The nodes were started with different world sizes: {join_words(said)} ranks.",
        ranks=places.ranks(odd),
        nodes=places.hosts(odd),
        evidence=tuple(
            EvidenceItem("rendezvous", f"{name_set(group.who, 'node')} expected {group.value} ranks")
            for group in groups[:16]
        ),
        fix=(
            Fix(
                "give every node the same --nnodes and --nproc",
                repeat_launch(evidence.launch, node_rank=odd.ranges[0][0]),
            ),
        ),
        details={"values": tabulate(groups)},
    )


def _find_impossible(
    evidence: Evidence, places: Places, environments: Mapping[int, Mapping[str, str]]
) -> Iterable[Finding]:
    """Report variables that cannot all be true, each line once with the nodes that have it."""
    lines: dict[str, list[int]] = {}
    for node, variables in environments.items():
        for line in list_impossible(variables):
            lines.setdefault(line, []).append(node)
    for line, nodes in lines.items():
        names = [part.split("=")[0] for part in line.replace(",", " ").split() if "=" in part]
        yield Finding(
            message=f"In the environment of {join_words(places.hosts(nodes))}, {line}.",
            ranks=places.ranks(nodes),
            nodes=places.hosts(nodes),
            evidence=(EvidenceItem("variable", line),),
            fix=(
                Fix(
                    "unset them; torchrun sets its own for every rank",
                    f"unset {' '.join(dict.fromkeys(names))}",
                ),
                Fix("then pass the world size on the command line", repeat_launch(evidence.launch)),
            ),
            details={"contradiction": line},
        )


def list_impossible(variables: Mapping[str, str]) -> list[str]:
    """Return one line for each variable, or pair, of an environment that cannot be true."""
    lines = []
    numbers: dict[str, int] = {}
    for name in dict.fromkeys(name for pair in BELOW for name in pair):
        value = variables.get(name)
        if not value:
            continue
        try:
            numbers[name] = int(value)
        except ValueError:
            lines.append(f"{name}={quote(value)} is not a number")
    for low, high in BELOW:
        if low in numbers and numbers[low] < 0:
            lines.append(f"{low}={numbers[low]} is negative")
        elif high in numbers and numbers[high] < 1:
            lines.append(f"{high}={numbers[high]} is not a size")
        elif low in numbers and high in numbers and numbers[low] >= numbers[high]:
            lines.append(f"{low}={numbers[low]} is not below {high}={numbers[high]}")
    local, world = numbers.get("LOCAL_WORLD_SIZE"), numbers.get("WORLD_SIZE")
    if local is not None and world is not None and local > world >= 1:
        lines.append(f"LOCAL_WORLD_SIZE={local} is above WORLD_SIZE={world}")
    return lines
