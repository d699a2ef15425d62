"""ERR: ranks that died of a signal."""

from __future__ import annotations

from ddpdoctor.judge import EvidenceItem, Fix
from ddpdoctor_checks.common.stage_evidence import name_signal
from ddpdoctor_checks.common.wording import format_bytes
from ddpdoctor_checks.job.blame.conditions import KILL, TERM
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.failures import Failure, Level
from ddpdoctor_checks.job.ends.clauses import Clause, Describe
from ddpdoctor_checks.job.ends.rerun import rerun


def _describe_memory(diagnosis: Diagnosis, group: Group) -> Clause:
    view = group.first.view
    memory = diagnosis.views.memory.get(view.node)
    process = view.process
    held = process.rss_peak_bytes or process.rss_bytes if process is not None else None
    of = (
        f" of {format_bytes(memory.limit_bytes)} that the cgroup allows"
        if memory and memory.limit_bytes
        else ""
    )
    last = f", using {format_bytes(held)}{of}" if held else of.replace(" of ", ", under the limit of ", 1)
    worker = "one of its DataLoader workers" if group.first.entry is not None else "it"
    killer = "the kernel" if process is not None or group.first.proof else "the kernel or the scheduler"
    return Clause(
        f"{killer} killed {worker} because memory ran out{last}",
        (
            Fix(
                "every rank and every DataLoader worker holds its own copy of what it loads: use fewer "
                "workers, memory-map the data, or load it lazily",
                code='data = numpy.load(path, mmap_mode="r")  # torch.load(path, mmap=True) for checkpoints',
            ),
            Fix(
                "watch memory while the job runs",
                "watch -n 1 'free -h; ps -eo pid,rss,args --sort=-rss | head -20'",
            ),
            Fix("or raise the limit: `docker run --memory`, `resources.limits.memory`, `sbatch --mem`"),
        ),
        {
            "rss_bytes": process.rss_bytes if process is not None else None,
            "rss_peak_bytes": process.rss_peak_bytes if process is not None else None,
            "limit_bytes": memory.limit_bytes if memory is not None else None,
            "peak_bytes": memory.peak_bytes if memory is not None else None,
            "oom_kills": memory.oom_kills if memory is not None else None,
        },
    )


def _describe_bus(diagnosis: Diagnosis, group: Group) -> Clause:
    memory = diagnosis.views.memory.get(group.first.view.node)
    free = memory.shm_free_bytes if memory is not None else None
    total = memory.shm_total_bytes if memory is not None else None
    shared = ""
    if free is not None and total is not None:
        shared = f"; /dev/shm had {format_bytes(free)} of {format_bytes(total)} free then"
    return Clause(
        f"it died of SIGBUS{shared}",
        (
            Fix("check /dev/shm: DataLoader workers and NCCL get SIGBUS when it is full", "df -h /dev/shm"),
            Fix("in a container enlarge it: `docker run --shm-size=8g` or `--ipc=host`"),
            Fix(
                "if it has room: a memory-mapped file was truncated while it was read (a cache that is "
                "rewritten)"
            ),
        ),
        {"shm_free_bytes": free, "shm_total_bytes": total},
    )


def _enough_ranks(diagnosis: Diagnosis, group: Group) -> int | None:
    """Return how many ranks show it again: one where all died of it, else as many as there were (None)."""
    return 1 if group.ranks == diagnosis.world else None


def _describe_fault(diagnosis: Diagnosis, group: Group) -> Clause:
    crash = group.first.crash
    native = crash.native if crash is not None else None
    modules = list(crash.modules) if crash is not None else []
    own = [name for name in modules if not name.startswith(("numpy.", "torch.", "_", "yaml._", "psutil"))]
    inside = f" in {native}" if native else ""
    detail = group.first.view.variables.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"
    known = Fix(
        (
            "TORCH_DISTRIBUTED_DEBUG=DETAIL is set, with which DDP() has been seen to crash on gloo: run "
            "without it"
        ),
        "unset TORCH_DISTRIBUTED_DEBUG",
    )
    if diagnosis.job is not None and "TORCH_DISTRIBUTED_DEBUG" in diagnosis.job.toggles:
        known = Fix(
            "--debug detail sets TORCH_DISTRIBUTED_DEBUG=DETAIL, with which DDP() has been seen to crash on "
            "gloo; the lower level does not",
            rerun(diagnosis, "--debug", "info"),
        )
    worker = " of a DataLoader worker" if group.first.entry is not None else ""
    return Clause(
        f"segmentation fault{worker}{inside}",
        (
            *((known,) if detail else ()),
            Fix(
                "check the line that was running; the crash is in native code below it (an extension, a "
                "driver, a mix of versions); a core file shows which",
                f"ulimit -c unlimited && {rerun(diagnosis, nproc=_enough_ranks(diagnosis, group))}",
            ),
            Fix(
                "rebuild or upgrade the extensions that were loaded",
                "pip check && python -m torch.utils.collect_env",
            ),
        ),
        {"native": native, "modules": own[:40]},
        seen=tuple(EvidenceItem("crash", crash.title, group.ranks or None) for _ in [0])
        if crash is not None
        else (),
    )


def _describe_kill(diagnosis: Diagnosis, group: Group) -> Clause:
    first = group.first
    process = (first.worker or first.view).process
    memory = diagnosis.views.memory.get(first.view.node)
    blind = memory.kernel_note if memory is not None else "the kernel log was not read"
    details = {
        "signal": process.signal if process is not None else None,
        "sender": process.signal_sender if process is not None else None,
        "worker": first.worker.pid if first.worker is not None else None,
    }
    everyone = len(diagnosis.world) > 1 and group.ranks == diagnosis.world
    if first.level == Level.ENDED or (everyone and details["signal"] == TERM):
        why = (
            f"sent by {details['sender']}"
            if first.level != Level.ENDED
            else "the launcher was signaled to stop"
        )
        return Clause(
            f"Every rank was ended by {first.words}, and no rank had failed before: {why}.",
            (
                Fix("check the scheduler: a time limit, preemption, or a kill by a user",
                    "sacct -j $SLURM_JOB_ID -o ALL"),
                Fix("exit cleanly on SIGTERM: save a checkpoint when it arrives",
                    code="signal.signal(signal.SIGTERM, save_and_exit)"),
            ),
            details,
            whole=True,
        )  # fmt: skip
    if first.level == Level.SILENT:
        return Clause(
            (
                "it is gone without an exception, an exit call or a clean exit: a signal, or an exit in "
                "native code"
            ),
            (
                Fix("check the kernel log of that time", "sudo dmesg -T | tail -50"),
                Fix("run under a launcher that records how its ranks exit", rerun(diagnosis)),
            ),
            details,
        )
    what, sender = _describe_death(first)
    fixes = [
        Fix(
            "find the sender: the kernel log first",
            "sudo dmesg -T | grep -i -E 'killed process|oom' | tail",
        )
    ]
    if "SIGKILL" in what and (sender is None or "kernel" in sender):
        what += f"; there is no evidence that memory ran out ({blind or 'no out-of-memory kill was counted'})"
        fixes.append(
            Fix(
                "a scheduler kills too: time limit, memory limit, preemption", "sacct -j $SLURM_JOB_ID -o ALL"
            )
        )
    elif sender == "itself":
        fixes = [
            Fix(
                "check the line that sends it: an exception instead would show the reason",
                code='raise RuntimeError("why")',
            )
        ]
    elif first.crash is not None or first.frames:
        fixes = [
            Fix(
                "check the line that was running: native code below it aborted",
                rerun(diagnosis, nproc=_enough_ranks(diagnosis, group)),
            )
        ]
    return Clause(what, fixes, details)


def _describe_death(first: Failure) -> tuple[str, str | None]:
    """Return ``it was killed by SIGKILL, sent by …`` and by whom; of a loader worker that it was one."""
    who, view, words = "it", first.view, first.words
    if first.entry is not None and first.entry.id in ("loader-killed", "loader-gone"):
        who, view = "one of its DataLoader workers", first.worker or first.view
        signal = view.process.signal if first.worker is not None and view.process is not None else None
        words = name_signal(signal or KILL)
    sender = view.process.signal_sender if view.process is not None else None
    if sender == "itself":
        return f"{who} sent itself {words}", sender
    if "status" in words:
        return f"{who} died of {words}", sender
    return f"{who} was killed by {words}, {f'sent by {sender}' if sender else 'sender unknown'}", sender


CLAUSES: dict[str, Describe] = {
    "ERR003": _describe_bus,
    "ERR005": _describe_kill,
    "ERR002": _describe_memory,
    "ERR004": _describe_fault,
}
