"""Sentences about replicas that parted: what is wrong, where, what was seen, what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.training.fingerprints import StepLook, TensorLook
from ddpdoctor.evidence.training.loads import LateLoad
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.judge import EvidenceItem, Finding, Fix, Where
from ddpdoctor_checks.common.frames import tell_line, user_frames, user_line
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.wording import capitalise, choose_form, count_of, join_words, name_set
from ddpdoctor_checks.training.replicas import fixes
from ddpdoctor_checks.training.replicas.apart import Parting
from ddpdoctor_checks.training.replicas.divergence import find_rates, last_before
from ddpdoctor_checks.training.seeding import tell_seeds

MOST_SHARES = 4
"""Values of one tensor that a sentence names."""
_NAMES = 3
"""Parameters that a sentence names."""


def tell_parting(parting: Parting, severity: str | None = None) -> Finding:
    """Return the finding for replicas that parted."""
    say, advice = _WAYS[parting.code]
    if parting.shared:
        advice = fixes.SHARED
    if parting.load is not None and parting.code == "NUM001":
        advice = (*fixes.LOADED, fixes.DIVERGED[1])
    steps = parting.replica.setup.frames
    call = user_line(parting.way.bypass) if parting.way is not None else None
    if parting.overdue is not None:
        call, advice = parting.overdue, fixes.OVERDUE
    elif parting.vain:
        call = None if parting.often else _find_averaging(parting)
        advice = fixes.UNUSED if parting.often else fixes.VAIN
    elif parting.code == "COL013":
        call = user_line(parting.replica.setup.reduced)
    elif parting.load is not None:
        call = user_line(parting.load.frames)
    elif parting.seeded is not None:
        call, advice = parting.seeded.line, fixes.SEEDED
    elif parting.unreduced_shards:
        advice = fixes.REPLICATED
    elif _find_lowering(parting) is not None:
        call = _find_lowering(parting)
    line = call or user_line(steps)
    return Finding(
        message=f"{say(parting, line)} {_say_consequence(parting)}",
        ranks=parting.ranks,
        victims=parting.replica.ranks.minus(parting.ranks),
        where=_list_places(parting, call, steps),
        evidence=tuple(_list_evidence(parting)),
        fix=advice,
        details=_detail(parting),
        confidence=parting.confidence,
        severity=severity,
        code=parting.code,
    )


def _find_wrap(parting: Parting) -> Frame | None:
    return user_line(parting.replica.wrapper.frames) if parting.replica.wrapper is not None else None


def _names(tensors: Sequence[TensorLook]) -> str:
    noun = "Parameter" if len(tensors) == 1 else "Parameters"
    return f"{noun} {_list_names(tensors)}"


def _list_names(tensors: Sequence[TensorLook]) -> str:
    return join_words((each.name for each in tensors), few=_NAMES)


def _say_bypassed(parting: Parting, line: Frame | None) -> str:
    who = capitalise(name_set(parting.ranks))
    seen = parting.way is not None and parting.way.bypassed is not None
    if seen:
        return (
            f"{who} train {parting.replica.name} bypassing DistributedDataParallel{tell_line(line)}: "
            "gradients are never reduced."
        )
    return (
        f"{who} step the parameters of {parting.replica.name}{tell_line(line)}, whose "
        "DistributedDataParallel ran no training forward pass: gradients are never reduced."
    )


def _say_changed(parting: Parting, line: Frame | None) -> str:
    unfrozen = [each.name for each in parting.tensors if each.name in parting.replica.setup.unfrozen]
    what = "required no gradient" if unfrozen else "did not exist"
    changed = _find_replaced(parting)
    made = f", which the program replaces{tell_line(changed)}" if changed is not None else ""
    return (
        f"{_names(parting.tensors)} of {parting.replica.name}{made}{',' if made else ''} {what} when the model was "
        f"wrapped{tell_line(_find_wrap(parting))}: DistributedDataParallel does not reduce the gradient."
    )


def _find_replaced(parting: Parting) -> Frame | None:
    """Return the one statement that puts what the wrapper does not know into the model; None for what was frozen."""
    setup = parting.replica.setup
    frozen = any(each.name in setup.unfrozen for each in parting.tensors)
    return setup.replaced[0] if len(setup.replaced) == 1 and not frozen else None


def _say_unsynced(parting: Parting, line: Frame | None) -> str:
    if parting.between and parting.first is not None and parting.way is not None:
        before = last_before(parting.replica, parting.first)
        made = parting.first.step - parting.first.final - before
        return (
            f"{capitalise(name_set(parting.ranks))} sometimes step the optimizer{tell_line(line)} after "
            f"forward passes under no_sync() only: since step {before} there were {count_of(made, 'step')} "
            f"but only {count_of(parting.way.synced, 'forward pass', 'forward passes')} that reduce the "
            f"gradients of {parting.replica.name}, and {parting.way.alone} under no_sync()."
        )
    return (
        f"{capitalise(name_set(parting.ranks))} step the optimizer{tell_line(line)} after a forward pass "
        f"under no_sync(): the gradients of {parting.replica.name} are not reduced."
    )


def _say_unused(parting: Parting, line: Frame | None) -> str:
    idle = all(each.idle for each in parting.tensors)
    why = " (its forward never ran)" if idle else ""
    return (
        f"{_names(parting.tensors)} of {parting.replica.name}{why} received no gradient on "
        f"{name_set(parting.ranks)}: DistributedDataParallel waits for it, and does not reduce the rest of "
        "its bucket."
    )


def _say_unwrapped(parting: Parting, line: Frame | None) -> str:
    if parting.replica.kept:
        return (
            f"{capitalise(name_set(parting.ranks))} each step {parting.replica.name}{tell_line(line)} with local "
            "gradients, although collectives carry as many elements as it has parameters in each step: what they "
            "average is not what the optimizer uses."
        )
    if parting.vain:
        return (
            f"{capitalise(name_set(parting.ranks))} each step {parting.replica.name} with local gradients, and "
            f"{count_of(parting.replica.setup.averagings, 'time')} collectives reduced as many elements as it has "
            f"parameters{tell_line(_find_averaging(parting))}, after which no two ranks agreed: what is averaged is "
            "not what the optimizer steps, or not all ranks take the average."
        )
    if parting.overdue is not None:
        return (
            f"{capitalise(name_set(parting.ranks))} each step {parting.replica.name} with local gradients, and its "
            f"parameters are to be averaged each so many steps{tell_line(line)}, which was never due in this run."
        )
    return (
        f"{capitalise(name_set(parting.ranks))} each step {parting.replica.name}{tell_line(line)} with "
        "local gradients: nothing wraps the model, and nothing reduces them."
    )


def _say_diverged(parting: Parting, line: Frame | None) -> str:
    name = parting.replica.name
    everyone = parting.ranks == parting.replica.ranks
    who = "the ranks" if everyone else name_set(parting.ranks)
    if parting.shared:
        return (
            f"{_names(parting.tensors)} of {name} began equal on {name_set(parting.replica.ranks)}, and each rank "
            f"steps its copy{tell_line(line)} with a gradient of its own, while collectives join the parts of the "
            "model that ranks hold for themselves."
        )
    if parting.load is not None:
        return _say_loaded(parting, parting.load)
    have = choose_form(len(parting.ranks), "has", "have")
    they = choose_form(len(parting.ranks), "it takes", "they take")
    if parting.at_start and parting.replica.wrapper is None:
        if parting.seeded is not None:
            return (
                f"{capitalise(who)} {have} different parameters of {name} before the first step, although {they} part "
                f"in the averaging of one another's gradients: they are seeded differently{tell_line(line)}, and "
                "nothing made their parameters equal."
            )
        return (
            f"{capitalise(who)} {have} different parameters of {name} before the first step, although {they} part "
            "in the averaging of one another's gradients: nothing made their parameters equal, or the groups in "
            "which gradients are averaged are the wrong ones."
        )
    if parting.at_start:
        return (
            f"{capitalise(who)} {have} different parameters of {name} before the first step, although "
            "DistributedDataParallel made them equal when the model was wrapped: they were changed "
            "afterwards."
        )
    if parting.unreduced_shards:
        own, *others = map(name_set, (parting.replica.ranks, *parting.other_groups))
        more = f", and so do {join_words(others, few=MOST_SHARES)}," if others else ""
        return (
            f"{capitalise(own)} hold the same shards of {name}{more} but step them{tell_line(line)} with gradients of "
            "their own: nothing reduces the gradients across these replicas."
        )
    if parting.gradients is not None:
        return (
            f"The gradients of {name} differ across {name_set(parting.replica.ranks)}, although its "
            "DistributedDataParallel ran."
        )
    bits = " in their last bits" if parting.slight else ""
    return (
        f"Parameters of {name} diverge across {name_set(parting.replica.ranks)}{bits} with equal gradients "
        "in the sampled steps: something else changes them."
    )


def _say_experts(parting: Parting, line: Frame | None) -> str:
    return (
        f"{capitalise(name_set(parting.ranks))} average the gradients of {_list_names(parting.tensors)} of "
        f"{parting.replica.name}{tell_line(line)}, of which each began with another one while the other parameters are "
        "equal, and exchange tensors by all_to_all: these are experts of their own, whose gradients must not be mixed."
    )


def _say_loaded(parting: Parting, load: LateLoad) -> str:
    what = f"into {load.target.rpartition('.')[2]}{tell_line(user_line(load.frames))}, after it was wrapped"
    lacking = parting.replica.ranks.minus(load.ranks)
    who = capitalise(name_set(load.ranks))
    if lacking:
        return (
            f"{who} loaded a state dict {what}; {name_set(lacking)} did not. DistributedDataParallel makes ranks equal "
            "only when it wraps a model."
        )
    return f"{who} loaded different values {what}."


def _say_optimizer(parting: Parting, line: Frame | None) -> str:
    return _say_state(parting) if parting.state is not None else _say_rates(parting)


def _say_state(parting: Parting) -> str:
    state = parting.state
    assert state is not None
    kind = parting.replica.setup.kind.rpartition(".")[2]
    if state.setting:
        told = join_words(
            f"{share.digest or 'not set'} on {name_set(share.ranks)}" for share in state.values[:MOST_SHARES]
        )
        return f"The setting {state.item} of {kind} differs across ranks, with equal parameters: {told}."
    lacking = [share for share in state.values if not share.digest]
    of = f" of {state.parameter}" if state.parameter else ""
    if lacking:
        others = parting.replica.ranks.minus(lacking[0].ranks)
        verb = choose_form(len(others), "has", "have")
        told = f"which {name_set(others)} {verb} and {name_set(lacking[0].ranks)} not"
    else:
        told = f"whose norm is {_tell_shares(state.values)}"
    loaded = ""
    if parting.load is not None:
        others = parting.replica.ranks.minus(parting.load.ranks)
        loaded = (
            f" {capitalise(name_set(parting.load.ranks))} loaded a state dict into {kind}"
            f"{tell_line(user_line(parting.load.frames))}; {name_set(others)} did not."
        )
    return (
        f"The state of {kind} differs across ranks before step {parting.state_step}, with equal parameters: "
        f"{state.item}{of}, {told}.{loaded}"
    )


def _say_rates(parting: Parting) -> str:
    rates = find_rates(parting.replica)
    told = join_words(
        f"{_shorten_number(share.digest.strip('[]'))} on {name_set(share.ranks)}"
        for share in rates[:MOST_SHARES]
    )
    name = parting.replica.setup.kind.rpartition(".")[2]
    line = _find_lowering(parting)
    lowered = (
        f" ReduceLROnPlateau{tell_line(line)} lowers them by a metric that differs across ranks."
        if line is not None
        else ""
    )
    if any(rates == look.rates for look in parting.replica.looks):
        return f"The learning rates of {name} differ across ranks: {told}.{lowered}"
    return f"The learning rates of {name} have differed across ranks: those of all steps add up to {told}.{lowered}"


def _find_lowering(parting: Parting) -> Frame | None:
    """Return the line at which ReduceLROnPlateau lowers learning rates at other steps on some ranks."""
    setup = parting.replica.setup
    apart = parting.code == "NUM006" and parting.state is None and len(setup.lowered) > 1
    return user_line(setup.lowered_at) if apart else None


def _shorten_number(text: str) -> str:
    try:
        return f"{float(text):.9g}"
    except ValueError:
        return text  # of several groups


def _say_consequence(parting: Parting) -> str:
    if parting.first is None:
        return (
            f"Its gradients differ at step {parting.gradients.step if parting.gradients is not None else 1}."
        )
    step = parting.first.step
    tensor = next((each for each in parting.first.tensors if len(each.values) > 1), None)
    which = f"{tensor.name} first" if tensor is not None and not parting.at_start else ""
    if parting.first.final:
        return f"The replicas differ at the end{', ' + which if which else ''}."
    if parting.at_start:
        return "They differ from the start."
    if parting.shared:
        return f"They differ before step {step}{', ' + which if which else ''}."
    return f"The replicas have diverged from step {step} on{', ' + which if which else ''}."


def _find_averaging(parting: Parting) -> Frame | None:
    """Return the line that reduces as much as the parameters."""
    return user_line(parting.replica.setup.averaging)


def _list_places(parting: Parting, call: Frame | None, steps: Sequence[Frame]) -> tuple[Where, ...]:
    places = []
    if call is not None:
        places.append(in_frame(call, parting.load.ranks if parting.load else parting.ranks, "culprit"))
    for place, frame in enumerate(user_frames(steps)[:3]):
        first = not places and not place
        role = "culprit" if first else "noticed" if not place else "caller"
        places.append(in_frame(frame, parting.replica.ranks.union(parting.ranks), role))
    averaging = _find_averaging(parting) if parting.vain and parting.often else None
    if averaging is not None:
        places.append(in_frame(averaging, parting.ranks, "noticed"))
    wrap = _find_wrap(parting)
    if wrap is not None and parting.code == "DDP006":
        places.insert(0, in_frame(wrap, parting.ranks, "culprit"))
        places[1:2] = [replace(each, role="noticed") for each in places[1:2]]
        changed = _find_replaced(parting)
        if changed is not None:
            places.insert(0, in_frame(changed, parting.ranks, "culprit"))
    return tuple(places)


def _list_evidence(parting: Parting) -> list[EvidenceItem]:
    items = []
    if parting.gradients is not None:
        items.append(EvidenceItem("gradients", _tell_look(parting.gradients, "gradients", "at")))
    if parting.first is not None:
        items.append(EvidenceItem("replicas", _tell_look(parting.first, "values", "before")))
    if parting.seeded is not None:
        items += tell_seeds(
            parting.seeded, RankSet().union(*(share.ranks for share in parting.seeded.shares))
        )
    equal = [look.step for look in parting.replica.looks if parting.replica.agrees(look)]
    if equal:
        items.append(EvidenceItem("replicas", f"equal on all ranks before step {equal[-1]}"))
    looked = [str(look.step) for look in parting.replica.looks if not look.final]
    if looked:
        items.append(EvidenceItem("looks", f"sampled steps {join_words(looked, few=10)}"))
    return items


def _tell_look(look: StepLook, name: str, when: str) -> str:
    def shares(each: TensorLook) -> Sequence[Share]:
        return each.gradients if name == "gradients" else each.values

    tensor = next((each for each in look.tensors if len(shares(each)) > 1), None)
    place = "at the end" if look.final else f"{when} step {look.step}"
    what = "gradients" if name == "gradients" else "parameters"
    if tensor is None:
        parts = [share.ranks.listed() for share in getattr(look, name)[:MOST_SHARES]]
        return (
            f"{place}: {what} are equal only within ranks {join_words(parts)}"
            if parts
            else f"{place}: {what} differ"
        )
    noun = "the gradient of " if name == "gradients" else ""
    told = _tell_shares(shares(tensor))
    more = f"; {count_of(look.differing, 'tensor')} differ" if look.differing > 1 else ""
    return f"{place}: norm of {noun}{tensor.name} is {told}{more}"


def _tell_shares(shares: Sequence[Share]) -> str:
    """Return the norms on each part of the ranks."""
    return join_words(
        f"{share.norm:.7g} on {name_set(share.ranks)}" if share.norm is not None else name_set(share.ranks)
        for share in shares[:MOST_SHARES]
    )


def _detail(parting: Parting) -> dict[str, Any]:
    def row(tensor: TensorLook) -> dict[str, Any]:
        return {
            "name": tensor.name,
            "shape": list(tensor.shape),
            "missing": str(tensor.missing),
            "values": [{"ranks": str(share.ranks), "norm": share.norm} for share in tensor.values],
        }

    return {
        "model": parting.replica.name,
        "optimizer": parting.replica.setup.kind,
        "first_step": parting.first.step if parting.first is not None else None,
        "gradients_step": parting.gradients.step if parting.gradients is not None else None,
        "parameters": [row(tensor) for tensor in parting.tensors],
        "state": parting.state.item if parting.state is not None else None,
        **({"made": "elsewhere"} if parting.code == "DDP006" else {}),  # the wrap is seen, the change is not
    }


_WAYS: dict[str, tuple[Callable[[Parting, Frame | None], str], tuple[Fix, ...]]] = {
    "DDP001": (_say_unused, fixes.UNUSED),
    "DDP002": (_say_unused, fixes.UNUSED),
    "DDP005": (_say_bypassed, fixes.BYPASSED),
    "DDP006": (_say_changed, fixes.REWRAP),
    "DDP008": (_say_unsynced, fixes.UNSYNCED),
    "DDP015": (_say_unwrapped, fixes.UNWRAPPED),
    "COL013": (_say_experts, fixes.EXPERTS),
    "NUM001": (_say_diverged, fixes.DIVERGED),
    "NUM006": (_say_optimizer, fixes.OPTIMIZER),
}
