"""Checks of the family COL: does each operation give the values that it must, however the group was made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import CollectiveCase, Evidence, InitResult, RankMessage, RankSet, encode
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.stage_evidence import (
    assign_blame,
    explain_missing,
    gather_ranks,
    hosts_of_ranks,
    is_complaint,
    is_exception,
    list_cases,
    list_wrong,
    quote_messages,
    shorten_error,
    stage_records,
)
from ddpdoctor_checks.common.wording import count_of, format_bytes, join_words, name_set

OPERATIONS: dict[str, tuple[str, ...]] = {
    "send_recv": ("send", "recv", "send_recv"),
    "isend_irecv": ("isend", "irecv", "isend_irecv"),
    "batch_isend_irecv": ("batch_isend_irecv",),
    "broadcast": ("broadcast",),
    "scatter": ("scatter",),
    "gather": ("gather",),
    "reduce": ("reduce",),
    "all_reduce": ("all_reduce", "all_reduce_coalesced"),
    "all_gather": ("all_gather",),
    "all_gather_into_tensor": ("all_gather_into_tensor",),
    "reduce_scatter": ("reduce_scatter", "reduce_scatter_tensor"),
    "all_to_all": ("all_to_all", "all_to_all_single"),
    "barrier": ("barrier", "monitored_barrier"),
    "objects": (
        "objects",
        "object_collectives",
        "broadcast_object_list",
        "all_gather_object",
        "gather_object",
        "scatter_object_list",
        "send_object_list",
        "recv_object_list",
        "send_recv_object_list",
    ),
}
"""Row of the report -> names of torch.distributed's functions that it covers; a test holds the probes to
it."""

_ROWS = {f"col.{row}.exact": row for row in (*OPERATIONS, "subgroup")}

ITEM_BYTES = {
    "float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float32": 4, "int32": 4, "float16": 2,
    "bfloat16": 2, "int16": 2, "uint8": 1, "int8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""Bytes of one element, by torch's name of the type."""


def normalise_operation(name: str) -> str:
    """Return an operation's name as torch.distributed writes it, e.g. ``send_recv`` for ``send/recv``."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower().removeprefix("dist.")).strip("_")


@check("COL001", family="collectives", needs=("collectives",), variants=_ROWS)
def find_result_wrong(evidence: Evidence, *, variant: str) -> Iterable[Finding]:
    """An operation between ranks gave wrong numbers."""
    cases = _choose_cases(evidence.collectives, variant)
    if not cases:
        if evidence.launch.world_size < 2 and evidence.collectives:
            raise NotApplicable("requires at least two ranks")
        raise explain_missing(evidence, "collectives", variant)
    wrong = [(case, said) for case in cases if (said := list_wrong(case.failures))]
    if wrong:
        yield _wrong_result(evidence, variant, wrong, len(cases))
        return
    raised = [case for case in cases if case.failures]
    if raised:
        raise CannotLook(f"{raised[0].op} raised on {name_set(gather_ranks(raised[0].failures))}")
    if all(case.unsupported for case in cases):
        raise NotApplicable(cases[0].unsupported or "the backend does not support it")
    _require_results(evidence, cases)


def _choose_cases(cases: Sequence[CollectiveCase], row: str) -> list[CollectiveCase]:
    if row == "subgroup":
        return [case for case in cases if case.group != "world"]
    world = [case for case in cases if case.group == "world"]
    return [case for case in world if normalise_operation(case.op) in OPERATIONS[row]]


def _require_results(evidence: Evidence, cases: Sequence[CollectiveCase]) -> None:
    """Let a part not pass for the whole: some case must have come from every rank of the world.

    Raises:
        CannotLook: ranks were lost before they had a result.
    """
    seen = RankSet().union(*(case.passed for case in cases))
    if not seen and not any(case.unsupported for case in cases):
        raise CannotLook("no rank left a result")
    heard = seen.union(*(gather_ranks(case.failures) for case in cases))
    lost = RankSet.span(evidence.launch.world_size).minus(heard)
    if all(case.group == "world" for case in cases) and lost and heard:
        ended = all(record.status == "passed" for record in stage_records(evidence, "collectives"))
        why = "" if ended else ": stage collectives did not end"
        raise CannotLook(f"{name_set(lost)} left no result{why}")


def _wrong_result(
    evidence: Evidence, row: str, wrong: Sequence[tuple[CollectiveCase, list[RankMessage]]], tried: int
) -> Finding:
    case, said = wrong[0]
    ranks = RankSet().union(*(gather_ranks(messages) for _, messages in wrong))
    more = f" (and in {count_of(len(wrong) - 1, 'more case')} of {tried:,})" if len(wrong) > 1 else ""
    texts = [
        RankMessage(each.ranks, f"{describe_case(bad)}: {each.text}") for bad, all_ in wrong for each in all_
    ]
    rows: Iterable[dict[str, object]] = (
        {
            "op": bad.op,
            "dtype": bad.dtype,
            "count": bad.count,
            "bytes": case_bytes(bad),
            "reduction": bad.reduction,
            "group": bad.group,
            "ranks": gather_ranks(all_),
        }
        for bad, all_ in wrong
    )
    return Finding(
        message=(
            f"{describe_case(case)} returned incorrect values on {name_set(gather_ranks(said))}: "
            f"{said[0].text}{more}."
        ),
        ranks=ranks,
        nodes=hosts_of_ranks(evidence, ranks),
        evidence=quote_messages(texts),
        fix=_wrong_fixes(case),
        details=encode({"row": row, "cases_tried": tried, **list_cases(rows)}),
    )


def case_bytes(case: CollectiveCase) -> int | None:
    """Return the bytes per rank of a case; None for types of unknown width (objects)."""
    width = ITEM_BYTES.get(case.dtype.removeprefix("torch."))
    return None if width is None else width * case.count


def describe_case(case: CollectiveCase) -> str:
    """Return ``all_reduce (sum) of 1,023 float32 (4.0 KiB a rank) with gloo in a sub-group``."""
    size = case_bytes(case)
    text = case.op + (f" ({case.reduction})" if case.reduction else "")
    text += f" of {case.count:,} {case.dtype.removeprefix('torch.')}"
    text += f" ({format_bytes(size)} a rank)" if size is not None else ""
    return f"{text} with {case.backend}" + ("" if case.group == "world" else f" in {case.group}")


def _wrong_fixes(case: CollectiveCase) -> tuple[Fix, ...]:
    fixes = []
    if case.backend in ("nccl", "rccl"):
        fixes.append(
            Fix(
                "check whether it disappears without peer-to-peer copies; if so it is BKD007",
                command="NCCL_P2P_DISABLE=1 ddpdoctor check --only facts,smoke,rendezvous,collectives",
            )
        )
        fixes.append(Fix("and without shared memory or InfiniBand", command=_WITHOUT_FABRIC))
    else:
        fixes.append(
            Fix(
                f"check whether another backend gives the right values; if only {case.backend} is wrong, "
                "compare torch's version on all nodes",
                command='python -c "import torch; print(torch.__version__, torch.__config__.show())"',
            )
        )
    fixes.append(Fix("rerun the same operation and show every case", command=_AGAIN))
    return tuple(fixes)


_AGAIN = "ddpdoctor check --only facts,rendezvous,collectives -v"
_WITHOUT_FABRIC = f"NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1 {_AGAIN}"


@check("BKD002", family="collectives", needs=("collectives",), id="col.operations.complete")
def find_operation_raised(evidence: Evidence) -> Iterable[Finding]:
    """No operation raised an exception on any rank."""
    raised: list[tuple[CollectiveCase, list[RankMessage]]] = []
    for case in evidence.collectives:
        said = [each for each in case.failures if is_exception(each.text)]
        if said:
            raised.append((case, said))
    if not evidence.collectives:
        raise explain_missing(evidence, "collectives", "the operations")
    if not raised:
        return
    own = [(case, told) for case, said in raised if (told := [e for e in said if not is_complaint(e.text)])]
    blamed = own or raised
    case, said = blamed[0]
    heard = RankSet().union(*(each.passed for each, _ in raised))
    blame = assign_blame(evidence, [message for _, messages in raised for message in messages], heard)
    names = list(dict.fromkeys(bad.op for bad, _ in blamed))
    also = f"; so did {join_words(names[1:])}" if len(names) > 1 else ""
    texts = [
        RankMessage(each.ranks, f"{describe_case(bad)}: {each.text}") for bad, all_ in blamed for each in all_
    ]
    rows: Iterable[dict[str, object]] = (
        {
            "op": bad.op,
            "dtype": bad.dtype,
            "count": bad.count,
            "group": bad.group,
            "ranks": gather_ranks(all_),
        }
        for bad, all_ in blamed
    )
    yield Finding(
        message=f"{describe_case(case)} raised on {name_set(gather_ranks(said))}: {shorten_error(said[0].text)}{also}"
        f"{blame.silence}",
        ranks=blame.ranks,
        victims=blame.victims,
        nodes=hosts_of_ranks(evidence, blame.ranks),
        evidence=quote_messages(texts),
        fix=(Fix("rerun these operations with the backend's own messages", command=_settings(case.backend)),),
        details=encode({"operations": names, **list_cases(rows)}),
        confidence=blame.confidence,
        role=blame.role,
    )


def _settings(backend: str) -> str:
    if backend == "nccl":
        return f"NCCL_DEBUG=INFO {_AGAIN}"
    return f"TORCH_CPP_LOG_LEVEL=INFO TORCH_DISTRIBUTED_DEBUG=INFO {_AGAIN}"


@check(
    "BKD002",
    family="collectives",
    needs=("initialisations",),
    variants={f"col.init.{method}": method for method in ("env", "tcp", "file")},
)
def find_initialisation_failed(evidence: Evidence, *, variant: str) -> Iterable[Finding]:
    """The default process group forms by env://, tcp:// and file://."""
    result = next((each for each in evidence.initialisations if each.method.split(":")[0] == variant), None)
    if result is None:
        raise explain_missing(evidence, "collectives", f"initialization by {variant}://")
    if result.failures:
        if variant == "env" and any(each.stage == "rendezvous" for each in evidence.errors):
            raise CannotLook("the default process group did not form in stage rendezvous")
        yield _failed_initialisation(evidence, variant, result)
        return
    if result.skipped:
        raise NotApplicable(result.skipped)
    silent = RankSet.span(evidence.launch.world_size).minus(result.passed)
    if silent:
        raise CannotLook(f"{name_set(silent)} left no result of {variant}://")


def _failed_initialisation(evidence: Evidence, method: str, result: InitResult) -> Finding:
    blame = assign_blame(evidence, result.failures, result.passed)
    raised = name_set(gather_ranks(blame.said))
    return Finding(
        message=f"init_process_group by {method}:// with {evidence.launch.backend} failed on {raised}: "
        f"{shorten_error(blame.said[0].text)}{blame.silence}",
        ranks=blame.ranks,
        victims=blame.victims,
        nodes=hosts_of_ranks(evidence, blame.ranks),
        evidence=(
            *quote_messages(result.failures),
            EvidenceItem("backend", f"{evidence.launch.backend} by {method}://"),
        ),
        fix=_INIT_FIXES[method],
        details=encode({"method": method, "backend": evidence.launch.backend}),
        confidence=blame.confidence,
        role=blame.role,
        severity=None if method == "env" else "warning",
    )


_INIT_FIXES = {
    "env": (
        Fix(
            "let the launcher set the variables, and set none of them by hand",
            command="torchrun --standalone --nproc-per-node 4 train.py",
            code='torch.distributed.init_process_group("gloo")  # env:// is the default',
        ),
    ),
    "tcp": (
        Fix(
            "give every rank one address and port that rank 0 can listen on, or use env:// with torchrun",
            code="torch.distributed.init_process_group(\n"
            '    "gloo", init_method="tcp://10.0.0.1:29500", rank=rank, world_size=world_size\n)',
        ),
    ),
    "file": (
        Fix(
            "use a new file for each job, on a file system that all nodes share and that supports locks "
            "(not every NFS)",
            code="torch.distributed.init_process_group(\n"
            '    "gloo",\n    init_method=f"file:///shared/rendezvous-{job_id}",\n'
            "    rank=rank,\n    world_size=world_size,\n)",
        ),
    ),
}
