"""NET: what texts of torch, gloo and NCCL settle about the rendezvous and the network."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.judge import EvidenceItem, Finding, Fix, check
from ddpdoctor_checks.common.commands import DEFAULT_PORT
from ddpdoctor_checks.common.jobs import JOB
from ddpdoctor_checks.common.wording import choose_form, count_of, name_set, quote
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.members import describe_loss, find_lost
from ddpdoctor_checks.job.ends.clauses import Clause, Describe, name_hosts, require_job
from ddpdoctor_checks.job.ends.rerun import ELASTIC, launcher_of, rerun

LAST_PORT = 65535


def _port(diagnosis: Diagnosis, group: Group) -> int | None:
    """Return the port that the text names, else the one that was asked for."""
    text = group.first.groups.get("port") or group.first.view.variables.get("MASTER_PORT", "")
    return int(text) if text.isdigit() else diagnosis.evidence.launch.master_port


def _describe_taken(diagnosis: Diagnosis, group: Group) -> Clause:
    port = _port(diagnosis, group)
    other = port + 1 if port is not None and 1024 <= port < LAST_PORT else DEFAULT_PORT
    if launcher_of(diagnosis) in ELASTIC:
        fixes = [Fix("choose another port", rerun(diagnosis, port=other))]
        if diagnosis.context.nodes == 1:
            fixes.append(Fix("on one node let torchrun find a free port", rerun(diagnosis, "--standalone")))
    else:  # the script chooses the port itself
        fixes = [
            Fix(
                "choose another port where the script sets it; on one node let the system find a free one "
                "before the ranks are started",
                code='with socket.socket() as probe:\n    probe.bind(("127.0.0.1", 0))\n'
                '    os.environ["MASTER_PORT"] = str(probe.getsockname()[1])',
            )
        ]
    fixes.append(Fix("find the process that holds it", f"ss -ltnp 'sport = :{port or DEFAULT_PORT}'"))
    what = "the rendezvous port" if port is None else f"the rendezvous port {port}"
    return Clause(f"{what} is held by another process", fixes, {"port": port})


def _describe_invalid(diagnosis: Diagnosis, group: Group) -> Clause:
    groups = group.first.groups
    denied = group.first.entry is not None and group.first.entry.id.startswith("port-denied")
    value = groups.get("port") or groups.get("endpoint") or ""
    if denied:
        port = value or _port(diagnosis, group)
        what = f"port {port} is privileged" if port else "the port is privileged"
    else:
        what = f"{quote(value) if value else 'the port'} is not a port"
    return Clause(
        f"{what}: the rendezvous needs one between 1024 and {LAST_PORT}",
        (Fix("use an unprivileged port", rerun(diagnosis, port=DEFAULT_PORT)),),
        {"port": value or None},
    )


def _describe_unresolvable(diagnosis: Diagnosis, group: Group) -> Clause:
    name = group.first.groups.get("host", "the name")
    where = name_hosts(diagnosis, group.failures)
    return Clause(
        f"the rendezvous host {quote(name)} cannot be resolved on {where}",
        (
            Fix("query the resolver there", f"getent ahosts {quote(name, 255)}"),
            Fix(
                "use an IP address instead (`--master-addr`, `--rdzv-endpoint`), or add the name to "
                "/etc/hosts"
            ),
        ),
        {"host": name},
    )


def _describe_peer(diagnosis: Diagnosis, group: Group) -> Clause:
    name = group.first.groups.get("host", "the name")
    return Clause(
        (
            f"a node published itself as {quote(name)}, which cannot be resolved on "
            f"{name_hosts(diagnosis, group.failures)}"
        ),
        (
            Fix(
                "let each node publish an address",
                rerun(diagnosis, torchrun=True, shell="--local-addr $(hostname -I | cut -d' ' -f1)"),
            ),
            Fix("or add the name to the DNS or to /etc/hosts of every node", f"getent ahosts {quote(name, 255)}"),
        ),
        {"host": name},
    )  # fmt: skip


def _describe_loopback(diagnosis: Diagnosis, group: Group) -> Clause:
    address = group.first.groups.get("address", "127.0.0.1")
    interface = group.first.groups.get("interface", "lo")
    if interface != "lo":
        return Clause(
            f"NCCL uses {interface} ({address}) on {name_hosts(diagnosis, group.failures)}: the bridge of containers "
            "or virtual machines of that node, which no other node reaches",
            (
                Fix("set the interface that reaches the other nodes, on each node",
                    "export NCCL_SOCKET_IFNAME=$(ip route get $MASTER_ADDR | grep -oP 'dev \\K\\S+')"),
                Fix("or exclude such interfaces", f"export NCCL_SOCKET_IFNAME=^{interface.rstrip('0123456789')},lo"),
            ),
            {"address": address, "interface": interface},
        )  # fmt: skip
    return Clause(
        f"a rank on another node was contacted at {address}: a node's host name maps to loopback",
        (
            Fix("set the interface that reaches the other nodes, on each node",
                "export GLOO_SOCKET_IFNAME=$(ip route get $MASTER_ADDR | grep -oP 'dev \\K\\S+')"),
            Fix("or remove the host name from the 127.0.1.1 line", "grep -n 127 /etc/hosts"),
        ),
        {"address": address},
    )  # fmt: skip


def _describe_interface(diagnosis: Diagnosis, group: Group) -> Clause:
    value = group.first.groups.get("value")
    variables = group.first.view.variables
    nccl = group.first.entry is not None and group.first.entry.id == "nccl-interface-missing"
    variable = "NCCL_SOCKET_IFNAME" if nccl else "GLOO_SOCKET_IFNAME"
    value = value or variables.get(variable, "")
    syntax = not nccl and (value.startswith(("^", "=")) or "," in value)
    why = (
        "gloo accepts one name, not a list or an exclusion"
        if syntax
        else "no interface of this node has that name"
    )
    return Clause(
        f"{variable}={quote(value)} names no interface: {why}",
        (
            Fix("list the interfaces there", "ip -brief address"),
            Fix("set the one that reaches the other nodes, or unset it on one node", f"unset {variable}"),
        ),
        {"variable": variable, "value": value},
    )


def _describe_blocked(diagnosis: Diagnosis, group: Group) -> Clause:
    return Clause(
        "the rendezvous worked, but connections between the nodes timed out: a firewall allows the master "
        "port but blocks the ephemeral ones",
        (
            Fix("check which ports are used", "sysctl net.ipv4.ip_local_port_range"),
            Fix(
                "open that range between all nodes, then test it on all of them",
                "ddpdoctor check --only tcp,rendezvous",
            ),
        ),
        {},
    )


def _describe_missing(diagnosis: Diagnosis, group: Group) -> Clause:
    groups = group.first.groups
    joined, expected = groups.get("joined"), groups.get("expected")
    missing = diagnosis.suspects
    if not (joined and expected) and 0 < len(missing) < len(diagnosis.world):
        joined, expected = str(len(diagnosis.world) - len(missing)), str(len(diagnosis.world))
    count = f"{joined} of {expected} joined" if joined and expected else "not all ranks joined"
    started = RankSet(
        view.rank for view in diagnosis.views.ranks if view.rank is not None and view.process is not None
    )
    idle = RankSet(rank for rank in missing if rank in started)
    told = [
        *([f"{name_set(missing.minus(idle))} never started"] if missing.minus(idle) else []),
        *([f"{name_set(idle)} never called init_process_group"] if idle else []),
    ]
    who = " and ".join(told) if told else "the missing ranks cannot be determined"
    after = f" within {groups['seconds']} s" if "seconds" in groups else ""
    return Clause(
        f"The rendezvous ended without all ranks: {count}{after}; {who}.",
        _fixes_missing(diagnosis, idle),
        {"joined": joined, "expected": expected},
        whole=True,
        ranks=missing,
    )


def _fixes_missing(diagnosis: Diagnosis, idle: RankSet) -> list[Fix]:
    if idle:
        return [
            Fix(
                f"check what {name_set(idle)} did before init_process_group: nothing may end or block "
                "it there"
            ),
            Fix(
                "or raise the timeout",
                code="dist.init_process_group(backend, timeout=datetime.timedelta(minutes=30))",
            ),
        ]
    if diagnosis.context.nodes == 1 and launcher_of(diagnosis) not in ELASTIC:
        return [
            Fix(
                "start as many processes as world_size says",
                code="mp.spawn(train, args=(world_size,), nprocs=world_size)",
            )
        ]
    return [
        Fix("start the command on every node: nodes x ranks per node must equal WORLD_SIZE"),
        Fix("test which nodes join", "ddpdoctor check --only tcp,rendezvous"),
    ]


def _describe_unmatched(diagnosis: Diagnosis, group: Group) -> Clause:
    endpoint = diagnosis.evidence.launch.rdzv_endpoint
    at = f" at {endpoint}" if endpoint else ""
    return Clause(
        f"no store serves the rendezvous{at}: no node recognizes itself as its host, or the host is down",
        (
            Fix("use the rendezvous host's own name or address as the endpoint", "hostname -f; hostname -I"),
            Fix(
                "or set the host explicitly on that node",
                rerun(diagnosis, "--rdzv-conf", "is_host=1", torchrun=True),
            ),
        ),
        {"endpoint": endpoint},
        confidence="medium",
    )


def _describe_stale(diagnosis: Diagnosis, group: Group) -> Clause:
    process = group.first.view.process
    method = process.init_method if process is not None and process.init_method else "file://…"
    path = method.removeprefix("file://")
    return Clause(
        f"the rendezvous file {path} contained addresses of an earlier run, and nothing is listening there",
        (
            Fix("delete it before the next start", f"rm -f {quote(path, 4096)}"),
            Fix("or use a file of its own for every job, or env:// with torchrun",
                code='dist.init_process_group("gloo", init_method="env://")'),
        ),
        {"path": path},
    )  # fmt: skip


def _describe_link(diagnosis: Diagnosis, group: Group) -> Clause:
    hosts = name_hosts(diagnosis, group.failures)
    return Clause(
        (
            f"The link between {hosts} was lost while all processes were still running: every rank of every "
            "node timed out."
        ),
        (
            Fix(
                ("check the error counters of the interfaces"),
                "ip -s link; ethtool -S eth0 | grep -iE 'err|drop'",
            ),
            Fix("test every pair of nodes", "ddpdoctor check --only tcp,bandwidth"),
        ),
        whole=True,
        ranks=RankSet(),
        confidence="medium",
    )


def _describe_noise(diagnosis: Diagnosis, count: int) -> Finding:
    return Finding(
        message=(
            f"The {count_of(count, 'line')} with errno 97 (no IPv6 here) {choose_form(count, 'is', 'are')} "
            "harmless: torch tries IPv6 first and then connects over IPv4."
        ),
        evidence=(EvidenceItem("text", "(errno: 97 - Address family not supported by protocol)"),),
        fix=(Fix("nothing is needed; an IPv4 address instead of the name removes the lines"),),
        role="advice",
        details={"lines": count},
    )


@check("NET012", family="crash", needs=(), id="crash.address_family", required=False, commands=JOB)
def find_address_family_noise(evidence: Evidence) -> Iterable[Finding]:
    """Lines with errno 97 stand in the output of a job that failed for another reason."""
    diagnosis = require_job(evidence)
    lines = [text for text in evidence.texts if text.entry == "address-family"]
    if lines and diagnosis.cause is not None:
        yield _describe_noise(diagnosis, sum(text.count for text in lines))


def _describe_node(diagnosis: Diagnosis, group: Group) -> Clause:
    hosts = name_hosts(diagnosis, group.failures)
    host = quote(diagnosis.host(group.first.view), 255)
    ranks = group.ranks
    last = max(
        (m.at.wall_ns for f in group.failures if f.view.process for m in f.view.process.milestones),
        default=None,
    )
    who = f"with {name_set(ranks)} " if ranks else ""
    member = find_lost(diagnosis, group.first.view.node)
    how = "none of its processes recorded an exit, while others of the job did"
    if group.first.entry is not None and group.first.entry.id == "scheduler-lost-node":
        how = "Slurm reports it"
    if member is not None:
        how, last = describe_loss(member), member.seen_ns
    gone = "is gone" if member is None or member.state == "closed" else "is gone or unreachable"
    return Clause(
        f"The node {hosts} {who}{gone}: {how}.",
        (
            Fix(
                "check whether the host is up, and its kernel log",
                f"ssh {host} 'uptime; dmesg -T | tail -50'",
            ),
            Fix("on a cluster query the scheduler for the node's state", "sinfo -R"),
        ),
        {
            "last_sign_wall_ns": last,
            "group_rank": group.first.view.node,
            "state": member.state if member is not None else None,
            "silent_s": member.silent_s if member is not None else None,
        },
        whole=True,
    )


CLAUSES: dict[str, Describe] = {
    "NET010": _describe_stale,
    "NET007": _describe_unmatched,
    "NET004": _describe_interface,
    "NET011": _describe_link,
    "NET003": _describe_loopback,
    "NET002": _describe_unresolvable,
    "NET015": _describe_node,
    "NET008": _describe_peer,
    "NET009": _describe_invalid,
    "NET001": _describe_taken,
    "NET005": _describe_blocked,
    "NET006": _describe_missing,
}
