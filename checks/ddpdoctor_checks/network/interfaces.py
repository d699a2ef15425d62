"""Which address a node advertises, and whether the interface variables name interfaces that exist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence, Interface, NodeFacts, RankSet
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.places import (
    Places,
    choose_interface,
    is_loopback,
    on_one_machine,
    require_several_nodes,
)
from ddpdoctor_checks.common.wording import choose_form, join_words, quote


@check("NET003", family="network", needs=("nodes",), id="net.address.routable")
def find_loopback_advertised(evidence: Evidence) -> Iterable[Finding]:
    """A node of a multi-node world advertises 127.0.0.0/8 or ::1."""
    require_several_nodes(evidence)
    if on_one_machine(evidence):
        raise NotApplicable("all nodes are one machine")
    told = [node for node in evidence.nodes if node.advertised is not None]
    if not told:
        raise CannotLook("no node could determine which address gloo uses")
    wrong = [node for node in told if is_loopback(node.advertised or "")]
    if wrong:
        yield _describe_loopback(evidence, told, wrong)


def _describe_loopback(evidence: Evidence, told: Sequence[NodeFacts], wrong: Sequence[NodeFacts]) -> Finding:
    places = Places(evidence)
    numbers = [node.node for node in wrong]
    others = {node.advertised_interface: None for node in told if not is_loopback(node.advertised or "")}
    preferred = [name for name in others if name is not None]
    said = [f"{node.host} advertises {node.advertised}{_reason(node)}" for node in wrong]
    fixes = []
    for node in wrong[:8]:
        interface = choose_interface(node, preferred)
        name = interface.name if interface is not None else None
        if name is None:
            fixes.append(
                Fix(f"find the interface of {node.host} that the other nodes reach", "ip -br address")
            )
            continue
        fixes.append(Fix(f"on {node.host}, before the launch", f"export GLOO_SOCKET_IFNAME={name}"))
    gloo = "gloo" in evidence.launch.backend
    return Finding(
        message=f"{join_words(said, few=4)}, which other nodes cannot reach.",
        ranks=places.ranks(numbers),
        nodes=tuple(node.host for node in wrong),
        severity=None if gloo else "warning",
        confidence="high" if len(told) > 1 else "medium",
        evidence=tuple(
            EvidenceItem(
                "address",
                f"{node.host}: host name -> "
                f"{', '.join(node.name_addresses) or node.name_error or 'nothing'}; "
                f"gloo publishes {node.advertised}",
            )
            for node in wrong[:16]
        ),
        fix=tuple(fixes),
        details={
            "advertised": {node.host: node.advertised for node in wrong},
            "interfaces": {
                node.host: (found.name if (found := choose_interface(node, preferred)) else None)
                for node in wrong
            },
        },
    )


def _reason(node: NodeFacts) -> str:
    value = node.variables.get("GLOO_SOCKET_IFNAME")
    if value:
        return f" (GLOO_SOCKET_IFNAME={quote(value)})"
    return " (its host name maps there)" if node.advertised in node.name_addresses else ""


@dataclass(frozen=True, slots=True)
class _Complaint:
    """What is wrong with one value on one node."""

    text: str
    interfaces: tuple[str, ...]


@check(
    "NET004",
    family="network",
    needs=("nodes",),
    variants={"net.interface.gloo": "GLOO_SOCKET_IFNAME", "net.interface.nccl": "NCCL_SOCKET_IFNAME"},
)
def find_interface_missing(evidence: Evidence, variant: str) -> Iterable[Finding]:
    """GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names no interface of the node, or in the wrong syntax."""
    places = Places(evidence)
    values: dict[tuple[str, str], list[int]] = {}
    complaints: dict[tuple[str, str], _Complaint] = {}
    blind = []
    for node, value in _settings(evidence, variant):
        facts = places.facts.get(node)
        if facts is None or not facts.interfaces:
            blind.append(node)
            continue
        judge = judge_gloo_value if variant.startswith("GLOO") else judge_nccl_value
        text = judge(value, facts.interfaces)
        if text is not None:
            values.setdefault((value, text), []).append(node)
            names = tuple(each.name for each in facts.interfaces if each.addresses)
            complaints.setdefault((value, text), _Complaint(text, names))
    for (value, text), nodes in values.items():
        yield _describe_interface(evidence, places, variant, value, nodes, complaints[value, text])
    if blind and not values:
        raise CannotLook(f"the interfaces of {join_words(places.hosts(blind))} are not known")


def _settings(evidence: Evidence, variable: str) -> list[tuple[int, str]]:
    """Return (node, value), each pair once; what the ranks have goes before what their launcher has."""
    found: dict[tuple[int, str], None] = {}
    with_ranks = set()
    for rank in evidence.ranks:
        if variable in rank.variables:
            with_ranks.add(rank.node)
            found[rank.node, rank.variables[variable]] = None
    for node in evidence.nodes:
        if node.node not in with_ranks and variable in node.variables:
            found[node.node, node.variables[variable]] = None
    return list(found)


def judge_gloo_value(value: str, interfaces: Sequence[Interface]) -> str | None:
    """Return what is wrong with a GLOO_SOCKET_IFNAME, None when gloo takes it."""
    if len(value) < 2:
        return None
    by_name = {each.name: each for each in interfaces}
    for name in filter(None, value.split(",")):
        if name in by_name:
            if not by_name[name].addresses:
                return f"interface {name} has no address"
            if not by_name[name].up:
                return f"interface {name} is down"
            continue
        if name[0] in "^=":
            return f"{name[0]} is NCCL's syntax; gloo accepts only exact interface names"
        if name != name.strip():
            return f"{name!r} has blanks around it, and gloo treats them as part of the name"
        if any(known.startswith(name) for known in by_name):
            return f"{name} is only the beginning of a name, and gloo requires exact names"
        return f"there is no interface {name}"
    return None


def judge_nccl_value(value: str, interfaces: Sequence[Interface]) -> str | None:
    """Return what is wrong with an NCCL_SOCKET_IFNAME, None when NCCL finds an interface with it."""
    rest = value.removeprefix("^")
    inverted = rest != value
    exact = rest.startswith("=")
    wanted = [name.split(":")[0] for name in rest.removeprefix("=").split(",") if name]
    if not wanted:
        return None

    def matches(name: str) -> bool:
        return any(name == each if exact else name.startswith(each) for each in wanted)

    left = [each for each in interfaces if each.addresses and matches(each.name) != inverted]
    if not left:
        if inverted:
            return "it excludes every interface that has an address"
        if any(each.startswith(("^", "=")) for each in wanted):
            return "^ and = are recognized only at the beginning, in this order"
        if any(each != each.strip() for each in wanted):
            return "it contains blanks, and NCCL treats them as part of the name"
        return f"there is no interface {'' if exact else 'beginning with '}{join_words(wanted, last='or')}"
    if not any(each.up for each in left):
        return f"{join_words(each.name for each in left)} {choose_form(len(left), 'is', 'are')} down"
    return None


def _describe_interface(
    evidence: Evidence, places: Places, variable: str, value: str, nodes: list[int], wrong: _Complaint
) -> Finding:
    hosts = places.hosts(nodes)
    used = variable.split("_")[0].lower() in evidence.launch.backend
    accelerated = any(facts.devices for facts in evidence.nodes)
    severity = None if used else "warning" if accelerated or variable.startswith("GLOO") else "info"
    fixes = []
    for node in nodes[:8]:
        facts = places.facts[node]
        best = choose_interface(facts) or next((each for each in facts.interfaces if each.addresses), None)
        if best is not None:
            fixes.append(Fix(f"on {facts.host}, before the launch", f"export {variable}={best.name}"))
    if evidence.launch.nnodes == 1 or not fixes:
        fixes.append(Fix("or let the backend choose", f"unset {variable}"))
    there = set(nodes)
    holders = [
        each.rank for each in evidence.ranks if each.node in there and each.variables.get(variable) == value
    ]
    return Finding(
        message=(
            f"{variable}={quote(value)} matches no interface of {join_words(hosts)}: {wrong.text} (there "
            f"{choose_form(len(wrong.interfaces), 'is', 'are')} "
            f"{join_words(wrong.interfaces, few=8) or 'none'})."
        ),
        ranks=RankSet(holders) or places.ranks(nodes),
        nodes=hosts,
        severity=severity,
        role="cause" if used else "advice",
        evidence=(
            EvidenceItem("variable", f"{variable}={value} on {join_words(hosts)}"),
            EvidenceItem("interfaces", f"{hosts[0]}: {', '.join(wrong.interfaces) or 'none'}"),
        ),
        fix=tuple(fixes),
        details={
            "variable": variable,
            "value": value,
            "interfaces": {
                places.host(node): [each.name for each in places.facts[node].interfaces]
                for node in nodes[:64]
            },
        },
    )
