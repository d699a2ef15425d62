"""Devices that compute, copy or report wrongly."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ddpdoctor.evidence import Device, Evidence, NodeFacts, RankFacts, RankSet, SmokeResult, encode
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.backends.devices import find_device
from ddpdoctor_checks.backends.support import UNSUPPORTED
from ddpdoctor_checks.places import Places
from ddpdoctor_checks.stage_evidence import explain_missing
from ddpdoctor_checks.wording import join_words, name_set

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that a program's own error raises, so they say nothing of the device: the list that NVIDIA's
Kubernetes device plug-in ignores (NVIDIA/k8s-device-plugin, internal/rm/health.go, "Application errors: the
GPU should still be healthy")."""

LESSER_XIDS = frozenset({63, 92, 94})
"""Row remapping recorded, high single-bit rate, contained ECC error: the device works until its next reset
(NVIDIA Xid catalogue, docs.nvidia.com/deploy/xid-errors). Reported as warnings."""

FAULTY = re.compile(
    r"uncorrectable ecc|fallen off the bus|gpu is lost|requires reset|hardware error|illegal instruction"
    r"|unknown error|nvlink error|elements differ",
    re.IGNORECASE,
)
"""Texts of CUDA's errors, of nvidia-smi and of the smoke test (wrong results) for a device that needs a
reset, a repair or its driver restarted."""

MOST_PAIRS = 64
"""Pairs that a finding names; the rest is counted in the details."""


@check(
    "BKD007",
    name="peer-to-peer-broken",
    title="Copies between GPUs return other bytes, or NCCL only works without peer-to-peer",
    severity="error",
    family="backends",
    needs=("smoke",),
    since="0.1.0",
    id="bkd.devices.peer_to_peer",
    explains=("BKD002", "BKD011", "COL001", "PRF001", "PRF002"),
)
def find_peer_copy_broken(evidence: Evidence) -> Iterable[Finding]:
    """Direct copies between two GPUs of a node do not work.

    What it looks for:
        A buffer of known bytes that was copied from each GPU to each other one and read back; and whether an
        NCCL all_reduce that failed passes with ``NCCL_P2P_DISABLE=1``.

    Why it matters:
        The first all_reduce hangs at 100 % utilisation without an error, or sums come out wrong without one.

    How it decides:
        Bytes are compared exactly; one wrong byte is enough. An NCCL failure counts only where the repetition
        without peer-to-peer passed on every rank on which it had failed.

    Known false alarms:
        None known.

    Fix:
        Switch off PCIe ACS or the IOMMU (``iommu=pt``) on bare metal; where that cannot be, or the cards do
        not support peer-to-peer, set ``NCCL_P2P_DISABLE=1`` and expect less bandwidth.

    References:
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#gpu-to-gpu-communication
        ; https://github.com/NVIDIA/nccl/issues/631
    """
    copies = [each for each in evidence.smoke if each.kind == "peer-copy"]
    several = any(len(node.devices) > 1 for node in evidence.nodes)
    retried = [each for each in evidence.backends if each.peer_to_peer_off and each.failures]
    broken = [each for each in copies if not each.ok]
    for number in sorted({each.node for each in broken}):
        yield _broken_copies(evidence, number, [each for each in broken if each.node == number])
    cured = False
    for result in retried:
        failed = RankSet().union(*(message.ranks for message in result.failures))
        if not broken and not failed.minus(result.peer_to_peer_off):
            cured = True
            yield _cured_without_peers(evidence, result.backend, failed, result.failures[0].text)
    if not copies and not cured:
        if not several:
            raise NotApplicable("no node has two GPUs")
        raise CannotLook("no copy between GPUs was tried")


def _broken_copies(evidence: Evidence, number: int, broken: list[SmokeResult]) -> Finding:
    host = Places(evidence).host(number)
    pairs = tuple((f"{host} {each.device}", f"{host} {each.peer}") for each in broken)
    shown = ", ".join(f"{each.device} to {each.peer}" for each in broken[:4])
    devices = {each.device for each in broken} | {each.peer for each in broken}
    return Finding(
        message=f"On {host} copies between GPUs fail or return other bytes: {shown}"
        f"{f' and {len(broken) - 4} more pairs' if len(broken) > 4 else ''}.",
        ranks=RankSet(
            facts.rank for facts in evidence.ranks if facts.node == number and facts.device in devices
        ),
        nodes=(host,),
        pairs=pairs[:MOST_PAIRS],
        evidence=tuple(
            EvidenceItem("smoke", f"{each.device} to {each.peer}: {each.error or 'other bytes came back'}")
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
        "until the cause is gone, run without peer-to-peer; it works, but slower",
        command="export NCCL_P2P_DISABLE=1",
    ),
    Fix(
        "on bare metal look whether PCIe ACS or the IOMMU redirects the copies, and switch them off (BIOS; "
        "or iommu=pt on the kernel's command line)",
        command="sudo lspci -vvv | grep -i acsctl; cat /proc/cmdline; nvidia-smi topo -p2p r",
    ),
)


@check(
    "BKD010",
    name="device-faulty",
    title="A device reports hardware errors, or cannot be left",
    severity="error",
    family="backends",
    needs=("nodes",),
    since="0.1.0",
    id="bkd.devices.healthy",
    explains=("BKD002", "BKD007", "BKD011", "COL001", "PRF001", "PRF002"),
)
def find_device_faulty(evidence: Evidence) -> Iterable[Finding]:
    """A GPU has a fault of its own.

    What it looks for:
        Uncorrectable ECC errors since the last reset, Xid messages of the kernel that speak of hardware,
        states such as ``[GPU requires reset]`` where the vendor's tool should print numbers, computations
        that fail with a hardware error, and a process on the device that does not die of SIGKILL.

    Why it matters:
        One such device stops or slows all ranks, and the others' messages speak of the network.

    How it decides:
        One look with ``nvidia-smi`` and the kernel log, and one small computation per device in a process
        that can be killed. Xids that a program's own error raises (13, 31, 43, 45, 68, 109, as NVIDIA's
        Kubernetes device plug-in has them) are not counted; 63, 92 and 94 (errors that were contained) and
        Xids that are not known here are warnings.

    Known false alarms:
        Xid messages stay in the kernel log after a reset that cured the device.

    Fix:
        Take the node out of the job, reset the GPU; if it comes back, have it replaced.

    References:
        https://docs.nvidia.com/deploy/xid-errors/ ; https://docs.nvidia.com/deploy/gpu-debug-guidelines/
    """
    devices = [(node, device) for node in evidence.nodes for device in node.devices]
    stuck = [each for each in evidence.smoke if _is_faulty(each)]
    if not devices and not stuck:
        note = next((node.devices_note for node in evidence.nodes if node.devices_note), None)
        raise NotApplicable(f"no GPU ({note})" if note else "no GPU")
    for node, device in devices:
        signs, severity = _read_signs(device)
        smoke = [
            each for each in stuck if each.node == node.node and _same_device(evidence, node, device, each)
        ]
        stuck = [each for each in stuck if each not in smoke]
        signs += [_describe_smoke(each) for each in smoke]
        if signs:
            yield _faulty(evidence, node, _name(device), device, signs, None if smoke else severity)
    for each in stuck:
        facts = next((node for node in evidence.nodes if node.node == each.node), None)
        yield _faulty(
            evidence,
            facts or NodeFacts(each.node, f"node {each.node}"),
            each.device,
            None,
            [_describe_smoke(each)],
            None,
        )


def _is_faulty(smoke: SmokeResult) -> bool:
    if not smoke.killable:
        return True
    return smoke.kind != "peer-copy" and not smoke.ok and bool(FAULTY.search(smoke.error or ""))


def _describe_smoke(smoke: SmokeResult) -> str:
    if not smoke.killable:
        return f"a process on {smoke.device} did not die of SIGKILL (stuck in the driver)"
    return f"a small computation on {smoke.device} failed: {smoke.error}"


def _same_device(evidence: Evidence, node: NodeFacts, device: Device, smoke: SmokeResult) -> bool:
    for facts in evidence.ranks:
        mine = facts.local_rank == smoke.local_rank or facts.device == smoke.device
        if facts.node == node.node and mine and facts.device_uuid is not None:
            return facts.device_uuid == device.uuid
    return smoke.device.partition(":")[2] == str(device.index)


def _read_signs(device: Device) -> tuple[list[str], str | None]:
    """Return what speaks against a device, and ``warning`` where all of it is the lesser kind."""
    signs: list[str] = []
    severe = False
    if device.ecc_uncorrected:
        signs.append(f"{device.ecc_uncorrected:,} uncorrectable ECC errors since the last reset")
        severe = True
    if device.state and (FAULTY.search(device.state) or "err" in device.state.lower()):
        signs.append(f"nvidia-smi says {device.state}")
        severe = True
    for text in device.xid:
        number = _xid_number(text)
        if number is None or number in APPLICATION_XIDS:
            continue
        signs.append(f"kernel: {text}")
        severe = severe or number in HARDWARE_XIDS
    return signs, None if severe else "warning"


HARDWARE_XIDS = frozenset({48, 64, 74, 79, 95, 119, 120, 140, 143, 151, 154})
"""Double-bit ECC, row remapping failed, NVLink, fallen off the bus, uncontained ECC, GSP time-out and error,
unrecovered ECC, GPU initialisation, key rotation, recovery action wanted (NVIDIA Xid catalogue)."""


def _xid_number(text: str) -> int | None:
    match = re.search(r"\bXid\s*(?:\([^)]*\)\s*:)?\s*(\d+)", text)
    return int(match[1]) if match else None


def _name(device: Device) -> str:
    about = ", ".join(part for part in (device.name, device.uuid or device.pci) if part)
    return f"GPU {device.index} ({about})" if about else f"GPU {device.index}"


def _faulty(
    evidence: Evidence,
    node: NodeFacts,
    name: str,
    device: Device | None,
    signs: list[str],
    severity: str | None,
) -> Finding:
    users = [facts for facts in evidence.ranks if facts.node == node.node]
    if device is not None:
        users = [facts for facts in users if find_device(node, facts) is device]
    else:
        users = [facts for facts in users if facts.device == name]
    index = device.index if device is not None else name.partition(":")[2] or "0"
    return Finding(
        message=f"{name} on {node.host} is faulty: {'; '.join(signs[:3])}.",
        ranks=RankSet(facts.rank for facts in users),
        nodes=(node.host,),
        evidence=tuple(EvidenceItem("device", sign) for sign in signs[:8]),
        fix=(
            Fix(
                f"take {node.host} out of the job, then see all that the driver has on the device",
                command=f"nvidia-smi -i {index} -q -d ECC,ROW_REMAPPER; sudo dmesg -T | grep -i xid",
            ),
            Fix(
                "with no process left on it, reset the device; reboot the node where that is refused",
                command=f"sudo nvidia-smi --gpu-reset -i {index}",
            ),
        ),
        details=encode({"device": device, "host": node.host, "signs": signs}),
        severity=severity,
        confidence="high" if severity is None else "medium",
    )


@check(
    "BKD002",
    name="backend-initialisation-failed",
    title="The backend exists, but a process group or its first collective fails",
    severity="error",
    family="backends",
    needs=("smoke",),
    since="0.1.0",
    id="bkd.devices.compute",
    explains=("BKD011",),
)
def find_device_unusable(evidence: Evidence) -> Iterable[Finding]:
    """Each device takes a small computation and a copy, alone and without any process group."""
    alone = [each for each in evidence.smoke if each.kind != "peer-copy"]
    if not alone:
        raise explain_missing(evidence, "smoke", "a computation on each device")
    for each in alone:
        if each.ok or _is_faulty(each) or UNSUPPORTED.search(each.error or ""):
            continue  # BKD010 and BKD005 say what is wrong with these
        host = Places(evidence).host(each.node)
        full = "out of memory" in (each.error or "").lower()
        yield Finding(
            message=f"{each.device} on {host} could not do a small {each.kind}: {each.error or 'no answer'}",
            ranks=RankSet(
                facts.rank
                for facts in evidence.ranks
                if facts.node == each.node
                and (
                    facts.local_rank == each.local_rank
                    if each.local_rank is not None
                    else facts.device == each.device
                )
            ),
            nodes=(host,),
            evidence=(EvidenceItem("smoke", f"{each.kind} on {each.device}: {each.error or 'no answer'}"),),
            fix=(
                Fix("other processes fill the device: see whose they are", command="nvidia-smi")
                if full
                else Fix(
                    "try the device alone, without any process group",
                    command=f"python -c \"import torch; print(torch.ones(3, device='{each.device}').sum())\"",
                ),
            ),
            details=encode({"device": each.device, "host": host, "seconds": each.seconds}),
        )
