"""Parameters of the user's model that get no gradient, and whether DDP has to search for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddpdoctor.evidence import Evidence, ModelResult, RankSet, UnusedParameter, encode
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, check, diagnosis
from ddpdoctor_checks.common.stage_evidence import gather_ranks, hosts_of_ranks
from ddpdoctor_checks.common.wording import choose_form, count_of, format_milliseconds, join_words, name_set
from ddpdoctor_checks.ddp.experiments import take_experiment
from ddpdoctor_checks.ddp.factory import require_model

MOST_NAMES = 200
"""Parameters listed in the details; more are counted. A model has thousands, a report is read by people."""


class SelfTestFailedError(Exception):
    """The doctor did not find a defect that it had planted itself."""


@diagnosis("ddp.model.parameters_used", codes=("DDP001", "DDP002"), family="ddp", needs=("model",))
def find_parameters_unused(evidence: Evidence) -> Iterable[Finding]:
    """Trainable parameters of the model take no part in the loss, on every rank or on some."""
    result = _require_steps(evidence)
    unused = [each for each in result.unused if not result.ranks.minus(each.ranks)]
    if unused:
        yield replace(_report(evidence, result, unused, "on any rank", result.ranks), code="DDP001")
    partial = [each for each in result.unused if each.ranks and result.ranks.minus(each.ranks)]
    if partial:
        ranks = RankSet().union(*(each.ranks for each in partial))
        where = f"on {name_set(ranks)} but did on others"
        yield replace(_report(evidence, result, partial, where, ranks), code="DDP002")


def _require_steps(evidence: Evidence) -> ModelResult:
    result = require_model(evidence)
    if result.steps < 1:
        raise CannotLook("the model did not complete one step")
    return result


def _report(
    evidence: Evidence, result: ModelResult, unused: Sequence[UnusedParameter], where: str, ranks: RankSet
) -> Finding:
    modules: dict[tuple[str, str, bool], list[UnusedParameter]] = {}
    for each in unused:
        modules.setdefault((each.module, each.module_class, each.forward_ran), []).append(each)
    described = [
        f"{join_words((p.name for p in members), few=4)} {_owner(key)}" for key, members in modules.items()
    ]
    partial = ranks != result.ranks
    return Finding(
        message=(
            f"{count_of(len(unused), 'parameter')} of {result.factory} received no gradient {where}: "
            f"{join_words(described, few=3)}."
        ),
        ranks=ranks,
        nodes=hosts_of_ranks(evidence, ranks),
        evidence=tuple(
            EvidenceItem("model", text, members[0].ranks)
            for text, members in list(zip(described, modules.values(), strict=True))[:8]
        ),
        fix=tuple(_fixes(result, list(modules), partial)),
        details=encode(
            {
                "factory": result.factory,
                "parameters": list(unused[:MOST_NAMES]),
                "parameters_left_out": max(0, len(unused) - MOST_NAMES),
                "elements": sum(each.count for each in unused),
                "steps": result.steps,
                "find_unused_needed": result.find_unused_needed,
                "static_graph_ok": result.static_graph_ok,
            }
        ),
    )


def _owner(key: tuple[str, str, bool]) -> str:
    module, kind, ran = key
    name = f"{kind} {module}" if module else f"the model itself, a {kind}"
    return f"(of {name}, whose forward {'ran' if ran else 'never ran'})"


def _fixes(result: ModelResult, modules: Sequence[tuple[str, str, bool]], partial: bool) -> Iterable[Fix]:
    idle = [module for module, _, ran in modules if not ran and module]
    if idle and not partial:
        yield Fix(
            f"remove {join_words(idle)}, or freeze {choose_form(len(idle), 'it', 'them')} before wrapping: "
            "no forward pass calls it",
            code="".join(f"model.get_submodule({name!r}).requires_grad_(False)\n" for name in idle[:8])
            + "model = DistributedDataParallel(model)",
        )
    if partial or any(ran for _, _, ran in modules):
        yield Fix(
            "let the outputs of these modules contribute to the loss on every rank (not detached, not under "
            "no_grad); where a branch is skipped, add it with weight zero",
            code="loss = loss + 0.0 * sum(p.sum() for p in model.parameters() if p.requires_grad)",
        )
    yield _search_fix(result, partial)


def _search_fix(result: ModelResult, partial: bool) -> Fix:
    steps = count_of(result.steps, "step")
    if result.static_graph_ok and not partial and result.steps > 1:
        return Fix(
            f"or keep them: the same parameters were unused in all {steps}, so static_graph=True is enough "
            f"and find_unused_parameters=True would waste a search each step{_cost(result)}",
            code="model = DistributedDataParallel(model, static_graph=True)",
        )
    why = (
        "other ranks use other parameters"
        if partial
        else "the used parameters change, or too few steps were seen"
    )
    return Fix(
        f"or keep them and let DDP search: then find_unused_parameters=True is needed ({why}; static_graph "
        f"is not enough){_cost(result)}",
        code="model = DistributedDataParallel(model, find_unused_parameters=True)",
    )


def _cost(result: ModelResult) -> str:
    if result.step_s is None or result.step_s_with_search is None:
        return ""
    if result.step_s_with_search <= result.step_s:
        return " (its cost was within the noise of these steps)"
    with_search, without = format_milliseconds(result.step_s_with_search), format_milliseconds(result.step_s)
    return f" ({with_search} ms per step with the search, {without} ms without)"


@check("DDP011", family="ddp", needs=("model",), id="ddp.model.search", required=False)
def find_search_unneeded(evidence: Evidence) -> Iterable[Finding]:
    """The model uses all of its parameters in every step, so a search for unused ones is wasted."""
    result = _require_steps(evidence)
    if result.unused or result.errors or result.find_unused_needed is not False:
        return
    yield Finding(
        message=(
            f"All parameters of {result.factory} received a gradient in {count_of(result.steps, 'step')} on "
            f"every rank: find_unused_parameters=True would find nothing{_cost(result)}."
        ),
        ranks=result.ranks,
        evidence=(EvidenceItem("model", f"{count_of(result.steps, 'step')}, none unused", result.ranks),),
        fix=(
            Fix(
                "leave the search off",
                code="model = DistributedDataParallel(model)  # find_unused_parameters=False is the default",
            ),
        ),
        details=encode(
            {
                "factory": result.factory,
                "steps": result.steps,
                "step_s": result.step_s,
                "step_s_with_search": result.step_s_with_search,
            }
        ),
        role="advice",
    )


@check("DDP001", family="ddp", needs=("experiments",), id="ddp.unused.self_test")
def verify_own_naming(evidence: Evidence) -> Iterable[Finding]:
    """The doctor's own hooks name the parameter that it left out of the loss of its own model.

    Raises:
        SelfTestFailedError: they do not; then nothing that they say of the user's model can be trusted.
    """
    found = take_experiment(evidence, "unused-named")
    if found.failures:
        ranks = gather_ranks(found.failures)
        raise SelfTestFailedError(
            f"the unused parameter that ddpdoctor planted was not named on {name_set(ranks)}: "
            f"{found.failures[0].text}"
        )
    return ()
