"""Which device each rank uses: shared devices, and ranks without one."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, RankFacts, RankSet, encode
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.rank_devices import GPU_BACKENDS, explain_no_gpu, find_device, on_gpu
from ddpdoctor_checks.common.stage_evidence import fold_alike
from ddpdoctor_checks.common.wording import choose_form, join_words, name_set

_SET_DEVICE = """local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", local_rank))"""


@check("BKD003", family="backends", needs=("ranks",), id="bkd.devices.unshared")
def find_device_shared(evidence: Evidence) -> Iterable[Finding]:
    """Several ranks use the same physical GPU."""
    users = [facts for facts in evidence.ranks if on_gpu(facts)]
    if not users:
        raise NotApplicable(explain_no_gpu(evidence))
    groups: dict[str, list[RankFacts]] = {}
    for facts in users:
        if facts.device_uuid is not None:
            groups.setdefault(facts.device_uuid, []).append(facts)
    shared = [_shared_device(evidence, uuid, members) for uuid, members in groups.items() if len(members) > 1]
    yield from fold_alike(shared)
    unknown = [facts.rank for facts in users if facts.device_uuid is None]
    if unknown and not shared:
        raise CannotLook(f"the device's UUID is not known on {name_set(RankSet(unknown))}")


def _shared_device(evidence: Evidence, uuid: str, members: list[RankFacts]) -> Finding:
    ranks = RankSet(facts.rank for facts in members)
    hosts = tuple(dict.fromkeys(facts.host for facts in members))
    node = next((each for each in evidence.nodes if each.node == members[0].node), None)
    device = find_device(node, members[0])
    name = f"{device.name or 'GPU'} {device.index} ({uuid})" if device is not None else uuid
    visible = {facts.variables.get("CUDA_VISIBLE_DEVICES") for facts in members}
    pinned = len(visible) == 1 and "," not in (next(iter(visible)) or ",")
    fixes = [Fix("choose the device by local rank before anything touches a GPU", code=_SET_DEVICE)]
    if pinned:
        value = next(iter(visible))
        fixes.insert(
            0,
            Fix(
                f"CUDA_VISIBLE_DEVICES={value} leaves one GPU to all of these ranks: unset it, or list one "
                "GPU per rank",
                command="unset CUDA_VISIBLE_DEVICES",
            ),
        )
    return Finding(
        message=f"{name_set(ranks).capitalize()} on {join_words(hosts)} use one GPU: {name}.",
        ranks=ranks,
        nodes=hosts,
        evidence=tuple(
            EvidenceItem(
                "device",
                f"rank {facts.rank} (pid {facts.pid}): {facts.device} = {uuid}",
                RankSet([facts.rank]),
            )
            for facts in members[:8]
        ),
        fix=tuple(fixes),
        details=encode(
            {
                "uuid": uuid,
                "visible_devices": sorted(str(value) for value in visible if value is not None),
            }
        ),
        severity=None if evidence.launch.backend == "nccl" else "warning",
    )


@check("BKD004", family="backends", needs=("ranks",), id="bkd.devices.in_range")
def find_device_out_of_range(evidence: Evidence) -> Iterable[Finding]:
    """There are more ranks on a node than GPUs that they can see."""
    wanted = evidence.launch.backend in GPU_BACKENDS or any(on_gpu(facts) for facts in evidence.ranks)
    if not wanted:
        raise NotApplicable(explain_no_gpu(evidence))
    if not evidence.ranks:
        raise CannotLook("no rank reported its devices")
    if not any(facts.visible_devices for facts in evidence.ranks):
        raise NotApplicable("no GPU is visible to any rank")  # then BKD001 speaks
    outside = [facts for facts in evidence.ranks if _needed_index(facts) >= facts.visible_devices]
    groups: dict[tuple[int, str | None], list[RankFacts]] = {}
    for facts in outside:
        key = (facts.visible_devices, facts.variables.get("CUDA_VISIBLE_DEVICES"))
        groups.setdefault(key, []).append(facts)
    yield from fold_alike(_out_of_range(seen, value, members) for (seen, value), members in groups.items())


def _needed_index(facts: RankFacts) -> int:
    """Index of the device that the rank uses or would use."""
    kind, _, index = facts.device.partition(":")
    return int(index) if kind != "cpu" and index.isdigit() else facts.local_rank


def _out_of_range(seen: int, value: str | None, members: list[RankFacts]) -> Finding:
    ranks = RankSet(facts.rank for facts in members)
    hosts = tuple(dict.fromkeys(facts.host for facts in members))
    host = join_words(hosts)
    pinned = f" (CUDA_VISIBLE_DEVICES={value})" if value is not None else ""
    locals_ = RankSet(facts.local_rank for facts in members)
    return Finding(
        message=f"{name_set(ranks).capitalize()} on {host} (local {name_set(locals_)}) "
        f"{choose_form(len(ranks), 'has', 'have')} no GPU: "
        f"{seen} {'is' if seen == 1 else 'are'} visible there{pinned}.",
        ranks=ranks,
        nodes=hosts,
        evidence=(EvidenceItem("device", f"torch sees {seen} devices on {host}{pinned}", ranks),),
        fix=(
            Fix(
                f"start at most {seen} ranks on {host}, or make more GPUs visible",
                command=f"torchrun --nproc-per-node {seen} train.py"
                if seen
                else "unset CUDA_VISIBLE_DEVICES",
            ),
            Fix("choose the device by LOCAL_RANK, never by RANK", code=_SET_DEVICE),
        ),
        details=encode({"visible_devices": seen, "local_ranks": list(locals_)}),
    )
