"""What must agree: variables over ranks, versions over nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.variables import NODE, WORLD, agreement
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.places import Places, is_loopback, require
from ddpdoctor_checks.common.wording import (
    ValueGroup,
    choose_form,
    describe_groups,
    find_minority,
    fold_values,
    join_words,
    name_set,
    quote,
    tabulate,
)

JUDGED_ELSEWHERE = frozenset({"WORLD_SIZE"})
"""Variables with a code of their own (ENV003)."""

BOUND_PER_RANK = frozenset({"NCCL_HOSTID", "NCCL_IB_HCA", "UCX_NET_DEVICES"})
"""What differs on purpose: adapters that wrapper scripts on large machines give each rank by its socket, and the name
by which NCCL tells hosts apart."""

PROTOCOL = (
    "MASTER_",
    "NCCL_",
    "RCCL_",
    "GLOO_",
    "UCX_",
    "UCC_",
    "FI_",
    "CCL_",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_NCCL_",
)
"""Variables that change what goes over the wire, or whether a monitoring collective is added to each call
(TORCH_DISTRIBUTED_DEBUG=DETAIL): where they differ, ranks can wait for each other for ever."""


@dataclass(frozen=True, slots=True)
class _Owner:
    """A rank, or a node where no rank reported, with its environment."""

    number: int
    node: int
    variables: Mapping[str, str]


@check("ENV004", family="environment", needs=(), id="env.variables.agree")
def find_variables_differ(evidence: Evidence) -> Iterable[Finding]:
    """A variable that must agree over ranks does not (MASTER_*, NCCL_*, GLOO_*, TORCH_* …)."""
    noun, owners = _find_owners(evidence)
    if len(owners) < 2:
        raise NotApplicable("there is only one environment")
    places = Places(evidence)
    by_partition: dict[tuple[RankSet, ...], list[tuple[str, tuple[ValueGroup, ...]]]] = {}
    for name, groups in _differing(evidence, owners):
        by_partition.setdefault(tuple(group.who for group in groups), []).append((name, groups))
    for found in by_partition.values():
        yield _describe_differing(evidence, places, noun, owners, found)


def _find_owners(evidence: Evidence) -> tuple[str, list[_Owner]]:
    if evidence.ranks:
        return "rank", [_Owner(rank.rank, rank.node, rank.variables) for rank in evidence.ranks]
    if len(evidence.nodes) > 1:
        return "node", [_Owner(node.node, node.node, node.variables) for node in evidence.nodes]
    require(evidence, "ranks", "the ranks' environment")
    raise CannotLook("no evidence of the ranks' environment")


def _differing(evidence: Evidence, owners: Sequence[_Owner]) -> Iterable[tuple[str, tuple[ValueGroup, ...]]]:
    names = sorted({name for owner in owners for name in owner.variables})
    for name in names:
        over = agreement(name)
        if name in JUDGED_ELSEWHERE or over not in (WORLD, NODE):
            continue
        if over == WORLD:
            groups = fold_values({owner.number: owner.variables.get(name) for owner in owners})
            if len(groups) > 1 and not (name == "MASTER_ADDR" and _same_machine(evidence, owners, groups)):
                yield name, groups
        elif name not in BOUND_PER_RANK:
            yield from _differing_on_a_node(name, owners)


def _differing_on_a_node(name: str, owners: Sequence[_Owner]) -> Iterable[tuple[str, tuple[ValueGroup, ...]]]:
    per_node: dict[int, dict[int, str | None]] = {}
    for owner in owners:
        per_node.setdefault(owner.node, {})[owner.number] = owner.variables.get(name)
    for values in per_node.values():
        if len(set(values.values())) > 1:
            yield name, fold_values(values)


def _same_machine(evidence: Evidence, owners: Sequence[_Owner], groups: Sequence[ValueGroup]) -> bool:
    """Whether different MASTER_ADDRs mean one machine: names of node 0, or the loopback on node 0 itself.

    Kubernetes operators set MASTER_ADDR=localhost in the master's pod and its service name in the others.
    """
    host = next((node for node in evidence.nodes if node.node == 0), None)
    names = set()
    if host is not None:
        held = [address for interface in host.interfaces for address in interface.addresses]
        names = {host.host, host.fqdn, *host.name_addresses, *held}
    at_home = {owner.number for owner in owners if owner.node == 0}
    others = []
    for group in groups:
        if group.value is None:
            return False
        if not (is_loopback(group.value) and all(number in at_home for number in group.who)):
            others.append(group.value)
    return len(others) < 2 or all(value in names for value in others)


def _describe_differing(
    evidence: Evidence,
    places: Places,
    noun: str,
    owners: Sequence[_Owner],
    found: Sequence[tuple[str, tuple[ValueGroup, ...]]],
) -> Finding:
    names = [name for name, _ in found]
    name, groups = found[0]
    odd = find_minority(groups)
    tied = len(odd) == sum(len(group.who) for group in groups)
    node_of = {owner.number: owner.node for owner in owners}
    nodes = sorted({node_of[number] for number in odd})
    more = (
        f" {join_words(names[1:])} {choose_form(len(names) - 1, 'differs', 'differ')} in the same way."
        if names[1:]
        else ""
    )
    protocol = any(each.startswith(PROTOCOL) for each in names)
    right = next((group.value for group in groups), None)
    if right is None:
        fix = Fix("unset it where it is set, or set it everywhere", f"unset {' '.join(names)}")
    else:
        assignments = [f"{n}={quote(g[0].value or '', 4096)}" for n, g in found if g[0].value is not None]
        fix = Fix(
            f"set one value {'everywhere' if tied else 'on ' + join_words(places.hosts(nodes), few=4)}",
            f"export {' '.join(assignments)}",
        )
    return Finding(
        message=f"{name} is {describe_groups(groups, noun)}.{more}",
        ranks=odd if noun == "rank" else places.ranks(nodes),
        nodes=places.hosts(nodes),
        confidence="medium" if tied else "high",
        role="cause" if protocol else "advice",
        evidence=tuple(
            EvidenceItem(
                "variable",
                f"{each}: {describe_groups(values, noun, few=16)}",
                odd if noun == "rank" else None,
            )
            for each, values in found[:16]
        ),
        fix=(fix,),
        details={"variables": {each: tabulate(values) for each, values in found}, "over": noun},
    )


@dataclass(frozen=True, slots=True)
class _Item:
    """How much a difference of one item matters."""

    words: str
    severity: str = "warning"
    fix: str = "install the same version on all nodes, ideally from one image"
    command: str | None = None


ITEMS = {
    "torch": _Item("torch", command="pip install torch=={}"),
    "nccl": _Item("NCCL", fix="install the same torch on all nodes; its NCCL is included"),
    "cuda": _Item("CUDA of torch", fix="install the same PyTorch build on all nodes"),
    "driver": _Item("the GPU driver", fix="install the same driver on all nodes"),
    "python": _Item("Python"),
    "model": _Item("the file of --model", fix="copy one version of it to all nodes"),
    "ddpdoctor": _Item("ddpdoctor", severity="info", command="pip install ddpdoctor=={}"),
}
"""The items of `NodeFacts.versions` whose difference is judged; anything else is a note."""


@check("ENV005", family="environment", needs=(), id="env.versions.agree")
def find_versions_differ(evidence: Evidence) -> Iterable[Finding]:
    """Versions of torch, NCCL, CUDA, the driver, Python or the script differ over nodes."""
    if not evidence.ranks:
        require(evidence, "nodes", "the versions on the nodes")
    places = Places(evidence)
    values: dict[str, dict[int, dict[str, None]]] = {}
    for node in evidence.nodes:
        for item, version in node.versions.items():
            values.setdefault(item, {}).setdefault(node.node, {})[version] = None
    for rank in evidence.ranks:
        for item, version in rank.versions.items():
            values.setdefault(item, {}).setdefault(rank.node, {})[version] = None
    known = {node for by_node in values.values() for node in by_node}
    by_partition: dict[tuple[RankSet, ...], list[tuple[str, tuple[ValueGroup, ...]]]] = {}
    for item, by_node in values.items():
        groups = fold_values({node: " and ".join(versions) for node, versions in by_node.items()})
        mixed = any(len(versions) > 1 for versions in by_node.values())
        if len(groups) > 1 or mixed:
            by_partition.setdefault(tuple(group.who for group in groups), []).append((item, groups))
    for found in by_partition.values():
        yield _describe_versions(places, found)
    if not by_partition and evidence.launch.nnodes < 2:
        raise NotApplicable("single node")
    if not by_partition and len(known) < 2:
        if (
            evidence.launch.command != "check"
        ):  # the other nodes of a job need not be watched, nor tell this one
            raise NotApplicable("only one node reported its versions")
        raise CannotLook("only one node reported its versions")


def _describe_versions(places: Places, found: Sequence[tuple[str, tuple[ValueGroup, ...]]]) -> Finding:
    odd = find_minority(found[0][1]) or found[0][1][0].who
    said, severities, fixes = [], [], []
    for name, groups in found:
        item = ITEMS.get(name, _Item(name, severity="info"))
        said.append(f"{item.words} is {_say_versions(places, groups)}")
        severities.append("info" if name == "python" and _same_minor(groups) else item.severity)
        command = item.command.format(groups[0].value) if item.command else None
        fixes.append(Fix(item.fix, command))
    severity = min(severities, key=("error", "warning", "info").index)
    return Finding(
        message=f"{'; '.join(said)}.",
        ranks=places.ranks(odd),
        nodes=places.hosts(odd),
        severity=severity,
        confidence="high" if len(odd) < sum(len(group.who) for group in found[0][1]) else "medium",
        role="cause" if any(name in ("torch", "nccl", "cuda", "model") for name, _ in found) else "advice",
        evidence=tuple(
            EvidenceItem("version", f"{name} {group.value} on {name_set(group.who, 'node')}")
            for name, groups in found
            for group in groups[:16]
        ),
        fix=tuple(dict.fromkeys(fixes)),
        details={"versions": {name: tabulate(groups) for name, groups in found}},
    )


def _say_versions(places: Places, groups: Sequence[ValueGroup]) -> str:
    return join_words(f"{group.value} on {join_words(places.hosts(group.who), few=3)}" for group in groups)


def _same_minor(groups: Sequence[ValueGroup]) -> bool:
    return len({tuple((group.value or "").split(".")[:2]) for group in groups}) == 1
