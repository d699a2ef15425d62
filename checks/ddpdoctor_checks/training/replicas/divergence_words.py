"""Sentences about replicas that diverged: what is wrong, where, what was seen, what to do."""

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
from ddpdoctor_checks.training.replicas.apart import Divergence
from ddpdoctor_checks.training.replicas.divergence import find_rates, last_before
from ddpdoctor_checks.training.seeding import tell_seeds

MOST_SHARES = 4
"""Values of one tensor that a sentence names."""
_NAMES = 3
"""Parameters that a sentence names."""


def tell_divergence(divergence: Divergence, severity: str | None = None) -> Finding:
    """Return the finding for replicas that diverged."""
    say, advice = _WAYS[divergence.code]
    if divergence.shared:
        advice = fixes.SHARED
    if divergence.load is not None and divergence.code == "NUM001":
        advice = (*fixes.LOADED, fixes.DIVERGED[1])
    steps = divergence.replica.setup.frames
    call = user_line(divergence.way.bypass) if divergence.way is not None else None
    if divergence.overdue is not None:
        call, advice = divergence.overdue, fixes.OVERDUE
    elif divergence.vain:
        call = None if divergence.often else _find_averaging(divergence)
        advice = fixes.UNUSED if divergence.often else fixes.VAIN
    elif divergence.code == "COL013":
        call = user_line(divergence.replica.setup.reduced)
    elif divergence.load is not None:
        call = user_line(divergence.load.frames)
    elif divergence.seeded is not None:
        call, advice = divergence.seeded.line, fixes.SEEDED
    elif divergence.unreduced_shards:
        advice = fixes.REPLICATED
    elif _find_lowering(divergence) is not None:
        call = _find_lowering(divergence)
    line = call or user_line(steps)
    return Finding(
        message=f"{say(divergence, line)} {_say_consequence(divergence)}",
        ranks=divergence.ranks,
        victims=divergence.replica.ranks.minus(divergence.ranks),
        where=_list_places(divergence, call, steps),
        evidence=tuple(_list_evidence(divergence)),
        fix=advice,
        details=_detail(divergence),
        confidence=divergence.confidence,
        severity=severity,
        code=divergence.code,
    )


def _find_wrap(divergence: Divergence) -> Frame | None:
    return user_line(divergence.replica.wrapper.frames) if divergence.replica.wrapper is not None else None


def _names(tensors: Sequence[TensorLook]) -> str:
    noun = "Parameter" if len(tensors) == 1 else "Parameters"
    return f"{noun} {_list_names(tensors)}"


def _list_names(tensors: Sequence[TensorLook]) -> str:
    return join_words((each.name for each in tensors), few=_NAMES)


def _say_bypassed(divergence: Divergence, line: Frame | None) -> str:
    who = capitalise(name_set(divergence.ranks))
    seen = divergence.way is not None and divergence.way.bypassed is not None
    if seen:
        return (
            f"{who} train {divergence.replica.name} bypassing DistributedDataParallel{tell_line(line)}: "
            "gradients are never reduced."
        )
    return (
        f"{who} step the parameters of {divergence.replica.name}{tell_line(line)}, whose "
        "DistributedDataParallel ran no training forward pass: gradients are never reduced."
    )


def _say_changed(divergence: Divergence, line: Frame | None) -> str:
    unfrozen = [each.name for each in divergence.tensors if each.name in divergence.replica.setup.unfrozen]
    what = "required no gradient" if unfrozen else "did not exist"
    changed = _find_replaced(divergence)
    made = f", which the program replaces{tell_line(changed)}" if changed is not None else ""
    return (
        f"{_names(divergence.tensors)} of {divergence.replica.name}{made}{',' if made else ''} {what} when the model "
        f"was wrapped{tell_line(_find_wrap(divergence))}: DistributedDataParallel does not reduce the gradient."
    )


def _find_replaced(divergence: Divergence) -> Frame | None:
    """Return the one statement that puts what the wrapper does not know into the model; None for what was frozen."""
    setup = divergence.replica.setup
    frozen = any(each.name in setup.unfrozen for each in divergence.tensors)
    return setup.replaced[0] if len(setup.replaced) == 1 and not frozen else None


def _say_unsynced(divergence: Divergence, line: Frame | None) -> str:
    if divergence.between and divergence.first is not None and divergence.way is not None:
        before = last_before(divergence.replica, divergence.first)
        made = divergence.first.step - divergence.first.final - before
        return (
            f"{capitalise(name_set(divergence.ranks))} sometimes step the optimizer{tell_line(line)} after "
            f"forward passes under no_sync() only: since step {before} there were {count_of(made, 'step')} "
            f"but only {count_of(divergence.way.synced, 'forward pass', 'forward passes')} that reduce the "
            f"gradients of {divergence.replica.name}, and {divergence.way.alone} under no_sync()."
        )
    return (
        f"{capitalise(name_set(divergence.ranks))} step the optimizer{tell_line(line)} after a forward pass "
        f"under no_sync(): the gradients of {divergence.replica.name} are not reduced."
    )


def _say_unused(divergence: Divergence, line: Frame | None) -> str:
    idle = all(each.idle for each in divergence.tensors)
    why = " (its forward never ran)" if idle else ""
    return (
        f"{_names(divergence.tensors)} of {divergence.replica.name}{why} received no gradient on "
        f"{name_set(divergence.ranks)}: DistributedDataParallel waits for it, and does not reduce the rest of "
        "its bucket."
    )


def _say_unwrapped(divergence: Divergence, line: Frame | None) -> str:
    if divergence.replica.kept:
        return (
            f"{capitalise(name_set(divergence.ranks))} each step {divergence.replica.name}{tell_line(line)} with local "
            "gradients, although collectives carry as many elements as it has parameters in each step: what they "
            "average is not what the optimizer uses."
        )
    if divergence.vain:
        return (
            f"{capitalise(name_set(divergence.ranks))} each step {divergence.replica.name} with local gradients, and "
            f"{count_of(divergence.replica.setup.averagings, 'time')} collectives reduced as many elements as it has "
            f"parameters{tell_line(_find_averaging(divergence))}, after which no two ranks agreed: what is averaged is "
            "not what the optimizer steps, or not all ranks take the average."
        )
    if divergence.overdue is not None:
        return (
            f"{capitalise(name_set(divergence.ranks))} each step {divergence.replica.name} with local gradients, and "
            f"its parameters are to be averaged each so many steps{tell_line(line)}, which was never due in this run."
        )
    return (
        f"{capitalise(name_set(divergence.ranks))} each step {divergence.replica.name}{tell_line(line)} with "
        "local gradients: nothing wraps the model, and nothing reduces them."
    )


def _say_diverged(divergence: Divergence, line: Frame | None) -> str:
    name = divergence.replica.name
    everyone = divergence.ranks == divergence.replica.ranks
    who = "the ranks" if everyone else name_set(divergence.ranks)
    if divergence.shared:
        return (
            f"{_names(divergence.tensors)} of {name} began equal on {name_set(divergence.replica.ranks)}, and each "
            f"rank steps its copy{tell_line(line)} with a gradient of its own, while collectives join the parts of the "
            "model that ranks hold for themselves."
        )
    if divergence.load is not None:
        return _say_loaded(divergence, divergence.load)
    have = choose_form(len(divergence.ranks), "has", "have")
    they = choose_form(len(divergence.ranks), "it takes", "they take")
    if divergence.at_start and divergence.replica.wrapper is None:
        if divergence.seeded is not None:
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
    if divergence.at_start:
        return (
            f"{capitalise(who)} {have} different parameters of {name} before the first step, although "
            "DistributedDataParallel made them equal when the model was wrapped: they were changed "
            "afterwards."
        )
    if divergence.unreduced_shards:
        own, *others = map(name_set, (divergence.replica.ranks, *divergence.other_groups))
        more = f", and so do {join_words(others, few=MOST_SHARES)}," if others else ""
        return (
            f"{capitalise(own)} hold the same shards of {name}{more} but step them{tell_line(line)} with gradients of "
            "their own: nothing reduces the gradients across these replicas."
        )
    if divergence.gradients is not None:
        return (
            f"The gradients of {name} differ across {name_set(divergence.replica.ranks)}, although its "
            "DistributedDataParallel ran."
        )
    bits = " in their last bits" if divergence.slight else ""
    return (
        f"Parameters of {name} diverge across {name_set(divergence.replica.ranks)}{bits} with equal gradients "
        "in the sampled steps: something else changes them."
    )


def _say_experts(divergence: Divergence, line: Frame | None) -> str:
    return (
        f"{capitalise(name_set(divergence.ranks))} average the gradients of {_list_names(divergence.tensors)} of "
        f"{divergence.replica.name}{tell_line(line)}, of which each began with another one while the other parameters "
        "are equal, and exchange tensors by all_to_all: these are experts of their own, whose gradients must "
        "not be mixed."
    )


def _say_loaded(divergence: Divergence, load: LateLoad) -> str:
    what = f"into {load.target.rpartition('.')[2]}{tell_line(user_line(load.frames))}, after it was wrapped"
    lacking = divergence.replica.ranks.minus(load.ranks)
    who = capitalise(name_set(load.ranks))
    if lacking:
        return (
            f"{who} loaded a state dict {what}; {name_set(lacking)} did not. DistributedDataParallel makes ranks equal "
            "only when it wraps a model."
        )
    return f"{who} loaded different values {what}."


def _say_optimizer(divergence: Divergence, line: Frame | None) -> str:
    return _say_state(divergence) if divergence.state is not None else _say_rates(divergence)


def _say_state(divergence: Divergence) -> str:
    state = divergence.state
    assert state is not None
    kind = divergence.replica.setup.kind.rpartition(".")[2]
    if state.setting:
        told = join_words(
            f"{share.digest or 'not set'} on {name_set(share.ranks)}" for share in state.values[:MOST_SHARES]
        )
        return f"The setting {state.item} of {kind} differs across ranks, with equal parameters: {told}."
    lacking = [share for share in state.values if not share.digest]
    of = f" of {state.parameter}" if state.parameter else ""
    if lacking:
        others = divergence.replica.ranks.minus(lacking[0].ranks)
        verb = choose_form(len(others), "has", "have")
        told = f"which {name_set(others)} {verb} and {name_set(lacking[0].ranks)} not"
    else:
        told = f"whose norm is {_tell_shares(state.values)}"
    loaded = ""
    if divergence.load is not None:
        others = divergence.replica.ranks.minus(divergence.load.ranks)
        loaded = (
            f" {capitalise(name_set(divergence.load.ranks))} loaded a state dict into {kind}"
            f"{tell_line(user_line(divergence.load.frames))}; {name_set(others)} did not."
        )
    return (
        f"The state of {kind} differs across ranks before step {divergence.state_step}, with equal parameters: "
        f"{state.item}{of}, {told}.{loaded}"
    )


def _say_rates(divergence: Divergence) -> str:
    rates = find_rates(divergence.replica)
    told = join_words(
        f"{_shorten_number(share.digest.strip('[]'))} on {name_set(share.ranks)}"
        for share in rates[:MOST_SHARES]
    )
    name = divergence.replica.setup.kind.rpartition(".")[2]
    line = _find_lowering(divergence)
    lowered = (
        f" ReduceLROnPlateau{tell_line(line)} lowers them by a metric that differs across ranks."
        if line is not None
        else ""
    )
    if any(rates == look.rates for look in divergence.replica.looks):
        return f"The learning rates of {name} differ across ranks: {told}.{lowered}"
    return f"The learning rates of {name} have differed across ranks: those of all steps add up to {told}.{lowered}"


def _find_lowering(divergence: Divergence) -> Frame | None:
    """Return the line at which ReduceLROnPlateau lowers learning rates at other steps on some ranks."""
    setup = divergence.replica.setup
    apart = divergence.code == "NUM006" and divergence.state is None and len(setup.lowered) > 1
    return user_line(setup.lowered_at) if apart else None


def _shorten_number(text: str) -> str:
    try:
        return f"{float(text):.9g}"
    except ValueError:
        return text  # of several groups


def _say_consequence(divergence: Divergence) -> str:
    if divergence.first is None:
        return f"Its gradients differ at step {divergence.gradients.step if divergence.gradients is not None else 1}."
    step = divergence.first.step
    tensor = next((each for each in divergence.first.tensors if len(each.values) > 1), None)
    which = f"{tensor.name} first" if tensor is not None and not divergence.at_start else ""
    if divergence.first.final:
        return f"The replicas differ at the end{', ' + which if which else ''}."
    if divergence.at_start:
        return "They differ from the start."
    if divergence.shared:
        return f"They differ before step {step}{', ' + which if which else ''}."
    return f"The replicas have diverged from step {step} on{', ' + which if which else ''}."


def _find_averaging(divergence: Divergence) -> Frame | None:
    """Return the line that reduces as much as the parameters."""
    return user_line(divergence.replica.setup.averaging)


def _list_places(divergence: Divergence, call: Frame | None, steps: Sequence[Frame]) -> tuple[Where, ...]:
    places = []
    if call is not None:
        places.append(
            in_frame(call, divergence.load.ranks if divergence.load else divergence.ranks, "culprit")
        )
    for place, frame in enumerate(user_frames(steps)[:3]):
        first = not places and not place
        role = "culprit" if first else "noticed" if not place else "caller"
        places.append(in_frame(frame, divergence.replica.ranks.union(divergence.ranks), role))
    averaging = _find_averaging(divergence) if divergence.vain and divergence.often else None
    if averaging is not None:
        places.append(in_frame(averaging, divergence.ranks, "noticed"))
    wrap = _find_wrap(divergence)
    if wrap is not None and divergence.code == "DDP006":
        places.insert(0, in_frame(wrap, divergence.ranks, "culprit"))
        places[1:2] = [replace(each, role="noticed") for each in places[1:2]]
        changed = _find_replaced(divergence)
        if changed is not None:
            places.insert(0, in_frame(changed, divergence.ranks, "culprit"))
    return tuple(places)


def _list_evidence(divergence: Divergence) -> list[EvidenceItem]:
    items = []
    if divergence.gradients is not None:
        items.append(EvidenceItem("gradients", _tell_look(divergence.gradients, "gradients", "at")))
    if divergence.first is not None:
        items.append(EvidenceItem("replicas", _tell_look(divergence.first, "values", "before")))
    if divergence.seeded is not None:
        items += tell_seeds(
            divergence.seeded, RankSet().union(*(share.ranks for share in divergence.seeded.shares))
        )
    equal = [look.step for look in divergence.replica.looks if divergence.replica.agrees(look)]
    if equal:
        items.append(EvidenceItem("replicas", f"equal on all ranks before step {equal[-1]}"))
    looked = [str(look.step) for look in divergence.replica.looks if not look.final]
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


def _detail(divergence: Divergence) -> dict[str, Any]:
    def row(tensor: TensorLook) -> dict[str, Any]:
        return {
            "name": tensor.name,
            "shape": list(tensor.shape),
            "missing": str(tensor.missing),
            "values": [{"ranks": str(share.ranks), "norm": share.norm} for share in tensor.values],
        }

    return {
        "model": divergence.replica.name,
        "optimizer": divergence.replica.setup.kind,
        "first_step": divergence.first.step if divergence.first is not None else None,
        "gradients_step": divergence.gradients.step if divergence.gradients is not None else None,
        "parameters": [row(tensor) for tensor in divergence.tensors],
        "state": divergence.state.item if divergence.state is not None else None,
        **(
            {"made": "elsewhere"} if divergence.code == "DDP006" else {}
        ),  # the wrap is seen, the change is not
    }


_WAYS: dict[str, tuple[Callable[[Divergence, Frame | None], str], tuple[Fix, ...]]] = {
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
