"""Whether the backend asked for exists, and whether each backend that exists works."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ddpdoctor.evidence import BackendResult, Evidence, RankMessage, RankSet, encode
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.stage_evidence import (
    assign_blame,
    explain_missing,
    gather_ranks,
    hosts_of_ranks,
    quote_messages,
    shorten_error,
)
from ddpdoctor_checks.common.wording import join_words, name_set

DEVICE_OF = {"gloo": "cpu", "mpi": "cpu", "ucc": "cpu", "nccl": "cuda", "xccl": "xpu"}
"""Device type that a backend is for (torch.distributed's table of backends); mpi and ucc can do more when
built for it."""

BUILD_OF = {
    "nccl": (
        "a CUDA build of PyTorch",
        "pip install torch --index-url https://download.pytorch.org/whl/cu128",
    ),
    "xccl": ("an XPU build of PyTorch", "pip install torch --index-url https://download.pytorch.org/whl/xpu"),
    "mpi": ("a PyTorch built from source on a machine with MPI", None),
    "ucc": ("a PyTorch built from source with USE_UCC=1", None),
    "gloo": ("a PyTorch built with USE_GLOO=1, as all wheels are", None),
}
"""Where a backend comes from (pytorch.org/get-started, torch.distributed's "Backends that come with
PyTorch")."""


@check("BKD001", family="backends", needs=("stages",), id="bkd.asked.available")
def find_backend_unavailable(evidence: Evidence) -> Iterable[Finding]:
    """The backend that was asked for cannot be used here."""
    asked = evidence.launch.backend_asked or evidence.launch.backend
    result = next((each for each in evidence.backends if each.backend == asked), None)
    result = result or next((each for each in evidence.backends if each.asked), None)
    result = result or _read_refusal(evidence, asked)
    if result is None:
        raise explain_missing(evidence, "backends", f"backend {asked}")
    if not result.built:
        problem = f"The requested backend, {result.backend}, is not in this PyTorch build"
    elif not result.device_present:
        device = DEVICE_OF.get(result.backend, "device").upper()
        problem = (
            f"The requested backend, {result.backend}, has no device: torch sees no {device} device here"
        )
    else:
        return
    usable = [each.backend for each in evidence.backends if each.built and each.device_present]
    if len(evidence.backends) < 2 and result.backend != "gloo":
        usable = ["gloo"]  # in every wheel of torch for every platform; nothing else could be asked
    torch = next((facts.versions["torch"] for facts in evidence.nodes if "torch" in facts.versions), None)
    yield Finding(
        message=f"{problem}; usable here: {join_words(usable) or 'none'}.",
        ranks=gather_ranks(result.failures),
        evidence=_unavailable_evidence(result, torch),
        fix=tuple(_unavailable_fixes(result, usable)),
        details=encode({"backend": result.backend, "built": result.built, "usable": usable, "torch": torch}),
    )


_NOT_BUILT = re.compile(r"doesn't have \w+ built in|unknown (?:c10d )?backend|invalid backend", re.IGNORECASE)
_NO_DEVICE = re.compile(r"no gpus found|only supported with gpus|no nvidia driver", re.IGNORECASE)
"""How torch refuses in init_process_group (distributed_c10d.py; ProcessGroupNCCL.cpp;
torch/cuda/__init__.py). It is read only where the group did not form at all, so that no rank could be asked
what it has."""


def _read_refusal(evidence: Evidence, asked: str) -> BackendResult | None:
    said: dict[str, RankSet] = {}
    for error in evidence.errors:
        if _NOT_BUILT.search(error.message) or _NO_DEVICE.search(error.message):
            said[error.message] = said.get(error.message, RankSet()).union(RankSet([error.rank]))
    if not said:
        return None
    text = next(iter(said))
    return BackendResult(
        asked,
        built=not _NOT_BUILT.search(text),
        device_present=not _NO_DEVICE.search(text),
        asked=True,
        failures=tuple(RankMessage(ranks, message) for message, ranks in said.items()),
        reason=text,
    )


def _unavailable_evidence(result: BackendResult, torch: str | None) -> tuple[EvidenceItem, ...]:
    about = f"torch {torch}: " if torch else ""
    said = [EvidenceItem("backend", f"{about}{result.backend} built: {'yes' if result.built else 'no'}")]
    if result.reason:
        said.append(EvidenceItem("backend", result.reason))
    return tuple(said)


def _unavailable_fixes(result: BackendResult, usable: list[str]) -> Iterable[Fix]:
    if usable:
        name = usable[0]
        yield Fix(
            f"use {name}: here `ddpdoctor check --backend {name}`, in the script the code below",
            code=f'torch.distributed.init_process_group("{name}")',
        )
    if not result.built:
        words, command = BUILD_OF.get(result.backend, (f"a PyTorch built with {result.backend}", None))
        yield Fix(f"or install {words}", command=command)
    else:
        yield Fix(
            "or make the device visible: check what the driver and torch find (an empty "
            "CUDA_VISIBLE_DEVICES hides all GPUs; a container needs `--gpus all`)",
            command='nvidia-smi -L; echo "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-<unset>}"; '
            'python -c "import torch; print(torch.version.cuda, torch.cuda.device_count())"',
        )


@check(
    "BKD002",
    family="backends",
    needs=("backends",),
    variants={f"bkd.{name}.works": name for name in DEVICE_OF},
)
def find_backend_failed(evidence: Evidence, *, variant: str) -> Iterable[Finding]:
    """A backend is there, yet a process group or a collective on it fails."""
    result = next((each for each in evidence.backends if each.backend == variant), None)
    if result is None:
        raise explain_missing(evidence, "backends", f"backend {variant}")
    if not result.built:
        raise NotApplicable("not in this PyTorch build")
    if not result.device_present:
        raise NotApplicable(f"no {DEVICE_OF[variant].upper()} device here")
    tried = result.group.union(result.collective, gather_ranks(result.failures))
    if not tried:
        if result.reason:
            raise NotApplicable(result.reason)
        raise explain_missing(evidence, "backends", f"backend {variant}")
    if result.failures:
        yield _failed_backend(evidence, result)
        return
    silent = tried.union(RankSet.span(evidence.launch.world_size)).minus(result.collective)
    if silent:
        raise CannotLook(f"{name_set(silent)} left no result of {variant}")


def _failed_backend(evidence: Evidence, result: BackendResult) -> Finding:
    blame = assign_blame(evidence, result.failures, result.collective)
    raised = gather_ranks(blame.said)
    formed = not raised.minus(result.group)
    where = "first all_reduce failed" if formed else "process group could not be created"
    severity = None
    if not result.asked and result.backend != evidence.launch.backend:
        severity = "warning" if result.backend in ("gloo", "nccl") else "info"
    return Finding(
        message=f"The {where} with {result.backend} on {name_set(raised)}: "
        f"{shorten_error(blame.said[0].text)}{blame.silence}",
        ranks=blame.ranks,
        victims=blame.victims,
        nodes=hosts_of_ranks(evidence, blame.ranks),
        evidence=quote_messages(result.failures),
        fix=tuple(_failed_fixes(result)),
        details=encode({"backend": result.backend, "version": result.version, "group_formed": formed}),
        confidence=blame.confidence,
        role=blame.role,
        severity=severity,
    )


def _failed_fixes(result: BackendResult) -> Iterable[Fix]:
    if result.backend == "nccl":
        yield Fix(
            "enable NCCL's logs; the first `NCCL WARN` line names the call that failed",
            command="NCCL_DEBUG=INFO ddpdoctor check --only facts,smoke,rendezvous,backends --backend nccl",
        )
    elif result.backend == "mpi":
        yield Fix("start the ranks with MPI", command="mpirun -n 4 ddpdoctor check --backend mpi")
    else:
        yield Fix(
            "enable torch's logs, and check names and ports first",
            command="TORCH_CPP_LOG_LEVEL=INFO TORCH_DISTRIBUTED_DEBUG=INFO ddpdoctor check "
            f"--only facts,tcp,rendezvous,backends --backend {result.backend} -v",
        )
