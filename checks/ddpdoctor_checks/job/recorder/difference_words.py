"""From a difference between ranks to words: the sentence, both lines, what to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ddpdoctor.evidence import RankSet
from ddpdoctor.judge import EvidenceItem, Fix, Where
from ddpdoctor_checks.common.wording import capitalise, choose_form, join_words, name_set
from ddpdoctor_checks.job.calls.chains import follow, name_dimension
from ddpdoctor_checks.job.calls.last import describe_call
from ddpdoctor_checks.job.calls.matching import Matching, waiting_elsewhere
from ddpdoctor_checks.job.calls.sequences import MEETING
from ddpdoctor_checks.job.calls.votes import Difference, Side
from ddpdoctor_checks.job.recorder.difference_evidence import (
    MOST_SIDES,
    list_places,
    list_seen,
    list_sides,
    make_details,
    name_call,
    name_site,
)

SORTED = Fix(
    "issue the collectives in one order on every rank: sort what is iterated over",
    code="for name in sorted(metrics):\n    dist.all_reduce(metrics[name])",
)
SAME = Fix("issue the same collectives in the same order with the same shapes and dtypes on every rank")
OUTSIDE = Fix(
    "move the call out of branches that depend on the rank or on local values, so that every rank "
    "reaches it or none"
)
UNEVEN = Fix(
    "if a rank has fewer batches, give all ranks the same number, or use the Join context manager",
    code="with Join([model]):\n    for batch in loader:\n        ...",
)


@dataclass(slots=True)
class Told:
    """What a check says of a difference."""

    code: str
    message: str
    fix: tuple[Fix, ...]
    ranks: RankSet
    victims: RankSet
    confidence: str
    where: tuple[Where, ...] = ()
    seen: tuple[EvidenceItem, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    severity: str | None = None


def tell(matching: Matching, difference: Difference) -> Told:
    """Return the words for a difference."""
    code, message, fix = _WORDS[difference.kind](matching, difference)
    return Told(
        code,
        message,
        fix,
        difference.culprits,
        _victims(difference),
        difference.sure,
        list_places(matching, difference),
        tuple(list_seen(matching, difference)),
        make_details(matching, difference),
    )


def tell_early(matching: Matching, difference: Difference, early: RankSet) -> Told:
    """Return the words for ranks that left the program while others wait for them."""
    told = tell(matching, difference)
    waits = _say_waiting(matching, difference)
    told.code, told.ranks, told.victims, told.confidence = "COL008", early, difference.waiting, "high"
    told.message = f"{capitalise(name_set(early))} exited while {waits}."
    told.fix = (Fix("let all ranks leave the loop together: decide collectively with an all_reduce"), UNEVEN)
    told.where = list_places(matching, difference, early)
    return told


def _victims(difference: Difference) -> RankSet:
    if not difference.culprits:
        return RankSet()
    return RankSet().union(*(side.ranks for side in difference.sides)).minus(difference.culprits)


def _say_waiting(matching: Matching, difference: Difference) -> str:
    parts = []
    for side in list_sides(difference, called=True)[:MOST_SIDES]:
        call = matching.log.calls[side.call or 0]
        verb = choose_form(len(side.ranks), "waits", "wait")
        where = f"{name_call(call, difference.number)}{difference.group.title}{name_site(side.site)}"
        parts.append(f"{name_set(side.ranks)} {verb} in {where}")
    return join_words(parts)


def _say_last(matching: Matching, side: Side) -> str:
    if side.last is None:
        return "issued no collective on the group at all"
    call = name_call(matching.log.calls[side.last], side.last_number)
    return f"{choose_form(len(side.ranks), 'its', 'their')} last collective was {call}{name_site(side.site)}"


def _tell_missing(matching: Matching, difference: Difference) -> tuple[str, str, tuple[Fix, ...]]:
    late = list_sides(difference, called=False)
    never = join_words(
        f"{name_set(side.ranks)} had not issued it: {_say_last(matching, side)}" for side in late[:MOST_SIDES]
    )
    message = f"{capitalise(_say_waiting(matching, difference))}; {never}"
    elsewhere = waiting_elsewhere(matching, difference)
    if elsewhere:
        told = join_words(
            (
                f"{name_set(ranks)} {choose_form(len(ranks), 'is', 'are')} blocked in a collective of group "
                f"{name}"
            )
            for name, ranks in elsewhere.items()
        )
        message += f"; meanwhile {told}"
    message += _say_chain(matching, difference)
    if not difference.culprits:
        message += "; the evidence does not show which side is wrong"
    return "COL002", f"{message}.", (OUTSIDE, UNEVEN)


def _say_chain(matching: Matching, difference: Difference) -> str:
    """Return who else waits for the culprits through other groups, and which dimension of the mesh the call is of."""
    if not difference.culprits or len(matching.groups) < 2:
        return ""
    blocked, groups = follow(matching.groups, difference.culprits)
    others = [group for group in groups if group is not difference.group]
    if not others:
        return ""
    dimension = name_dimension(difference.group)
    of = f" ({dimension})" if dimension else ""
    names = [name_dimension(group) or f"group {group.description or group.name}" for group in others]
    through = join_words(dict.fromkeys(names), few=MOST_SIDES)
    return f"{of}; {name_set(blocked)} {choose_form(len(blocked), 'waits', 'wait')} for it, some through {through}"


def _say_calls(matching: Matching, difference: Difference) -> str:
    parts = []
    for side in difference.sides[:MOST_SIDES]:
        call = matching.log.calls[side.call or 0]
        verb = choose_form(len(side.ranks), "calls", "call")
        parts.append(f"{name_set(side.ranks)} {verb} {describe_call(call)}{name_site(side.site)}")
    more = len(difference.sides) - MOST_SIDES
    return join_words([*parts, f"{more} others issue other collectives"] if more > 0 else parts)


def _tell_mismatch(matching: Matching, difference: Difference) -> tuple[str, str, tuple[Fix, ...]]:
    doubt = "" if difference.culprits else "; the evidence does not show which side is wrong"
    at = f"At collective #{difference.number}{difference.group.title}"
    return "COL003", f"{at} {_say_calls(matching, difference)}{doubt}.", (SAME, SORTED)


_ORIGINS = {
    "forward": " by the forward pass of DistributedDataParallel",
    "backward": " in the backward pass",
    "wrap": " by the constructor of DistributedDataParallel",
}
BARE = Fix(
    "evaluate the bare model on one rank: it issues no collective",
    code="model.module.eval()\nwith torch.no_grad():\n    loss = criterion(model.module(x), y)",
)


def _say_place(matching: Matching, difference: Difference, side: Side) -> str:
    call = matching.log.calls[side.call or 0]
    origin = _ORIGINS.get(matching.essences.origin((side.call or 0,)), "")
    return f"{name_call(call, difference.number)}{origin}{difference.group.title}{name_site(side.site)}"


def _tell_apart(matching: Matching, difference: Difference) -> tuple[str, str, tuple[Fix, ...]]:
    usual, odd = difference.sides[0], difference.sides[1]
    here = f"{name_set(usual.ranks)} {choose_form(len(usual.ranks), 'is', 'are')} in"
    there = f"{choose_form(len(odd.ranks), 'it is', 'they are')} in {_say_place(matching, difference, odd)}"
    message = f"{capitalise(here)} {_say_place(matching, difference, usual)}; {name_set(odd.ranks)} "
    message += f"never issued it: {there}"
    if not difference.culprits:
        message += "; the evidence does not show which side is wrong"
    alone = len(odd.ranks) == 1 and matching.essences.origin((odd.call or 0,)) == "forward"
    # One operation from two places: a call was skipped, or one issued in addition.
    ops = {matching.log.calls[side.call or 0].op for side in (usual, odd)}
    code = "COL003" if len(ops) > 1 else "COL002"
    return code, f"{message}.", (BARE, OUTSIDE) if alone else (OUTSIDE, UNEVEN)


def _tell_shift(matching: Matching, difference: Difference) -> tuple[str, str, tuple[Fix, ...]]:
    usual, odd = difference.sides[0], difference.sides[1]
    who = name_set(odd.ranks)
    if difference.kind == "skipped":
        call = matching.log.calls[usual.call or 0]
        left = f"{name_call(call, difference.number)}{difference.group.title}{name_site(usual.site)}"
        message = f"{capitalise(who)} skipped {left}, which {name_set(usual.ranks)} issued"
    else:
        call = matching.log.calls[odd.call or 0]
        more = f"{name_call(call, difference.number)}{difference.group.title}{name_site(odd.site)}"
        verb = choose_form(len(odd.ranks), "issues", "issue")
        message = (
            f"{capitalise(who)} {verb} one extra collective, {more}, which {name_set(usual.ranks)} never "
            "issue"
        )
    return "COL002", f"{message}: from there on all collectives are out of step.", (OUTSIDE, UNEVEN)


def _tell_swap(matching: Matching, difference: Difference) -> tuple[str, str, tuple[Fix, ...]]:
    call = matching.log.calls[difference.sides[0].call or 0]
    parts = [
        f"{name_set(side.ranks)} {choose_form(len(side.ranks), 'comes', 'come')} from {side.site.file}:{side.site.line}"
        for side in difference.sides[:MOST_SIDES]
        if side.site is not None
    ]
    doubt = "" if difference.culprits else "; the evidence does not show which order is wrong"
    what = f"{describe_call(call)} #{difference.number}{difference.group.title}"
    mixed = f"into {what} {join_words(parts)}{doubt}: their values were mixed, silently"
    message = f"Two collectives have changed places: {mixed}."
    return "COL004", message, (SORTED,)


def _tell_absent(matching: Matching, difference: Difference) -> tuple[str, str, tuple[Fix, ...]]:
    who = name_set(difference.behind)
    message = f"{capitalise(_say_waiting(matching, difference))}; {who} left no dump: look there first."
    return (
        "COL005",
        message,
        (
            Fix(
                f"check the log and the stack of {who}: it died, or was blocked where no dump could be "
                "written"
            ),
            Fix("rerun it under ddpdoctor, which sees every rank", "ddpdoctor run --nproc N train.py"),
        ),
    )


def _tell_unstarted(matching: Matching, difference: Difference) -> tuple[str, str, tuple[Fix, ...]]:
    late = difference.behind
    call = matching.log.calls[difference.sides[0].call or 0]
    where = (
        f"{name_call(call, difference.number)}{difference.group.title}{name_site(difference.sides[0].site)}"
    )
    who, verb = name_set(difference.waiting), choose_form(len(difference.waiting), "runs", "run")
    asked = choose_form(
        len(late), "has enqueued it, but its device has", "have enqueued it, but their devices have"
    )
    busy = f"{name_set(late)} {asked} not reached it: earlier work is still running there"
    return "COL005", f"{capitalise(who)} {verb} {where}; {busy}.", (
        Fix((
            f"check what the device of {name_set(late)} does: a kernel that does not end, a slow or faulty "
            "device"
        ),
            "nvidia-smi"),
        Fix((
            "sample stacks of the rank, and dump again, to see whether it makes progress"
        ), "py-spy dump --pid PID"),
    )  # fmt: skip


def _tell_together(matching: Matching, difference: Difference) -> tuple[str, str, tuple[Fix, ...]]:
    side = difference.sides[0]
    call = matching.log.calls[side.call or 0]
    who = (
        "All ranks" if len(side.ranks) == len(difference.group.members) else capitalise(name_set(side.ranks))
    )
    where = f"{name_call(call, difference.number)}{difference.group.title}{name_site(side.site)}"
    message = (
        f"{who} are blocked in {where}, and all collectives before it match: the network or the library, "
        "not a rank."
    )
    if call.op not in MEETING and call.root is None:
        message = (
            f"{who} are blocked in {where}, and all collectives before it match: the network, the library, "
            "or ranks that use different roots, which the recorder does not keep."
        )
    return (
        "COL005",
        message,
        (
            Fix("test the network between the hosts", "ddpdoctor check --nproc N --nnodes N …"),
            Fix(
                "with NCCL, enable its logs",
                "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET torchrun … train.py",
            ),
        ),
    )


_WORDS = {
    "missing": _tell_missing,
    "mismatch": _tell_mismatch,
    "apart": _tell_apart,
    "skipped": _tell_shift,
    "extra": _tell_shift,
    "swapped": _tell_swap,
    "absent": _tell_absent,
    "unstarted": _tell_unstarted,
    "together": _tell_together,
}
