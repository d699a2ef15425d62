"""ENV020, BKD004: a launch file starts other processes than its nodes, tasks and GPUs are for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.files.reading import Script
from ddpdoctor.source.launching.launch_files import Job, LaunchFile
from ddpdoctor.source.launching.starters import Starter
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact, tell_question

PER_NODE = ("--nproc-per-node", "--num-processes", "num-processes")
NODES = ("--nnodes", "--num-machines", "num-machines")
ONE_TASK = frozenset({"ntasks", "ntasks-per-node", "nodes", "nodelist", "overlap", "exclusive"})
"""Options of srun by which a step is given a part of the job."""
OF_SLURM = re.compile(r"\$\{?SLURM_(?:JOB_NUM_NODES|NNODES|JOB_NODES)\}?")
"""The number of nodes that the job has, as Slurm gives it."""
BY_ITSELF = re.compile(r"(?:.{0,200}/)?(?:python[\d.]{0,6}|torchrun|accelerate|exec|nohup|time)$")
"""First words of commands that nothing runs elsewhere: a variable may hold what does."""
ELSEWHERE = re.compile(r"\b(?:srun|mpirun|mpiexec|ssh|pdsh|clush|pssh|parallel|sbcast|salloc|ray)\b")
"""What runs commands on other nodes."""


@lint_rule(
    "launch-processes",
    "launch-tasks",
    "launch-nodes",
    "launch-gpus",
    "launch-idle",
    "launch-late",
    reads="launch",
)
def find_sizes(launch: LaunchFile, scripts: Sequence[Script]) -> Iterator[SourceFact]:
    """Yield commands whose processes do not fit what the file asks for.

    ``launch-gpus`` and ``launch-idle``: processes, gpus. ``launch-tasks``: tasks, processes. ``launch-nodes``: nodes,
    told, way (each: every node starts a job of its own; first: only one node runs anything; alone: it also waits for
    the others; more: nodes are waited for that are not asked for). ``launch-processes``: what a configuration of
    Accelerate says, as way and numbers. ``launch-late``: a line that sbatch does not read; the command before it is
    beside it.
    """
    if launch.late and launch.jobs:
        before = max((each.first for each in launch.commands if each.first < launch.late[0]), default=0)
        late = launch.place(launch.late[0])
        yield SourceFact("launch-late", late, _beside(launch, before), {"count": str(len(launch.late))})
    for job in launch.jobs:
        yield from _find_gpus(launch, job)
        yield from _find_tasks(launch, job)
        yield from _find_nodes(launch, job)
        yield from _find_processes(launch, job)


def _beside(launch: LaunchFile, line: int) -> tuple[RelatedPlace, ...]:
    return (RelatedPlace("condition", launch.place(line)),) if line else ()


def _find_gpus(launch: LaunchFile, job: Job) -> Iterator[SourceFact]:
    processes = job.starter.per_node
    if (
        processes is None
        or job.gpus is None
        or "cpu" in job.starter.options
        or job.starter.runner in ("ssh", "pdsh")
    ):
        return
    gpus, line = job.gpus
    place = launch.place_of(job.starter, *PER_NODE)
    details = {"processes": str(processes), "gpus": str(gpus)}
    if 0 < gpus < processes:
        yield SourceFact("launch-gpus", place, _beside(launch, line), details, certain=_always(job))
    elif processes < gpus and len(launch.jobs) == 1 and not job.starter.command.background:
        yield SourceFact("launch-idle", place, _beside(launch, line), details, certain=_always(job))


def _always(job: Job) -> bool:
    return not job.starter.command.conditional


def _find_tasks(launch: LaunchFile, job: Job) -> Iterator[SourceFact]:
    """Yield a launcher that srun starts several times on each node."""
    starter, asked = job.starter, launch.asked
    if starter.runner != "srun" or starter.kind == "launch":
        return
    own = starter.runner_options
    if any("$" in value for value in own.values()) or "ntasks" in own or "nodes" in own:
        return
    text = own.get("ntasks-per-node")
    line = 0
    if text is not None:
        tasks = int(text) if text.isascii() and text.isdigit() else None
    else:
        tasks, line = asked.number("ntasks-per-node"), asked.line("ntasks-per-node")
        total, nodes = asked.number("ntasks"), asked.number("nodes")
        if "ntasks" in asked.options:
            line = asked.line("ntasks")
            tasks = total // nodes if total is not None and nodes else None
    processes = starter.per_node
    if tasks is None or tasks < 2 or processes == 0:
        return
    told = {"tasks": str(tasks), "processes": "" if processes is None else str(processes)}
    yield SourceFact(
        "launch-tasks", launch.place_of(starter, "srun"), _beside(launch, line), told, certain=_always(job)
    )


def _find_nodes(launch: LaunchFile, job: Job) -> Iterator[SourceFact]:
    """Yield a launcher that knows of fewer nodes than the file asks for, or of more."""
    starter = job.starter
    if job.nodes is None or any("PET_" in line for line in launch.lines):
        return
    asked, line = job.nodes
    all_asked = OF_SLURM.fullmatch(starter.options.get("nnodes", starter.options.get("num-machines", "")))
    told, command = asked if all_asked else starter.nodes, starter.command
    if told is None:
        return
    several = len(launch.jobs) > 1 or command.background or command.loops
    place = launch.place_of(starter, *NODES)
    details = {"nodes": str(asked), "told": str(told)}
    if told > asked and told > 1 and starter.runner in ("", "srun"):
        fact = {**details, "way": "more"}
    elif told == asked > 1 and not several and _is_of_first(launch, starter):
        fact = {**details, "way": "alone"}
    elif told != 1 or asked < 2 or several:
        return
    elif starter.runner == "srun" and not ONE_TASK & set(starter.runner_options):
        fact = {**details, "way": "each"}
    elif starter.runner == "" and launch.asked.options:
        fact = {**details, "way": "first"}
    else:
        return
    yield SourceFact("launch-nodes", place, _beside(launch, line), fact, certain=_always(job))


def _is_of_first(launch: LaunchFile, starter: Starter) -> bool:
    """Whether a batch script starts something on its own node alone: nothing in it reaches another one."""
    return (
        starter.runner == ""
        and BY_ITSELF.match(starter.command.words[0]) is not None
        and bool(launch.asked.options)
        and not any(ELSEWHERE.search(line) for line in launch.lines if not line.lstrip().startswith("#"))
    )


def _find_processes(launch: LaunchFile, job: Job) -> Iterator[SourceFact]:
    """Yield contradictions in what ``accelerate launch`` or its configuration is given."""
    starter = job.starter
    if starter.kind != "accelerate":
        return
    total, nodes = starter.number("num-processes"), starter.number("num-machines")
    kind = starter.options.get("distributed-type", "").strip("'\"").upper()
    place = launch.place_of(starter, *PER_NODE)
    if total is not None and nodes and nodes > 1 and total % nodes:
        yield SourceFact(
            "launch-processes", place, details={"way": "uneven", "total": str(total), "nodes": str(nodes)}
        )
    elif total is not None and total > 1 and kind == "NO":
        yield SourceFact(
            "launch-processes", place, details={"way": "alone", "total": str(total), "nodes": "1"}
        )


@check("BKD004", family="source", needs=("sources",), id="lint.launch_gpus", commands=LINT)
def tell_gpus(evidence: Evidence) -> Iterable[Finding]:
    """A launch file starts more processes on a node than it asks for GPUs."""
    for fact in facts_of(evidence, "launch-gpus"):
        processes, gpus = fact.details["processes"], fact.details["gpus"]
        yield tell_fact(
            fact,
            f"{name_line(fact.place)} starts {processes} processes per node, but the job has "
            f"{gpus} GPU{'s' * (gpus != '1')} per node: local ranks {gpus} and above have none.",
            Fix("start as many processes as there are GPUs", code=f"--nproc-per-node={gpus}"),
            why="both numbers are written out in the file",
            severity="warning",
        )


@check("ENV020", family="source", needs=("sources",), id="lint.launch_sizes", commands=LINT)
def tell_sizes(evidence: Evidence) -> Iterable[Finding]:
    """A launch file starts other processes than its nodes and tasks are for."""
    for fact in facts_of(evidence, "launch-tasks"):
        tasks, processes = fact.details["tasks"], fact.details["processes"]
        many = f", which starts {processes} processes" if processes else ""
        yield tell_fact(
            fact,
            f"srun at {name_line(fact.place)} runs {tasks} tasks per node, each with a launcher of its own{many}: "
            "a node needs one launcher.",
            Fix("run one task per node; the launcher starts the ranks", code="#SBATCH --ntasks-per-node=1"),
            why="srun runs its command once for each task",
            severity="warning",
        )
    for fact in facts_of(evidence, "launch-nodes"):
        yield _tell_nodes(fact)
    for fact in facts_of(evidence, "launch-late"):
        yield tell_fact(
            fact,
            f"sbatch does not read the #SBATCH line at {name_line(fact.place)}, which is below the first command.",
            Fix("move all #SBATCH lines directly below the first line of the script"),
            why="sbatch stops reading them at the first line that is neither a comment nor empty",
            severity="warning",
        )
    for fact in facts_of(evidence, "launch-processes"):
        total, nodes = fact.details["total"], fact.details["nodes"]
        if fact.details["way"] == "alone":
            message = f"{total} processes are configured at {name_line(fact.place)}, distributed_type NO starts one."
            fix = Fix("name the kind of distributed training", code="distributed_type: MULTI_GPU")
        else:
            message = (
                f"{total} processes cannot be split over {nodes} machines at {name_line(fact.place)}: num_processes is "
                "the total over all machines."
            )
            fix = Fix(
                "give the number of all processes", code=f"--num_processes=$(({nodes} * GPUS_PER_NODE))"
            )
        yield tell_fact(fact, message, fix, why="both values are written out", severity="warning")
    for fact in facts_of(evidence, "launch-idle"):
        processes, gpus = fact.details["processes"], fact.details["gpus"]
        yield tell_question(
            fact,
            f"{name_line(fact.place)} starts {processes} process{'es' * (processes != '1')} per node, and the job has "
            f"{gpus} GPUs per node: are the others used?",
            Fix("start one process per GPU", code=f"--nproc-per-node={gpus}"),
            why="a process may use several GPUs",
        )


def _tell_nodes(fact: SourceFact) -> Finding:
    nodes, told, way = (fact.details[each] for each in ("nodes", "told", "way"))
    if way == "more":
        message = (
            f"The launcher at {name_line(fact.place)} waits for {told} nodes, and the job has "
            f"{nodes}: the missing ones never join."
        )
        fix = Fix("ask for as many nodes as the launcher waits for", code=f"--nnodes={nodes}")
    elif way == "each":
        message = (
            f"The job has {nodes} nodes, and the launcher at {name_line(fact.place)} starts a job of one: each node "
            "trains a model of its own."
        )
        fix = Fix("give the launcher the nodes and where they meet", code=_meet(nodes))
    else:
        end = "it waits for the others" if way == "alone" else "the others are idle"
        message = f"The job has {nodes} nodes, and {name_line(fact.place)} starts ranks on the first one only: {end}."
        fix = Fix("start the launcher on each node", code=f"srun --ntasks-per-node=1 {_meet(nodes)}")
    return tell_fact(fact, message, fix, why="both numbers are written out in the file", severity="warning")


def _meet(nodes: str) -> str:
    return f'torchrun --nnodes={nodes} --rdzv-backend=c10d --rdzv-endpoint="$head_node:29500"'
