"""DDP018: ranks that made other numbers of steps than the others, and whose replicas differ since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import OptimizerSetup, StepSite
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import describe_counts, name_set
from ddpdoctor_checks.training.replicas.apart import Divergence
from ddpdoctor_checks.training.replicas.divergence import judge_replicas


@check("DDP018", family="training", needs=TRAINING, id="training.counts", required=False, commands=JOB)
def find_skipped(evidence: Evidence) -> Iterable[Finding]:
    """Some ranks skipped steps of the optimizer that others made, and the replicas differ since."""
    if not any(setup.steps for node in evidence.training for setup in node.optimizers):
        raise NotApplicable("no rank reached its end with optimizer steps")
    backwards = {
        rank: count.backwards
        for node in evidence.training
        for count in node.numerics.counts
        for rank in count.ranks
    }
    for divergence in judge_replicas(evidence):
        if divergence.code == "NUM001" and divergence.replica.wrapper is not None and not divergence.at_start:
            steps = _count_steps(divergence)
            if len(set(steps.values())) > 1 and len(steps) == len(divergence.replica.ranks):
                yield _tell(divergence, steps, backwards)


def _count_steps(divergence: Divergence) -> dict[int, int]:
    """Return how many steps each rank made, those that came to their end."""
    return {
        rank: int(share.digest)
        for share in divergence.replica.setup.steps
        for rank in share.ranks
        if share.digest.isdigit() and rank in divergence.replica.ranks
    }


def find_skipping(steps: Mapping[int, int], backwards: Mapping[int, int]) -> RankSet:
    """Return the ranks that left steps out, as far as numbers tell.

    A rank that left none out made a step after each of its backwards, or after each so many.
    """
    most = max(steps.values())
    even = any(
        count == most and most and not backwards.get(rank, most) % most for rank, count in steps.items()
    )
    return RankSet(rank for rank, count in steps.items() if count < most or not even)


def find_extra(setup: OptimizerSetup, steps: Mapping[int, int]) -> tuple[StepSite, RankSet] | None:
    """Return the one line at which some ranks alone make steps, and who; None where it is not as plain as that.

    Args:
        setup: the optimizer.
        steps: how many steps each rank made.
    """
    uneven = []
    for site in setup.sites:
        there = RankSet().union(*(share.ranks for share in site.counts))
        if len(site.counts) > 1 or len(there) < len(steps):
            uneven.append((site, there))
    if len(uneven) != 1:
        return None
    site, there = uneven[0]
    rest = {rank: count - _count_at(site, rank) for rank, count in steps.items()}
    return (site, there) if len(there) < len(steps) and len(set(rest.values())) == 1 else None


def _count_at(site: StepSite, rank: int) -> int:
    return next(
        (int(share.digest) for share in site.counts if rank in share.ranks and share.digest.isdigit()), 0
    )


_SKIP = Fix(
    "make the decision collectively",
    code="skip = torch.tensor(float(bad))\ndist.all_reduce(skip)\n"
    "if skip == 0:   # on all ranks, or on none\n    optimizer.step()",
)
_EXTRA = Fix("take the step on all ranks, through the wrapper, or step a copy of the model")


def _tell(divergence: Divergence, steps: Mapping[int, int], backwards: Mapping[int, int]) -> Finding:
    setup, extra = divergence.replica.setup, find_extra(divergence.replica.setup, steps)
    ranks = extra[1] if extra is not None else find_skipping(steps, backwards)
    line = user_line(extra[0].frames if extra is not None else setup.frames)
    kind = setup.kind.rpartition(".")[2]
    known = {rank: backwards[rank] for rank in steps if rank in backwards}
    evidence = [EvidenceItem("steps", describe_counts(steps, "step"))]
    if known:
        evidence.append(EvidenceItem("backwards", describe_counts(known, "backward")))
    return Finding(
        message=(
            f"Only {name_set(ranks)} {'takes' if len(ranks) == 1 else 'take'} steps of "
            f"{kind}{tell_line(line)}: "
            if extra is not None
            else f"Ranks took different numbers of steps of {kind}{tell_line(line)}: "
        )
        + f"{describe_counts(steps, 'step')}. The replicas of {divergence.replica.name} have diverged since.",
        ranks=ranks,
        victims=divergence.replica.ranks.minus(ranks),
        where=in_line(line, ranks, "culprit"),
        evidence=tuple(evidence),
        fix=(_EXTRA if extra is not None else _SKIP,),
        details={"steps": {str(rank): count for rank, count in steps.items()}},
        confidence=divergence.confidence,
    )
