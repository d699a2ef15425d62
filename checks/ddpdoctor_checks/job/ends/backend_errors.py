"""BKD: what texts settle about backends and devices."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.judge import EvidenceItem, Finding, Fix, check
from ddpdoctor_checks.common.jobs import JOB
from ddpdoctor_checks.common.wording import choose_form, count_of, name_set
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.ends.clauses import Clause, Describe, require_job
from ddpdoctor_checks.job.ends.rerun import rerun

_SET_DEVICE = 'local_rank = int(os.environ["LOCAL_RANK"])\ntorch.cuda.set_device(local_rank)'


def _describe_unavailable(diagnosis: Diagnosis, group: Group) -> Clause:
    backend = group.first.groups.get("backend", "").lower()
    entry = group.first.entry.id if group.first.entry is not None else ""
    if entry == "backend-unknown":
        return Clause(
            f"there is no backend {backend!r}",
            (Fix("use one that torch has", code='dist.init_process_group("cpu:gloo,cuda:nccl")'),),
            {"backend": backend},
        )
    if entry == "launcher-without-device":
        return _describe_launcher(diagnosis, group)
    built = entry == "backend-not-built"
    why = "is not in this PyTorch build" if built else "finds no GPU"
    name = backend or "the CUDA backend"
    fixes = [
        Fix("use gloo where there is no GPU", code='backend = "nccl" if torch.cuda.is_available() else "gloo"\n'
            "dist.init_process_group(backend)"),
        Fix("check what this PyTorch build includes and which GPUs it sees",
            "python -c 'import torch; print(torch.__version__, torch.cuda.device_count())'; nvidia-smi -L"),
    ]  # fmt: skip
    return Clause(f"{name} {why}", fixes, {"backend": backend or None})


def _describe_launcher(diagnosis: Diagnosis, group: Group) -> Clause:
    device = group.first.groups["device"].upper()
    kind = "GPU" if device == "CUDA" else f"{device} device"
    asked = kind.lower().partition(" ")[0]
    return Clause(
        f"as many ranks as devices were requested (--nproc {asked}), and torch finds no {kind} here",
        (
            Fix("pass the number of ranks", rerun(diagnosis, nproc=2)),
            Fix(
                "check whether this is a GPU build of PyTorch and which GPUs it finds",
                "python -c 'import torch; print(torch.__version__, torch.cuda.device_count())'; nvidia-smi -L",
            ),
        ),
        {"device": device.lower()},
    )


def _describe_failed(diagnosis: Diagnosis, group: Group) -> Clause:
    first = group.first
    gloo = first.entry is not None and first.entry.id.startswith("gloo")
    backend = "gloo" if gloo else "nccl"
    look = ("TORCH_CPP_LOG_LEVEL=INFO",) if gloo else ("NCCL_DEBUG=INFO",)
    why = first.groups.get("what") or first.words
    late = Fix(
        (
            "NCCL may only have surfaced the error of an earlier kernel: with synchronous kernel launches, "
            "that kernel raises"
        ),
        rerun(diagnosis, "--blocking"),
    )
    return Clause(
        f"{backend} failed: {why}",
        (
            *((late,) if why == "unhandled cuda error" else ()),
            Fix("enable the backend's logs", rerun(diagnosis, environment=look)),
            Fix(
                "test every backend in a small job", "ddpdoctor check --only facts,smoke,rendezvous,backends"
            ),
        ),
        {"backend": backend},
        confidence="medium",
    )


SHARED = ("device-shared", "nccl-device-shared")
"""Entries in which two ranks are said to use one GPU; of three ranks two lines say it."""


def _describe_shared(diagnosis: Diagnosis, group: Group) -> Clause:
    pairs = {
        (int(groups["rank"]), int(groups["other"]))
        for groups in (
            *(each.groups for each in group.failures),
            *(text.groups for text in diagnosis.evidence.texts if text.entry in SHARED),
        )
        if groups.get("rank", "").isdigit() and groups.get("other", "").isdigit()
    }
    ranks = RankSet(rank for pair in pairs for rank in pair) or group.ranks
    device = group.first.groups.get("device")
    return Clause(
        f"{name_set(ranks)} use one GPU (bus id {device})",
        (
            Fix("give each rank its own GPU, before anything else touches CUDA", code=_SET_DEVICE),
            Fix(
                "do not let CUDA_VISIBLE_DEVICES expose one GPU to several ranks",
                "env | grep CUDA_VISIBLE_DEVICES",
            ),
        ),
        {"device": device},
        ranks=ranks,
    )


def _describe_range(diagnosis: Diagnosis, group: Group) -> Clause:
    visible = group.first.view.variables.get("CUDA_VISIBLE_DEVICES")
    process = group.first.view.process
    local = process.local_rank if process is not None else None
    seen = f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else ""
    count = None if visible is None else _count_visible(visible)
    number = Fix("use the local rank, not the global rank or a physical index", code=_SET_DEVICE)
    look = Fix(
        "count the GPUs that a rank sees, and start no more ranks than that",
        "python -c 'import torch; print(torch.cuda.device_count())'",
    )
    fixes = [look, number]
    if count is not None and local is not None and local >= count:
        seen = f": {choose_form(count, 'one is', f'{count} are')} visible{seen}, and it is local rank {local}"
        seen += ", so there are more ranks than GPUs"
        if count:
            look = Fix("start no more ranks than GPUs are visible", rerun(diagnosis, nproc=count))
        fixes = [look, number]
    elif count is not None and local is not None:
        seen = f": {choose_form(count, 'one is', f'{count} are')} visible{seen}, enough for its local rank {local}, "
        seen += "so it used another index"
        fixes = [number, look]
    elif local is not None:
        seen += f"; it is local rank {local}"
    return Clause(
        f"it asks for a GPU that does not exist{seen}", fixes, {"local_rank": local, "visible": visible}
    )


def _count_visible(value: str) -> int:
    """Return how many GPUs a CUDA_VISIBLE_DEVICES shows: those before the first that is none (CUDA's guide)."""
    words = [word.strip() for word in value.split(",")]
    shown = list(itertools.takewhile(lambda word: word.isdigit() or word.startswith(("GPU-", "MIG-")), words))
    return len(shown)


def _describe_unsupported(diagnosis: Diagnosis, group: Group) -> Clause:
    entry = group.first.entry.id if group.first.entry is not None else ""
    if entry == "kernel-image-missing":
        what = "this PyTorch build has no kernels for this GPU"
        fix = Fix("compare the two, and install a PyTorch build for this GPU",
                  "python -c 'import torch.cuda as c; print(c.get_device_capability(), c.get_arch_list())'"
        )  # fmt: skip
    else:
        driver = group.first.groups.get("driver")
        what = (
            f"the NVIDIA driver{f' ({driver})' if driver else ''} is older than the CUDA version of this "
            "PyTorch build"
        )
        fix = Fix("compare the two: install a newer driver, or a PyTorch build for an older CUDA",
                  "nvidia-smi | head -4; python -c 'import torch; print(torch.version.cuda)'")  # fmt: skip
    return Clause(what, (fix,), {"driver": group.first.groups.get("driver")})


def _describe_conflict(diagnosis: Diagnosis, group: Group) -> Clause:
    symbol = group.first.groups.get("symbol")
    return Clause(
        f"torch loaded a libnccl that lacks {symbol}: it is not the one that it was built with",
        (
            Fix("list the installed NCCL libraries", "pip list | grep -i nccl; ldconfig -p | grep nccl"),
            Fix("keep torch's own: remove the others from LD_LIBRARY_PATH and uninstall the second wheel",
                rerun(diagnosis, environment=("LD_LIBRARY_PATH=",))),
        ),
        {"symbol": symbol},
    )  # fmt: skip


def _describe_peer_access(diagnosis: Diagnosis, group: Group) -> Clause:
    return Clause(
        "peer-to-peer memory access was requested between GPUs that do not support it",
        (
            Fix("check how the GPUs are connected", "nvidia-smi topo -p2p r"),
            Fix("run NCCL without it", rerun(diagnosis, environment=("NCCL_P2P_DISABLE=1",))),
        ),
    )


def _describe_mismatch(diagnosis: Diagnosis, group: Group) -> Clause:
    backend = group.first.view.process.backend if group.first.view.process is not None else None
    device = group.first.groups.get("device", "cpu")
    has = f"the group has only {backend}" if backend else "the group has no backend for it"
    return Clause(
        f"a collective received a tensor on {device}, and {has}",
        (
            Fix(
                "move the tensor to the group's device",
                code='value = value.to(torch.device("cuda", local_rank))',
            ),
            Fix(
                ("or create the group with a backend for each device type"),
                code='dist.init_process_group("cpu:gloo,cuda:nccl")',
            ),
        ),
        {"device": device, "backend": backend},
    )


@check("BKD009", family="crash", needs=(), id="crash.device_set", required=False, commands=JOB)
def find_device_unset(evidence: Evidence) -> Iterable[Finding]:
    """A barrier or an object collective ran before ``set_device``, so NCCL guessed the GPU."""
    diagnosis = require_job(evidence)
    said = [text for text in evidence.texts if text.entry == "device-guessed"]
    if not said:
        return
    wrong = []
    for text in said:
        view = diagnosis.views.find_pid(text.node, text.pid) if text.pid is not None else None
        local = view.process.local_rank if view is not None and view.process is not None else None
        one = view is not None and view.variables.get("CUDA_VISIBLE_DEVICES", ",").count(",") == 0
        if local is not None and not one and text.groups.get("device") != str(local):
            wrong.append(text)
    shown = wrong or said
    ranks = RankSet(text.rank for text in shown if text.rank is not None)
    who = name_set(ranks) if ranks else count_of(len(shown), "process", "processes")
    guess = "the wrong one" if wrong else "the right one this time"
    yield Finding(
        message=(
            f"NCCL had to guess the GPU of {who} at a barrier before set_device, and used {guess}: "
            f"{choose_form(len(shown), 'it', 'they')} may hang."
        ),
        ranks=ranks,
        severity="warning" if wrong else "info",
        role="advice",
        evidence=(EvidenceItem("text", shown[0].text, ranks or None),),
        fix=(
            Fix(
                "set the device first and pass it to init_process_group",
                code=_SET_DEVICE
                + '\ndist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))',
            ),
        ),
        details={"lines": sum(text.count for text in said)},
    )


CLAUSES: dict[str, Describe] = {
    "BKD002": _describe_failed,
    "BKD001": _describe_unavailable,
    "BKD008": _describe_mismatch,
    "BKD004": _describe_range,
    "BKD003": _describe_shared,
    "BKD005": _describe_unsupported,
    "BKD006": _describe_conflict,
    "BKD007": _describe_peer_access,
}
