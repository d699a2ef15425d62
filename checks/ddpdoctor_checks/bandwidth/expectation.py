"""What bandwidth a world should reach, from what the hardware is, with the reason in words.

All figures are bus bandwidths in GB/s (GB = 1e9 bytes) as nccl-tests defines them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ddpdoctor.evidence import Device, Evidence, NodeFacts
from ddpdoctor.judge import CannotLook
from ddpdoctor_checks.common.places import Places, count_cores, ranks_per_node
from ddpdoctor_checks.common.rank_devices import find_device, on_gpu
from ddpdoctor_checks.common.wording import count_of, format_number

NVLINK_GBS = {6: 18.0, 7: 20.0, 8: 20.0, 9: 20.6, 10: 40.1, 12: 40.1}
"""Major compute capability -> GB/s of one NVLink in one direction, as NCCL plans with it (NVIDIA/nccl,
src/graph/topo.h: SM60_, SM70_, SM80_, SM90_ and SM100_NVLINK_BW)."""

PCIE_GBS = 12.0
"""PCIe 3.0 x16, the slowest that machines with several data-centre GPUs have (NCCL's PCI_BW, same file)."""

SOCKET_GBS = 6.0
"""GB/s between two sockets, the lowest of NCCL's figures for it (QPI_BW, same file)."""

RING = ("all_reduce", "broadcast", "reduce", "send_recv")
"""Operations in which one stream at a time leaves a node that holds several ranks."""

EFFICIENCY = {"all_reduce": 0.3, "broadcast": 0.3, "reduce": 0.2, "send_recv": 0.3}
"""Share of the TCP bandwidth that gloo reaches at least. Measured for 2 and 4 ranks on 2 cores at 16-64 MiB
(torch 2.13.0): all_reduce 0.64-0.8 of it, broadcast 0.8-1.0; half of the lowest is taken. Others: see
`OTHER_EFFICIENCY`."""

OTHER_EFFICIENCY = 0.1
"""all_gather, reduce_scatter, all_to_all in gloo copy lists of tensors: measured 0.17-0.45, best of three."""

GPU_EFFICIENCY = 0.4
"""Share of NCCL's own planning figures. Published nccl-tests results on NVSwitch machines reach 0.8-0.95 of
them with 1 GiB and about half with 64 MiB, which is where a short sweep ends."""

CROWDED = 3.0
"""How much lower is still expected where ranks outnumber cores: they wait for each other's time slices."""

TOO_CROWDED = 8.0
"""Ranks per core from which nothing is expected: the scheduler then decides, not the network."""

VIRTUAL_MBPS = 10_000
"""What Linux's veth driver reports as its speed whatever lies below (drivers/net/veth.c): of such an
interface only a twentieth is expected, elsewhere `NETWORK_EFFICIENCY`."""

NETWORK_EFFICIENCY = 0.3
"""Share of a NIC's nominal speed that one ring over TCP reaches at least; a single TCP stream on 100 Gbit/s
without tuning gives 30-50 Gbit/s (ESnet, fasterdata.es.net, "100G tuning")."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What bus bandwidth is to be expected of one operation, in GB/s."""

    low: float
    """GB/s below which the bandwidth is lower than expected."""
    high: float
    """What it can hardly exceed."""
    reason: str


def expect_bandwidth(evidence: Evidence, op: str, ranks: int) -> Expectation:
    """Return what ``op`` over ``ranks`` ranks should reach on the hardware that was found.

    Raises:
        CannotLook: too little is known of the hardware, or too many ranks share its cores.
    """
    users = [facts for facts in evidence.ranks if on_gpu(facts)]
    several = evidence.launch.nnodes > 1
    if evidence.launch.backend == "nccl" and users:
        within = _expect_gpus(evidence)
        return _slower(within, _expect_network(evidence, op, per_node=1)) if several else within
    if evidence.launch.backend not in ("gloo", "mpi"):
        raise CannotLook(f"no expected value is known for backend {evidence.launch.backend}")
    within = _expect_loopback(evidence, op, ranks)
    if not several:
        return within
    per_node = max(ranks_per_node(evidence).values())
    return _slower(within, _expect_network(evidence, op, per_node=1 if op in RING else per_node))


def _slower(first: Expectation, second: Expectation) -> Expectation:
    return first if first.low <= second.low else second


def _expect_loopback(evidence: Evidence, op: str, ranks: int) -> Expectation:
    """CPU ranks over TCP: all streams of the operation share the cores, of which one copy takes two."""
    copies = {each.node: each.bandwidth for each in evidence.baselines if each.name == "loopback-copy"}
    if not copies:
        raise CannotLook("no loopback copy was measured")
    node = min(copies, key=lambda each: copies[each])
    cores = count_cores(evidence, node)
    if cores is None:
        raise CannotLook(f"the cores of {Places(evidence).host(node)} are not known")
    crowd = max(
        count / (count_cores(evidence, each) or cores) for each, count in ranks_per_node(evidence).items()
    )
    if crowd > TOO_CROWDED:
        raise CannotLook(f"{crowd:.0f} ranks share each core: the scheduler limits it, not the network")
    streams = max(1, ranks - 1 if op in ("broadcast", "reduce") else 1 if op == "send_recv" else ranks)
    share = min(copies[node], copies[node] * max(1.0, cores / 2) / streams)
    low = share * EFFICIENCY.get(op, OTHER_EFFICIENCY)
    widened = ""
    if crowd > 1:
        low /= CROWDED
        widened = ", more ranks than cores"
    return Expectation(
        low,
        share * 1.5,
        f"a loopback copy gives {copies[node]:.2g} GB/s on {Places(evidence).host(node)}, shared by "
        f"{count_of(ranks, 'rank')} on {format_number(cores)} cores{widened}",
    )


def _expect_network(evidence: Evidence, op: str, per_node: int) -> Expectation:
    slowest: tuple[int, NodeFacts, str] | None = None
    for node in evidence.nodes:
        name = node.advertised_interface or node.route_interface
        speed = next((each.speed_mbps for each in node.interfaces if each.name == name), None)
        if name is None or not speed or speed < 0:
            raise CannotLook(f"the speed of the interface of {node.host} is not known")
        if slowest is None or speed < slowest[0]:
            slowest = (speed, node, name)
    if slowest is None:
        raise CannotLook("no interface is known")
    speed, node, name = slowest
    nominal = speed / 8000 / per_node
    virtual = speed == VIRTUAL_MBPS
    shared = f", shared by {per_node} ranks" if per_node > 1 else ""
    return Expectation(
        nominal * (0.05 if virtual else NETWORK_EFFICIENCY),
        nominal,
        f"{name} of {node.host} reports {speed / 1000:g} Gbit/s{shared}"
        + (" (as every virtual interface does)" if virtual else ""),
    )


def _expect_gpus(evidence: Evidence) -> Expectation:
    """GPUs of one node: NVLink where every GPU has it to a neighbour on both sides, else PCIe."""
    worst: Expectation | None = None
    for node in evidence.nodes:
        used = [
            device
            for facts in evidence.ranks
            if facts.node == node.node and (device := find_device(node, facts)) is not None
        ]
        if len(used) > 1:
            each = _expect_node_gpus(node.host, used)
            worst = each if worst is None or each.low < worst.low else worst
    if worst is None:
        if evidence.launch.nnodes > 1:
            return Expectation(
                PCIE_GBS * GPU_EFFICIENCY, PCIE_GBS * 4, "one GPU on each node, over PCIe to its NIC"
            )
        raise CannotLook("the links between the GPUs are not known")
    return worst


def _expect_node_gpus(host: str, used: list[Device]) -> Expectation:
    if not all(device.links for device in used):
        raise CannotLook(f"the links between the GPUs of {host} are not known")
    lanes = [[_count_nvlinks(label) for label in _labels(device, used)] for device in used]
    needed = min(2, len(used) - 1)
    per_link = NVLINK_GBS.get(_major(used[0]))
    if per_link is not None and all(sum(1 for count in each if count) >= needed for each in lanes):
        links = min(max(each) for each in lanes)
        bandwidth = links * per_link
        return Expectation(
            bandwidth * GPU_EFFICIENCY,
            bandwidth * 1.3,  # NVSwitch reduces in the switch (NVLS) and so exceeds a ring
            f"{links} NVLinks of {per_link:g} GB/s connect each GPU of {host} to the next",
        )
    across = any(label in ("SYS", "NODE") for device in used for label in _labels(device, used))
    bandwidth, way = (SOCKET_GBS, "PCIe across sockets") if across else (PCIE_GBS, "PCIe")
    return Expectation(
        bandwidth * GPU_EFFICIENCY, bandwidth * 4, f"the GPUs of {host} are connected by {way}"
    )


def _labels(device: Device, used: Iterable[Device]) -> list[str]:
    return [device.links.get(str(other.index), "SYS") for other in used if other.index != device.index]


def _count_nvlinks(label: str) -> int:
    return int(label[2:]) if label.startswith("NV") and label[2:].isdigit() else 0


def _major(device: Device) -> int:
    major = (device.capability or "").partition(".")[0]
    return int(major) if major.isdigit() else 0
