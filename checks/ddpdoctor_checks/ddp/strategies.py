"""FSDP2, tensor and pipeline parallelism and distributed checkpoints, tried on models whose outcome is known."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, encode
from ddpdoctor.judge import Finding, NotApplicable, check
from ddpdoctor_checks.common.stage_evidence import explain_missing, gather_ranks, hosts_of_ranks, list_wrong
from ddpdoctor_checks.common.wording import name_set
from ddpdoctor_checks.ddp.experiments import (
    advise_wrong,
    describe_difference,
    list_evidence,
    list_measured,
    take_experiment,
    tell_raised,
)

_AGAIN = "ddpdoctor check --only strategies -v"


def _require_asked(evidence: Evidence, name: str | None = None) -> None:
    """Say where nobody asked for strategies, or not for this one.

    Raises:
        NotApplicable: so it is.
    """
    if "strategies" not in evidence.launch.stages:
        raise NotApplicable("no --strategy was given")
    asked = evidence.launch.strategies
    if name is not None and asked and name not in asked:
        raise NotApplicable(f"--strategy does not name {name}")


@check(
    "DDP021",
    family="ddp",
    needs=("strategies",),
    variants={
        "ddp.strategy.fsdp2": ("fsdp2", "FSDP2 (fully_shard) gives a wrong result"),
        "ddp.strategy.tp": ("tp", "Tensor parallelism gives a wrong result"),
        "ddp.strategy.pp": ("pp", "Pipeline parallelism gives a wrong result"),
        "ddp.strategy.dcp": ("dcp", "A distributed checkpoint comes back different"),
    },
)
def find_strategy_wrong(evidence: Evidence, *, variant: tuple[str, str]) -> Iterable[Finding]:
    """A strategy other than DDP gives another result on this machine than it must."""
    name, words = variant
    _require_asked(evidence, name)
    found = take_experiment(evidence, name, "strategies")
    wrong = list_wrong(found.failures)
    if not wrong:
        return
    ranks = gather_ranks(wrong)
    yield Finding(
        message=f"{words} on {name_set(ranks)}{describe_difference(found)}: {wrong[0].text}",
        ranks=ranks,
        nodes=hosts_of_ranks(evidence, ranks),
        evidence=list_evidence(found),
        fix=advise_wrong(f"{_AGAIN} --strategy {name}", "the same"),
        details=encode({"strategy": name, **list_measured(found)}),
    )


@check("BKD002", family="ddp", needs=("strategies",), id="ddp.strategies.complete")
def find_strategy_raised(evidence: Evidence) -> Iterable[Finding]:
    """No strategy that was tried raised an exception on any rank."""
    _require_asked(evidence)
    if not evidence.strategies:
        raise explain_missing(evidence, "strategies", "the strategies")
    yield from tell_raised(evidence, evidence.strategies, "strategy", _AGAIN)
