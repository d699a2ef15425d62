"""NUM001 of a model that nobody wraps and no optimizer has: a teacher, a moving average that parts over ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.merging import join_companions
from ddpdoctor.evidence.training.numerics import CompanionLook
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import count_of, join_words, name_set
from ddpdoctor_checks.training.replicas.divergence import differ_slightly
from ddpdoctor_checks.training.wrappers import list_wrappers

FEWEST_LOOKS = 2
"""Sampled steps in which it has to run: one that is called once, or whose optimizer steps later, is no companion."""
_AFTER = Fix(
    "copy the model after it is wrapped in DDP, which makes all ranks equal",
    code="model = DistributedDataParallel(model)\nteacher = copy.deepcopy(model.module)",
)
_EQUAL = Fix(
    "or make it equal on all ranks once it is built or loaded",
    code="for tensor in teacher.state_dict().values():\n    dist.broadcast(tensor, src=0)",
)
_ALIKE = Fix(
    "update it on every rank, in the same steps, from the synchronized model",
    code="with torch.no_grad():\n    for mean, new in zip(teacher.parameters(), model.module.parameters()):\n"
    "        mean.lerp_(new, 1 - decay)",
)


@check("NUM001", family="training", needs=TRAINING, id="training.companions", required=False, commands=JOB)
def find_companions(evidence: Evidence) -> Iterable[Finding]:
    """A model that is used in training, but neither wrapped nor optimized, differs across ranks (teacher, EMA)."""
    models: dict[tuple[str, int, int, int], list[CompanionLook]] = {}
    for look in join_companions(evidence.training):
        models.setdefault((look.model, look.number, look.parameters, look.optimizer), []).append(look)
    if not models:
        raise NotApplicable("no model was seen that runs beside the trained one")
    wrappers = list_wrappers(evidence)
    groups = dict.fromkeys(wrapper.group for wrapper in wrappers if wrapper.group)
    if not groups:
        raise NotApplicable(
            "no DistributedDataParallel says which ranks hold one model: others may hold parts of it"
        )
    wrapped = {wrapper.model for wrapper in wrappers}
    for key, looks in models.items():
        steps = (each for node in evidence.training for each in node.steps if each.optimizer == key[3])
        last = max((each.step for each in steps if not each.final), default=0)
        if len(looks) < FEWEST_LOOKS or looks[-1].step * 2 < last:
            continue
        for group in groups:
            if all(_is_permuted(models, key, look, group) for look in looks):
                continue
            diverged = [(look, _restrict(look.values, group)) for look in looks]
            first = next(((look, shares) for look, shares in diverged if len(shares) > 1), None)
            if first is not None and len(diverged[-1][1]) > 1:
                yield _tell(looks, *first, copied=key[0] in wrapped)
                break


_Key = tuple[str, int, int, int]
"""Class, number, parameters and optimizer of a companion."""


def _is_permuted(
    models: Mapping[_Key, Sequence[CompanionLook]], key: _Key, look: CompanionLook, group: RankSet
) -> bool:
    """Whether ranks hold several models of one class that are the same on all of them, and meet them in another order.

    Numbers are given in the order in which models run first: on each rank of an ensemble its own comes first.
    """
    alike = [
        each
        for other, looks in models.items()
        if (other[0], *other[2:]) == (key[0], *key[2:])
        for each in looks
        if each.step == look.step
    ]
    held: dict[int, list[str]] = {rank: [] for rank in group}
    for each in alike:
        for share in each.values:
            for rank in share.ranks:
                if rank in held:
                    held[rank].append(share.digest)
    return len(alike) > 1 and len({tuple(sorted(digests)) for digests in held.values()}) == 1


def _restrict(shares: Sequence[Share], group: RankSet) -> list[Share]:
    kept = ((share, RankSet(rank for rank in share.ranks if rank in group)) for share in shares)
    return [Share(share.digest, ranks, share.norm) for share, ranks in kept if ranks]


def _tell(
    looks: Sequence[CompanionLook], first: CompanionLook, shares: Sequence[Share], *, copied: bool
) -> Finding:
    ranks = RankSet().union(*(share.ranks for share in shares))
    at_start = first is looks[0]
    moves = any(one.values != other.values for one, other in itertools.pairwise(looks))
    slight = differ_slightly([share.norm for share in shares]) and len({share.norm for share in shares}) > 1
    line = user_line(first.frames)
    name = first.model.rpartition(".")[2]
    norms = join_words(f"{share.norm:.7g} on {name_set(share.ranks)}" for share in shares[:4])
    return Finding(
        message=f"{name}, a model that no optimizer trains (a teacher or a moving average){tell_line(line)}, differs "
        f"across {name_set(ranks)} {'from the first step on' if at_start else f'since step {first.step}'}: "
        "DistributedDataParallel synchronizes only the model that it wraps, so ranks train against different ones.",
        ranks=ranks,
        where=in_line(line, ranks, "culprit"),
        evidence=(
            EvidenceItem("model", f"before step {first.step}: norm of all its parameters is {norms}"),
            EvidenceItem("model", f"ran in {count_of(len(looks), 'step')} that were sampled up to {looks[-1].step}"),
        ),
        fix=(_AFTER, _EQUAL) if at_start else (_ALIKE, _EQUAL),
        details={
            "model": first.model, "step": first.step, "at_start": at_start, "copied": copied, "moves": moves,
            **({"made": "elsewhere"} if at_start else {}),  # the calls of a copy are seen, where it was made is not
        },
        severity=None if (copied or moves) and not slight else "warning",
        confidence="high" if (copied or moves) and not slight else "medium",
    )  # fmt: skip
