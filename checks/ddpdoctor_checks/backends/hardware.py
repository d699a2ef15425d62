"""Devices that compute, copy or report wrongly."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ddpdoctor.evidence import Device, Evidence, NodeFacts, RankFacts, RankSet, SmokeResult, encode
from ddpdoctor.facts.peer_links import find_odd_gpus
from ddpdoctor.facts.xids import XidKind, find_kind
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.backends.support import UNSUPPORTED
from ddpdoctor_checks.common.places import Places
from ddpdoctor_checks.common.rank_devices import find_device
from ddpdoctor_checks.common.stage_evidence import explain_missing, fold_alike
from ddpdoctor_checks.common.wording import join_words, name_set

FAULTY = re.compile(
    r"uncorrectable ecc|fallen off the bus|gpu is lost|requires reset|hardware error|illegal instruction"
    r"|unknown error|nvlink error|elements differ",
    re.IGNORECASE,
)
"""Texts of CUDA's errors, of nvidia-smi and of the smoke test (wrong results) for a device that needs a
reset, a repair or its driver restarted."""

_SEVERE_AMDGPU = re.compile(
    r"uncorrectable hardware error|lost from bus|failed|Fatal error|bad page threshold"
)
"""Texts in amdgpu's messages that speak of the hardware; a reset alone may follow from a program."""

NO_SIGNS: frozenset[XidKind] = frozenset({"program", "follows", "harmless"})
"""Kinds of Xids that say nothing of the device. With those that are recorded, or that a restart of the program answers,
and with numbers that the table does not list, the device works until its next reset: a warning."""

RECOVERY = re.compile(r"recovery action changed from 0x\d{1,2} \([^)]{1,40}\) to 0x\d{1,2} \((?!None\))")
"""Xid 154 of a GPU that now wants a reset, a reboot or to be drained: it follows another Xid, which may be gone."""

MOST_PAIRS = 64
"""Pairs that a finding names; the rest is counted in the details."""


@check("BKD007", family="backends", needs=("smoke",), id="bkd.devices.peer_to_peer")
def find_peer_copy_broken(evidence: Evidence) -> Iterable[Finding]:
    """Direct copies between two GPUs of a node do not work."""
    copies = [each for each in evidence.smoke if each.kind == "peer-copy"]
    several = any(len(node.devices) > 1 for node in evidence.nodes)
    retried = [each for each in evidence.backends if each.peer_to_peer_off and each.failures]
    broken = [each for each in copies if not each.ok]
    by_node: dict[int, list[SmokeResult]] = {}
    for each in broken:
        by_node.setdefault(each.node, []).append(each)
    yield from fold_alike(_broken_copies(evidence, number, by_node[number]) for number in sorted(by_node))
    cured = False
    for result in retried:
        failed = RankSet().union(*(message.ranks for message in result.failures))
        if not broken and not failed.minus(result.peer_to_peer_off):
            cured = True
            yield _cured_without_peers(evidence, result.backend, failed, result.failures[0].text)
    if not copies and not cured:
        if not several:
            raise NotApplicable(
                "no node has two GPUs" if any(n.devices for n in evidence.nodes) else "no GPU"
            )
        raise CannotLook("no copy between GPUs was tested")


def _broken_copies(evidence: Evidence, number: int, broken: list[SmokeResult]) -> Finding:
    host = Places(evidence).host(number)
    pairs = tuple((f"{host} {each.device}", f"{host} {each.peer}") for each in broken)
    shown = ", ".join(f"{each.device} to {each.peer}" for each in broken[:4])
    devices = {each.device for each in broken} | {each.peer for each in broken}
    return Finding(
        message=(
            f"On {host} copies between GPUs fail or return incorrect bytes: "
            f"{shown}{f' and {len(broken) - 4} more pairs' if len(broken) > 4 else ''}."
        ),
        ranks=RankSet(
            facts.rank for facts in evidence.ranks if facts.node == number and facts.device in devices
        ),
        nodes=(host,),
        pairs=pairs[:MOST_PAIRS],
        evidence=tuple(
            EvidenceItem(
                "smoke", f"{each.device} to {each.peer}: {each.error or 'incorrect bytes were returned'}"
            )
            for each in broken[:6]
        ),
        fix=_PEER_FIXES,
        details=encode({"pairs_broken": len(broken), "host": host}),
    )


def _cured_without_peers(evidence: Evidence, backend: str, ranks: RankSet, text: str) -> Finding:
    wanted = set(ranks)
    members = [facts for facts in evidence.ranks if facts.rank in wanted]
    by_host: dict[str, list[RankFacts]] = {}
    for facts in members:
        by_host.setdefault(facts.host, []).append(facts)
    pairs = tuple(
        (f"{host} {first.device}", f"{host} {second.device}")
        for host, group in by_host.items()
        for i, first in enumerate(group)
        for second in group[i + 1 :]
    )
    return Finding(
        message=f"The first all_reduce with {backend} fails on {name_set(ranks)} and passes there with "
        "NCCL_P2P_DISABLE=1: peer-to-peer copies between GPUs of "
        f"{join_words(by_host) or 'a node'} are broken.",
        ranks=ranks,
        nodes=tuple(by_host),
        pairs=pairs[:MOST_PAIRS],
        evidence=(
            EvidenceItem("rank", f"with peer-to-peer: {text}", ranks),
            EvidenceItem("rank", "with NCCL_P2P_DISABLE=1: passed", ranks),
        ),
        fix=_PEER_FIXES,
        details=encode({"backend": backend, "pairs_possible": len(pairs)}),
    )


_PEER_FIXES = (
    Fix(
        "until the cause is fixed, run without peer-to-peer; it works, but slower",
        command="export NCCL_P2P_DISABLE=1",
    ),
    Fix(
        "on bare metal check whether PCIe ACS or the IOMMU redirects the copies, and disable them (BIOS; or "
        "iommu=pt on the kernel's command line)",
        command="sudo lspci -vvv | grep -i acsctl; cat /proc/cmdline; nvidia-smi topo -p2p r",
    ),
)


@check("BKD010", family="backends", needs=("nodes",), id="bkd.devices.healthy")
def find_device_faulty(evidence: Evidence) -> Iterable[Finding]:
    """A GPU has a fault of its own."""
    devices = [(node, device) for node in evidence.nodes for device in node.devices]
    stuck = [each for each in evidence.smoke if _is_faulty(each)]
    if not devices and not stuck:
        raise NotApplicable("no GPU")
    yield from fold_alike(_find_faults(evidence, devices, stuck))


def _find_faults(
    evidence: Evidence, devices: Iterable[tuple[NodeFacts, Device]], stuck: Sequence[SmokeResult]
) -> Iterator[Finding]:
    users: dict[int, list[RankFacts]] = {}
    for facts in evidence.ranks:
        users.setdefault(facts.node, []).append(facts)
    told: set[int] = set()
    odd = {
        node.node: find_odd_gpus({device.index: device.links for device in node.devices})
        for node in evidence.nodes
    }
    for node, device in devices:
        signs, severity = _read_signs(device, odd[node.node].get(device.index))
        mine = users.get(node.node, [])
        smoke = [each for each in stuck if each.node == node.node and _same_device(mine, device, each)]
        told.update(id(each) for each in smoke)
        signs += [_describe_smoke(each) for each in smoke]
        if signs:
            owners = [facts for facts in mine if find_device(node, facts) is device]
            yield _faulty(node.host, _name(device), device, owners, signs, None if smoke else severity)
    for each in stuck:
        if id(each) not in told:
            owners = [facts for facts in users.get(each.node, []) if facts.device == each.device]
            host = Places(evidence).host(each.node)
            yield _faulty(host, each.device, None, owners, [_describe_smoke(each)], None)


def _is_faulty(smoke: SmokeResult) -> bool:
    if not smoke.killable:
        return True
    return smoke.kind != "peer-copy" and not smoke.ok and bool(FAULTY.search(smoke.error or ""))


def _describe_smoke(smoke: SmokeResult) -> str:
    if not smoke.killable:
        return f"a process on {smoke.device} did not die of SIGKILL (stuck in the driver)"
    return f"a small computation on {smoke.device} failed: {smoke.error}"


def _same_device(users: Iterable[RankFacts], device: Device, smoke: SmokeResult) -> bool:
    """Whether a trial was made on ``device``; the ranks of its node know which UUID is behind ``cuda:1``."""
    for facts in users:
        mine = facts.local_rank == smoke.local_rank or facts.device == smoke.device
        if mine and facts.device_uuid is not None:
            return facts.device_uuid == device.uuid
    return smoke.device.partition(":")[2] == str(device.index)


def _read_signs(device: Device, odd: str | None) -> tuple[list[str], str | None]:
    """Return what speaks against a device, and ``warning`` where all of it is the lesser kind.

    Args:
        device: the device.
        odd: how its links differ from those of all others of its node.
    """
    signs: list[str] = []
    severe = False
    if device.ecc_uncorrected:
        signs.append(f"{device.ecc_uncorrected:,} uncorrectable ECC errors since the last reset")
        severe = True
    if device.state and (FAULTY.search(device.state) or "err" in device.state.lower()):
        signs.append(f"nvidia-smi reports {device.state}")
        severe = True
    for text in device.xid:
        number = _xid_number(text)
        kind = find_kind(number) if number is not None else None
        if text.startswith("amdgpu: "):
            severe = severe or _SEVERE_AMDGPU.search(text) is not None
        elif number is None or (kind in NO_SIGNS and not RECOVERY.search(text)):
            continue
        signs.append(f"kernel: {text}")
        severe = severe or kind == "device" or RECOVERY.search(text) is not None
    if odd:
        signs.append(f"its links are {odd}")
    return signs, None if severe else "warning"


def _xid_number(text: str) -> int | None:
    match = re.search(r"\bXid\s{0,8}(?:\([^)]{0,80}\)\s{0,8}:\s{0,8})?(\d{1,6})", text)
    return int(match[1]) if match else None


def _name(device: Device) -> str:
    about = ", ".join(part for part in (device.name, device.uuid or device.pci) if part)
    return f"GPU {device.index} ({about})" if about else f"GPU {device.index}"


def _faulty(
    host: str,
    name: str,
    device: Device | None,
    owners: Iterable[RankFacts],
    signs: list[str],
    severity: str | None,
) -> Finding:
    index = device.index if device is not None else name.partition(":")[2] or "0"
    query = f"nvidia-smi -i {index} -q -d ECC,ROW_REMAPPER; sudo dmesg -T | grep -i xid"
    reset = f"sudo nvidia-smi --gpu-reset -i {index}"
    if device is not None and device.kind == "rocm":
        query = f"rocm-smi -d {index} --showrasinfo all; sudo dmesg -T | grep -i amdgpu"
        reset = f"sudo rocm-smi -d {index} --gpureset"
    return Finding(
        message=f"{name} on {host} is faulty: {'; '.join(signs[:3])}.",
        ranks=RankSet(facts.rank for facts in owners),
        nodes=(host,),
        evidence=tuple(EvidenceItem("device", sign) for sign in signs[:8]),
        fix=(
            Fix(
                f"take {host} out of the job, then query what the driver reports on the device",
                command=query,
            ),
            Fix(
                "with no process left on it, reset the device; reboot the node if the reset is refused",
                command=reset,
            ),
        ),
        details=encode({"device": device, "host": host, "signs": signs}),
        severity=severity,
        confidence="high" if severity is None else "medium",
    )


@check("BKD002", family="backends", needs=("smoke",), id="bkd.devices.compute")
def find_device_unusable(evidence: Evidence) -> Iterable[Finding]:
    """Each device takes a small computation and a copy, alone and without any process group."""
    alone = [each for each in evidence.smoke if each.kind != "peer-copy"]
    if not alone:
        raise explain_missing(evidence, "smoke", "a computation on each device")
    yield from fold_alike(_unusable(evidence, each) for each in alone if not each.ok and not _is_told(each))


def _is_told(smoke: SmokeResult) -> bool:
    """Whether BKD010 or BKD005 say what is wrong."""
    return _is_faulty(smoke) or bool(UNSUPPORTED.search(smoke.error or ""))


def _unusable(evidence: Evidence, smoke: SmokeResult) -> Finding:
    host = Places(evidence).host(smoke.node)
    error = smoke.error or "no answer"
    users = [facts for facts in evidence.ranks if facts.node == smoke.node]
    if smoke.local_rank is not None:
        users = [facts for facts in users if facts.local_rank == smoke.local_rank]
    else:
        users = [facts for facts in users if facts.device == smoke.device]
    alone = f"import torch; print(torch.ones(3, device='{smoke.device}').sum())"
    fix = Fix("test the device alone, without any process group", command=f'python -c "{alone}"')
    if "out of memory" in error.lower():
        fix = Fix("other processes fill the device: find out whose they are", command="nvidia-smi")
    return Finding(
        message=f"{smoke.device} on {host} could not run a small {smoke.kind}: {error}",
        ranks=RankSet(facts.rank for facts in users),
        nodes=(host,),
        evidence=(EvidenceItem("smoke", f"{smoke.kind} on {smoke.device}: {error}"),),
        fix=(fix,),
        details={"device": smoke.device, "host": host, "seconds": smoke.seconds},
    )
