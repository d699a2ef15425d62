"""Threads against cores: too many, or idle cores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ddpdoctor.evidence import Cpus, Evidence, NodeFacts, RankFacts
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, check
from ddpdoctor_checks.common.commands import repeat_launch
from ddpdoctor_checks.common.places import Places, count_cores
from ddpdoctor_checks.common.stage_evidence import explain_missing
from ddpdoctor_checks.common.wording import choose_form, count_of, format_number, join_words

FAR_ABOVE = 2.0
"""Threads per core from which it is reported: up to 2 a core with hyper-threading (two logical cores each)
still gains or costs little; beyond, OpenMP's spinning threads only take turns."""
IDLE = 0.5
"""Share of the cores below which OMP_NUM_THREADS=1 leaves half or more of them idle."""


@dataclass(frozen=True, slots=True)
class _Load:
    """What a node's ranks ask of its cores; equal loads of many nodes are one finding."""

    ranks: int
    threads: int
    cores: float
    cpus: Cpus
    setting: str | None
    """OMP_NUM_THREADS in the shell that launched."""
    gpu: bool
    started: int | None
    """Threads that torch itself has in a rank; None where no rank told."""


@check("ENV011", family="environment", needs=("nodes",), id="env.threads.fit", required=False)
def find_threads_oversubscribed(evidence: Evidence) -> Iterable[Finding]:
    """Ranks x intra-op threads are far above the cores allowed, or OMP_NUM_THREADS=1 leaves cores idle."""
    places = Places(evidence)
    by_node: dict[int, list[RankFacts]] = {}
    for rank in evidence.ranks:
        by_node.setdefault(rank.node, []).append(rank)
    machines: dict[str, list[NodeFacts]] = {}
    for node in evidence.nodes:  # agents side by side are nodes that share one machine's cores
        machines.setdefault(node.boot_id or f"node {node.node}", []).append(node)
    loads: dict[_Load, list[int]] = {}
    for sharing in machines.values():
        ranks = [rank for node in sharing for rank in by_node.get(node.node, [])]
        count = sum(places.count(node.node) for node in sharing)
        load = _measure(evidence, sharing[0], ranks, count)
        if load is not None:
            loads.setdefault(load, []).extend(node.node for node in sharing)
    if not loads and not evidence.ranks:
        raise explain_missing(evidence, "rendezvous", "the threads of the ranks")
    if not loads:
        raise CannotLook("the cores or the threads of the ranks are not known")
    for load, nodes in loads.items():
        asked = load.ranks * load.threads
        if asked > FAR_ABOVE * load.cores:
            yield _describe_many(evidence, places, load, nodes)
        elif load.threads == 1 and load.ranks <= IDLE * load.cores and _set_by_somebody(evidence, load):
            yield _describe_few(evidence, places, load, nodes)


def _measure(evidence: Evidence, node: NodeFacts, ranks: list[RankFacts], count: int) -> _Load | None:
    setting = node.variables.get("OMP_NUM_THREADS")
    started = max((rank.threads for rank in ranks if rank.threads is not None), default=None)
    # A list is for nested levels; torch uses the first (OpenMP 5.2, 21.2).
    first = (setting or "").split(",")[0].strip()
    asked = int(first) if first.isdecimal() else None
    threads = max((each for each in (started, asked) if each is not None), default=None)
    cores = count_cores(evidence, node.node)
    if node.cpus is None or cores is None or threads is None:
        return None
    gpu = any(not rank.device.startswith("cpu") for rank in ranks)
    return _Load(count, threads, cores, node.cpus, setting, gpu, started)


def _set_by_somebody(evidence: Evidence, load: _Load) -> bool:
    return load.setting is not None or evidence.launch.launcher != "ddpdoctor"


def _describe_many(evidence: Evidence, places: Places, load: _Load, nodes: list[int]) -> Finding:
    fitting = max(1, int(load.cores // load.ranks))
    asked = load.ranks * load.threads
    only_ranks = load.ranks > load.cores
    fixes = []
    if load.threads > fitting:
        fixes.append(Fix("set it for real runs of this size", f"export OMP_NUM_THREADS={fitting}"))
    if only_ranks:
        fixes.append(Fix("start no more ranks than cores", _start(evidence, max(1, int(load.cores)))))
    where = f"{_say_cores(load)} of {join_words(places.hosts(nodes))}"
    message = f"{count_of(load.ranks, 'rank')} x {count_of(load.threads, 'thread')} are {asked:,} on {where}."
    if load.started is not None and load.started < load.threads:
        message = (
            f"OMP_NUM_THREADS={load.threads} asks for {asked:,} threads in {count_of(load.ranks, 'rank')} on {where}; "
            f"torch itself starts {load.started:,} in each."
        )
    return Finding(
        message=message,
        severity=None if _set_by_somebody(evidence, load) else "info",
        role="advice",
        ranks=places.ranks(nodes),
        nodes=places.hosts(nodes),
        evidence=_quote_load(load),
        fix=tuple(fixes),
        details={"ranks": load.ranks, "threads": load.threads, "cores": load.cores, "product": asked},
    )


def _describe_few(evidence: Evidence, places: Places, load: _Load, nodes: list[int]) -> Finding:
    fitting = max(1, int(load.cores // load.ranks))
    hosts = places.hosts(nodes)
    return Finding(
        message=f"{count_of(load.ranks, 'rank')} with OMP_NUM_THREADS=1 "
        f"{choose_form(load.ranks, 'uses', 'use')} {load.ranks:,} of {_say_cores(load)} "
        f"on {join_words(hosts)}.",
        severity="info" if load.gpu or evidence.launch.launcher == "ddpdoctor" else None,
        role="advice",
        ranks=places.ranks(nodes),
        nodes=hosts,
        evidence=_quote_load(load),
        fix=(Fix("let each rank use its share of the cores", f"export OMP_NUM_THREADS={fitting}"),),
        details={"ranks": load.ranks, "threads": 1, "cores": load.cores, "product": load.ranks},
    )


def _start(evidence: Evidence, nproc: int) -> str:
    launch = evidence.launch
    return repeat_launch(replace(launch, nproc=nproc, world_size=launch.nnodes * nproc))


def _say_cores(load: _Load) -> str:
    limited = load.cpus.quota is not None and load.cpus.quota < load.cpus.affinity
    by = f" (a cgroup quota on {load.cpus.affinity})" if limited else ""
    return f"{format_number(load.cores)} {choose_form(int(load.cores), 'core', 'cores')}{by}"


def _quote_load(load: _Load) -> tuple[EvidenceItem, ...]:
    quota = "none" if load.cpus.quota is None else format_number(load.cpus.quota)
    return (
        EvidenceItem(
            "cores", f"affinity {load.cpus.affinity}, cgroup quota {quota}, logical {load.cpus.logical}"
        ),
        EvidenceItem(
            "threads",
            ("" if load.started is None else f"torch.get_num_threads() is {load.started} in each rank, ")
            + f"OMP_NUM_THREADS is {load.setting or 'not set'}",
        ),
    )
