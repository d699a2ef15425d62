"""DDP003, DDP013, DDP016 and COL012 as they stand in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import Finding, Fix, check
from ddpdoctor_checks.lint.facts import LINT, facts_of, name_line, tell_fact
from ddpdoctor_checks.lint.rewriting import rewrite, set_keyword
from ddpdoctor_checks.silent import teardown
from ddpdoctor_checks.training import buffers
from ddpdoctor_checks.wording import count_of


@check("DDP003", family="source", needs=("sources",), id="lint.ready_once", commands=LINT)
def find_reentrant(evidence: Evidence) -> Iterable[Finding]:
    """Reentrant checkpointing in a model whose wrapper searches for unused parameters."""
    for fact in facts_of(evidence, "reentrant-checkpoint"):
        said = fact.details["way"] == "said"
        how = "is reentrant" if said else "is reentrant where it does not say otherwise"
        yield tell_fact(
            fact,
            f"checkpoint at {name_line(fact.place)} {how}, and the DistributedDataParallel at "
            f"{name_line(fact.related[0].place)} searches for unused parameters: those inside are taken as unused, and "
            "come a second time in the backward.",
            Fix("let checkpointing not be reentrant", code="checkpoint(block, x, use_reentrant=False)"),
            why="the search goes through the graph of the forward, which reentrant checkpointing leaves out",
            severity=None if said else "warning",
        )


@check("DDP013", family="source", needs=("sources",), id="lint.batch_norm", commands=LINT)
def find_small_batches(evidence: Evidence) -> Iterable[Finding]:
    """BatchNorm in a wrapped model whose loader gives few samples."""
    for fact in facts_of(evidence, "batch-norm-small"):
        size = int(fact.details["size"])
        yield tell_fact(
            fact,
            f"The model that is wrapped at {name_line(fact.place)} has BatchNorm, which counts over the "
            f"{count_of(size, 'sample')} of each rank and not over those of all.",
            Fix(
                "on GPUs count over all ranks",
                code="model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)   # before the wrap",
            ),
            why="the loader's batch size is spelled out, and nothing in the program mentions SyncBatchNorm",
            severity=None if size < buffers.VERY_FEW else "info",
            role="advice",
        )


def _wrap(text: str, devices: str | None) -> str:
    """Return a line that wraps a model with other device_ids, or with none."""

    def change(call: ast.Call) -> None:
        del call.args[1:]
        set_keyword(call, "device_ids", devices)

    more = f", device_ids={devices}" if devices is not None else ""
    example = f"model = DistributedDataParallel(model{more})"
    return rewrite(text, ("DistributedDataParallel", "DDP"), change, example)


@check("DDP016", family="source", needs=("sources",), id="lint.device_ids", commands=LINT)
def find_device_ids(evidence: Evidence) -> Iterable[Finding]:
    """device_ids that DistributedDataParallel refuses."""
    for fact in facts_of(evidence, "device-ids"):
        several = fact.details["way"] == "several"
        reason = (
            "names several devices: one process drives one"
            if several
            else "names a device, and nothing in the program moves the model from the CPU"
        )
        fix = (
            Fix(
                "give the one device of this rank",
                code=_wrap(fact.place.text, "[local_rank]"),
            )
            if several
            else Fix("leave device_ids out on the CPU", code=_wrap(fact.place.text, None))
        )
        yield tell_fact(
            fact,
            f"device_ids at {name_line(fact.place)} {reason}.",
            fix,
            why="DistributedDataParallel refuses it"
            if several
            else "no name and no text in it speaks of a device",
            severity=None if several else "warning",
        )


@check("COL012", family="source", needs=("sources",), id="lint.teardown", commands=LINT)
def find_undestroyed(evidence: Evidence) -> Iterable[Finding]:
    """A script makes a process group of NCCL and never destroys it."""
    for fact in facts_of(evidence, "group-left"):
        yield tell_fact(
            fact,
            f"The process group of NCCL that is made at {name_line(fact.place)} is never destroyed.",
            teardown.EVERYWHERE,
            why="nothing in the program is called destroy, cleanup or shutdown; torch warns of it at the exit",
            severity="info",
            role="advice",
        )
