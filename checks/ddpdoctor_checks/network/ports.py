"""The rendezvous port: held by someone, out of range, privileged; and file:// rendezvous left behind."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, PortProbe, RankSet
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.commands import DEFAULT_PORT, FIXED, repeat_launch
from ddpdoctor_checks.common.places import Places, require
from ddpdoctor_checks.common.wording import format_age, join_words, quote

PRIVILEGED = 1024
"""First port that needs no privilege (Linux: net.ipv4.ip_unprivileged_port_start, default 1024)."""
LAST_PORT = 65535
"""Ports are 16 bits; 0 means "any" and cannot be told to others beforehand."""


@check("NET001", family="network", needs=("ports",), id="net.port.free")
def find_port_taken(evidence: Evidence) -> Iterable[Finding]:
    """The rendezvous port is held by another process."""
    places = Places(evidence)
    ours = {(rank.node, rank.pid) for rank in evidence.ranks}
    for probe in evidence.ports:
        if probe.status == "taken" and (probe.node, probe.holder_pid) not in ours:
            yield _describe_taken(evidence, places, probe)
        elif probe.status in ("foreign", "silent"):
            yield _describe_foreign(evidence, places, probe)


def _describe_taken(evidence: Evidence, places: Places, probe: PortProbe) -> Finding:
    host = places.host(probe.node)
    holder = "a process that this user may not see"
    if probe.holder_pid is not None:
        holder = f"process {probe.holder_pid}"
        holder += f" ({probe.holder_command})" if probe.holder_command else ""
    fixes = [Fix("choose another port", repeat_launch(evidence.launch, port=_next(probe.port)))]
    if evidence.launch.nnodes == 1 and evidence.launch.launcher in ("ddpdoctor", "torchrun"):
        fixes.append(
            Fix(
                "on one node let torchrun find a free port",
                f"torchrun --standalone --nproc-per-node {evidence.launch.nproc} train.py",
            )
        )
    if probe.holder_pid is None:
        fixes.append(
            Fix("find the process that holds it (as root)", f"sudo ss -ltnp 'sport = :{probe.port}'")
        )
    else:
        fixes.append(
            Fix(f"if process {probe.holder_pid} is a leftover of yours, end it", f"kill {probe.holder_pid}")
        )
    return Finding(
        message=f"The rendezvous port {probe.port} on {host} is held by {holder}.",
        ranks=places.ranks([probe.node]),
        nodes=(host,),
        evidence=(
            EvidenceItem(
                "port", f"bind {probe.address or '*'}:{probe.port} on {host}: {probe.error or 'in use'}"
            ),
        ),
        fix=tuple(fixes),
        details={"port": probe.port, "pid": probe.holder_pid, "command": probe.holder_command},
    )


def _describe_foreign(evidence: Evidence, places: Places, probe: PortProbe) -> Finding:
    """Describe what a node that is to connect to the store sees of it."""
    host, seer = probe.address or "the rendezvous host", places.host(probe.node)
    fixed = evidence.launch.rdzv_backend in FIXED
    message = f"The rendezvous port {probe.port} on {host} is held by a process that is not a torch store"
    if probe.status == "silent":
        message = (
            f"The rendezvous port {probe.port} on {host} accepts connections, but torch's store has not answered "
            "there: another program holds the port, or the process of the store is stopped or starved"
        )
    return Finding(
        message=f"{message}, as {seer} sees it.",
        ranks=places.ranks([0]) if fixed else RankSet(),
        victims=places.ranks([probe.node]) if fixed else RankSet(),
        nodes=(host,),
        confidence="low" if probe.status == "silent" else "medium",
        evidence=(EvidenceItem("port", f"{seer} -> {host}:{probe.port}: {probe.error or 'no answer'}"),),
        fix=(
            Fix(
                (f"find out on {host} which process holds it (as root)"),
                f"sudo ss -ltnp 'sport = :{probe.port}'",
            ),
            Fix(
                "or choose another port on all nodes", repeat_launch(evidence.launch, port=_next(probe.port))
            ),
        ),
        details={"port": probe.port, "pid": None, "command": None, "seen_from": seer},
    )


def _next(port: int) -> int:
    """Return a port beside this one that anybody may listen on."""
    return port + 1 if PRIVILEGED <= port < LAST_PORT else DEFAULT_PORT


@check("NET009", family="network", needs=("ports",), id="net.port.valid")
def find_port_invalid(evidence: Evidence) -> Iterable[Finding]:
    """The rendezvous port is out of range or privileged."""
    places = Places(evidence)
    tried: set[str] = set()
    for probe in evidence.ports:
        tried.add(str(probe.port))
        if probe.status in ("invalid", "denied"):
            yield _describe_invalid(evidence, places, probe)
    wrong: dict[str, list[int]] = {}
    for node in evidence.nodes:
        value = node.variables.get("MASTER_PORT")
        if value is not None and value not in tried and not _is_port(value):
            wrong.setdefault(value, []).append(node.node)
    for value, nodes in wrong.items():
        yield Finding(
            message=f"MASTER_PORT={quote(value)} in the environment of {join_words(places.hosts(nodes))} "
            f"is not a port: ports are 1-{LAST_PORT}.",
            severity="warning",
            role="advice",
            ranks=places.ranks(nodes),
            nodes=places.hosts(nodes),
            evidence=(EvidenceItem("variable", f"MASTER_PORT={value}"),),
            fix=(Fix("set a port that exists", f"export MASTER_PORT={DEFAULT_PORT}"),),
            details={"port": value},
        )


def _is_port(value: str) -> bool:
    return value.strip().isdecimal() and 1 <= int(value) <= LAST_PORT


def _describe_invalid(evidence: Evidence, places: Places, probe: PortProbe) -> Finding:
    host = places.host(probe.node)
    if probe.status == "denied":
        message = f"The rendezvous port {probe.port} is privileged: {host} cannot listen on it without root."
    else:
        message = f"The rendezvous port {probe.port} does not exist: ports are 1-{LAST_PORT}."
    return Finding(
        message=message,
        ranks=places.ranks([probe.node]),
        nodes=(host,),
        evidence=(
            EvidenceItem("port", f"bind of port {probe.port} on {host}: {probe.error or probe.status}"),
        ),
        fix=(Fix("use an unprivileged port", repeat_launch(evidence.launch, port=DEFAULT_PORT)),),
        details={"port": probe.port, "status": probe.status},
    )


@check("NET010", family="network", needs=("nodes",), id="net.file.fresh", required=False)
def find_file_stale(evidence: Evidence) -> Iterable[Finding]:
    """A ``file://`` rendezvous file was left by an earlier run or is shared by two jobs."""
    looked = [node for node in evidence.nodes if node.rendezvous_files is not None]
    if not looked:
        require(evidence, "nodes", "the nodes")
        raise CannotLook("no node checked for files of a file:// rendezvous")
    if not any(node.rendezvous_files for node in looked):
        raise NotApplicable("no file:// rendezvous is configured")
    places = Places(evidence)
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for node in looked:
        for file in node.rendezvous_files or ():
            if not file.exists or not file.size or (file.path, file.open_by) in seen:
                continue
            seen.add((file.path, file.open_by))
            age = f", last written {format_age(file.age_s)} ago" if file.age_s is not None else ""
            state = "was left by an earlier run"
            if file.open_by:
                state = f"is in use by {join_words(f'process {pid}' for pid in file.open_by)}"
            unique = "file:///tmp/ddp-$(date +%s)-$$"
            yield Finding(
                message=(
                    f"The rendezvous file {file.path} on {places.host(node.node)} (from {file.named_by}) "
                    f"{state}: it contains {file.size:,} bytes{age}."
                ),
                role="advice",
                ranks=places.ranks([node.node]),
                nodes=(places.host(node.node),),
                evidence=(EvidenceItem("file", f"{file.path}: {file.size:,} bytes{age}"),),
                fix=(
                    Fix("give every job a path of its own", f"export {file.named_by}={unique}")
                    if file.open_by
                    else Fix("delete it before the next start", f"rm -f {quote(file.path, 4096)}"),
                ),
                details={"path": file.path, "named_by": file.named_by, "open_by": list(file.open_by)},
            )
