"""The jobs of this host: which processes are ranks, which of them belong together, and who started them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.gather.scrub import scrub_argv
from ddpdoctor.watch.attach.processes import Seen

TakeStacks = Callable[[Sequence[int]], Mapping[int, tuple[Frame, ...]]]
"""Pids -> their main threads' stacks, innermost first."""
_LOOPS = ("torch/utils/data/_utils/worker.py", "concurrent/futures/process.py")
"""Files of the main loops of workers that are no ranks."""
_STARTS = ("torch/multiprocessing/spawn.py", "torch/distributed/", "torch/nn/parallel/distributed.py")
"""Files that stand in the stacks of ranks only."""


SHELLS = frozenset(
    "sh bash dash zsh fish ksh tmux screen sshd systemd init tini dumb-init docker-init containerd-shim".split()
)
"""Programs whose children have nothing in common but that they were started from one place."""


@dataclass(frozen=True, slots=True)
class FoundRank:
    """A process that is a rank."""

    seen: Seen
    rank: int
    local_rank: int | None = None

    @property
    def pid(self) -> int:
        """Process id of the launcher."""
        return self.seen.pid


@dataclass(frozen=True, slots=True)
class FoundJob:
    """The ranks of one job on this host."""

    ranks: tuple[FoundRank, ...]
    """Ranks of the job on this host, in order of rank."""
    world_size: int
    launcher: str = "unknown"
    """torchrun, srun, mpirun, env (variables set by hand or by another launcher) or multiprocessing."""
    head: Seen | None = None
    """The process that started the ranks of this host, where it is one process and still there."""
    numbered: str = "environment"
    """Where the numbers of the ranks are from: environment, or order (of their start)."""
    missing: RankSet = field(default_factory=RankSet)
    """Ranks that belong on this host and of which there is no process."""

    @property
    def pid(self) -> int:
        """What to type for it."""
        return self.head.pid if self.head is not None else self.ranks[0].pid

    @property
    def run(self) -> str | None:
        """Run directory of `ddpdoctor run` that watches it."""
        return next((rank.seen.run for rank in self.ranks if rank.seen.run), None)

    @property
    def readable(self) -> bool:
        """Whether the environment of its ranks could be read: whether they are ours, or we are root."""
        return all(rank.seen.readable for rank in self.ranks)

    @property
    def nodes(self) -> int:
        """Nodes that it runs on, as far as is known."""
        return max((rank.seen.place.nnodes or 1 for rank in self.ranks), default=1)

    @property
    def script(self) -> str:
        """What it runs, in a word or two."""
        seen = self.head if self.numbered == "order" and self.head is not None else self.ranks[0].seen
        return name_script(seen.command)


def name_script(command: Sequence[str]) -> str:
    """Return the script or module of a Python command line, the program of another one."""
    words = scrub_argv(list(command))
    if not words or "python" not in os.path.basename(words[0]):
        return os.path.basename(words[0]) if words else "?"
    for number, word in enumerate(words[1:], 1):
        if word == "-m" and number + 1 < len(words):
            return f"-m {words[number + 1]}"
        if word == "-c":
            return "-c …"
        if not word.startswith("-"):
            return os.path.basename(word)
    return os.path.basename(words[0])


def find_jobs(processes: Mapping[int, Seen], take_stacks: TakeStacks) -> list[FoundJob]:
    """Return the jobs, those that began last first.

    A rank is a Python process whose environment says so (torchrun, srun, mpirun, or RANK and WORLD_SIZE), the topmost
    of several with the same; or one of several that one Python process has started, where they have threads of a
    process group or stand in mp.spawn or torch.distributed; or one of several with such threads that one daemon has
    started (Ray's raylet), which sets their variables only later, where /proc does not show them.

    Args:
        processes: of `read_processes`.
        take_stacks: asked only where nothing else tells ranks from workers.
    """
    marked = [each for each in processes.values() if each.marked and not _is_inside(each, processes)]
    jobs = _group_marked(marked, processes)
    taken = {rank.pid for job in jobs for rank in job.ranks}
    jobs += _group_unmarked(processes, taken, take_stacks)
    return sorted(jobs, key=lambda job: -max(rank.seen.ticks for rank in job.ranks))


def _is_inside(each: Seen, processes: Mapping[int, Seen]) -> bool:
    """Whether a process was started by a rank: a loader worker, a helper. Wrappers that are no Python lie between."""
    if each.is_helper:
        return True
    for above in list_ancestors(each, processes):
        if above.marked and above.identity == each.identity and above.job == each.job:
            return True
    return False


def list_ancestors(each: Seen, processes: Mapping[int, Seen]) -> Iterable[Seen]:
    """Yield the process that started this one, that which started it, and so on."""
    seen = {each.pid}
    above = processes.get(each.parent)
    while above is not None and above.pid not in seen:
        yield above
        seen.add(above.pid)
        above = processes.get(above.parent)


def _group_marked(marked: Iterable[Seen], processes: Mapping[int, Seen]) -> list[FoundJob]:
    groups: dict[tuple[object, ...], list[Seen]] = {}
    for each in marked:
        key = (each.place.launcher, each.place.world_size, each.job)
        groups.setdefault(key, []).append(each)
    jobs = []
    for members in groups.values():
        for part in _part_doubles(members):
            newest = max(each.attempt for each in part)
            jobs.append(_make_marked([each for each in part if each.attempt == newest], processes))
    return jobs


def _part_doubles(members: Sequence[Seen]) -> list[list[Seen]]:
    """Part processes of which several have the same rank by who started them: they are several jobs."""
    ranks = [(each.place.rank, each.attempt) for each in members]
    if len(set(ranks)) == len(ranks):
        return [list(members)]
    parts: dict[int, list[Seen]] = {}
    for each in members:
        parts.setdefault(each.parent, []).append(each)
    return [list({each.place.rank: each for each in part}.values()) for part in parts.values()]


def _make_marked(members: Sequence[Seen], processes: Mapping[int, Seen]) -> FoundJob:
    ranks = sorted(
        (FoundRank(each, each.place.rank or 0, each.place.local_rank) for each in members),
        key=lambda each: each.rank,
    )
    first = members[0].place
    return FoundJob(
        tuple(ranks),
        max(first.world_size or 0, ranks[-1].rank + 1),
        first.launcher,
        _find_head(members, processes),
        missing=_find_missing(ranks),
    )


def _find_missing(ranks: Sequence[FoundRank]) -> RankSet:
    """Return ranks that the launcher put on this host and that have no process; none where that is not known."""
    missing: list[int] = []
    for node in {each.seen.place.node_rank for each in ranks}:
        here = [each for each in ranks if each.seen.place.node_rank == node and each.local_rank is not None]
        size = here[0].seen.place.local_world_size if here else None
        offsets = {each.rank - (each.local_rank or 0) for each in here}
        if size and len(offsets) == 1:
            first = offsets.pop()
            known = {each.rank for each in here}
            missing += [rank for rank in range(first, first + size) if rank not in known]
    return RankSet(missing)


def _find_head(members: Sequence[Seen], processes: Mapping[int, Seen]) -> Seen | None:
    """Return the process that started all of them: their agent, or whoever is the lowest above them all."""
    chains = [[above.pid for above in list_ancestors(each, processes)] for each in members]
    common = [pid for pid in chains[0] if all(pid in chain for chain in chains[1:])] if chains else []
    for pid in common:
        found = processes[pid]
        wrapper = found.identity == members[0].identity and any(found.identity)
        if pid > 1 and not wrapper and (found.is_launcher or found.python):
            return found
    return None


def _group_unmarked(
    processes: Mapping[int, Seen], taken: set[int], take_stacks: TakeStacks
) -> list[FoundJob]:
    families: dict[int, list[Seen]] = {}
    for each in processes.values():
        parent = processes.get(each.parent)
        if not _may_be_rank(each, taken) or parent is None or each.parent in taken:
            continue
        if parent.python or (each.has_group and not _is_shell(parent)):
            families.setdefault(each.parent, []).append(each)
    unsure = [
        each.pid
        for family in families.values()
        if not any(each.has_group for each in family)
        for each in family
        if each.is_spawned or len(family) > 1
    ]
    stacks = take_stacks(unsure) if unsure else {}
    jobs = []
    for above, family in families.items():
        members = [each for each in family if not _stands_in(stacks.get(each.pid, ()), _LOOPS)]
        told = any(each.has_group or _stands_in(stacks.get(each.pid, ()), _STARTS) for each in members)
        if not told:
            continue
        head = processes[above]
        if _is_first(head, members):
            members = [head, *members]
        if len(members) > 1:
            jobs.append(_make_unmarked(members, head))
    inner = {rank.pid for job in jobs for rank in job.ranks}
    return [
        job for job in jobs if job.head is None or job.head.pid not in inner or job.head is job.ranks[0].seen
    ]


def _is_shell(parent: Seen) -> bool:
    """Whether a process that is not Python starts whatever is typed: what it started need not be one job."""
    return parent.pid == 1 or os.path.basename(parent.command[0]).lstrip("-") in SHELLS


def _may_be_rank(each: Seen, taken: set[int]) -> bool:
    return (
        each.python
        and each.pid not in taken
        and not each.marked
        and not each.is_launcher
        and not each.is_helper
    )


def _is_first(head: Seen, members: Sequence[Seen]) -> bool:
    """Whether the parent is a rank itself: it started the same command once more for each of the others."""
    return (
        head.has_group
        and not head.is_launcher
        and all(each.local_rank and _list_words(each) == _list_words(head) for each in members)
    )


def _list_words(each: Seen) -> list[str]:
    """Return what a Python process runs, and with which arguments.

    Who starts itself anew (Lightning) gives full paths for the interpreter and the script, and drops ``-u``.
    """
    words = list(each.command[1:])
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        del words[: 2 if words[0] in ("-W", "-X") else 1]
    return [os.path.basename(words[0]), *words[1:]] if words else []


def _make_unmarked(members: Sequence[Seen], head: Seen) -> FoundJob:
    by_start = sorted(members, key=lambda each: (each.ticks, each.pid))
    hosts = [each for each in by_start if each.hosts_store]
    if len(hosts) == 1 and head not in by_start:  # rank 0 does, where no launcher does
        by_start = [hosts[0], *(each for each in by_start if each is not hosts[0])]
    numbers = [each.local_rank for each in by_start]
    if head is by_start[0] and numbers[0] is None:
        numbers[0] = 0
    known = None not in numbers and len(set(numbers)) == len(numbers)
    ranks = [
        FoundRank(each, number if known and number is not None else place, number if known else place)
        for place, (each, number) in enumerate(zip(by_start, numbers, strict=True))
    ]
    ranks.sort(key=lambda each: each.rank)
    return FoundJob(
        tuple(ranks),
        max(len(ranks), ranks[-1].rank + 1),
        "torchrun" if head.is_launcher else "env" if known else "multiprocessing",
        head,
        "environment" if known else "order",
    )


def _stands_in(frames: Sequence[Frame], parts: Sequence[str]) -> bool:
    return any(part in frame.file and not frame.is_user for frame in frames for part in parts)


def choose_by_pid(jobs: Sequence[FoundJob], pid: int, processes: Mapping[int, Seen]) -> list[FoundJob]:
    """Return the jobs that a process belongs to: as a rank, as something that a rank started, or above its ranks.

    Args:
        jobs: of `find_jobs`.
        pid: any process.
        processes: of `read_processes`.
    """
    for job in jobs:
        if any(rank.pid == pid for rank in job.ranks):
            return [job]
    seen = processes.get(pid)
    if seen is not None:
        above = [each.pid for each in list_ancestors(seen, processes)]
        inside = [job for job in jobs if any(rank.pid in above for rank in job.ranks)]
        if inside:
            return inside
    return [
        job
        for job in jobs
        if any(above.pid == pid for rank in job.ranks for above in list_ancestors(rank.seen, processes))
    ]


def follow_job(job: FoundJob, processes: Mapping[int, Seen], take_stacks: TakeStacks) -> FoundJob | None:
    """Return the job as it is now, also where its agent has started all ranks anew; None where it has ended."""
    living = keep_living(job, processes)
    if living is not None or job.head is None:
        return living
    head = (job.head.pid, job.head.ticks)
    again = find_jobs(processes, take_stacks)
    return next(
        (new for new in again if new.head is not None and (new.head.pid, new.head.ticks) == head), None
    )


def keep_living(job: FoundJob, processes: Mapping[int, Seen]) -> FoundJob | None:
    """Return the job as it is now; None where all of its ranks have ended."""
    living = [
        rank
        for rank in job.ranks
        if (now := processes.get(rank.pid)) is not None and now.ticks == rank.seen.ticks
    ]
    gone = RankSet(rank.rank for rank in job.ranks if rank not in living)
    return replace(job, ranks=tuple(living), missing=job.missing.union(gone)) if living else None
