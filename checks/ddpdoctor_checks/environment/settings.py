"""Settings that were meant for a while: workarounds and debug switches that are still on, or came too late."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ddpdoctor.evidence import Evidence, NodeFacts, RankSet
from ddpdoctor.evidence.job_ranks import describe_ranks
from ddpdoctor.judge import EvidenceItem, Finding, Fix, check
from ddpdoctor_checks.common.places import Places, require
from ddpdoctor_checks.common.wording import join_words, quote
from ddpdoctor_checks.environment.changes import Made, find_anomaly, find_late, find_ranks, read_changes

Test = Callable[[str], bool]


def _is_on(value: str) -> bool:
    """Whether torch and NCCL take a value as true: a number that is not 0, or a word for yes."""
    return value.strip().lower() not in ("", "0", "n", "no", "f", "false", "off")


def _is_zero(value: str) -> bool:
    return value.strip() == "0"


@dataclass(frozen=True, slots=True)
class _Setting:
    """One variable, the values of it that are reported, and where they matter."""

    matters: Test
    effect: str
    where: str = "anywhere"
    """anywhere, gpu (nodes with an accelerator), gpus (with two or more) or rdma; elsewhere it is a note."""
    severity: str = "warning"


WORKAROUNDS: dict[str, _Setting] = {
    "NCCL_P2P_DISABLE": _Setting(_is_on, "GPUs of a node copy through host memory", "gpus"),
    "NCCL_P2P_LEVEL": _Setting(
        lambda value: value.upper() in ("LOC", "0"), "GPUs of a node copy through host memory", "gpus"
    ),
    "NCCL_SHM_DISABLE": _Setting(
        _is_on, "ranks of a node communicate over the network instead of shared memory", "gpus"
    ),
    "NCCL_IB_DISABLE": _Setting(
        _is_on, "InfiniBand and RoCE are not used, so nodes communicate over TCP", "rdma"
    ),
    "NCCL_NET": _Setting(lambda value: value.lower() == "socket", "nodes communicate over TCP only", "rdma"),
    "NCCL_NET_GDR_LEVEL": _Setting(
        lambda value: value.upper() in ("LOC", "0"),
        "network adapters cannot read GPU memory directly",
        "rdma",
    ),
    "NCCL_NET_GDR_DISABLE": _Setting(_is_on, "network adapters cannot read GPU memory directly", "rdma"),
    "NCCL_NVLS_ENABLE": _Setting(_is_zero, "NVLink SHARP is not used", "gpus", "info"),
    "NCCL_CUMEM_ENABLE": _Setting(_is_zero, "NCCL uses its older allocator", "gpu", "info"),
    "NCCL_ALGO": _Setting(_is_on, "NCCL cannot choose the algorithm by size", "gpu", "info"),
    "NCCL_PROTO": _Setting(_is_on, "NCCL cannot choose the protocol by size", "gpu", "info"),
}
"""Workarounds that forums hand out (NCCL user guide, Environment Variables: "should not be used in production
nor retained in scripts, or only as workaround, and removed as soon as the issue is resolved")."""

DEBUGGING: dict[str, _Setting] = {
    "CUDA_LAUNCH_BLOCKING": _Setting(
        _is_on, "every kernel waits for the previous one, so nothing overlaps", "gpu"
    ),
    "HIP_LAUNCH_BLOCKING": _Setting(
        _is_on, "every kernel waits for the previous one, so nothing overlaps", "gpu"
    ),
    "AMD_SERIALIZE_KERNEL": _Setting(
        _is_on, "every kernel waits for the previous one, so nothing overlaps", "gpu"
    ),
    "TORCH_DISTRIBUTED_DEBUG": _Setting(
        lambda value: value.upper() == "DETAIL",
        "every collective is verified by another one first, and DDP() has been seen to crash with it on gloo",
    ),
    "TORCH_NCCL_BLOCKING_WAIT": _Setting(_is_on, "the host waits for every collective", "gpu"),
    "NCCL_BLOCKING_WAIT": _Setting(_is_on, "the host waits for every collective", "gpu"),
    "TORCH_NCCL_DESYNC_DEBUG": _Setting(_is_on, "every collective is recorded in the store", "gpu"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": _Setting(_is_on, "every tensor is allocated by the driver", "gpu"),
    "NCCL_DEBUG": _Setting(lambda value: value.upper() == "TRACE", "NCCL logs every call", "gpu"),
    "PYTHONDEVMODE": _Setting(_is_on, "Python checks itself at run time"),
    "PYTHONMALLOC": _Setting(lambda value: "debug" in value, "every allocation is checked"),
}
"""Debug switches that cost time in a normal run: torch's "Logging" and "Debugging" sections of
torch.distributed, CUDA's environment variables, NCCL's, and python(1)."""

KNOWN: Mapping[str, _Setting] = {**WORKAROUNDS, **DEBUGGING}
"""Both, by name."""


@check("ENV013", family="environment", needs=(), id="env.workarounds.off", required=False)
def find_workaround_left_on(evidence: Evidence) -> Iterable[Finding]:
    """A workaround such as NCCL_P2P_DISABLE, NCCL_IB_DISABLE or NCCL_SHM_DISABLE is still set."""
    yield from _find_settings(evidence, WORKAROUNDS, "a workaround")


@check("ENV014", family="environment", needs=(), id="env.debugging.off", required=False)
def find_debug_left_on(evidence: Evidence) -> Iterable[Finding]:
    """A debug setting such as CUDA_LAUNCH_BLOCKING=1 or TORCH_DISTRIBUTED_DEBUG=DETAIL is on, or was made too late."""
    yield from _find_settings(evidence, DEBUGGING, "a debug setting")
    yield from find_late(evidence)
    for made in read_changes(evidence):
        setting = DEBUGGING.get(made.change.name)
        known = setting is not None and made.late is None and setting.matters(made.change.value)
        if setting is not None and known and _is_there(evidence, setting.where):
            yield _describe_made(made, setting, "info" if _failed(evidence) else setting.severity)
    yield from find_anomaly(evidence, "info" if _failed(evidence) else "warning")


def _failed(evidence: Evidence) -> bool:
    return any(end.exit_code != 0 or end.signal is not None for end in evidence.job)


def _is_there(evidence: Evidence, what: str) -> bool:
    """Whether a watched job has what a setting is about; what nobody examined is not known to be there."""
    if what == "anywhere":
        return True
    fast = [each for each in find_ranks(evidence) if "nccl" in (each.backend or "")]
    return what != "rdma" and len(fast) >= (2 if what == "gpus" else 1)


def _describe_made(made: Made, setting: _Setting, severity: str) -> Finding:
    name, value, ranks = made.change.name, made.change.value, RankSet(made.ranks)
    return Finding(
        message=f"The debug setting {name}={quote(value)} is set at {made.place}: {setting.effect}.",
        severity=severity,
        role="advice",
        ranks=ranks,
        where=made.where,
        evidence=(EvidenceItem("variable", f"{name}={value} set at {made.place}", ranks),),
        fix=(Fix(f"remove it from {made.line.file}, and set it only for a debugging run",
                 f"export {name}={value}"),),
        details={"variable": name, "value": value},
    )  # fmt: skip


def _find_settings(evidence: Evidence, table: Mapping[str, _Setting], what: str) -> Iterable[Finding]:
    watched = bool(evidence.processes)
    if not evidence.ranks and watched:
        evidence = replace(evidence, ranks=describe_ranks(evidence.processes))
    if not evidence.ranks and not evidence.nodes:
        require(evidence, "nodes", "any environment")
    places = Places(evidence)
    ours = {item for end in evidence.job for item in end.toggles.items()}
    for name, setting in table.items():
        for value, (nodes, ranks) in _holders(evidence, name).items():
            if not setting.matters(value) or (name, value) in ours:
                continue
            if watched and not evidence.nodes and not _is_there(evidence, setting.where):
                continue
            found = _describe_setting(places, name, value, setting, what, nodes, ranks)
            yield replace(found, severity="info") if _failed(evidence) else found


def _holders(evidence: Evidence, name: str) -> dict[str, tuple[list[int], RankSet]]:
    """Return value -> the nodes and the ranks that have it; those whose own program has set it are left out."""
    nodes: dict[str, dict[int, None]] = {}
    ranks: dict[str, list[int]] = {}
    changed = {
        each.rank
        for each in find_ranks(evidence)
        if any(change.name == name and change.how == "set" for change in each.settings)
    }
    for rank in evidence.ranks:
        value = rank.variables.get(name)
        if value is not None and rank.rank not in changed:
            nodes.setdefault(value, {})[rank.node] = None
            ranks.setdefault(value, []).append(rank.rank)
    for node in evidence.nodes:
        value = node.variables.get(name)
        if value is not None:
            nodes.setdefault(value, {})[node.node] = None
    return {value: (sorted(found), RankSet(ranks.get(value, ()))) for value, found in nodes.items()}


def _describe_setting(
    places: Places,
    name: str,
    value: str,
    setting: _Setting,
    what: str,
    nodes: Sequence[int],
    ranks: RankSet,
) -> Finding:
    hosts = places.hosts(nodes)
    facts = [places.facts[node] for node in nodes if node in places.facts]
    matters = any(_has(node, setting.where) for node in facts) or not places.facts
    return Finding(
        message=f"{name}={quote(value)}, {what}, is still set on {join_words(hosts)}: {setting.effect}"
        f"{'' if matters else ', which makes no difference here'}.",
        severity=setting.severity if matters else "info",
        role="advice",
        ranks=ranks or places.ranks(nodes),
        nodes=hosts,
        evidence=(EvidenceItem("variable", f"{name}={value} on {join_words(hosts)}"),),
        fix=(Fix("unset it, and remove it from the startup files", f"unset {name}"),),
        details={"variable": name, "value": value},
    )


def _has(node: NodeFacts, what: str) -> bool:
    if what == "rdma":
        return bool(node.rdma_devices)
    return what == "anywhere" or len(node.devices) >= (2 if what == "gpus" else 1)
