"""What the machine allows a process: shared memory, open files, locked memory."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, NodeFacts
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.places import Places
from ddpdoctor_checks.common.wording import count_of, format_bytes, join_words

MIB = 1 << 20

NCCL_NEED = 1 << 30
"""What NVIDIA tells container users to give /dev/shm (NCCL user guide, Troubleshooting: --shm-size=1g)."""
BATCH = 32 * 3 * 224 * 224 * 4
"""A batch of 32 images as float32, 18.4 MiB: what the examples of torchvision send through shared memory."""
LOADER_NEED = 2 * BATCH
"""One loader worker holds two batches ready (DataLoader, prefetch_factor=2)."""
FILES_OF_A_RANK = 64
"""Open files of a rank that only imported torch: 20-40 here; rounded up."""
FILES_OF_LOADER = 8 * 24
"""Eight loader workers: six descriptors each for queues and events (multiprocessing), two prefetched
batches with nine tensors, one descriptor each (torch.multiprocessing, sharing strategy file_descriptor)."""

LOCKED_NEED = 512 * MIB
"""Buffers that NCCL registers in one process: NCCL_BUFFSIZE 4 MiB x 32 channels x 2 directions, twice (its
user guide, NCCL_BUFFSIZE and NCCL_MAX_NCHANNELS)."""


def _fold_nodes(nodes: Iterable[tuple[NodeFacts, int]]) -> dict[int, list[NodeFacts]]:
    """Return number -> nodes that have it."""
    folded: dict[int, list[NodeFacts]] = {}
    for node, number in nodes:
        folded.setdefault(number, []).append(node)
    return folded


@check("ENV008", family="environment", needs=("nodes",), id="env.shm.enough", required=False)
def find_shared_memory_small(evidence: Evidence) -> Iterable[Finding]:
    """/dev/shm is too small for loader workers or for NCCL."""
    places = Places(evidence)
    known = [(node, node.shared_memory) for node in evidence.nodes if node.shared_memory is not None]
    if not known:
        raise CannotLook("the size of /dev/shm is not known")
    folded: dict[tuple[int, int, str, bool, bool], list[tuple[NodeFacts, int]]] = {}
    for node, memory in known:
        need, why = _need_shared(node, places.count(node.node))
        full = memory.free < min(LOADER_NEED, memory.total)
        if memory.total < need or memory.free < LOADER_NEED:
            certain = bool(node.devices) or memory.free < LOADER_NEED
            folded.setdefault((memory.total, need, why, certain, full), []).append((node, memory.free))
    for (total, need, why, certain, full), found in folded.items():
        yield _describe_shared(places, found, total, need, why, certain=certain, full=full)


def _describe_shared(
    places: Places,
    found: list[tuple[NodeFacts, int]],
    total: int,
    need: int,
    why: str,
    *,
    certain: bool,
    full: bool,
) -> Finding:
    nodes, free = [node for node, _ in found], min(left for _, left in found)
    hosts = places.hosts(node.node for node in nodes)
    fixes = []
    if full and total >= LOADER_NEED:
        fixes.append(
            Fix("check what fills it; nccl-* and torch_* without a process are leftovers", "ls -la /dev/shm")
        )
    if not all(node.container for node in nodes):
        fixes.append(Fix("make it larger", "sudo mount -o remount,size=8g /dev/shm"))
    fixes.append(Fix("in a container enlarge it", "docker run --shm-size=8g …  # or --ipc=host"))
    return Finding(
        message=f"/dev/shm on {join_words(hosts)} has {format_bytes(total)}, "
        f"{format_bytes(free)} of it free; {why} {format_bytes(need)}.",
        severity=None if certain else "info",
        role="advice",
        ranks=places.ranks(node.node for node in nodes),
        nodes=hosts,
        evidence=tuple(
            EvidenceItem("statvfs", f"{node.host}: /dev/shm of {total:,} bytes, {left:,} free")
            for node, left in found[:16]
        ),
        fix=tuple(fixes),
        details={"total": total, "free": free, "need": need},
    )


def _need_shared(node: NodeFacts, ranks: int) -> tuple[int, str]:
    cores = node.cpus.affinity if node.cpus is not None else ranks
    working = max(1, min(ranks, cores))
    loaders = working * LOADER_NEED
    if node.devices and loaders < NCCL_NEED:
        return NCCL_NEED, "NCCL and DataLoader workers need"
    return loaders, f"a DataLoader worker in each of {count_of(working, 'rank')} needs"


@check("ENV009", family="environment", needs=("nodes",), id="env.files.enough", required=False)
def find_open_files_low(evidence: Evidence) -> Iterable[Finding]:
    """The limit of open files (RLIMIT_NOFILE) is too low for the ranks and their loader workers."""
    known = [(node, node.limits) for node in evidence.nodes if node.limits is not None]
    if not known:
        raise CannotLook("the limit on open files is not known")
    places = Places(evidence)
    sockets = 1 + ("gloo" in evidence.launch.backend)
    need = FILES_OF_A_RANK + FILES_OF_LOADER + sockets * evidence.launch.world_size
    low = [
        (node, limits.open_files)
        for node, limits in known
        if limits.open_files is not None and limits.open_files < need
    ]
    for limit, nodes in _fold_nodes(low).items():
        numbers = [node.node for node in nodes]
        hard = [node.limits.open_files_hard for node in nodes if node.limits is not None]
        ceiling = min((each for each in hard if each is not None), default=None)
        fixes = [Fix("in a container", "docker run --ulimit nofile=65536:65536 …")]
        if ceiling is None or ceiling >= need:
            fixes.insert(
                0, Fix("before the launch, on each of them", f"ulimit -n {min(ceiling or 65536, 65536)}")
            )
        else:
            line = "echo '* - nofile 65536' | sudo tee -a /etc/security/limits.conf"
            fixes.insert(0, Fix(f"the hard limit is {ceiling:,}: raise it, and log in again", line))
        yield Finding(
            message=(
                f"A process on {join_words(places.hosts(numbers))} may open {limit:,} files; a rank of "
                f"{evidence.launch.world_size:,} with eight DataLoader workers needs about {need:,}."
            ),
            role="advice",
            ranks=places.ranks(numbers),
            nodes=places.hosts(numbers),
            evidence=(EvidenceItem("limit", f"RLIMIT_NOFILE: {limit:,} (hard {ceiling or 'unlimited'})"),),
            fix=tuple(fixes),
            details={"limit": limit, "hard": ceiling, "need": need},
        )


@check("ENV010", family="environment", needs=("nodes",), id="env.memlock.enough", required=False)
def find_locked_memory_low(evidence: Evidence) -> Iterable[Finding]:
    """The limit of locked memory (RLIMIT_MEMLOCK) is low although RDMA devices exist."""
    if not any(node.rdma_devices for node in evidence.nodes):
        if not evidence.nodes:
            raise CannotLook("no evidence of the nodes")
        raise NotApplicable("no RDMA devices")
    places = Places(evidence)
    with_devices = [node for node in evidence.nodes if node.rdma_devices]
    if all(node.limits is None for node in with_devices):
        raise CannotLook("the limit on locked memory is not known")
    low = [
        (node, node.limits.locked_memory)
        for node in with_devices
        if node.limits is not None
        and node.limits.locked_memory is not None
        and node.limits.locked_memory < LOCKED_NEED
    ]
    for limit, nodes in _fold_nodes(low).items():
        numbers = [node.node for node in nodes]
        devices = list(dict.fromkeys(name for node in nodes for name in node.rdma_devices))
        yield Finding(
            message=(
                f"A process on {join_words(places.hosts(numbers))} may lock {format_bytes(limit)} of "
                f"memory, although it has {join_words(devices)} for RDMA; NCCL needs "
                f"{format_bytes(LOCKED_NEED)} or more."
            ),
            severity=None if any(node.devices for node in nodes) else "info",
            role="advice",
            ranks=places.ranks(numbers),
            nodes=places.hosts(numbers),
            evidence=(
                EvidenceItem("limit", f"RLIMIT_MEMLOCK: {limit:,} bytes; devices: {', '.join(devices)}"),
            ),
            fix=(
                Fix("before the launch, where the hard limit allows", "ulimit -l unlimited"),
                Fix("in a container", "docker run --ulimit memlock=-1 …"),
            ),
            details={"limit": limit, "need": LOCKED_NEED, "devices": devices},
        )
