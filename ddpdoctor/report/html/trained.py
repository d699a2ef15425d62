"""Replicas and data over the ranks: at which step who agrees with whom, and which batches and orders ranks share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import EpochLook, StepLook, TensorLook
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.words import format_ranks, format_share

LOOKS_SHOWN = 40
TENSORS_SHOWN = 24
BATCHES_SHOWN = 24
EPOCHS_SHOWN = 24
PARTS_SHOWN = 4
"""Sets of ranks that are told apart in one cell; more are counted."""
INDICES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Cell:
    """How ranks agree in one thing."""

    text: str
    parted: bool


@dataclass(frozen=True, slots=True)
class StepRow:
    """One look at one optimizer's parameters."""

    optimizer: str
    step: str
    parameters: Cell
    gradients: Cell
    first: str
    """The first tensor that differs."""


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor that differs, at the last look that lists any."""

    name: str
    shape: str
    parts: tuple[tuple[str, str], ...]
    """Ranks, and the norm that they have."""
    missing: str


@dataclass(frozen=True, slots=True)
class TrainedView:
    """What was seen of the training."""

    steps: tuple[StepRow, ...]
    when: str
    """Step at which the tensors were seen, in words; empty where none differs."""
    tensors: tuple[TensorRow, ...]
    batches: tuple[tuple[str, str, Cell], ...]
    """Loader, which batch, and who was given the same."""
    epochs: tuple[tuple[str, str, str, str], ...]
    """Loader, epoch, ranks, and the first indices."""
    cost: str | None
    """Part of the time that looking took, on the rank where it took most."""


def view_trained(evidence: Evidence, caps: Caps) -> TrainedView | None:
    """Return the view; None where no step, batch or epoch of several ranks was seen."""
    ranks = RankSet().union(*(node.ranks for node in evidence.training))
    looks = join_steps(evidence)
    batches = _list_batches(evidence)
    epochs = sorted(
        (look for node in evidence.training for look in node.epochs),
        key=lambda look: (look.loader, look.number, look.ranks.ranges),
    )
    if len(ranks) < 2 or not (looks or batches or epochs):
        return None
    kinds = {
        setup.number: setup.kind.rpartition(".")[2] for node in evidence.training for setup in node.optimizers
    }
    listed = [look for look in looks if any(len(each.values) > 1 or each.missing for each in look.tensors)]
    shares = [node.share for node in evidence.training if node.share is not None]
    tensors = [_view_tensor(each) for each in listed[-1].tensors] if listed else []
    return TrainedView(
        caps.take([_view_step(look, kinds) for look in looks], LOOKS_SHOWN, "snapshots of replicas"),
        _name_step(listed[-1]) if listed else "",
        caps.take(tensors, TENSORS_SHOWN, "tensors that differ"),
        caps.take(batches, BATCHES_SHOWN, "batches"),
        caps.take([_view_epoch(look) for look in epochs], EPOCHS_SHOWN, "epochs"),
        format_share(max(shares)) if shares else None,
    )


def join_steps(evidence: Evidence) -> list[StepLook]:
    """Return the looks in order, those of several nodes at one step as one."""
    joined: dict[tuple[int, int], StepLook] = {}
    for node in evidence.training:
        for look in node.steps:
            known = joined.get((look.optimizer, look.step))
            if known is not None and known.final == look.final:
                look = StepLook(
                    optimizer=look.optimizer,
                    step=look.step,
                    final=look.final,
                    values=join_shares(known.values, look.values),
                    gradients=join_shares(known.gradients, look.gradients),
                    tensors=(*known.tensors, *look.tensors),
                )
            elif known is not None and look.final:
                continue
            joined[look.optimizer, look.step] = look
    return [look for _, look in sorted(joined.items())]


def join_shares(one: Sequence[Share], other: Sequence[Share]) -> tuple[Share, ...]:
    """Return who has the same, over what two nodes have seen."""
    groups: dict[str, RankSet] = {}
    for share in (*one, *other):
        groups[share.digest] = groups.get(share.digest, RankSet()).union(share.ranks)
    return tuple(Share(digest, ranks) for digest, ranks in groups.items())


def _name_step(look: StepLook) -> str:
    return "at the end" if look.final else f"before step {look.step:,}"


def _view_step(look: StepLook, kinds: dict[int, str]) -> StepRow:
    first = next((each for each in look.tensors if len(each.values) > 1 or len(each.gradients) > 1), None)
    return StepRow(
        f"{kinds.get(look.optimizer, 'optimizer')} {look.optimizer}",
        "end" if look.final else f"{look.step:,}",
        _agree(look.values),
        _agree(look.gradients),
        first.name if first is not None else "",
    )


def _agree(shares: Sequence[Share]) -> Cell:
    """Say who agrees with whom."""
    if not shares:
        return Cell("–", parted=False)
    if len(shares) == 1:
        return Cell(f"equal on {format_ranks(shares[0].ranks)}", parted=False)
    return Cell(_part(share.ranks for share in shares), parted=True)


def _part(sets: Iterable[RankSet]) -> str:
    listed = list(sets)
    shown = " | ".join(str(ranks) for ranks in listed[:PARTS_SHOWN])
    return f"{shown} and {len(listed) - PARTS_SHOWN:,} more" if len(listed) > PARTS_SHOWN else shown


def _view_tensor(tensor: TensorLook) -> TensorRow:
    parts = [
        (format_ranks(share.ranks), f"{share.norm:.7g}" if share.norm is not None else "different bits")
        for share in tensor.values[:PARTS_SHOWN]
    ]
    shape = " × ".join(map(str, tensor.shape)) or "scalar"
    return TensorRow(tensor.name, shape, tuple(parts), format_ranks(tensor.missing) if tensor.missing else "")


def _list_batches(evidence: Evidence) -> list[tuple[str, str, Cell]]:
    joined: dict[tuple[str, int, int, int], tuple[Share, ...]] = {}
    for node in evidence.training:
        for look in node.batches:
            key = look.loader, look.epoch, look.index, look.model
            joined[key] = join_shares(joined.get(key, ()), look.batches)
    rows = []
    for (loader, epoch, index, _), shares in sorted(joined.items()):
        same = [share.ranks for share in shares if len(share.ranks) > 1]
        cell = (
            Cell(f"the same on {_part(same)}", parted=True)
            if same
            else Cell("distinct on every rank (expected)", parted=False)
        )
        which = f"epoch {epoch}, batch {index}" if loader else f"batch {index}"
        rows.append((loader or "no DataLoader", which, cell))
    return rows


def _view_epoch(look: EpochLook) -> tuple[str, str, str, str]:
    first = ", ".join(map(str, look.first[:INDICES_SHOWN]))
    return look.loader, str(look.number), format_ranks(look.ranks), f"{first}, …" if first else "–"
