"""Words for what each family of checks established, for whatever shows a report in short."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from ddpdoctor.evidence import DEFAULT_STAGES, Evidence, Launch
from ddpdoctor.evidence.job import REQUESTS
from ddpdoctor.evidence.job_ranks import find_seen
from ddpdoctor.evidence.sources import SourceFile
from ddpdoctor.judge.finding import EvidenceItem, Finding
from ddpdoctor.judge.runner import CheckRow
from ddpdoctor.judge.suppression import Remark
from ddpdoctor.judge.verdict import HEALTHY, Verdict
from ddpdoctor.report.model import Job, Report
from ddpdoctor.report.words import count, format_bandwidth, format_bytes, format_ranks, format_seconds
from ddpdoctor.text.characters import clip
from ddpdoctor.text.shell import quote_word

PROGRESS = "hangs.progress"
"""The row that says whether a job gets on."""
NOTABLE_SHOWN = 10
"""Lines of logs worth reading that are shown."""
EXPERIMENT_WORDS = {
    "gradient-mean": "gradients exact",
    "replicas-equal": "replicas equal",
    "autocast": "bf16",
    "grad-scaler": "scaler",
    "no-sync": "no_sync",
    "unused-named": "unused parameters named",
    "checkpoint": "checkpoint",
    "fsdp2": "FSDP2",
    "tp": "tensor parallel",
    "pp": "pipeline parallel",
    "dcp": "distributed checkpoint",
}
"""Experiment, or strategy, -> words when every rank passed it."""


_UNREACHED = re.compile(r"^stage \w+(?: unreached)?: ")
"""Which stage a check needed is told with -v; for counting, why it was not reached is one reason."""
REASON_WIDTH = 100
"""Columns of one reason among several; an exception's text may go on for lines."""


def describe_stop(evidence: Evidence) -> str | None:
    """Return words on who told the watched job to end; None where nobody did, or where it then ended well."""
    ended = next((e for e in evidence.job if e.interrupted in REQUESTS and e.exit_code != 0), None)
    if ended is None:
        return None
    why = f": {ended.ended_by}" if ended.ended_by else ""
    if ended.interrupted == "SIGINT":
        return f"interrupted by the user (SIGINT){why}"
    return f"stopped by {ended.interrupted}{why}"


def name_good(command: str, questions: int = 0) -> str:
    """Return what a report of a command calls it where nothing is wrong: reading source proves no job healthy.

    Args:
        command: of ddpdoctor.
        questions: what is likely wrong and was not decided.
    """
    if command != "lint":
        return HEALTHY
    return f"no issues found, {count(questions, 'question')}" if questions else "no issues found"


def read_good(report: Report) -> str:
    """Return what a report calls it where nothing is wrong, with its questions: the first words of the headline."""
    first, good = report.verdict.headline.partition(" · ")[0], name_good(report.command)
    return first if first.startswith(good) else good


def describe_read(sources: Sequence[SourceFile]) -> str:
    """Return ``14 files read, 2 skipped (no distributed library in them)``."""
    whole = [each for each in sources if each.problem is None]
    over = sum(each.unrelated for each in whole)
    rest = f", {over} skipped (no distributed library in {'it' if over == 1 else 'them'})" if over else ""
    return f"{count(len(whole) - over, 'file')} read{rest}"


def describe_partial(evidence: Evidence) -> str | None:
    """Return ``saw 1 of 4 ranks (rank 2)`` of a watched job; None where all were seen, or no world was joined."""
    seen = find_seen(evidence.processes) if evidence.launch.command in ("run", "analyze") else None
    if seen is None or len(seen[0]) >= seen[1]:
        return None
    ranks, size = seen
    others = next((each.host for each in evidence.members if each.head and not each.own and each.host), None)
    where = f", the others are in the report of {others}" if others is not None else ""
    return f"saw {len(ranks)} of {count(size, 'rank')} ({ranks.phrase()}{where})"


def describe_job(job: Job) -> str:
    """Return words on how the watched command ended."""
    if job.signal is not None:
        words = f"ended by signal {job.signal}"
    elif job.exit_code is not None:
        words = f"exit code {job.exit_code}"
    else:
        words = "exit status unknown"
    return f"{words}, stopped by {job.stopped_by}" if job.stopped_by else words


def describe_standing(report: Report) -> str | None:
    """Return where ranks stand of which nobody can be named; None where one could, or where they were not seen."""
    if report.command not in ("attach", "run") or report.verdict.status != "unknown":
        return None
    reason = next(
        (row.reason for row in report.checks if row.id == PROGRESS and row.status == "unknown"), None
    )
    return f"{reason[0].upper()}{reason[1:]}." if reason else None


def list_notable(report: Report) -> list[str]:
    """Return the lines of logs that are worth reading; none where a finding says what happened."""
    if report.verdict.code is not None or report.verdict.status == "healthy":
        return []
    lines = [line for end in report.evidence.job for line in end.notable]
    return [f"{line.file}:{line.line}: {line.text}" for line in lines[:NOTABLE_SHOWN]]


def describe_family(report: Report, family: str) -> str:
    """Return words on what passed in ``family``; empty for a family of which nothing is known."""
    words = _WORDS.get(family)
    parts = [] if words is None else words(report.evidence)
    return " · ".join(parts)


def describe_next(report: Report) -> str:
    """Return the one command to type next."""
    if report.verdict.code is not None:
        return f"ddpdoctor explain {report.verdict.code}"
    launch = report.evidence.launch
    again = _repeat(launch)
    if launch.command == "attach":
        pid = next((process.pid for process in report.evidence.processes), 0)
        blind = any(
            stand.alive and not stand.frames and "ptrace" in (stand.note or "")
            for look in report.evidence.standstills
            for stand in look.stands
        )
        return f"sudo ddpdoctor attach {pid}" if blind else f"ddpdoctor attach {pid} --watch 10"
    if launch.command == "lint":
        scripts = [each.name for each in report.evidence.sources if each.name.endswith(".py")]
        return f"ddpdoctor run {quote_word(scripts[0]) if len(scripts) == 1 else 'train.py'}"
    if launch.command != "check":
        return f"ddpdoctor check --nproc {launch.nproc}"
    if report.verdict.status != "healthy":
        return f"{again} -v"
    if launch.stages and not set(DEFAULT_STAGES) <= set(launch.stages):
        return again
    if launch.model is None:
        return f"{again} --model your_package.module:factory"
    return f"{again} --full"


_PREFIXES = {
    "torchrun": "torchrun … -m ",
    "srun": "srun … ",
    "mpirun": "mpirun … ",
    "env": "RANK=… WORLD_SIZE=… ",
}


def _repeat(launch: Launch) -> str:
    """Return how the same check is started again; what is the user's own launcher's is left to him."""
    if launch.launcher in _PREFIXES:
        return f"{_PREFIXES[launch.launcher]}ddpdoctor check"
    if launch.nnodes > 1:
        return f"ddpdoctor check --nproc {launch.nproc} --nnodes {launch.nnodes} …"
    return f"ddpdoctor check --nproc {launch.nproc}"


def families(rows: Sequence[CheckRow]) -> dict[str, list[CheckRow]]:
    """Return the rows by family, in order of first appearance."""
    grouped: dict[str, list[CheckRow]] = {}
    for row in rows:
        grouped.setdefault(row.family, []).append(row)
    return grouped


def count_reasons(
    rows: Sequence[CheckRow], *, most: int | None = None, hint: str = " (-v shows them)"
) -> str:
    """Return ``5 no GPU, 1 single node``: equal reasons counted, the most frequent first.

    Args:
        rows: checks that all ended alike.
        most: reasons to tell; what is left out is counted.
        hint: where the others are to be seen.
    """
    counted = Counter(_UNREACHED.sub("", row.reason or "no reason given") for row in rows).most_common()
    if len(counted) == 1:
        return counted[0][0]
    told = counted[:most]
    rest = sum(number for _, number in counted[len(told) :])
    texts = [f"{number} {reason if most is None else clip(reason, REASON_WIDTH)}" for reason, number in told]
    return ", ".join(texts + ([f"{rest} for other reasons{hint}"] if rest else []))


def count_checks(verdict: Verdict) -> str:
    """Return ``61 of 86 checks ran``."""
    return f"{verdict.looked} of {verdict.of} checks ran"


def describe_counts(report: Report, *, verbose: bool) -> str:
    """Return the last line of a report: how many checks ran, and how many of the others did not, and in what way.

    Args:
        report: what is shown.
        verbose: whether the reasons were shown.
    """
    counted = Counter(row.status for row in report.checks)
    words = {"unknown": "inconclusive", "skipped": "skipped", "error": "failed to run"}
    if report.command == "run":  # most checks do not apply to any one job
        del words["skipped"]
    rest = [f"{counted[status]} {text}" for status, text in words.items() if counted[status]]
    hint = "" if verbose or not rest else "; -v shows why"
    return count_checks(report.verdict) + (f" ({', '.join(rest)}{hint})" if rest else "")


def describe_suppressed(report: Report) -> str:
    """Return ``3 by baseline, 1 by comment``: what the user has told not to count; empty where there is nothing."""
    counted = Counter(f.suppression.by for f in report.findings if f.suppression is not None)
    return ", ".join(f"{number} by {by}" for by, number in sorted(counted.items()))


def describe_remark(remark: Remark) -> str:
    """Return the place of a remark: ``train.py:3``, in a notebook ``train.ipynb:3 (cell 2)``."""
    cell = "" if remark.cell is None else f" (cell {remark.cell})"
    return remark.file if remark.line is None else f"{remark.file}:{remark.line}{cell}"


def split_findings(findings: Sequence[Finding]) -> tuple[list[Finding], list[Finding], list[Finding]]:
    """Return the active findings as problems, consequences of them, and notes (severity info)."""
    active = [f for f in findings if f.state == "active"]
    notes = [f for f in active if f.severity == "info"]
    real = [f for f in active if f.severity != "info"]
    follows = [f for f in real[1:] if f.role == "consequence"]
    return [f for f in real if f not in follows], follows, notes


def _network(evidence: Evidence) -> list[str]:
    parts: list[str] = []
    met = [r for r in evidence.rendezvous if r.error is None and len(r.joined_ranks) == r.expected_ranks]
    if met:
        parts.append(f"rendezvous {met[0].endpoint}")
    good = {(link.source, link.target) for link in evidence.links if link.ok}
    bad = {(link.source, link.target) for link in evidence.links if not link.ok}
    tried = {pair for pair in good | bad if pair[0] != pair[1]}
    if tried and not bad:
        parts.append(f"all {count(len(tried), 'node pair')} reached")
    elif tried:
        parts.append(f"{len(tried - bad)} of {count(len(tried), 'node pair')} reached")
    return parts


def _environment(evidence: Evidence) -> list[str]:
    parts: list[str] = []
    cores = [n.cpus.affinity for n in evidence.nodes if n.cpus is not None]
    if cores:
        low, high = min(cores), max(cores)
        parts.append(count(low, "core") if low == high else f"{low} to {high} cores")
    shared = [n.shared_memory.free for n in evidence.nodes if n.shared_memory is not None]
    if shared:
        parts.append(f"/dev/shm {format_bytes(min(shared))} free")
    devices = sum(len(n.devices) for n in evidence.nodes)
    if evidence.nodes:  # run does not examine machines
        parts.append(count(devices, "GPU") if devices else "no GPU")
    return parts


def _backends(evidence: Evidence) -> list[str]:
    parts = []
    for each in evidence.backends:
        if len(each.collective) and not each.failures:
            parts.append(f"{each.backend} works")
        elif each.failures:
            parts.append(f"{each.backend} failed")
        elif not each.built:
            parts.append(f"{each.backend} not built")
        elif not each.device_present:
            parts.append(f"{each.backend} without device")
        else:
            parts.append(f"{each.backend} not tried")
    return parts


def _collectives(evidence: Evidence) -> list[str]:
    parts: list[str] = []
    exact = [case for case in evidence.collectives if len(case.passed) and not case.failures]
    if exact:
        operations, types = len({case.op for case in exact}), len({case.dtype for case in exact})
        parts.append(f"{count(operations, 'operation')} x {count(types, 'dtype')} exact")
    methods = [
        f"{each.method}://" for each in evidence.initialisations if len(each.passed) and not each.failures
    ]
    if methods:
        parts.append(" ".join(methods))
    if any(case.group != "world" for case in exact):
        parts.append("sub-group")
    return parts


def _ddp(evidence: Evidence) -> list[str]:
    parts = []
    for each in (*evidence.experiments, *evidence.strategies):
        if not len(each.passed) or each.failures:
            continue
        words = EXPERIMENT_WORDS.get(each.name, each.name)
        steps = each.facts.get("steps")
        parts.append(f"{words} after {steps} steps" if each.name == "replicas-equal" and steps else words)
    for model in evidence.model:
        if not model.errors:
            idle = sum(each.count for each in model.unused)
            unused = f"{idle:,} unused" if model.unused else "all used"
            parts.append(f"{model.factory}: {count(model.parameters, 'weight')}, {unused}")
    return parts


def _bandwidth(evidence: Evidence) -> list[str]:
    rows = [row for row in evidence.bandwidth if row.correct]
    if not rows:
        return []
    first = next((row.op for row in rows if row.op == "all_reduce"), rows[0].op)
    own = sorted((row for row in rows if row.op == first), key=lambda row: row.bytes)
    small, large = own[0], own[-1]
    text = f"{first} {format_bandwidth(large.busbw)} bus at {format_bytes(large.bytes)}"
    parts = [text + _baseline(evidence)]
    if small.bytes < large.bytes:
        parts.append(f"{format_seconds(small.seconds)} at {format_bytes(small.bytes)}")
    others = {row.op for row in rows} - {first}
    if others:
        parts.append(f"{len(others)} more")
    return parts


def _baseline(evidence: Evidence) -> str:
    if not evidence.baselines:
        return ""
    slowest = min(evidence.baselines, key=lambda each: each.bandwidth)
    return f" ({slowest.name.replace('-', ' ')} gives {format_bandwidth(slowest.bandwidth)})"


_WORDS: dict[str, Callable[[Evidence], list[str]]] = {
    "network": _network,
    "environment": _environment,
    "backends": _backends,
    "collectives": _collectives,
    "ddp": _ddp,
    "bandwidth": _bandwidth,
}


def describe_item(item: EvidenceItem, size: int | None) -> str:
    """Return one observation with the ranks that it is of and where it was read.

    Args:
        item: of a finding.
        size: of the world, where it is known.
    """
    ranks = f"{format_ranks(item.ranks, size)}: " if item.ranks else ""
    if item.source is None:
        return f"{ranks}{item.text}"
    file, line = item.source
    return f"{ranks}{item.text} ({file})" if line is None else f"{ranks}{item.text} ({file}:{line})"
