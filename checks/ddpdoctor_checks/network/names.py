"""Names and addresses: the master's name, the peers' names, and who believes that it hosts the rendezvous."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import Evidence, HostMatch, Launch, Resolution
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.commands import FIXED, meeting_point, repeat_launch, start_torchrun
from ddpdoctor_checks.common.places import (
    Places,
    choose_interface,
    require_several_nodes,
    routable_addresses,
    split_endpoint,
)
from ddpdoctor_checks.common.wording import choose_form, count_of, join_words


@check("NET002", family="network", needs=("resolutions",), id="net.master.resolves")
def find_master_unresolvable(evidence: Evidence) -> Iterable[Finding]:
    """The rendezvous host (MASTER_ADDR, or the host in --rdzv-endpoint) has no address on some node."""
    places = Places(evidence)
    asked = [each for each in evidence.resolutions if each.purpose == "master"]
    if not asked:
        raise NotApplicable("the rendezvous has no name to resolve")
    for name in dict.fromkeys(each.name for each in asked):
        answers = [each for each in asked if each.name == name]
        failed = [each for each in answers if not each.addresses]
        if failed:
            yield _describe_unresolvable(evidence, places, name, answers, failed)


def _describe_unresolvable(
    evidence: Evidence, places: Places, name: str, answers: Sequence[Resolution], failed: Sequence[Resolution]
) -> Finding:
    nodes = sorted({each.node for each in failed})
    known = [address for each in answers for address in each.addresses]
    address = _pick_address(places, known)
    where = join_words(places.hosts(nodes))
    elsewhere = sorted({each.node for each in answers} - set(nodes))
    rest = f"; {join_words(places.hosts(elsewhere))} {choose_form(len(elsewhere), 'finds', 'find')} it"
    fixes = []
    if address:
        line = f"echo '{address} {name}' | sudo tee -a /etc/hosts"
        fixes.append(
            Fix("use the address instead of the name", repeat_launch(evidence.launch, address=address))
        )
        fixes.append(Fix(f"or make the name resolvable on {where}", line))
    elif evidence.launch.nnodes == 1:
        fixes.append(
            Fix("on one node use the loopback address", repeat_launch(evidence.launch, address="127.0.0.1"))
        )
    else:
        fixes.append(
            Fix(
                (
                    f"check what {where} can resolve, and use an address that hostname -I prints on the "
                    "rendezvous host"
                ),
                f"getent ahosts {name}",
            )
        )
    return Finding(
        message=f"The rendezvous host {name} cannot be resolved on {where}{rest if elsewhere else ''}.",
        ranks=places.ranks(nodes),
        nodes=places.hosts(nodes),
        evidence=tuple(
            EvidenceItem("resolution", f"{places.host(each.node)}: {name} -> {_answer(each)}")
            for each in answers[:16]
        ),
        fix=tuple(fixes),
        details={
            "name": name,
            "answers": [
                {"node": each.node, "addresses": list(each.addresses), "error": each.error}
                for each in answers
            ],
        },
    )


def _answer(asked: Resolution) -> str:
    return ", ".join(asked.addresses) or asked.error or "no address"


def _pick_address(places: Places, known: Sequence[str]) -> str | None:
    """Return an address that other nodes can use: one that somebody resolved, else the hosting node's own."""
    for address in known:
        if not address.startswith("127.") and address != "::1":
            return address
    host = places.facts.get(0)
    interface = choose_interface(host) if host is not None else None
    return routable_addresses(interface)[0] if interface is not None else None


@check("NET007", family="network", needs=("host_matches",), id="net.rendezvous.hosted")
def find_host_unmatched(evidence: Evidence) -> Iterable[Finding]:
    """No node believes that it hosts the rendezvous."""
    launch = evidence.launch
    if launch.rdzv_backend in FIXED:
        raise NotApplicable("node 0 hosts a static rendezvous whatever its names are")
    matches = {each.node: each for each in evidence.host_matches}
    if not matches:
        require_several_nodes(evidence)
        raise CannotLook("no node compared the endpoint with its own names")
    if any(each.matches for each in matches.values()) or _somebody_joined(evidence):
        return
    places = Places(evidence)
    owner = _owner(evidence, places, matches.values())
    if owner is None and len(matches) < launch.nnodes:
        raise CannotLook(
            f"only {len(matches)} of {count_of(launch.nnodes, 'node')} reported whether it is the host"
        )
    yield _describe_unmatched(evidence, places, list(matches.values()), owner)


def _somebody_joined(evidence: Evidence) -> bool:
    return any(
        each.error is None and (len(each.joined_nodes) > 1 or len(each.joined_ranks) >= each.expected_ranks)
        for each in evidence.rendezvous
    )


def _owner(evidence: Evidence, places: Places, matches: Iterable[HostMatch]) -> int | None:
    """Return the node of which an interface holds the endpoint's address."""
    for match in matches:
        host, _ = split_endpoint(match.endpoint)
        wanted = {host}
        for each in evidence.resolutions:
            if each.purpose == "master" and each.name == host:
                wanted.update(each.addresses)
        facts = places.facts.get(match.node)
        held = {a.split("%")[0] for each in (facts.interfaces if facts else ()) for a in each.addresses}
        if wanted & held:
            return match.node
    return None


def _describe_unmatched(
    evidence: Evidence, places: Places, matches: Sequence[HostMatch], owner: int | None
) -> Finding:
    endpoint = matches[0].endpoint
    host, port = split_endpoint(endpoint)
    hosting = next((each for each in matches if each.node == (0 if owner is None else owner)), matches[0])
    if owner is not None:
        message = (
            f"{places.host(owner)} holds the address of the rendezvous endpoint {endpoint}, but torch does "
            "not recognize it there, so no node starts the store: it calls itself "
            f"{join_words(hosting.names)}."
        )
    else:
        called = [f"{places.host(each.node)} is {join_words(each.names) or 'nameless'}" for each in matches]
        message = (
            f"None of {count_of(len(matches), 'node')} recognizes itself as the rendezvous host {host}: "
            f"{join_words(called, few=4)}."
        )
    nodes = [owner] if owner is not None else [each.node for each in matches]
    fixes = [
        Fix(
            "set it explicitly on the rendezvous host",
            start_torchrun(evidence.launch, "--rdzv-conf", "is_host=1") + "  # and is_host=0 elsewhere",
        )
    ]
    name = next((each for each in hosting.names if not each.startswith("127.") and each != "::1"), None)
    if name is not None:
        fixes.insert(
            0,
            Fix(
                f"name the endpoint as {places.host(hosting.node)} names itself, on all nodes",
                repeat_launch(evidence.launch, address=name, port=port),
            ),
        )
    return Finding(
        message=message,
        ranks=places.ranks(nodes),
        nodes=places.hosts(nodes),
        evidence=tuple(
            EvidenceItem(
                "host-match", f"{places.host(each.node)}: {endpoint} is not one of {', '.join(each.names)}"
            )
            for each in matches[:16]
        ),
        fix=tuple(fixes),
        details={"endpoint": endpoint, "names": {str(each.node): list(each.names) for each in matches}},
    )


@check("NET008", family="network", needs=("resolutions",), id="net.peers.resolve", required=False)
def find_peer_unresolvable(evidence: Evidence) -> Iterable[Finding]:
    """A node's own host name has no address there, or on other nodes."""
    places = Places(evidence)
    asked_own = [each for each in evidence.resolutions if each.purpose == "self"]
    nameless = [each for each in asked_own if not each.addresses]
    if nameless:
        yield _describe_nameless(evidence, places, nameless)
    if evidence.launch.nnodes < 2 and asked_own:
        return
    require_several_nodes(evidence)
    asked = [each for each in evidence.resolutions if each.purpose == "peer"]
    if not asked:
        if nameless:
            return
        if not _publishes_names(evidence.launch) or evidence.launch.local_addr is not None:
            raise NotApplicable("no node publishes its name with this rendezvous")
        raise CannotLook("no node queried its peers' names")
    failed: dict[tuple[str, int | None], list[Resolution]] = {}
    for each in asked:
        if not each.addresses:
            failed.setdefault((each.name, each.of_node), []).append(each)
    for (name, owner), resolutions in failed.items():
        yield _describe_peer(evidence, places, name, owner, resolutions)


def _describe_nameless(evidence: Evidence, places: Places, failed: Sequence[Resolution]) -> Finding:
    launch = evidence.launch
    nodes = sorted({each.node for each in failed})
    hosts = places.hosts(nodes)
    scheduled = any(name.startswith("SLURM_") for name in launch.variables)
    name = failed[0].name
    return Finding(
        message=f"{join_words(hosts)} cannot resolve {choose_form(len(hosts), 'its', 'their')} own host "
        f"{choose_form(len(hosts), 'name', 'names')}.",
        ranks=places.ranks(nodes),
        nodes=hosts,
        severity="warning" if launch.nnodes > 1 or scheduled else "info",
        role="advice",
        evidence=tuple(
            EvidenceItem("resolution", f"{places.host(each.node)}: {each.name} -> {_answer(each)}")
            for each in failed[:16]
        ),
        fix=(
            Fix(
                "give it an address there that other nodes reach",
                f"echo \"$(hostname -I | cut -d ' ' -f 1) {name}\" | sudo tee -a /etc/hosts",
            ),
        ),
        details={"names": {str(each.node): each.name for each in failed}},
    )


def _publishes_names(launch: Launch) -> bool:
    """Whether the first node's own name becomes MASTER_ADDR, as with torchelastic's dynamic rendezvous."""
    return launch.launcher in ("ddpdoctor", "torchrun") and launch.rdzv_backend not in FIXED


def _describe_peer(
    evidence: Evidence, places: Places, name: str, owner: int | None, failed: Sequence[Resolution]
) -> Finding:
    launch = evidence.launch
    published = _publishes_names(launch)
    severity = ("error" if owner in (0, None) else "warning") if published else "info"
    nodes = sorted({each.node for each in failed})
    askers = places.hosts(nodes)
    facts = places.facts.get(owner) if owner is not None else None
    interface = choose_interface(facts) if facts is not None else None
    address = routable_addresses(interface)[0] if interface is not None else None
    publisher = f"node {owner}" if owner is not None else "another node"
    fixes = []
    if address is not None and published:
        command = repeat_launch(launch, node_rank=owner, local_address=address)
        fixes.append(Fix(f"let {publisher} publish its address instead of its name", command))
    line = f"echo '{address or 'ADDRESS'} {name}' | sudo tee -a /etc/hosts"
    fixes.append(Fix(f"or make the name resolvable on {join_words(askers)}", line))
    return Finding(
        message=f"{join_words(askers)} cannot resolve {name}, "
        f"the name under which {publisher} publishes itself.",
        ranks=places.ranks([owner] if owner is not None else nodes),
        victims=places.ranks(nodes),
        nodes=(name,),
        pairs=tuple((asker, name) for asker in askers[:64]),
        severity=severity,
        role="cause" if published else "advice",
        evidence=tuple(
            EvidenceItem("resolution", f"{places.host(each.node)}: {name} -> {_answer(each)}")
            for each in failed[:16]
        ),
        fix=tuple(fixes),
        details={
            "name": name,
            "of_node": owner,
            "unresolved_on": list(askers),
            "rendezvous": meeting_point(launch)[0],
        },
    )
