"""The rendezvous port: held by someone, out of range, privileged; and file:// rendezvous left behind."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, PortProbe, RankSet
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.commands import DEFAULT_PORT, FIXED, repeat_launch
from ddpdoctor_checks.places import Places, require
from ddpdoctor_checks.wording import format_age, join_words, quote

PRIVILEGED = 1024
"""First port that needs no privilege (Linux: net.ipv4.ip_unprivileged_port_start, default 1024)."""
LAST_PORT = 65535
"""Ports are 16 bits; 0 means "any" and cannot be told to others beforehand."""


@check(
    "NET001",
    name="port-in-use",
    title="The rendezvous port is held by another process",
    severity="error",
    family="network",
    needs=("ports",),
    since="0.1.0",
    id="net.port.free",
    explains=("NET006", "ENV002", "BKD002", "BKD011"),
)
def find_port_taken(evidence: Evidence) -> Iterable[Finding]:
    """The rendezvous port is held by another process.

    What it looks for:
        A process that already listens on the port on which the hosting node has to open the rendezvous store.

    Why it matters:
        The store cannot listen, and the job ends with "The server socket has failed to listen on any local
        network address" (EADDRINUSE). Worse, the ranks may reach the other job's store: then they hang, or
        they take a healthy job down when they leave.

    How it decides:
        The hosting node binds the port before anything is launched. Where the kernel refuses with EADDRINUSE,
        the holder is looked up in /proc/net/tcp and /proc/PID/fd. No threshold is involved. A holder that is
        one of the ranks or the agent of this very launch is not a finding. Another node knows less: that
        something accepts connections there, and answers otherwise than torch's store does (medium confidence) or
        not at all until the limit of the wait (low confidence: a store whose process is stopped is silent too).

    Known false alarms:
        A holder that is just ending frees the port a moment later. Another user's process is seen only as a
        taken port, without pid and command, unless ddpdoctor runs as root.

    Fix:
        Choose another port (``--master-port``, or the port in ``--rdzv-endpoint``), or ``--standalone`` with
        torchrun on one node; or end the holder if it is a leftover of your own.

    References:
        https://docs.pytorch.org/docs/stable/elastic/run.html (Single-node multi-worker, --standalone)
        https://github.com/pytorch/pytorch/issues/126510
    """
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
                "on one node let torchrun find a free port itself",
                f"torchrun --standalone --nproc-per-node {evidence.launch.nproc} train.py",
            )
        )
    if probe.holder_pid is None:
        fixes.append(Fix("see who holds it (as root)", f"sudo ss -ltnp 'sport = :{probe.port}'"))
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
    host, seer = probe.address or "the hosting node", places.host(probe.node)
    fixed = evidence.launch.rdzv_backend in FIXED
    message = f"The rendezvous port {probe.port} on {host} is held by something that is no store of torch"
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
            Fix(f"see on {host} who holds it (as root)", f"sudo ss -ltnp 'sport = :{probe.port}'"),
            Fix(
                "or choose another port on all nodes", repeat_launch(evidence.launch, port=_next(probe.port))
            ),
        ),
        details={"port": probe.port, "pid": None, "command": None, "seen_from": seer},
    )


def _next(port: int) -> int:
    """Return a port beside this one that anybody may listen on."""
    return port + 1 if PRIVILEGED <= port < LAST_PORT else DEFAULT_PORT


@check(
    "NET009",
    name="port-invalid",
    title="The rendezvous port is out of range or privileged",
    severity="error",
    family="network",
    needs=("ports",),
    since="0.1.0",
    id="net.port.valid",
    explains=("NET001", "NET006", "BKD002", "BKD011"),
)
def find_port_invalid(evidence: Evidence) -> Iterable[Finding]:
    """The rendezvous port is out of range or privileged.

    What it looks for:
        A rendezvous port outside 1-65535, or below 1024 without the right to listen there; and a
        MASTER_PORT in the environment that is no port number.

    Why it matters:
        Nothing can listen there: the launch ends with a ValueError or "permission denied". Answers in
        forums do recommend ports such as 66660.

    How it decides:
        The hosting node tries to bind the port. Ports are 16-bit numbers (RFC 9293); below 1024 Linux asks
        for CAP_NET_BIND_SERVICE (net.ipv4.ip_unprivileged_port_start). A MASTER_PORT that this launch did
        not follow is a warning: it waits for scripts that read it themselves.

    Known false alarms:
        None known: what is reported was tried or is not a number of 16 bits.

    Fix:
        Take a port between 20000 and 32767: above the privileged ones and below Linux's ephemeral range, so
        that no outgoing connection takes it by chance.

    References:
        https://www.rfc-editor.org/rfc/rfc9293 (3.1, header format)
        https://www.kernel.org/doc/Documentation/networking/ip-sysctl.rst (ip_unprivileged_port_start)
    """
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
        message = f"The rendezvous port {probe.port} is privileged: {host} may not listen on it without root."
    else:
        message = f"The rendezvous port {probe.port} does not exist: ports are 1-{LAST_PORT}."
    return Finding(
        message=message,
        ranks=places.ranks([probe.node]),
        nodes=(host,),
        evidence=(
            EvidenceItem("port", f"bind of port {probe.port} on {host}: {probe.error or probe.status}"),
        ),
        fix=(Fix("take an ordinary port", repeat_launch(evidence.launch, port=DEFAULT_PORT)),),
        details={"port": probe.port, "status": probe.status},
    )


@check(
    "NET010",
    name="rendezvous-file-stale",
    title="A file:// rendezvous file was left by an earlier run or is shared by two jobs",
    severity="warning",
    family="network",
    needs=("nodes",),
    since="0.1.0",
    id="net.file.fresh",
    required=False,
)
def find_file_stale(evidence: Evidence) -> Iterable[Finding]:
    """A ``file://`` rendezvous file was left by an earlier run or is shared by two jobs.

    What it looks for:
        Files named by a ``file://`` rendezvous (the endpoint of the launch, or a variable that carries an
        init method) that already have contents before the job starts.

    Why it matters:
        torch's FileStore appends to the file and never starts afresh. The next run reads the addresses of
        the last one and connects to ports that are dead ("Connection refused"), or hangs; two jobs on one
        path mix.

    How it decides:
        The file exists and is not empty. An empty file, as mktemp makes, is fine. Where a running process
        has it open, the file is shared rather than stale, and the process is named.

    Known false alarms:
        A path that is made unique later, inside the script, cannot be seen here.

    Fix:
        Delete the file before each start, or better put the job's id into the path, or use env:// with
        torchrun.

    References:
        https://docs.pytorch.org/docs/stable/distributed.html (Shared file-system initialization)
        https://github.com/pytorch/pytorch/issues/13865
    """
    looked = [node for node in evidence.nodes if node.rendezvous_files is not None]
    if not looked:
        require(evidence, "nodes", "the nodes")
        raise CannotLook("nobody looked for files of a file:// rendezvous")
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
                message=f"The rendezvous file {file.path} on {places.host(node.node)} (from {file.named_by}) "
                f"{state}: it holds {file.size:,} bytes{age}.",
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
