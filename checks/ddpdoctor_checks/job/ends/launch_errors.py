"""ENV: launches that went wrong, and limits that ranks ran into."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.judge import EvidenceItem, Finding, Fix, check
from ddpdoctor.text.shell import quote_words
from ddpdoctor_checks.common.jobs import JOB
from ddpdoctor_checks.common.wording import count_of, format_bytes, join_words, name_set
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.ends.clauses import Clause, Describe, require_job
from ddpdoctor_checks.job.ends.rerun import launcher_of, rerun, script_words

LOADER_FILES = ("loader-files-exhausted", "ancillary-data-lost")
"""Texts of torch on descriptors that loader workers hand over."""


def _describe_variables(diagnosis: Diagnosis, group: Group) -> Clause:
    variable = group.first.groups.get("variable", "RANK")
    count = max(diagnosis.evidence.launch.nproc, 1)
    script = quote_words(script_words(diagnosis))
    return Clause(
        f"{variable} is not set: the script was not started by a PyTorch launcher",
        (
            Fix("start it with torchrun, or with ddpdoctor", f"torchrun --nproc-per-node {count} {script}"),
            Fix("or support running it alone", code=f'value = int(os.environ.get("{variable}", "0"))'),
        ),
        {"variable": variable, "launcher": launcher_of(diagnosis)},
    )


def _describe_double(diagnosis: Diagnosis, group: Group) -> Clause:
    rank = group.first.rank
    views = [each.view for each in group.failures if each.rank == rank]
    who = join_words(f"{diagnosis.host(view)}:{view.pid}" for view in views)
    one = f"rank {rank} is " if len(group.ranks) > 1 else ""
    pids: dict[str, list[int | None]] = {}
    for each in group.failures:
        pids.setdefault(str(each.rank), []).append(each.view.pid)
    return Clause(
        f"Two processes use {name_set(group.ranks)} at the same time: {one}{who}.",
        (
            Fix(
                "let the launcher assign ranks: rank = node rank x ranks per node + local rank",
                code='rank = int(os.environ["RANK"])  # not LOCAL_RANK',
            ),
            Fix("give every node a different --node-rank"),
        ),
        {"processes": dict(list(pids.items())[:50])},
        whole=True,
    )


def _describe_local_rank(diagnosis: Diagnosis, group: Group) -> Clause:
    option = group.first.groups.get("option", "--local-rank")
    other = "--local_rank" if option == "--local-rank" else "--local-rank"
    words = [w for w in script_words(diagnosis) if not w.startswith(("--local-rank", "--local_rank"))]
    script = quote_words(words)
    return Clause(
        (
            f"the script does not accept {option}, which its launcher passes (it may accept {other}: torch "
            "2.0 changed it)"
        ),
        (
            Fix(
                "accept both spellings, and the variable that torchrun sets",
                code='parser.add_argument("--local-rank", "--local_rank", type=int,\n'
                '                    default=int(os.environ.get("LOCAL_RANK", 0)))',
            ),
            Fix(
                "or start it with torchrun, which passes no argument",
                f"torchrun --nproc-per-node {max(diagnosis.evidence.launch.nproc, 1)} {script}",
            ),
        ),
        {"option": option},
    )


def _describe_shared_memory(diagnosis: Diagnosis, group: Group) -> Clause:
    memory = diagnosis.views.memory.get(group.first.view.node)
    total = memory.shm_total_bytes if memory is not None else None
    free = memory.shm_free_bytes if memory is not None else None
    size = f" ({format_bytes(free)} of {format_bytes(total)} free then)" if free is not None and total else ""
    nccl = group.first.entry is not None and group.first.entry.id.startswith("nccl")
    who = "NCCL" if nccl else "a DataLoader worker"
    return Clause(
        f"/dev/shm is too small for {who}{size}",
        (
            Fix("check its size, and what a crashed job left there", "df -h /dev/shm; ls -la /dev/shm"),
            Fix(
                "in a container enlarge it: `docker run --shm-size=8g` or `--ipc=host`; in Kubernetes an "
                "emptyDir of medium Memory at /dev/shm"
            ),
            Fix("or use fewer workers, or files instead of shared memory",
                code='torch.multiprocessing.set_sharing_strategy("file_system")'),
        ),
        {"shm_total_bytes": total, "shm_free_bytes": free},
    )  # fmt: skip


def _describe_files(diagnosis: Diagnosis, group: Group) -> Clause:
    first = group.first
    process = first.view.process
    limit = process.open_files_limit if process is not None else None
    size = f" of {limit:,} open files" if limit is not None else " of open files"
    workers = len(first.view.workers)
    loader = bool(workers) or (first.entry is not None and first.entry.id in LOADER_FILES)
    why = (
        "DataLoader workers pass one descriptor for each tensor"
        if loader
        else "files that it opens must be closed again, or opened only when they are read"
    )
    fixes = [Fix("raise the limit where the job is started", "ulimit -n $(ulimit -Hn)")]
    if loader:
        fixes.append(
            Fix(
                "or share tensors by file name",
                code='torch.multiprocessing.set_sharing_strategy("file_system")',
            )
        )
    else:
        fixes.append(
            Fix("or close files after use", code='with open(path, "rb") as file:\n    data = file.read()')
        )
    return Clause(
        f"the limit{size} was reached: {why}", fixes, {"limit": limit, "loader_workers": workers or None}
    )


def _describe_threads(diagnosis: Diagnosis, group: Group) -> Clause:
    return Clause(
        "no more threads or processes could be started: ranks x DataLoader workers x threads of OpenMP and BLAS "
        "reach a limit of the user or of the container",
        (
            Fix("let each process start fewer threads", "export OMP_NUM_THREADS=4 OPENBLAS_NUM_THREADS=4"),
            Fix(
                "see the limits: ulimit -u, and pids.max of the container",
                "ulimit -u; cat /sys/fs/cgroup/pids.max",
            ),
        ),
    )


def _describe_locked_memory(diagnosis: Diagnosis, group: Group) -> Clause:
    return Clause(
        "NCCL could not lock memory for RDMA: the locked-memory limit is too low",
        (
            Fix("check the limit where the job is started", "ulimit -l"),
            Fix(
                "in a container raise it: `docker run --ulimit memlock=-1`; for a service "
                "LimitMEMLOCK=infinity"
            ),
            Fix("on your own host, and log in again",
                "echo '* - memlock unlimited' | sudo tee -a /etc/security/limits.conf"),
        ),
    )  # fmt: skip


def _describe_hangup(diagnosis: Diagnosis, group: Group) -> Clause:
    return Clause(
        "The job received SIGHUP: its terminal or ssh connection was closed. nohup does not help, because "
        "torchrun installs its own handler.",
        (
            Fix("start it in a terminal multiplexer", f"tmux new -s train '{rerun(diagnosis)}'"),
            Fix("or without a terminal", f"setsid {rerun(diagnosis)} > train.log 2>&1 < /dev/null &"),
            Fix(
                "or keep torchrun from handling SIGHUP",
                "nohup "
                + rerun(diagnosis, "--signals-to-handle=SIGTERM,SIGINT,SIGQUIT", torchrun=True)
                + " &",
            ),
        ),
        {"signal": 1},
        whole=True,
        ranks=RankSet(),
    )


def _describe_spawn(diagnosis: Diagnosis, group: Group) -> Clause:
    return Clause(
        "processes are started while the main module is imported: it has no main guard",
        (
            Fix(
                "start them only when the file is run, not when a child imports it",
                code='if __name__ == "__main__":\n    mp.spawn(train, nprocs=world_size, args=(world_size,))',
            ),
        ),
    )


@check("ENV018", family="crash", needs=(), id="crash.restarts", required=False, commands=JOB)
def find_restart_loop(evidence: Evidence) -> Iterable[Finding]:
    """The launcher restarted the job, and it failed in the same way again."""
    diagnosis = require_job(evidence)
    marks: dict[str, list[int]] = {}
    for attempt, mark in diagnosis.repeats:
        marks.setdefault(mark, []).append(attempt)
    mark, attempts = max(marks.items(), key=lambda item: len(item[1]), default=("", []))
    if len(attempts) < 2:
        return
    cause = diagnosis.cause
    words = f" ({cause.first.words})" if cause is not None else ""
    yield Finding(
        message=f"{count_of(len(attempts), 'attempt')} of {len(diagnosis.repeats)} that failed ended in the same way"
        f"{words}: restarting does not help.",
        ranks=cause.ranks if cause is not None else RankSet(),
        evidence=(
            EvidenceItem("restart", f"attempts {join_words(map(str, attempts))} have fingerprint {mark}"),
        ),
        fix=(Fix("do not restart until the failure is fixed", rerun(diagnosis, "--max-restarts", "0")),),
        details={
            "fingerprint": mark,
            "attempts": attempts,
            "all": [list(each) for each in diagnosis.repeats],
        },
        role="advice",
    )


def _describe_uninitialised(diagnosis: Diagnosis, group: Group) -> Clause:
    twice = group.first.entry is not None and group.first.entry.id == "group-initialised-twice"
    if twice:
        return Clause(
            "the default process group is initialized twice: by the script and by a framework",
            (
                Fix(
                    "initialize it only once",
                    code="if not dist.is_initialized():\n    dist.init_process_group()",
                ),
            ),
        )
    return Clause(
        "torch.distributed is used before init_process_group",
        (
            Fix(
                "initialize first: before samplers, SyncBatchNorm, DDP and every collective",
                code='dist.init_process_group("gloo")  # "nccl" with GPUs',
            ),
            Fix(
                "or skip it in a single process",
                code="if dist.is_available() and dist.is_initialized():\n    dist.all_reduce(value)",
            ),
        ),
    )


CLAUSES: dict[str, Describe] = {
    "ENV012": _describe_hangup,
    "ENV007": _describe_local_rank,
    "ENV010": _describe_locked_memory,
    "ENV009": _describe_files,
    "ENV011": _describe_threads,
    "ENV002": _describe_double,
    "ENV008": _describe_shared_memory,
    "ENV017": _describe_spawn,
    "ENV019": _describe_uninitialised,
    "ENV001": _describe_variables,
}
