"""Who the ranks are: variables that are missing, and ranks claimed twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.commands import DEFAULT_PORT, repeat_launch
from ddpdoctor_checks.common.places import Places, require
from ddpdoctor_checks.common.wording import (
    choose_form,
    join_words,
    name_set,
)

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What env:// initialisation reads (_env_rendezvous_handler in torch/distributed/rendezvous.py)."""

FROM_SLURM = (
    "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS "
    f"MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1) MASTER_PORT={DEFAULT_PORT}"
)
FROM_MPI = (
    "export RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK "
    "WORLD_SIZE=$OMPI_COMM_WORLD_SIZE"
)


def find_environments(evidence: Evidence) -> dict[int, Mapping[str, str]]:
    """Return node -> what its launching process had; of a launch without node facts what was not followed."""
    found: dict[int, Mapping[str, str]] = {node.node: node.variables for node in evidence.nodes}
    if not found and evidence.launch.variables:
        found[evidence.launch.node_rank or 0] = evidence.launch.variables
    return found


@check("ENV001", family="environment", needs=(), id="env.ranks.described")
def find_variables_missing(evidence: Evidence) -> Iterable[Finding]:
    """RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT are needed and absent."""
    if evidence.processes:
        raise NotApplicable("not applicable to `run` (only checked before launch by `ddpdoctor check`)")
    environments = find_environments(evidence)
    if not evidence.ranks and not environments:
        require(evidence, "nodes", "any environment")
    places = Places(evidence)
    yield from _judge_ranks(evidence, places)
    launcher = evidence.launch.launcher
    lacking: dict[tuple[str, ...], list[int]] = {}
    for node, variables in environments.items():
        missing = tuple(name for name in NEEDED if not variables.get(name))
        partial = launcher == "ddpdoctor" and bool(variables.get("RANK"))
        if missing and (partial or launcher in ("srun", "mpirun")):
            lacking.setdefault(missing, []).append(node)
    for missing, nodes in lacking.items():
        yield _describe_environment(launcher, places, missing, nodes)


def _judge_ranks(evidence: Evidence, places: Places) -> Iterable[Finding]:
    fine = RankSet().union(*(each.passed for each in evidence.initialisations if each.method == "env"))
    initialised = set(fine)
    missing: dict[tuple[str, ...], list[int]] = {}
    for rank in evidence.ranks:
        lacks = tuple(name for name in NEEDED if name not in rank.variables)
        if lacks and rank.variables and rank.rank not in initialised:
            missing.setdefault(lacks, []).append(rank.rank)
    for names, ranks in missing.items():
        launcher = evidence.launch.launcher
        who = RankSet(ranks)
        yield Finding(
            message=(
                f"{join_words(names)} {choose_form(len(names), 'is', 'are')} not set in {name_set(who)}, "
                f"started by {launcher}: env:// initialization needs "
                f"{choose_form(len(names), 'it', 'them')}."
            ),
            ranks=who,
            nodes=places.hosts(sorted({rank.node for rank in evidence.ranks if rank.rank in set(ranks)})),
            evidence=(EvidenceItem("variables", f"absent in {name_set(who)}: {', '.join(names)}", who),),
            fix=(_fix_missing(launcher, evidence.launch.nproc),),
            details={"missing": list(names), "launcher": launcher},
        )


def _fix_missing(launcher: str, nproc: int) -> Fix:
    if launcher == "srun":
        return Fix("export them in each task, before the script starts", FROM_SLURM)
    if launcher == "mpirun":
        return Fix("export them in each process, and MASTER_ADDR and MASTER_PORT with mpirun -x", FROM_MPI)
    return Fix("start the script with torchrun", f"torchrun --nproc-per-node {nproc} train.py")


def _describe_environment(launcher: str, places: Places, missing: Sequence[str], nodes: list[int]) -> Finding:
    own = launcher in ("srun", "mpirun")
    where = join_words(places.hosts(nodes))
    verb = choose_form(len(missing), "is", "are")
    message = f"RANK is set in the environment of {where}, but {join_words(missing)} {verb} not."
    if own:
        message = (
            f"{launcher} sets no {join_words(missing, last='or')} on {where}, which env:// scripts read."
        )
    fix = _fix_missing(launcher, places.per_node)
    return Finding(
        message=message,
        severity="info" if own else "warning",
        role="advice",
        ranks=places.ranks(nodes),
        nodes=places.hosts(nodes),
        evidence=(EvidenceItem("variables", f"absent in the environment of {where}: {', '.join(missing)}"),),
        fix=(fix,)
        if own
        else (Fix("unset what an earlier job left in the shell", "unset RANK LOCAL_RANK"), fix),
        details={"missing": list(missing), "launcher": launcher},
    )


@check("ENV002", family="environment", needs=(), id="env.ranks.unique")
def find_rank_duplicated(evidence: Evidence) -> Iterable[Finding]:
    """Two processes claim one rank, or two nodes one node rank."""
    if not (evidence.ranks or evidence.rendezvous or evidence.nodes):
        require(evidence, "ranks", "the ranks")
    claims: dict[tuple[str, int], dict[str, None]] = {}
    for rank in evidence.ranks:
        claims.setdefault(("rank", rank.rank), {})[f"{rank.host}:{rank.pid}"] = None
    for view in evidence.rendezvous:
        for number, first, second in view.duplicates:
            claims.setdefault((view.duplicate_kind, number), {}).update({first: None, second: None})
    places = Places(evidence)
    for (kind, number), who in claims.items():
        if len(who) > 1:
            yield _describe_duplicate(evidence, places, kind, number, list(who))


def _describe_duplicate(
    evidence: Evidence, places: Places, kind: str, number: int, who: Sequence[str]
) -> Finding:
    node = kind == "node"
    called = f"{'node rank' if node else 'rank'} {number}"
    hosts = tuple(dict.fromkeys(each.rpartition(":")[0] for each in who))
    free = _find_free(evidence, number) if node else None
    fixes = []
    if node and free is not None:
        fixes.append(Fix(f"start one of them as node {free}", repeat_launch(evidence.launch, node_rank=free)))
    elif evidence.launch.launcher in ("ddpdoctor", "torchrun"):
        fixes.append(Fix("give every node its own --node-rank", repeat_launch(evidence.launch, node_rank=1)))
    else:
        fixes.append(
            Fix(
                "number the ranks across all nodes",
                code="rank = node_rank * nproc_per_node + local_rank  # not local_rank alone",
            )
        )
    if len(hosts) == 1:
        pids = " ".join(each.rpartition(":")[2] for each in who)
        fixes.append(
            Fix("if one of them is a leftover, end it", f"ps -o pid,etime,args -p {pids.replace(' ', ',')}")
        )
    return Finding(
        message=f"{join_words(who)} both use {called}."
        if len(who) == 2
        else f"{len(who)} processes use {called}: {join_words(who)}.",
        ranks=places.ranks([number]) if node else RankSet([number]),
        nodes=hosts,
        evidence=tuple(EvidenceItem("claim", f"{each} uses {called}") for each in who),
        fix=tuple(fixes),
        details={"kind": kind, "number": number, "claimants": list(who)},
    )


def _find_free(evidence: Evidence, taken: int) -> int | None:
    """Return a node rank that nobody claimed."""
    joined = {node for view in evidence.rendezvous for node in view.joined_nodes}
    seen = {taken, *joined, *(node.node for node in evidence.nodes)}
    return next((number for number in range(evidence.launch.nnodes) if number not in seen), None)
