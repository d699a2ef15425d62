"""NET001, NET003, NET009: launch files in which ranks cannot meet where they are told to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.files.reading import Script
from ddpdoctor.source.launching.launch_files import Job, LaunchFile
from ddpdoctor.source.launching.starters import Starter
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})
PLACES = ("--rdzv-endpoint", "--master-addr", "--main-process-ip", "main-process-ip")
PORTS = ("--rdzv-endpoint", "--master-port", "--main-process-port", "main-process-port")
MOST = 65535
PRIVILEGED = 1024


@lint_rule("launch-port-shared", "launch-loopback", "launch-port", reads="launch")
def find_places(launch: LaunchFile, scripts: Sequence[Script]) -> Iterator[SourceFact]:
    """Yield where the ranks of a launch file cannot meet.

    ``launch-port-shared``: a job that runs beside another one on this host with the same port; port, way (beside or
    loop). ``launch-loopback``: nodes that are told to meet on themselves; host is what is written, or empty.
    ``launch-port``: a port that cannot be used.
    """
    yield from _find_shared(launch)
    for job in launch.jobs:
        yield from _find_loopback(launch, job)
        known = job.starter.endpoint
        if known is not None and known[1].isascii() and known[1].isdigit():
            port = int(known[1])
            if port and not PRIVILEGED <= port <= MOST:
                place = launch.place_of(job.starter, *PORTS)
                yield SourceFact("launch-port", place, details={"port": known[1]})


def _find_shared(launch: LaunchFile) -> Iterator[SourceFact]:
    running: dict[str, Starter] = {}
    waits = [each for each in launch.commands if each.words[0] == "wait"]
    for job in launch.jobs:
        starter, command = job.starter, job.starter.command
        if starter.runner or starter.nodes != 1 or command.conditional:
            continue
        for earlier in list(running.values()):
            if any(earlier.command.first < each.first < command.first for each in waits):
                running = {port: each for port, each in running.items() if each is not earlier}
        port = starter.port
        if port is None:
            continue
        place = launch.place_of(starter, *PORTS)
        if port in running:
            beside = (RelatedPlace("noticed", launch.place_of(running[port], *PORTS)),)
            yield SourceFact("launch-port-shared", place, beside, {"port": port, "way": "beside"})
        elif command.background and command.loops and not _waits_inside(launch, starter):
            yield SourceFact("launch-port-shared", place, details={"port": port, "way": "loop"})
        if command.background:
            running[port] = starter


def _waits_inside(launch: LaunchFile, starter: Starter) -> bool:
    """Whether the loop around a command ends other than by starting the next round at once."""
    loop = starter.command.loops[-1]
    return any(loop in each.loops and each.words[0] in ("wait", "break", "exit") for each in launch.commands)


def _find_loopback(launch: LaunchFile, job: Job) -> Iterator[SourceFact]:
    starter = job.starter
    nodes = starter.nodes
    if (
        starter.kind == "accelerate"
        and starter.runner != "configuration"
        and "config-file" in starter.options
    ):
        return
    if (
        job.managed
        or nodes is None
        or nodes < 2
        or len(launch.jobs) > 1
        or any("PET_" in line for line in launch.lines)
    ):
        return  # several in one file: nodes that are tried on one host
    known = starter.endpoint
    if known is None or {"standalone", "mpirun-hostfile"} & set(starter.options):
        return
    host = known[0]
    if host and host not in LOOPBACK:
        return
    if not host and not starter.complete:
        return
    yield SourceFact(
        "launch-loopback", launch.place_of(starter, *PLACES), details={"host": host, "nodes": str(nodes)}
    )


@check("NET001", family="source", needs=("sources",), id="lint.launch_ports", commands=LINT)
def tell_shared(evidence: Evidence) -> Iterable[Finding]:
    """A launch file starts two jobs at the same time on one port."""
    for fact in facts_of(evidence, "launch-port-shared"):
        port = fact.details["port"]
        other = (
            f"the job started at {name_line(fact.related[0].place)}, which still runs"
            if fact.related
            else "the job of the previous round of the loop, which still runs"
        )
        yield tell_fact(
            fact,
            f"{name_line(fact.place)} uses port {port} of this host, as does {other}.",
            Fix("give each job a port of its own, or let torchrun choose one", code="torchrun --standalone"),
            why="the earlier one runs in the background, and nothing waits for it in between",
            severity="warning",
        )


@check("NET003", family="source", needs=("sources",), id="lint.launch_loopback", commands=LINT)
def tell_loopback(evidence: Evidence) -> Iterable[Finding]:
    """A launch file has several nodes meet on a loopback address."""
    for fact in facts_of(evidence, "launch-loopback"):
        host, nodes = fact.details["host"], fact.details["nodes"]
        told = (
            f"{host}, where each node reaches only itself"
            if host
            else "no address, so each node waits on its own 127.0.0.1"
        )
        yield tell_fact(
            fact,
            f"The launcher at {name_line(fact.place)} is started on {nodes} nodes with {told}.",
            Fix(
                "give all nodes the address of one of them",
                code='--rdzv-backend=c10d --rdzv-endpoint="$head_node:29500"',
            ),
            why="the number of nodes and the address are written out",
            severity="warning",
        )


@check("NET009", family="source", needs=("sources",), id="lint.launch_port", commands=LINT)
def tell_port(evidence: Evidence) -> Iterable[Finding]:
    """A launch file has a port that is out of range or privileged."""
    for fact in facts_of(evidence, "launch-port"):
        port = int(fact.details["port"])
        wrong = "is above 65535" if port > MOST else "is below 1024, which only root may open"
        yield tell_fact(
            fact,
            f"Port {port} at {name_line(fact.place)} {wrong}.",
            Fix("use a port between 1024 and 65535, below the ephemeral range", code="--master-port=29500"),
            why="the port is written out",
            severity=None if port > MOST else "warning",
        )
