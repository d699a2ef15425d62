"""Names and addresses: the master's name, the peers' names, and who believes that it hosts the rendezvous."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import Evidence, HostMatch, Launch, Resolution
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.commands import FIXED, meeting_point, repeat_launch, start_torchrun
from ddpdoctor_checks.places import (
    Places,
    choose_interface,
    require_several_nodes,
    routable_addresses,
    split_endpoint,
)
from ddpdoctor_checks.wording import choose_form, count_of, join_words

MISSING_STORE = ("NET006", "NET013", "BKD002", "BKD011")
"""What follows when the ranks cannot meet at the store."""


@check(
    "NET002",
    name="master-unresolvable",
    title="The rendezvous host has no address on some node",
    severity="error",
    family="network",
    needs=("resolutions",),
    since="0.1.0",
    id="net.master.resolves",
    explains=("NET007", *MISSING_STORE),
)
def find_master_unresolvable(evidence: Evidence) -> Iterable[Finding]:
    """The rendezvous host (MASTER_ADDR, or the host in --rdzv-endpoint) has no address on some node.

    What it looks for:
        Nodes on which getaddrinfo gives no address for the host at which all ranks are to meet.

    Why it matters:
        These nodes never reach the store. torch repeats the look-up until twice the time limit has passed,
        so the job hangs for minutes before it says "gai error: -2 - Name or service not known".

    How it decides:
        Each node asks its own resolver for the name, before anything is launched. An error, or an
        answer without addresses, is a finding on that node; there is no threshold.

    Known false alarms:
        In Kubernetes the service of a pod that is just starting appears some seconds later.

    Fix:
        Use the address itself, or make the name known on these nodes (/etc/hosts, DNS, a headless service).

    References:
        https://docs.pytorch.org/docs/stable/elastic/run.html (--rdzv-endpoint, --master-addr)
        https://man7.org/linux/man-pages/man3/getaddrinfo.3.html
    """
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
        fixes.append(Fix(f"or make the name known on {where}", line))
    elif evidence.launch.nnodes == 1:
        fixes.append(
            Fix("on one node meet on the loopback", repeat_launch(evidence.launch, address="127.0.0.1"))
        )
    else:
        fixes.append(
            Fix(
                f"see what {where} can find, and use an address that hostname -I prints on the hosting node",
                f"getent ahosts {name}",
            )
        )
    return Finding(
        message=f"The rendezvous host {name} has no address on {where}{rest if elsewhere else ''}.",
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


@check(
    "NET007",
    name="rendezvous-host-unmatched",
    title="No node believes that it hosts the rendezvous",
    severity="error",
    family="network",
    needs=("host_matches",),
    since="0.1.0",
    id="net.rendezvous.hosted",
    explains=("NET006", "BKD002", "BKD011"),
)
def find_host_unmatched(evidence: Evidence) -> Iterable[Finding]:
    """No node believes that it hosts the rendezvous.

    What it looks for:
        A c10d rendezvous whose endpoint none of the nodes recognises as itself.

    Why it matters:
        torchrun starts the store on the node whose host name, canonical name or addresses equal the
        endpoint's. Where none does, nobody starts it, and all nodes end with "The connection to the C10d
        store has failed", also the one that --rdzv-endpoint means. Secondary interfaces and Kubernetes
        services do this.

    How it decides:
        Each node evaluates torch's own comparison. With the answers of all nodes: none said yes. With a
        single node's answer only where an interface of that node holds the endpoint's address and torch still
        says no. A rendezvous that completed is proof of the contrary. With the static rendezvous node 0
        hosts whatever the names say, so there is nothing to judge.

    Known false alarms:
        ``--rdzv-conf is_host=1`` tells torch without a comparison; a completed rendezvous shows it.

    Fix:
        Name the endpoint as the hosting node names itself, or say ``--rdzv-conf is_host=1`` there (and
        is_host=0 elsewhere), or use ``--node-rank`` with ``--master-addr``.

    References:
        https://github.com/pytorch/pytorch/issues/79388
        torch/distributed/elastic/rendezvous/utils.py (_matches_machine_hostname)
    """
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
            f"only {len(matches)} of {count_of(launch.nnodes, 'node')} said whether it is the host"
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
            f"{places.host(owner)} holds the address of the rendezvous endpoint {endpoint}, but torch "
            f"does not recognise it there, so no node starts the store: "
            f"it calls itself {join_words(hosting.names)}."
        )
    else:
        called = [f"{places.host(each.node)} is {join_words(each.names) or 'nameless'}" for each in matches]
        message = (
            f"None of {count_of(len(matches), 'node')} believes that it is the rendezvous host {host}: "
            f"{join_words(called, few=4)}."
        )
    nodes = [owner] if owner is not None else [each.node for each in matches]
    fixes = [
        Fix(
            "say it outright on the node that hosts",
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


@check(
    "NET008",
    name="peer-name-unresolvable",
    title="A node's own host name has no address there, or on other nodes",
    severity="error",
    family="network",
    needs=("resolutions",),
    since="0.1.0",
    id="net.peers.resolve",
    required=False,
    explains=("NET006", "BKD002", "BKD011"),
)
def find_peer_unresolvable(evidence: Evidence) -> Iterable[Finding]:
    """A node's own host name has no address there, or on other nodes.

    What it looks for:
        Nodes that cannot resolve their own host name, or the name under which another node publishes itself.

    Why it matters:
        With a c10d rendezvous the agent of the first node publishes its fully qualified name as
        MASTER_ADDR. The rendezvous then succeeds, and the workers hang until "wait timeout after 300000ms,
        keys: /default_pg/0//cpu//0/1". gloo and other libraries look up the own name to choose the interface of
        a node; without an address they take the loopback, which no other node reaches.

    How it decides:
        Every node asks its resolver for its own name, and for every peer's. The own name without an address is
        a warning on several nodes and on a node of Slurm, else a note. A peer's is an error for the node that
        becomes node 0 of a c10d rendezvous, whose name all ranks use; a warning for the other nodes, which
        become node 0 in another start; and a note with a static rendezvous, srun or mpirun, where only the
        master's name is used.

    Known false alarms:
        A machine that is used alone needs no address for its own name: hence only a note there. Pods without a
        headless service cannot resolve each other and need not, as long as the master is given by address:
        hence only a note there.

    Fix:
        Start each node with ``--local-addr`` and its routable address, or make the names known (/etc/hosts,
        DNS).

    References:
        https://github.com/pytorch/pytorch/issues/150532
        torch/distributed/elastic/agent/server/api.py (_get_fq_hostname)
    """
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
        raise CannotLook("no node asked for its peers' names")
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
    fixes.append(Fix(f"or make the name known on {join_words(askers)}", line))
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
