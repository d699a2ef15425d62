"""Experiments with DistributedDataParallel whose outcome is known beforehand."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, Experiment, RankMessage, RankSet, encode
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.stage_evidence import (
    assign_blame,
    explain_missing,
    gather_ranks,
    hosts_of_ranks,
    is_complaint,
    is_exception,
    list_wrong,
    quote_messages,
    shorten_error,
)
from ddpdoctor_checks.common.wording import join_words, name_set

_AGAIN = "ddpdoctor check --only facts,rendezvous,collectives,ddp -v"


def take_experiment(evidence: Evidence, name: str, kind: str = "experiments") -> Experiment:
    """Return an experiment that was made and raised nothing.

    Args:
        evidence: of a check.
        name: of the experiment.
        kind: of evidence: ``experiments`` or ``strategies``.

    Raises:
        NotApplicable: it was skipped for a reason.
        CannotLook: it has no result, or it raised; then `find_experiment_raised` tells of it.
    """
    rows: tuple[Experiment, ...] = getattr(evidence, kind)
    found = next((each for each in rows if each.name == name), None)
    if found is None:
        stage, what = ("ddp", "experiment") if kind == "experiments" else ("strategies", "strategy")
        raise explain_missing(evidence, stage, f"the {what} {name}")
    if found.skipped:
        raise NotApplicable(found.skipped)
    raised = [each for each in found.failures if is_exception(each.text)]
    if raised and len(raised) == len(found.failures):
        raise CannotLook(f"the experiment raised on {name_set(gather_ranks(raised))}")
    silent = RankSet.span(evidence.launch.world_size).minus(found.passed.union(gather_ranks(found.failures)))
    if silent and not found.failures:
        raise CannotLook(f"{name_set(silent)} left no result")
    return found


def list_evidence(found: Experiment) -> tuple[EvidenceItem, ...]:
    """Return what ranks said of an experiment, and what it measured."""
    items = list(quote_messages(found.failures))
    facts = ", ".join(f"{key} {value}" for key, value in list(found.facts.items())[:12])
    if facts:
        items.append(EvidenceItem("experiment", facts))
    return tuple(items)


def describe_difference(found: Experiment) -> str:
    """Return the end of a clause: how far the result was off, where that is known."""
    return "" if found.largest_difference is None else f" (largest difference {found.largest_difference:.3g})"


def advise_wrong(again: str, what: str) -> tuple[Fix, ...]:
    """Return what tells backend and versions apart where an experiment computed something else.

    Args:
        again: the command that runs it alone.
        what: it runs.
    """
    return (
        Fix(
            f"check whether it is the backend: {what} with gloo on the CPU",
            command=f"{again} --backend gloo",
        ),
        Fix(
            "compare torch on all nodes; all must run the same version",
            command='python -c "import torch; print(torch.__version__, torch.version.git_version)"',
        ),
    )


def list_measured(found: Experiment) -> dict[str, object]:
    """Return what an experiment measured, for the details of its finding."""
    return {
        "tensor": found.tensor,
        "largest_difference": found.largest_difference,
        "facts": found.facts,
    }


@check(
    "DDP019",
    family="ddp",
    needs=("experiments",),
    variants={
        "ddp.gradients.mean": ("gradient-mean", "DDP's gradient of {tensor} is not the mean across ranks"),
        "ddp.autocast.gradients": ("autocast", "Under bfloat16 autocast DDP's gradient of {tensor} is wrong"),
        "ddp.scaler.step": ("grad-scaler", "With GradScaler the step updates {tensor} incorrectly"),
        "ddp.no_sync.accumulates": (
            "no-sync",
            "no_sync does not keep {tensor} local and then reduce the sum",
        ),
    },
)
def find_gradient_wrong(evidence: Evidence, *, variant: tuple[str, str]) -> Iterable[Finding]:
    """DistributedDataParallel gives other gradients than it must."""
    name, words = variant
    found = take_experiment(evidence, name)
    wrong = list_wrong(found.failures)
    if not wrong:
        return
    ranks = gather_ranks(wrong)
    tensor = found.tensor or "some parameter"
    yield Finding(
        message=f"{words.format(tensor=tensor)} on {name_set(ranks)}{describe_difference(found)}: {wrong[0].text}",
        ranks=ranks,
        nodes=hosts_of_ranks(evidence, ranks),
        evidence=list_evidence(found),
        fix=advise_wrong(_AGAIN, "the same step"),
        details=encode({"experiment": name, **list_measured(found)}),
    )


@check("NUM001", family="ddp", needs=("experiments",), id="ddp.replicas.equal")
def find_replicas_diverged(evidence: Evidence) -> Iterable[Finding]:
    """The ranks' models are no longer the same."""
    found = take_experiment(evidence, "replicas-equal")
    wrong = list_wrong(found.failures)
    if not wrong:
        return
    ranks, told = _minority(found, wrong)
    step = found.facts.get("first_step", found.facts.get("step"))
    when = f"after step {step}" if step is not None else "after the steps that were run"
    doubt = "" if told else "; which of them is right cannot be determined"
    yield Finding(
        message=(
            f"Replicas diverged {when}: {found.tensor or 'a parameter'} on {name_set(ranks)} differs from "
            f"the other ranks{describe_difference(found)}{doubt}."
        ),
        ranks=ranks,
        nodes=hosts_of_ranks(evidence, ranks),
        evidence=list_evidence(found),
        fix=(
            Fix(
                "check whether it is the backend: the same steps with gloo on the CPU",
                command=f"{_AGAIN} --backend gloo",
            ),
            Fix(
                "in your own script, compare after each step and stop at the first difference",
                code=_COMPARE,
            ),
        ),
        details=encode(
            {
                "tensor": found.tensor,
                "first_step": step,
                "largest_difference": found.largest_difference,
                "minority_known": told,
            }
        ),
        confidence="high" if told else "medium",
    )


_COMPARE = """for name, parameter in model.named_parameters():
    first = parameter.detach().clone()
    torch.distributed.broadcast(first, 0)
    assert torch.equal(first, parameter.detach()), name"""


def _minority(found: Experiment, wrong: list[RankMessage]) -> tuple[RankSet, bool]:
    """Return the ranks to blame and whether the others are a majority that agrees.

    Ranks are compared with one reference. If most ranks differ from it in the same way, it is the reference
    that stands alone.
    """
    differing = gather_ranks(wrong)
    if len(differing) < len(found.passed):
        return differing, True
    same = len({each.text for each in wrong}) == 1
    if found.passed and same and len(differing) > len(found.passed):
        return found.passed, True
    return differing.union(found.passed), False


@check("CKP006", family="ddp", needs=("experiments",), id="ddp.checkpoint.restored")
def find_checkpoint_not_restored(evidence: Evidence) -> Iterable[Finding]:
    """A checkpoint written by rank 0 comes back different."""
    found = take_experiment(evidence, "checkpoint")
    wrong = list_wrong(found.failures)
    if not wrong:
        return
    ranks = gather_ranks(wrong)
    yield Finding(
        message=(
            f"The checkpoint of rank 0 differs after loading on {name_set(ranks)}: "
            f"{found.tensor or 'a tensor'} differs{describe_difference(found)}: {wrong[0].text}"
        ),
        ranks=ranks,
        nodes=hosts_of_ranks(evidence, ranks),
        evidence=list_evidence(found),
        fix=(
            Fix(
                (
                    "save to shared storage, synchronize (barrier), and load with map_location set to each "
                    "rank's own device"
                ),
                code=_SAVE,
            ),
        ),
        details=encode(
            {
                "tensor": found.tensor,
                "largest_difference": found.largest_difference,
                "facts": found.facts,
            }
        ),
    )


_SAVE = """if torch.distributed.get_rank() == 0:
    torch.save(model.module.state_dict(), path + ".part")
    os.replace(path + ".part", path)
torch.distributed.barrier()
model.module.load_state_dict(torch.load(path, map_location=device, weights_only=True))"""


@check("BKD002", family="ddp", needs=("experiments",), id="ddp.experiments.complete")
def find_experiment_raised(evidence: Evidence) -> Iterable[Finding]:
    """No experiment with DDP raised an exception on any rank."""
    if not evidence.experiments:
        raise explain_missing(evidence, "ddp", "the experiments")
    yield from tell_raised(evidence, evidence.experiments, "DDP experiment", _AGAIN)


def tell_raised(
    evidence: Evidence, experiments: Iterable[Experiment], noun: str, again: str
) -> Iterable[Finding]:
    """Yield one finding where experiments raised.

    Args:
        evidence: of a check.
        experiments: of one stage.
        noun: what each of them is.
        again: the command that runs them alone.
    """
    raised = [(each, said) for each in experiments for said in each.failures if is_exception(said.text)]
    if not raised:
        return
    blamed = [(each, said) for each, said in raised if not is_complaint(said.text)] or raised
    first, said = blamed[0]
    blame = assign_blame(evidence, [message for _, message in raised], first.passed)
    names = list(dict.fromkeys(each.name for each, _ in blamed))
    also = f"; so did {join_words(names[1:])}" if len(names) > 1 else ""
    settings = "NCCL_DEBUG=INFO" if evidence.launch.backend == "nccl" else "TORCH_CPP_LOG_LEVEL=INFO"
    yield Finding(
        message=f"The {noun} {first.name} with {evidence.launch.backend} raised on "
        f"{name_set(said.ranks)}: {shorten_error(said.text)}{also}{blame.silence}",
        ranks=blame.ranks,
        victims=blame.victims,
        nodes=hosts_of_ranks(evidence, blame.ranks),
        evidence=quote_messages(RankMessage(m.ranks, f"{each.name}: {m.text}") for each, m in blamed),
        fix=(Fix("rerun the same steps with the backend's own messages", command=f"{settings} {again}"),),
        details=encode({"experiments": names, "backend": evidence.launch.backend}),
        confidence=blame.confidence,
        role=blame.role,
    )
