"""DDP and NUM: replicas that parted, one check for each code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import Finding, NotApplicable, check, check_also
from ddpdoctor_checks.crash import wrapper as crashed
from ddpdoctor_checks.crash.judging import has_failed
from ddpdoctor_checks.crash.telling import JOB
from ddpdoctor_checks.ddp import experiments, unused
from ddpdoctor_checks.training.parting import judge_replicas
from ddpdoctor_checks.training.telling import tell_parting

NEEDS = ("training",)


def _tell(evidence: Evidence, code: str) -> Iterable[Finding]:
    """Yield what parted replicas of one code show; in a job that failed of something else, beside that."""
    if not any(node.steps for node in evidence.training):
        raise NotApplicable("no step of an optimizer was seen on several ranks")
    failed = has_failed(evidence)
    for parting in judge_replicas(evidence):
        if parting.code != code or (failed and code in ("DDP001", "DDP002")):
            continue
        doubtful = parting.confidence == "low" or parting.slight
        found = tell_parting(parting, "info" if parting.advice else "warning" if doubtful else None)
        yield replace(found, role="advice" if failed else "cause")


@check_also(
    unused.find_parameters_unused,
    id="training.unused",
    family="training",
    needs=NEEDS,
    required=False,
    commands=JOB,
)
def find_unused(evidence: Evidence) -> Iterable[Finding]:
    """Parameters got no gradient on any rank, and what shares their bucket was not reduced."""
    yield from _tell(evidence, "DDP001")


@check_also(
    crashed.find_unused_somewhere,
    id="training.unused_somewhere",
    family="training",
    needs=NEEDS,
    required=False,
    commands=JOB,
)
def find_unused_somewhere(evidence: Evidence) -> Iterable[Finding]:
    """Parameters got no gradient on some ranks, and nothing complained."""
    yield from _tell(evidence, "DDP002")


@check(
    "DDP005",
    name="wrapper-bypassed",
    title="Training goes around the wrapper, so gradients are never reduced",
    severity="error",
    family="training",
    needs=NEEDS,
    since="0.1.0",
    id="training.wrapper_used",
    required=False,
    commands=JOB,
    explains=("NUM001",),
)
def find_bypassed(evidence: Evidence) -> Iterable[Finding]:
    """The model inside DistributedDataParallel is trained without a forward of the wrapper.

    What it looks for:
        Steps of an optimizer on parameters of a wrapped model between which the wrapper made no forward in training,
        and gradients that differ over ranks.

    Why it matters:
        DistributedDataParallel prepares the reduction in its own forward. ``model.module(x)``,
        ``model.module.loss(batch)`` or a reference to the bare model skip that: every rank trains a model of
        its own, nothing complains, and only rank 0's is saved.

    How it decides:
        It is raised only where gradients were seen to differ, and parameters after them. The line is where a
        part of the model was called, in training, outside of the wrapper's forward; where that was not looked
        at, the line of the step. ``lint`` follows the loss of each backward to the models behind it, and tells those
        losses behind which no forward of a wrapper is, where nothing in the program reduces gradients by hand.

    Known false alarms:
        None known: evaluation through ``.module`` makes no gradients, and gradients that are reduced by hand
        are equal.

    Fix:
        Call the wrapper in training. What else the step needs from the model goes into the wrapped module's forward.

    References:
        https://docs.pytorch.org/docs/stable/notes/ddp.html
    """
    yield from _tell(evidence, "DDP005")


@check(
    "DDP006",
    name="parameters-changed-after-wrap",
    title="Parameters were replaced, added or unfrozen after the wrap",
    severity="error",
    family="training",
    needs=NEEDS,
    since="0.1.0",
    id="training.parameters_known",
    required=False,
    commands=JOB,
    explains=("NUM001",),
)
def find_changed(evidence: Evidence) -> Iterable[Finding]:
    """Parameters are trained that DistributedDataParallel did not know when it wrapped the model.

    What it looks for:
        Parameters of a wrapped model whose gradients differ over ranks and that were not among those that
        required a gradient at the wrap.

    Why it matters:
        The wrapper puts its hooks on the parameters that it finds. A new head, a layer that is unfrozen in the
        third epoch or a resized embedding has none: its gradient stays each rank's own, without a word.

    How it decides:
        By the parameters themselves, compared with those of the wrap, and only where their gradients were seen
        to differ. Those that the wrapper was told to ignore are left out. ``lint`` tells layers that are given to the
        model, or unfrozen where they were frozen at the wrap, between the wrap and the loop that trains it.

    Known false alarms:
        None known.

    Fix:
        Change the model first and wrap it last; wrap it again after a change.

    References:
        https://github.com/pytorch/pytorch/issues/12603
        https://github.com/pytorch/pytorch/issues/104336
    """
    yield from _tell(evidence, "DDP006")


@check(
    "DDP008",
    name="no-sync-before-step",
    title="The micro-batch before the optimizer's step ran under no_sync",
    severity="error",
    family="training",
    needs=NEEDS,
    since="0.1.0",
    id="training.synced_before_step",
    required=False,
    commands=JOB,
    explains=("NUM001",),
)
def find_unsynced(evidence: Evidence) -> Iterable[Finding]:
    """The last forward before a step of the optimizer was made under no_sync, so its gradients were not reduced.

    What it looks for:
        Steps at which gradients differ over ranks and before which the wrapper's last forward did not reduce.

    Why it matters:
        Gradient accumulation with a condition that is off by one: each rank steps with gradients of its own.
        Nothing complains.

    How it decides:
        By ``require_backward_grad_sync`` at each forward, and only where gradients were seen to differ at the step.

    Known false alarms:
        Gradients that are reduced by hand after the step's last backward are equal and are not named.

    Fix:
        Let the last micro-batch before the step run outside of ``no_sync()``.

    References:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    yield from _tell(evidence, "DDP008")


@check(
    "DDP015",
    name="model-unwrapped",
    title="Several ranks train one model and nothing reduces its gradients",
    severity="error",
    family="training",
    needs=NEEDS,
    since="0.1.0",
    id="training.model_wrapped",
    required=False,
    commands=JOB,
    explains=("NUM001",),
)
def find_unwrapped(evidence: Evidence) -> Iterable[Finding]:
    """Several ranks step an optimizer on the same model, each with gradients of its own.

    What it looks for:
        A model that no DistributedDataParallel wraps, equal on all ranks before the first step, whose gradients
        and then whose parameters differ and do not become equal again.

    Why it matters:
        The job costs as much as a distributed one and gives the model of one GPU. Mostly the wrap was forgotten
        in one of several branches, or averaging by hand works on a copy of the gradients.

    How it decides:
        By the parameters before the step, where ranks that average them between steps have them equal again.
        Tensors of DTensor, FSDP and the like, and parameters that belong to no module that was seen, are passed
        over. It is an error only where the ranks are seen to train one model together: by a sampler that cuts the
        data into as many parts as there are ranks, or by collectives that carry as much as the parameters in each
        step. Else (members of an ensemble, folds, trials of a search) it is an advice; so it is where learning rates
        differ, where ranks send each other their parameters (gossip), where they are equal again when the next
        optimizer begins (federated rounds), and where models differ from the beginning in a part only (experts).
        Where ranks are given the same batches (parts of one model) nothing is said. ``lint`` tells programs that join a
        group, cut their data up with a DistributedSampler, and neither import nor call anything that could reduce.

    Known false alarms:
        Members of an ensemble whose data is cut up by a DistributedSampler.

    Fix:
        Wrap the model and call the wrapper, or average ``.grad`` itself between backward and step.

    References:
        https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html
    """
    yield from _tell(evidence, "DDP015")


@check_also(
    experiments.find_replicas_diverged,
    id="training.replicas",
    family="training",
    needs=NEEDS,
    required=False,
    commands=JOB,
)
def find_parted(evidence: Evidence) -> Iterable[Finding]:
    """Parameters of one model differ over ranks, and no narrower cause was seen."""
    yield from _tell(evidence, "NUM001")


@check(
    "NUM006",
    name="optimizer-diverged",
    title="Optimizers differ over ranks",
    severity="warning",
    family="training",
    needs=NEEDS,
    since="0.1.0",
    id="training.rates",
    required=False,
    commands=JOB,
)
def find_rates(evidence: Evidence) -> Iterable[Finding]:
    """Ranks step one model with different learning rates, settings or states of the optimizer.

    What it looks for:
        Learning rates of one optimizer that differ over ranks, or other settings of it (weight decay, betas), or parts
        of its state (momentum, counters of steps) that differ while parameters are equal, before parameters part whose
        gradients are equal.

    Why it matters:
        A scheduler that follows a rank's own loss (ReduceLROnPlateau), or one that is stepped on one rank only,
        makes replicas part slowly; so does a state that is loaded on one rank. Nothing complains.

    How it decides:
        By the learning rates at the steps that are looked at, and by their sum over all steps, which also differs
        where they differed in between; and by settings and fingerprints of the state at steps 1, 2, 4, 8 …. It is
        raised only where parameters were seen to part. ZeroRedundancyOptimizer, and optimizers that have other
        parameters on each rank, hold another piece of the state each: those are not compared.

    Known false alarms:
        None known.

    Fix:
        Reduce what the scheduler decides by, and step it on every rank. Load the optimizer's state on every rank.

    References:
        https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html
        https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.load_state_dict.html
    """
    yield from _tell(evidence, "NUM006")
