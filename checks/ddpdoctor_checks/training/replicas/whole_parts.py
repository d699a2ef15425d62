"""DDP006 and NUM001: parameters that ranks hold whole beside shards of their own, and do not keep equal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import OptimizerSetup, StepLook, TensorLook
from ddpdoctor.evidence.training.merging import join_optimizers
from ddpdoctor.facts import strategies
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, count_of, join_words, name_set
from ddpdoctor_checks.training.seeding import Seeded, find_seeded_apart, list_places, tell_seeds
from ddpdoctor_checks.training.wrappers import find_layout, find_mixed

LISTED = 4
SHARDING = (strategies.FSDP1.name, strategies.FSDP2.name)


@check("DDP006", family="training", needs=TRAINING, id="training.left_whole", required=False, commands=JOB)
def find_left_whole(evidence: Evidence) -> Iterable[Finding]:
    """Parameters beside those that FSDP shards are trained on each rank with gradients of its own."""
    groups = [
        group for axis in find_layout(evidence).axes if axis.strategy in SHARDING for group in axis.groups
    ]
    if not groups:
        raise NotApplicable("no model was seen that FSDP shards")
    for left in list_left(evidence, groups):
        yield _tell_left(*left)


def list_left(
    evidence: Evidence, groups: Sequence[RankSet]
) -> Iterator[tuple[OptimizerSetup, RankSet, list[str], StepLook]]:
    """Yield for each optimizer of a sharded model the first group that holds parameters whole and steps them apart.

    Returns:
        Optimizer, group, the parameters, and the first look at which these differ.
    """
    for setup, looks in join_optimizers(evidence.training):
        for group in groups if setup.peers else ():
            names, look = _find_left(looks, group)
            if names and look is not None:
                yield setup, group, names, look
                break


def _find_left(looks: Sequence[StepLook], group: RankSet) -> tuple[list[str], StepLook | None]:
    """Return the tensors that began equal on ranks, with other gradients, and differ at a look, and that look."""
    start = next((look for look in looks if look.step == 1), None)
    began = {
        each.name
        for each in (start.tensors if start is not None else ())
        if not each.peers and _agree(each, group) and _differ([s.ranks for s in each.gradients], group)
    }
    for look in looks:
        apart = [
            each.name
            for each in look.tensors
            if each.name in began
            and each.kind == "parameter"
            and _differ([share.ranks for share in each.values], group)
        ]
        if apart:
            return apart, look
    return [], None


def _agree(tensor: TensorLook, group: RankSet) -> bool:
    return any(all(rank in share.ranks for rank in group) for share in tensor.values)


def _differ(shares: Sequence[RankSet], group: RankSet) -> bool:
    """Whether each rank of a group has been looked at, and at least two of them differ."""
    held = [RankSet(rank for rank in ranks if rank in group) for ranks in shares]
    return sum(map(len, held)) == len(group) and sum(map(bool, held)) > 1


def _tell_left(setup: OptimizerSetup, group: RankSet, names: Sequence[str], look: StepLook) -> Finding:
    line = user_line(setup.frames)
    told = join_words(list(names), few=LISTED)
    made = setup.replaced[0] if len(setup.replaced) == 1 else None
    return Finding(
        message=(
            f"{told} {'is' if len(names) == 1 else 'are'} no part of what FSDP shards on {name_set(group)}: "
            f"each rank holds {'it' if len(names) == 1 else 'them'} whole and steps with gradients of its own"
            f"{tell_line(line)}. The values differ from step {look.step} on."
            + (f" The program changes the model{tell_line(made)}." if made is not None else "")
        ),
        ranks=group,
        where=(
            *(in_line(made, group, "culprit") if made is not None else ()),
            *in_line(line, group, "culprit" if made is None else "noticed"),
        ),
        evidence=(
            EvidenceItem("parameters", f"{told}: equal before step 1, with different gradients", group),
            EvidenceItem(
                "parameters", f"the other {count_of(setup.parameters - len(names), 'tensor')} may be sharded"
            ),
        ),
        fix=(
            Fix(
                "change the model before it is sharded, and shard the root as well, which takes what no layer has",
                code="model.head = nn.Linear(width, classes)\nfor layer in model.layers:\n    fully_shard(layer)\n"
                "fully_shard(model)",
            ),
        ),
        details={"parameters": list(names)[:LISTED], "step": look.step},
        confidence="high",
    )


@check("NUM001", family="training", needs=TRAINING, id="training.equal_start", required=False, commands=JOB)
def find_unequal_start(evidence: Evidence) -> Iterable[Finding]:
    """Ranks average the gradient of a parameter of which they began with different values."""
    if not any(look.tensors for node in evidence.training for look in node.steps):
        raise NotApplicable("no tensor was seen in which ranks differ")
    if find_mixed(evidence) is not None or find_layout(evidence).list_groups(strategies.DATA):
        return  # what is known of replicas is compared in `differing`
    for setup, looks in join_optimizers(evidence.training):
        for tensor, group in _list_unequal(looks) if not setup.wrappers else ():
            held = [share for share in tensor.values if any(rank in group for rank in share.ranks)]
            yield _tell_unequal(setup, tensor, group, find_seeded_apart(evidence, held))
            break


def _list_unequal(looks: Sequence[StepLook]) -> Iterator[tuple[TensorLook, RankSet]]:
    """Yield matrices whose gradients are equal to the last bit on ranks that hold different values, from first to last.

    A vector may get one gradient on all ranks without an average: the bias that each adds to one sum.
    """
    start = next((look for look in looks if look.step == 1), None)
    known = [look for look in looks if look.tensors]
    if start is None or len(known) < 2:
        return
    for tensor in start.tensors:
        if tensor.kind != "parameter" or tensor.peers or len(tensor.shape) < 2:
            continue
        for share in tensor.gradients:
            if len(share.ranks) > 1 and share.norm and _stay_apart(known, tensor.name, share.ranks):
                yield tensor, share.ranks


def _stay_apart(looks: Sequence[StepLook], name: str, group: RankSet) -> bool:
    held = [next((each for each in look.tensors if each.name == name), None) for look in looks]
    return all(
        each is not None and all(sum(rank in share.ranks for rank in group) <= 1 for share in each.values)
        for each in held
    )


def _tell_unequal(
    setup: OptimizerSetup, tensor: TensorLook, group: RankSet, seeded: Seeded | None
) -> Finding:
    line = user_line(setup.frames)
    why = f": they are seeded differently{tell_line(seeded.line)}" if seeded is not None else ""
    return Finding(
        message=(
            f"{capitalise(name_set(group))} average the gradient of {tensor.name} before the step{tell_line(line)}, "
            f"and started with different values of it{why}. They were never equal, and stay different."
        ),
        ranks=group,
        where=list_places(seeded, line, group),
        evidence=(
            *tell_seeds(seeded, group),
            EvidenceItem("gradients", f"that of {tensor.name} is equal to the last bit at step 1", group),
            EvidenceItem("parameters", f"{tensor.name} differs on these ranks at every sampled step", group),
        ),
        fix=(
            Fix(
                "build what all ranks hold whole with one seed, and only the shards with a seed of their own",
                code="torch.manual_seed(seed)          # the same on all ranks\nembedding = nn.Embedding(…)\n"
                "with torch.random.fork_rng():\n    torch.manual_seed(seed + 1 + tensor_parallel_rank)\n"
                "    shard = ColumnParallel(…)",
            ),
            Fix("or broadcast it once", code="dist.broadcast(embedding.weight.data, src=0)"),
        ),
        details={"parameter": tensor.name},
        severity="warning",
        confidence="medium",
    )
