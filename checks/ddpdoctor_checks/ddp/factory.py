"""The user's model factory: errors in it are shown as theirs, with their line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import Evidence, Frame, ModelResult, RankExit, RankSet, UserError, encode
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, Where, check
from ddpdoctor_checks.common.frames import find_user_line, read_fatal_frames
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.stage_evidence import (
    FROM_OUTSIDE,
    describe_deaths,
    describe_exit,
    explain_missing,
    hosts_of_ranks,
    stage_records,
    unclean_exits,
)
from ddpdoctor_checks.common.wording import name_set

_FACTORY = (
    '# pkg/mod.py, for `ddpdoctor check --model pkg.mod:factory`\ndef factory():\n    """Return a module '
    'and example inputs for one forward pass."""\n    model = MyModel()\n    return model, (torch.randn(8, '
    "3, 224, 224),)"
)

_STEPS = {
    "import": "could not be imported",
    "factory": "raised",
    "wrap": "cannot be wrapped in DDP",
    "forward": "raised in its forward",
    "backward": "raised in its backward pass",
}


_CODE_FIXES = {
    "wrong-output": (
        "let forward return a loss, or an output with one; any floating-point tensor will do",
        None,
        "return loss  # or {'loss': loss, 'logits': logits}",
    ),
    "wrapped": (
        "return the bare module; ddpdoctor wraps it, several times",
        None,
        "return model.module, inputs",
    ),
    "lazy": (
        "run one batch through the model before it is wrapped, or give its layers their sizes",
        None,
        "model(*inputs)  # before DistributedDataParallel(model)",
    ),
    "differs": (
        "build the model from the same configuration on every rank: nothing in it may depend on the rank, on data "
        "that only one rank has, or on an unseeded choice",
        None,
        "print(torch.distributed.get_rank(), [tuple(p.shape) for p in model.parameters()])",
    ),
    "group-destroyed": (
        (
            "leave the process group to its creator: remove destroy_process_group() from the factory and "
            "the model"
        ),
        None,
        None,
    ),
}
"""Kinds of error that one line of code puts right: what to do, a command, and the line."""


def require_model(evidence: Evidence) -> ModelResult:
    """Return what became of the user's model.

    Raises:
        NotApplicable: none was named.
        CannotLook: it left no result.
    """
    if evidence.launch.model is None and not evidence.model:
        raise NotApplicable("no --model was given")
    if not evidence.model:
        raise explain_missing(evidence, "ddp", f"the model {evidence.launch.model}")
    return evidence.model[0]


@check("DDP020", family="ddp", needs=("stages",), id="ddp.model.factory")
def find_factory_failed(evidence: Evidence) -> Iterable[Finding]:
    """The model that ``--model`` names could not be examined, for a reason in the user's own code."""
    if evidence.launch.model is None and not evidence.model:
        raise NotApplicable("no --model was given")
    hung = [*_find_died(evidence), *_find_hung(evidence)]
    errors = [(result, error) for result in evidence.model for error in result.errors]
    if not hung and not evidence.model:
        require_model(evidence)
    for result, error in errors[:4]:
        yield _failed(evidence, result.factory, error, left_out=max(0, len(errors) - 4))
    if not errors:
        yield from hung[:1]


def _failed(evidence: Evidence, factory: str, error: UserError, left_out: int) -> Finding:
    place = f" at {error.file}:{error.line}" if error.file else ""
    inside = f" in {error.function}" if error.function and place else ""
    kind = f"{error.type}: " if error.type and not error.message.startswith(error.type) else ""
    words = {
        "missing": "does not exist",
        "hung": "does not return",
        "wrong-type": "returns something other than a module and example inputs",
        "wrong-output": "returns no loss",
        "not-trainable": "has no trainable parameter",
        "wrapped": "is already wrapped",
        "lazy": "has parameters without a shape",
        "differs": "has different parameters",
        "group-destroyed": "destroyed the process group",
    }.get(error.kind) or _STEPS.get(error.step, "failed")
    where: tuple[Where, ...] = ()
    if error.file is not None and error.line is not None:
        where = (Where(error.ranks, "culprit", error.file, error.line, error.function, error.source),)
    return Finding(
        message=f"The model {factory} {words}{place}{inside} on {name_set(error.ranks)}: "
        f"{kind}{error.message}",
        ranks=error.ranks,
        nodes=hosts_of_ranks(evidence, error.ranks),
        where=where,
        evidence=(EvidenceItem("model", f"{error.step}: {kind}{error.message}", error.ranks),),
        fix=_fixes(factory, error.kind),
        details=encode({"factory": factory, "kind": error.kind, "step": error.step, "more_errors": left_out}),
    )


def _fixes(factory: str, kind: str) -> tuple[Fix, ...]:
    module, _, name = factory.rpartition(":")
    alone = f'python -c "import importlib; print(getattr(importlib.import_module({module!r}), {name!r})())"'
    if module.endswith(".py"):
        alone = f'python -c "import runpy; print(runpy.run_path({module!r})[{name!r}]())"'
    if kind == "missing":
        return (
            Fix(
                ("run it from the directory that contains the package, or name it pkg.mod:factory"),
                command=alone,
            ),
            Fix("a factory looks like this", code=_FACTORY),
        )
    if kind == "wrong-type":
        return (Fix("return the module and a tuple (or dict) of inputs for its forward", code=_FACTORY),)
    if kind in _CODE_FIXES:
        return (Fix(*_CODE_FIXES[kind]),)
    if kind == "not-trainable":
        return (
            Fix(
                "leave at least one parameter trainable, or do not wrap the model in DDP at all",
                code="model.head.requires_grad_(True)  # before DistributedDataParallel(model)",
            ),
        )
    return (Fix("call it alone, in one process, and fix the line", command=alone),)


def _find_died(evidence: Evidence) -> Iterable[Finding]:
    """Find ranks whose process the user's own code ended; SIGKILL and SIGTERM come from outside (BKD002)."""
    groups: dict[tuple[str | None, int | None, int | None], list[RankExit]] = {}
    for gone in unclean_exits(evidence, ("ddp",)):
        if gone.user_step is not None and gone.signal not in FROM_OUTSIDE:
            groups.setdefault((gone.user_step, gone.exit_code, gone.signal), []).append(gone)
    for members in groups.values():
        yield _died(evidence, members)


def _died(evidence: Evidence, members: Sequence[RankExit]) -> Finding:
    first, ranks = members[0], RankSet(each.rank for each in members)
    factory, step = evidence.launch.model or "", first.user_step or ""
    frame = find_user_line(read_fatal_frames(first.detail or ""))
    place = f" at {frame.file}:{frame.line} in {frame.function}" if frame else ""
    during = {"import": "being imported", "factory": "being built"}.get(step, "running")
    return Finding(
        message=f"The model {factory} ended its process{place} while {during}: {describe_deaths(members)}.",
        ranks=ranks,
        victims=RankSet().union(*(r.unfinished for r in stage_records(evidence, "ddp"))).minus(ranks),
        nodes=hosts_of_ranks(evidence, ranks),
        where=(Where(ranks, "culprit", frame.file, frame.line, frame.function),) if frame else (),
        evidence=tuple(
            EvidenceItem("exit", f"{step}: pid {each.pid} {describe_exit(each)}", RankSet([each.rank]))
            for each in members[:4]
        ),
        fix=_fixes(factory, "died"),
        details=encode(
            {"factory": factory, "kind": "died", "step": step, "more_errors": 0, "exits": list(members[:8])}
        ),
    )


def _find_hung(evidence: Evidence) -> Iterable[Finding]:
    """Find user's code in the stacks of a stage ddp that was cut; only --model brings any into it."""
    cut = [record for record in stage_records(evidence, "ddp") if record.status == "cut"]
    groups: dict[Frame, list[RankSet]] = {}
    for stack in (stack for record in cut for stack in record.stacks):
        frame = find_user_line(stack.frames)
        if frame is not None:
            groups.setdefault(frame, []).append(stack.ranks)
    factory = evidence.launch.model or (evidence.model[0].factory if evidence.model else "")
    for frame, sets in groups.items():
        yield _hung(
            evidence, factory, frame, sets, max((record.limit_s or 0.0 for record in cut), default=0.0)
        )


def _hung(evidence: Evidence, factory: str, frame: Frame, sets: Sequence[RankSet], limit: float) -> Finding:
    ranks = RankSet().union(*sets)
    return Finding(
        message=(
            f"The model {factory} does not return at {frame.file}:{frame.line} in {frame.function} on "
            f"{name_set(ranks)}: stage ddp was stopped after {limit:g} s."
        ),
        ranks=ranks,
        nodes=hosts_of_ranks(evidence, ranks),
        where=(in_frame(frame, ranks, "culprit"),),
        evidence=(EvidenceItem("stack", f"{frame.function} ({frame.file}:{frame.line})", ranks),),
        fix=_fixes(factory, "hung"),
        details=encode({"factory": factory, "kind": "hung", "step": "unknown", "more_errors": 0}),
    )
