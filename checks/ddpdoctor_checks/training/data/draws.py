"""DAT006: random numbers that are the same on ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import BatchLook
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.wording import capitalise, count_of, name_set
from ddpdoctor_checks.training.seeding import Seeded, find_one_seed, list_places, tell_seeds
from ddpdoctor_checks.training.wrappers import list_groups, list_wrappers

FEWEST = 3
"""Batches in a row before which the numbers must have been equal, and each time further on."""


@check("DAT006", family="training", needs=TRAINING, id="training.draws", required=False, commands=JOB)
def find_draws_repeated(evidence: Evidence) -> Iterable[Finding]:
    """Ranks of one wrapper draw the same random numbers from batch to batch while they are given different data.

    Or they are given one tensor that is the same on all of them, changes from batch to batch and from sample to sample.
    """
    if not any(look.draws or any(look.parts) for node in evidence.training for look in node.batches):
        raise NotApplicable("no random numbers of ranks were seen before training batches")
    if not list_wrappers(evidence):
        return
    looks: dict[tuple[int, str, int], dict[int, list[BatchLook]]] = {}
    for node in evidence.training:
        for look in node.batches:
            if look.model > 0:
                key = look.model, look.loader, look.epoch
                looks.setdefault(key, {}).setdefault(look.index, []).append(look)
    for (model, _, epoch), rows in looks.items():
        for peers in list_groups(evidence, model):
            place = _find_part(rows, peers)
            # Later states of the generator tell no more: they follow from the first one.
            ranks = _find_equal(rows, peers) if epoch == 1 else None
            seeded = find_one_seed(evidence, ranks) if ranks else None
            if place is not None:
                yield _tell_part(place, peers, rows, seeded)
                return
            if ranks:
                yield _tell(ranks, rows, seeded)
                return


def _find_part(rows: dict[int, list[BatchLook]], peers: RankSet) -> int | None:
    """Return the place of a tensor that all ranks are given alike and new each time, beside one that differs."""
    count = min((len(look.parts) for looks in rows.values() for look in looks), default=0)
    if len(rows) < FEWEST or len(peers) < 2:
        return None
    given = [
        [_read(rows[index], peers, _share_of(place)) for index in sorted(rows)] for place in range(count)
    ]
    known = [all(len(row) == len(peers) for row in each) for each in given]
    if not any(
        seen and all(len(set(row.values())) == len(row) for row in each)
        for seen, each in zip(known, given, strict=True)
    ):
        return None
    for place, each in enumerate(given):
        new = {digest for row in each for digest in row.values()}
        if known[place] and all(len(set(row.values())) == 1 for row in each) and len(new) == len(each):
            return place
    return None


def _find_equal(rows: dict[int, list[BatchLook]], peers: RankSet) -> RankSet:
    """Return the ranks whose draws are equal before each batch; none where one was not seen."""
    draws = [_read(rows[index], peers, lambda look: look.draws) for index in sorted(rows)]
    batches = [_read(rows[index], peers, lambda look: look.batches) for index in sorted(rows)]
    if len(draws) < FEWEST or len(peers) < 2 or any(len(row) < len(peers) for row in (*draws, *batches)):
        return RankSet()
    equal = all(len(set(row.values())) == 1 for row in draws)
    moving = len({next(iter(row.values())) for row in draws}) == len(draws)
    differing = all(len(set(row.values())) == len(row) for row in batches)
    return peers if equal and moving and differing else RankSet()


def _share_of(place: int) -> Callable[[BatchLook], Iterable[Share]]:
    return lambda look: look.parts[place]


def _read(
    looks: Iterable[BatchLook], peers: RankSet, shares: Callable[[BatchLook], Iterable[Share]]
) -> dict[int, str]:
    """Return by rank what was seen before or in one batch."""
    return {
        rank: share.digest
        for look in looks
        for share in shares(look)
        for rank in share.ranks
        if rank in peers
    }


def _tell_part(
    place: int,
    ranks: RankSet,
    rows: dict[int, list[BatchLook]],
    seeded: Seeded | None,
) -> Finding:
    line = user_line(rows[min(rows)][0].frames)
    return Finding(
        message=f"Tensor {place + 1} of what the model is given is the same on {name_set(ranks)} in "
        f"{count_of(len(rows), 'batch', 'batches')} in a row and new in each, although the samples differ: it is drawn "
        "from random number generators in the same state, or read by a loader that does not divide its data.",
        ranks=ranks,
        where=list_places(seeded, line, ranks),
        evidence=(
            *tell_seeds(seeded, ranks),
            EvidenceItem("fingerprints", (
                "compared were the tensors with one row for each sample whose rows differ, on all ranks at each of "
                "these batches"
            ), ranks),
        ),
        fix=(Fix("seed by rank what draws it, after the model was created and wrapped",
                 code="generator.manual_seed(seed + dist.get_rank())"),),
        details={"batches": len(rows), "tensor": place + 1},
        confidence="medium",
    )  # fmt: skip


def _tell(ranks: RankSet, rows: dict[int, list[BatchLook]], seeded: Seeded | None) -> Finding:
    line = user_line(rows[min(rows)][0].frames)
    return Finding(
        message=f"{capitalise(name_set(ranks))} draw the same random numbers from batch to batch, on different data: "
        "dropout, noise and augmentation in these processes are the same on all of them.",
        ranks=ranks,
        where=list_places(seeded, line, ranks),
        evidence=(
            *tell_seeds(seeded, ranks),
            EvidenceItem("draws", (
                "torch's CPU random number generator is in the same state before "
                f"{count_of(len(rows), 'batch', 'batches')} in a row, and advances each time"
            ), ranks),
        ),
        fix=(Fix("seed again by rank, after the model was created and wrapped",
                 code="torch.manual_seed(seed + dist.get_rank())"),),
        details={"batches": len(rows)},
        severity="info",
        role="advice",
        confidence="medium",
    )  # fmt: skip
