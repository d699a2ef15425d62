"""PRF003 and PRF004: where the time of steps goes, in jobs that train rightly and slowly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.timing import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, RankTimes
from ddpdoctor.facts import strategies
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_line
from ddpdoctor_checks.common.wording import capitalise, choose_form, name_set
from ddpdoctor_checks.training.lateness import (
    AFTER,
    BUCKET,
    FEWEST_STEPS,
    Late,
    can_tell,
    find_late,
    find_step,
    list_times,
)
from ddpdoctor_checks.training.step_times import break_down, find_step_line, name_time
from ddpdoctor_checks.training.wrappers import find_layout

LOADER_SHARE, LOADER_SHARE_GPU, LOADER_S = 0.4, 0.8, 0.005
"""Least share of a step that waits for data (on the CPU, on a GPU), and least length of that wait in seconds. A GPU
computes while its program waits for a batch, until there is nothing left that was queued before."""


@check("PRF003", family="training", needs=TRAINING, id="training.straggling", required=False, commands=JOB)
def find_straggling(evidence: Evidence) -> Iterable[Finding]:
    """One rank, or a few, keep coming late to the reduction of gradients, and all others wait for them."""
    if not can_tell(evidence):
        raise NotApplicable(f"fewer than {FEWEST_STEPS} steps were timed on ranks that synchronize")
    for late in find_late(evidence):
        yield _tell_late(evidence, late)


_LOSES = {
    DATA: "waiting for data",
    FORWARD: "in the forward pass of the model",
    OPTIMIZER: "in the step of the optimizer",
    OTHER: "in Python, outside of loader, forward pass, backward pass and optimizer",
    AFTER: "in Python, between its backward pass and what follows",
    BUCKET: "in the backward pass, before its first bucket of gradients",
}
_HELPS = {
    DATA: Fix(
        "profile data loading on that rank: larger samples? slower disk? too few workers?",
        code="DataLoader(dataset, sampler=sampler, num_workers=4, persistent_workers=True)",
    ),
    FORWARD: Fix(
        "check whether its batches are longer or its device is slower: sort samples by length, then "
        "shard them"
    ),
    BUCKET: Fix(
        "check whether its batches are longer or its device is slower: sort samples by length, then "
        "shard them"
    ),
    OPTIMIZER: Fix("find out what slows the CPU of that rank", "py-spy top --pid PID"),
    OTHER: Fix(
        (
            "move what only this rank does out of the step: write logs and checkpoints less often, or in a "
            "thread"
        ),
        code="if rank == 0 and step % 100 == 0:\n    log(loss)",
    ),
}
_HELPS[AFTER] = _HELPS[OTHER]
_BALANCE = Fix(
    "balance the routing of tokens: add a load-balancing loss, limit the capacity of each expert, or adjust the bias "
    "of the router"
)
UNEVEN = 1.5
"""How many times the rows of the others a late rank has to exchange to be late because of them."""


def _tell_late(evidence: Evidence, late: Late) -> Finding:
    one = len(late.ranks) == 1
    everyone = RankSet(rank.rank for rank in list_times(evidence))
    victims = everyone.minus(late.ranks)
    others = choose_form(len(victims), "the other", "the others")
    message = (
        f"{capitalise(name_set(late.ranks))} {'is a straggler' if one else 'are stragglers'}: "
        f"{name_time(late.lag_s)} (median) after {others} in steps of {name_time(late.step_s)}"
    )
    if late.share is not None:
        message += f", and late in {late.share:.0%} of the steps"
    line = _find_loader(evidence) if late.phase == DATA else None
    rows = _find_rows(evidence, late) if late.phase not in (DATA, OPTIMIZER) else None
    if rows is None:
        message += f"; the time is lost {_LOSES[late.phase]}{tell_line(line)}"
    else:
        own, usual, frames = rows
        line = user_line(frames)
        it = choose_form(len(late.ranks), "it sends and receives", "they send and receive")
        share = f"{own / usual:.1f} times the rows of {others} in" if usual >= 1 else "nearly all rows of"
        whose = choose_form(len(late.ranks), "its", "their")
        message += (
            f"; {it} {share} the all-to-all{tell_line(line)}: more tokens are routed to {whose} experts"
        )
    role = "culprit"
    if line is None:
        line, role = find_step_line(evidence), "noticed"
    items = [EvidenceItem("times", _describe(list_times(evidence), late))]
    if rows is not None:
        items.append(
            EvidenceItem(
                "rows", f"sent and received in a call, on average: {rows[0]:.0f} versus {rows[1]:.0f}"
            )
        )
    items += _tell_mesh(evidence, late.ranks)
    if late.whole_nodes:
        how = (
            (
                "by how long ranks compute between two reductions, and by which ranks wait; clocks of nodes "
                "are not used"
            )
            if late.share is None
            else "clocks of the nodes were compared, and their error is subtracted"
        )
        items.append(EvidenceItem("nodes", how))
    return Finding(
        message=message + ".",
        ranks=late.ranks,
        victims=victims,
        where=in_line(line, late.ranks, role),
        evidence=tuple(items),
        fix=(_HELPS[late.phase] if rows is None else _BALANCE,),
        details={
            "lag_s": late.lag_s,
            "share": round(late.share, 3) if late.share is not None else None,
            "step_s": round(late.step_s, 6),
            "phase": late.phase,
            "more_s": round(late.more_s, 6),
        },
        confidence="medium" if late.whole_nodes or late.phase == BUCKET else "high",
        role="advice" if _ended_badly(evidence) else "cause",
    )


def _find_rows(evidence: Evidence, late: Late) -> tuple[float, float, tuple[Frame, ...]] | None:
    """Return the rows that late ranks exchange in a call, those of the others, and where; None where they are even.

    Rows are exchanged with sizes by rank where experts are on several ranks: who gets more tokens computes longer.
    """
    ranks = list_times(evidence)
    own = [rank for rank in ranks if rank.rank in late.ranks and rank.rows is not None]
    rest = [rank.rows for rank in ranks if rank.rank not in late.ranks and rank.rows is not None]
    if len(own) < len(late.ranks) or not rest:
        return None
    least, usual = min(rank.rows or 0.0 for rank in own), median(rest)
    return (least, usual, own[0].routed_at) if least >= UNEVEN * max(usual, 1.0) else None


def _tell_mesh(evidence: Evidence, late: RankSet) -> list[EvidenceItem]:
    """Return where stragglers are in a mesh of several dimensions, and which ranks wait for them along each."""
    everyone = RankSet(rank.rank for rank in list_times(evidence))
    axes = [
        axis
        for axis in find_layout(evidence).axes
        if (axis.name or axis.role != strategies.UNKNOWN)
        and all(1 < len(each) < len(everyone) for each in axis.groups)
    ]
    words = []
    for axis in axes if len(axes) > 1 else ():
        own = [group for group in axis.groups if any(rank in late for rank in group)]
        places = {list(group).index(rank) for group in own for rank in group if rank in late}
        peers = RankSet().union(*own).minus(late)
        if len(places) != 1 or not peers:
            continue
        place = places.pop()
        whole = len(own) == len(axis.groups)
        what = f"{'all ranks' if whole else name_set(late)} of {axis.name or axis.role} {place}"
        words.append(f"{what}, for which {name_set(peers)} {choose_form(len(peers), 'waits', 'wait')}")
    return [EvidenceItem("layout", f"in the mesh: {'; '.join(words)}")] if words else []


def _describe(ranks: Sequence[RankTimes], late: Late) -> str:
    own = [rank for rank in ranks if rank.rank in late.ranks]
    rest = [rank for rank in ranks if rank.rank not in late.ranks]
    words = []
    for name, phase in (("data", DATA), ("forward", FORWARD), ("backward", BACKWARD), ("Python", OTHER)):
        here, there = (median([each.spend(phase) for each in some] or [0.0]) for some in (own, rest))
        words.append(f"{name} {name_time(here)} versus {name_time(there)}")
    return "in a median step, here and on the other ranks: " + ", ".join(words)


@check("PRF004", family="training", needs=TRAINING, id="training.loading", required=False, commands=JOB)
def find_loader_bound(evidence: Evidence) -> Iterable[Finding]:
    """Most ranks spend a large part of their steps waiting for the next batch."""
    ranks = list_times(evidence)
    if max((node.timing.steps for node in evidence.training), default=0) < FEWEST_STEPS:
        raise NotApplicable(f"fewer than {FEWEST_STEPS} steps were timed")
    least = LOADER_SHARE if _device(evidence) == "cpu" else LOADER_SHARE_GPU
    waiting = [
        rank for rank in ranks if rank.spend(DATA) >= LOADER_S and rank.spend(DATA) >= least * rank.step_s
    ]
    if 2 * len(waiting) <= len(ranks):
        return
    line = _find_loader(evidence)
    who = RankSet(rank.rank for rank in waiting)
    data_s, step_s = median(rank.spend(DATA) for rank in waiting), find_step(waiting)
    yield Finding(
        message=f"{capitalise(name_set(who))} {choose_form(len(who), 'waits', 'wait')} for data{tell_line(line)} in "
        f"{data_s / step_s:.0%} of each step: {name_time(data_s)} of {name_time(step_s)}.",
        ranks=who,
        where=in_line(line, who, "culprit"),
        evidence=(EvidenceItem("times", break_down(waiting), who),),
        fix=(
            Fix(
                "prefetch in worker processes that persist across epochs",
                code="DataLoader(dataset, sampler=sampler, num_workers=4, persistent_workers=True,\n"
                "           prefetch_factor=4, pin_memory=torch.cuda.is_available())",
            ),
        ),
        details={"share": round(data_s / step_s, 3), "data_s": data_s, "step_s": round(step_s, 6)},
        role="advice",
    )


def _ended_badly(evidence: Evidence) -> bool:
    return bool(evidence.job) and evidence.job[0].exit_code != 0


def _device(evidence: Evidence) -> str:
    return next((node.timing.device for node in evidence.training if node.timing.device), "cpu")


def _find_loader(evidence: Evidence) -> Frame | None:
    return next((user_line(node.timing.loader) for node in evidence.training if node.timing.loader), None)
