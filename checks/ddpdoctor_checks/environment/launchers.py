"""Launcher variables that contradict the launch: Slurm, MPI, PET_*, Kubernetes, leftovers in the shell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ddpdoctor.evidence import Evidence, Launch
from ddpdoctor.judge import EvidenceItem, Finding, Fix, check
from ddpdoctor_checks.common.commands import repeat_launch
from ddpdoctor_checks.common.places import Places, is_loopback, on_one_machine, require, split_endpoint
from ddpdoctor_checks.common.wording import count_of, join_words, quote
from ddpdoctor_checks.environment.ranks import find_environments
from ddpdoctor_checks.environment.worlds import list_impossible

FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""Slurm numbers the steps that are no tasks of srun (batch script, interactive shell) from the top
(slurm/slurm.h, SLURM_BATCH_SCRIPT and its neighbours)."""

OWN_LAUNCH = ("ddpdoctor", "torchrun")
"""Launchers that start several ranks from one process on each node."""


@dataclass(frozen=True, slots=True)
class _Conflict:
    """One contradiction in one line."""

    line: str
    fix: str
    command: str | None = None
    severity: str | None = None
    role: str = "advice"
    confidence: str = "high"


class _Variables:
    """Numbers and texts of one environment."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def text(self, name: str) -> str | None:
        return self._variables.get(name) or None

    def number(self, *names: str) -> int | None:
        """Return the first of these variables that is a number."""
        for name in names:
            value = self._variables.get(name, "")
            if value.strip().isdecimal():
                return int(value)
        return None

    def managed(self) -> bool:
        """Whether a scheduler or an operator wrote this environment: its numbers mean its own layout."""
        marks = ("SLURM_JOB_ID", "SLURM_JOBID", "KUBERNETES_SERVICE_HOST", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
        return any(name in self._variables for name in marks) or any(
            name.startswith("PET_") for name in self._variables
        )


@check("ENV006", family="environment", needs=(), id="env.launcher.agrees")
def find_launcher_conflict(evidence: Evidence) -> Iterable[Finding]:
    """SLURM_*, OMPI_*, PET_*, Kubernetes or framework variables contradict the launch."""
    environments = find_environments(evidence)
    if not environments:
        require(evidence, "nodes", "the launching environment")
    places = Places(evidence)
    found: dict[_Conflict, list[int]] = {}
    for node, variables in environments.items():
        if not list_impossible(variables):  # ENV003 has said so
            for conflict in _list_conflicts(evidence, _Variables(variables), node):
                found.setdefault(conflict, []).append(node)
    for conflict, nodes in (*found.items(), *_find_local_master(evidence)):
        fixes = [Fix(conflict.fix, conflict.command)]
        yield Finding(
            message=f"On {join_words(places.hosts(nodes))}, {conflict.line}.",
            severity=conflict.severity,
            role=conflict.role,
            confidence=conflict.confidence,
            ranks=places.ranks(nodes),
            nodes=places.hosts(nodes),
            evidence=(EvidenceItem("variables", conflict.line),),
            fix=tuple(fixes),
            details={"contradiction": conflict.line},
        )


def _list_conflicts(evidence: Evidence, variables: _Variables, node: int) -> Iterator[_Conflict]:
    launch = evidence.launch
    yield from _compare_slurm(launch, variables)
    yield from _compare_mpi(launch, variables)
    yield from _compare_pet(launch, variables)
    if launch.launcher == "ddpdoctor":
        yield from _compare_leftovers(launch, variables, node)
    elif launch.launcher == "torchrun":
        stale = variables.number("NODE_RANK")
        if stale is not None and stale >= launch.nnodes:
            yield _Conflict(
                f"NODE_RANK={stale} is set, but torchrun runs on {count_of(launch.nnodes, 'node')}",
                "unset what an earlier job left behind",
                "unset NODE_RANK",
            )


def _compare_slurm(launch: Launch, variables: _Variables) -> Iterator[_Conflict]:
    tasks = variables.number("SLURM_NTASKS", "SLURM_NPROCS")
    nodes = variables.number("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    each = variables.number("SLURM_NTASKS_PER_NODE")
    if tasks and nodes and each and tasks != nodes * each:
        more = tasks > nodes * each
        yield _Conflict(
            f"SLURM_NTASKS={tasks} is not SLURM_NNODES={nodes} x SLURM_NTASKS_PER_NODE={each}",
            "request matching tasks, for instance one per rank",
            f"#SBATCH --nodes={nodes} --ntasks-per-node={each}  # and no --ntasks",
            severity=None if more else "info",
        )
    step = variables.number("SLURM_STEP_ID", "SLURM_STEPID")
    step_tasks, step_nodes = (
        variables.number("SLURM_STEP_NUM_TASKS"),
        variables.number("SLURM_STEP_NUM_NODES"),
    )
    in_step = step is not None and step < FIRST_SPECIAL_STEP
    if launch.launcher in OWN_LAUNCH and in_step and step_tasks and step_nodes and step_tasks > step_nodes:
        name = "torchrun" if launch.launcher == "torchrun" else "ddpdoctor check"
        yield _Conflict(
            f"srun started {name} {step_tasks} times on {count_of(step_nodes, 'node')} "
            f"(SLURM_STEP_NUM_TASKS={step_tasks}), and each starts "
            f"{count_of(launch.nproc, 'rank')} of its own",
            "start it once per node",
            f"srun --nodes {step_nodes} --ntasks-per-node 1 {name} …",
            role="cause",
        )
    if launch.launcher == "srun" and step_tasks and step_tasks != launch.world_size:
        yield _Conflict(
            f"SLURM_STEP_NUM_TASKS={step_tasks}, but the launch has {count_of(launch.world_size, 'rank')}",
            "set WORLD_SIZE to the number of tasks",
            "export WORLD_SIZE=$SLURM_STEP_NUM_TASKS",
            role="cause",
        )
    if launch.launcher in OWN_LAUNCH and nodes and launch.nnodes > nodes:
        yield _Conflict(
            f"SLURM_NNODES={nodes}, but the launch expects {count_of(launch.nnodes, 'node')}",
            "request as many nodes from Slurm, or launch on fewer",
            repeat_launch(replace(launch, nnodes=nodes, world_size=nodes * launch.nproc)),
            role="cause",
        )


def _compare_mpi(launch: Launch, variables: _Variables) -> Iterator[_Conflict]:
    for size_name, local_names in (
        ("OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_LOCAL_SIZE",)),
        ("PMI_SIZE", ("MPI_LOCALNRANKS",)),
    ):
        size, local = variables.number(size_name), variables.number(*local_names)
        if size is None:
            continue
        if launch.launcher == "mpirun" and size != launch.world_size:
            yield _Conflict(
                f"{size_name}={size}, but the launch has {count_of(launch.world_size, 'rank')}",
                "set WORLD_SIZE to the number of MPI processes",
                f"export WORLD_SIZE=${size_name}",
                role="cause",
            )
        if launch.launcher in OWN_LAUNCH and local is not None and local > 1:
            name = "torchrun" if launch.launcher == "torchrun" else "ddpdoctor check"
            yield _Conflict(
                f"mpirun started {name} {local} times on one node ({local_names[0]}={local}), and each "
                f"starts {count_of(launch.nproc, 'rank')} of its own",
                "start it once per node, or let mpirun start the ranks without torchrun",
                f"mpirun --map-by ppr:1:node {name} …",
                role="cause",
            )


def _compare_pet(launch: Launch, variables: _Variables) -> Iterator[_Conflict]:
    """Compare with torchrun's own variables for its options; the command line goes before them."""
    if launch.launcher not in OWN_LAUNCH:
        return
    seen = {
        "PET_NNODES": (variables.text("PET_NNODES"), launch.nnodes),
        "PET_NPROC_PER_NODE": (variables.text("PET_NPROC_PER_NODE"), launch.nproc),
    }
    for name, (value, actual) in seen.items():
        if value is None or (launch.launcher == "torchrun" and name == "PET_NPROC_PER_NODE"):
            continue
        high = value.rpartition(":")[2]
        low = value.partition(":")[0]
        if not (high.isdecimal() and low.isdecimal()) or int(low) <= actual <= int(high):
            continue
        unit = "node" if name == "PET_NNODES" else "rank"
        where = " here" if unit == "rank" else ""
        alone = launch.nnodes == 1 or unit == "rank"
        yield _Conflict(
            f"{name}={value}, but the launch has {count_of(actual, unit)}{where}",
            "omit the option to follow the variable, or unset the variable",
            f"unset {name}",
            severity="info" if alone else None,
        )


def _compare_leftovers(launch: Launch, variables: _Variables, node: int) -> Iterator[_Conflict]:
    """Report rank variables that describe another launch than the one that ddpdoctor made."""
    size, rank = variables.number("WORLD_SIZE"), variables.number("RANK")
    if size is not None and size != launch.world_size:
        which = f"WORLD_SIZE={size}" + (f" and RANK={rank}" if rank is not None else "")
        if variables.text("KUBERNETES_SERVICE_HOST"):
            yield _Conflict(
                f"{which} count pods, not processes: this launch has {count_of(launch.world_size, 'rank')}",
                "in each pod let torchrun start one process per GPU",
                f"torchrun --nnodes $WORLD_SIZE --node-rank $RANK --nproc-per-node {launch.nproc} "
                "--master-addr $MASTER_ADDR --master-port $MASTER_PORT train.py",
                severity="info",
            )
        else:
            yield _Conflict(
                f"{which} {'are' if rank is not None else 'is'} set in the shell, but this launch has "
                f"{count_of(launch.world_size, 'rank')}",
                "unset what an earlier job or another launcher left behind; torchrun sets its own",
                "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE",
                severity="info" if variables.managed() else None,
            )
    stale = variables.number("NODE_RANK")
    if stale is not None and (stale >= launch.nnodes or (_is_static(launch) and stale != node)):
        truth = f"the launch has {count_of(launch.nnodes, 'node')}"
        if stale < launch.nnodes:
            truth = "--node-rank is another"
        yield _Conflict(
            f"NODE_RANK={stale} is set in the shell, but {truth}",
            "unset what an earlier job left behind; Lightning and others read it",
            "unset NODE_RANK",
            severity="info" if variables.managed() else None,
        )


def _is_static(launch: Launch) -> bool:
    return launch.nnodes > 1 and launch.rdzv_backend in (None, "static")


def _find_local_master(evidence: Evidence) -> Iterator[tuple[_Conflict, list[int]]]:
    """Report nodes that look for the rendezvous on themselves although it is to join several nodes."""
    launch = evidence.launch
    if launch.nnodes < 2 or on_one_machine(evidence):
        return
    if any(not each.own and each.state not in ("unwatched", "unknown") for each in evidence.members):
        return  # another node has met this one there
    views = {view.node: view for view in evidence.rendezvous}
    if any(len(view.joined_ranks) >= view.expected_ranks and not view.error for view in views.values()):
        return
    told = {node: view.endpoint for node, view in views.items() if view.endpoint}
    if not told:
        endpoint = launch.rdzv_endpoint or launch.master_addr
        told = {launch.node_rank or 0: endpoint} if endpoint else {}
    local: dict[str, list[int]] = {}
    for node, endpoint in told.items():
        host, _ = split_endpoint(endpoint)
        if is_loopback(host):
            local.setdefault(host, []).append(node)
    for host, nodes in local.items():
        home = nodes == [0] and len(told) > 1
        if home:
            continue
        known = next((facts for facts in evidence.nodes if facts.node == 0), None)
        name = known.host if known is not None and 0 in told else "HOST-OF-NODE-0"
        yield (
            _Conflict(
                f"the rendezvous is at {quote(host)}, which is each node itself, in a job of "
                f"{count_of(launch.nnodes, 'node')}",
                "give all nodes the name or address of the rendezvous host",
                repeat_launch(launch, address=name),
                role="cause",
                confidence="high" if nodes != [0] else "medium",
            ),
            nodes,
        )
