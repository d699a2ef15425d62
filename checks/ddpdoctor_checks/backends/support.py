"""Whether this torch has kernels for the devices, and whether the driver is new enough."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import Device, Evidence, NodeFacts, RankFacts, RankSet, SmokeResult, encode
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.rank_devices import explain_no_gpu, find_device, on_gpu
from ddpdoctor_checks.common.wording import join_words, name_set

MINIMUM_DRIVER = {10: (440, 33), 11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}
"""CUDA major version of the runtime -> oldest Linux driver (CUDA Toolkit release notes, "minimum required
driver version for CUDA minor version compatibility"; 10 is 10.2, which had no such compatibility)."""

UNSUPPORTED = re.compile(
    r"no kernel image|driver (?:version is insufficient|on your system is too old)"
    r"|not compatible with the current pytorch",
    re.IGNORECASE,
)
"""Texts of CUDA and torch for a device that this build cannot serve."""


def supports(arch_list: Sequence[str], capability: str) -> bool:
    """Whether a build with ``arch_list`` has code for compute capability ``capability``.

    A cubin ``sm_XY`` runs on devices of major X with minor >= Y; PTX ``compute_XY`` is compiled for any
    device >= XY; the suffix ``a`` allows exactly one device, ``f`` the family of a cubin (CUDA C++
    Programming Guide, "Application Compatibility" and "Feature Set Compiler Targets").
    """
    if capability.startswith("gfx"):  # ROCm: one code object for one processor, features after a colon
        return any(arch.split(":")[0] == capability.split(":")[0] for arch in arch_list)
    major, minor = _split_capability(capability)
    for arch in arch_list:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
        if match is None:
            continue
        has = (int(match[2]), int(match[3]))
        if match[4] == "a":
            fits = has == (major, minor)
        elif match[1] == "sm" or match[4] == "f":
            fits = has[0] == major and has[1] <= minor
        else:
            fits = has <= (major, minor)
        if fits:
            return True
    return False


def _split_capability(capability: str) -> tuple[int, int]:
    major, _, minor = capability.partition(".")
    return int(major), int(minor or 0)


@check("BKD005", family="backends", needs=("ranks", "nodes"), id="bkd.devices.supported")
def find_device_unsupported(evidence: Evidence) -> Iterable[Finding]:
    """The installed torch cannot run on a GPU of this world."""
    users = [facts for facts in evidence.ranks if on_gpu(facts)]
    failed = [each for each in evidence.smoke if not each.ok and UNSUPPORTED.search(each.error or "")]
    if not users and not failed:
        raise NotApplicable(explain_no_gpu(evidence))
    nodes = {each.node: each for each in evidence.nodes}
    trials: dict[int, list[SmokeResult]] = {}
    for each in evidence.smoke:
        if each.kind == "compute":
            trials.setdefault(each.node, []).append(each)
    judged = 0
    groups: dict[tuple[str, str], list[RankFacts]] = {}
    for facts in users:
        device = find_device(nodes.get(facts.node), facts)
        smoke = _find_smoke(trials.get(facts.node, ()), facts)
        if smoke is not None and smoke.ok:
            judged += 1
            continue
        problem = _name_problem(nodes.get(facts.node), facts, device)
        if smoke is not None and smoke in failed:
            problem = problem or smoke.error
        judged += problem is not None or _could_tell(facts, device)
        if problem:
            groups.setdefault((_describe(device, facts), problem), []).append(facts)
    for (name, problem), members in groups.items():
        yield _unsupported(name, problem, members)
    if not groups:
        yield from (_unsupported_smoke(nodes, each) for each in failed)
    if not groups and not failed and judged < len(users):
        raise CannotLook("compute capability or torch's list of architectures is not known")


def _find_smoke(trials: Iterable[SmokeResult], facts: RankFacts) -> SmokeResult | None:
    """Return the computation that was tried on a rank's device, of those of its node."""
    for each in trials:
        mine = (
            each.local_rank == facts.local_rank
            if each.local_rank is not None
            else each.device == facts.device
        )
        if mine:
            return each
    return None


def _could_tell(facts: RankFacts, device: Device | None) -> bool:
    return device is not None and device.capability is not None and bool(facts.arch_list)


def _describe(device: Device | None, facts: RankFacts) -> str:
    if device is None:
        return facts.device
    capability = f" (compute capability {device.capability})" if device.capability else ""
    return f"{device.name or f'GPU {device.index}'}{capability}"


def _name_problem(node: NodeFacts | None, facts: RankFacts, device: Device | None) -> str | None:
    capability = device.capability if device is not None else None
    if capability and facts.arch_list and not supports(facts.arch_list, capability):
        return f"this PyTorch build has kernels for {', '.join(facts.arch_list)} only"
    runtime = facts.versions.get("cuda") or (node.versions.get("cuda") if node else None)
    driver = (device.driver if device else None) or (node.versions.get("driver") if node else None)
    needed = MINIMUM_DRIVER.get(int(runtime.split(".")[0])) if runtime and runtime[0].isdigit() else None
    found = tuple(int(part) for part in (driver or "").split(".") if part.isdigit())
    if needed is not None and found and found < needed:
        text = ".".join(str(part) for part in needed)
        return f"driver {driver} is older than CUDA {runtime} of this PyTorch build allows (at least {text})"
    return None


def _unsupported(name: str, problem: str, members: list[RankFacts]) -> Finding:
    ranks = RankSet(facts.rank for facts in members)
    hosts = tuple(dict.fromkeys(facts.host for facts in members))
    return Finding(
        message=f"{name_set(ranks).capitalize()} on {join_words(hosts)} cannot use {name}: {problem}.",
        ranks=ranks,
        nodes=hosts,
        evidence=(
            EvidenceItem("device", name, ranks),
            EvidenceItem("torch", f"architectures: {', '.join(members[0].arch_list) or 'unknown'}", ranks),
        ),
        fix=_fixes("driver" in problem),
        details=encode({"device": name, "arch_list": list(members[0].arch_list), "problem": problem}),
    )


def _unsupported_smoke(nodes: dict[int, NodeFacts], smoke: SmokeResult) -> Finding:
    host = nodes[smoke.node].host if smoke.node in nodes else f"node {smoke.node}"
    return Finding(
        message=f"{smoke.device} on {host} cannot be used by this PyTorch build: {smoke.error}",
        nodes=(host,),
        evidence=(EvidenceItem("smoke", smoke.error or ""),),
        fix=_fixes("driver" in (smoke.error or "").lower()),
        details=encode({"device": smoke.device, "problem": smoke.error}),
    )


def _fixes(driver: bool) -> tuple[Fix, ...]:
    see = Fix(
        "compare what torch was built for with what the driver offers",
        command='python -c "import torch; print(torch.version.cuda, torch.cuda.get_arch_list())"; '
        "nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv",
    )
    if driver:
        return (
            Fix(
                "update the NVIDIA driver, or install a PyTorch build for an older CUDA "
                "(pytorch.org/get-started)"
            ),
            see,
        )
    return (Fix("install a PyTorch build that has kernels for this GPU (pytorch.org/get-started)"), see)
