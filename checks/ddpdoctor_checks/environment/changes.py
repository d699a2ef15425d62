"""Debug settings that a script made itself: still on, or made too late for anybody to take notice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.job import ProcessRecord, SettingChange
from ddpdoctor.judge import EvidenceItem, Finding, Fix, Where
from ddpdoctor_checks.common.frames import find_user_line
from ddpdoctor_checks.common.wording import name_set, quote

ANOMALY = "anomaly mode"
OFTEN = 10
"""Times that anomaly mode is turned on after which it is no longer for a single look."""
_ENVIRON = re.compile(r"(^|/)(os|_collections_abc)\.py$|^<frozen (os|_collections_abc)>$")
"""What stands between a script and the environment."""


@dataclass(slots=True)
class Made:
    """One setting as it was made on some ranks at one line."""

    change: SettingChange
    line: Frame
    late: str | None
    """Why it came too late; None where it did not."""
    ranks: list[int] = field(default_factory=list)

    @property
    def place(self) -> str:
        """Where it was made, for a sentence."""
        function = self.line.function
        return f"{self.line.file}:{self.line.line}" + (f" in {function}" if function != "<module>" else "")

    @property
    def where(self) -> tuple[Where, ...]:
        """Where it was made, for a finding."""
        line = self.line
        return (Where(RankSet(self.ranks), "culprit", line.file, line.line, line.function, line.source),)


def find_ranks(evidence: Evidence) -> list[ProcessRecord]:
    """Return the ranks of a job's last attempt."""
    ranks = [each for each in evidence.processes if each.role == "rank" and each.rank is not None]
    last = max((each.attempt for each in ranks), default=0)
    return [each for each in ranks if each.attempt == last]


def read_changes(evidence: Evidence) -> list[Made]:
    """Return the variables that the user's own code set, the last value of each, equal ones of ranks folded.

    What a library sets is its own affair; where nobody saw the line, nothing is said.
    """
    found: dict[tuple[str, str, str, int, str | None], Made] = {}
    for process in find_ranks(evidence):
        last = {each.name: each for each in process.settings if each.how == "set" and each.name != ANOMALY}
        for change in last.values():
            line = _own_line(change.frames)
            if line is None or not change.value:
                continue
            late = _too_late(process, change)
            key = (change.name, change.value, line.file, line.line, late)
            made = found.setdefault(key, Made(change, line, late))
            made.ranks.append(process.rank or 0)
    return list(found.values())


def _own_line(frames: Sequence[Frame]) -> Frame | None:
    """Return the user's line, where it is what set the variable and no library that it called."""
    rest = [frame for frame in frames if frame.is_user or not _ENVIRON.search(frame.file)]
    line = find_user_line(rest)
    return line if rest and line is rest[0] else None


def _too_late(process: ProcessRecord, change: SettingChange) -> str | None:
    """Say what had been there before a variable was set that is read only once; None where that is not known."""
    backend = process.backend or ""
    if change.name in ("CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL"):
        return "CUDA, which reads it when it starts, was already in use" if change.cuda else None
    if change.name == "TORCH_DISTRIBUTED_DEBUG":
        went_by = next((e.value for e in process.settings if e.name == change.name and e.how == "end"), None)
        if not _reached(process, "import", change) or (went_by or "").upper() == change.value.upper():
            return None
        end = f"; torch used {went_by} to the end" if went_by else ""
        return f"torch.distributed, which reads it when it is imported, was already imported{end}"
    if change.name == "TORCH_CPP_LOG_LEVEL":
        return (
            "torch, which reads it when it is imported, was already imported"
            if _reached(process, "import", change)
            else None
        )
    if change.name.startswith("TORCH_NCCL_") and "nccl" in backend and _reached(process, "init", change):
        return "the process group, which reads it when it is created, already existed"
    # NCCL itself starts with the first collective; wrapping a model makes some.
    if change.name.startswith("NCCL_") and "nccl" in backend and _reached(process, "wrap", change):
        return "NCCL, which reads it when it starts, was already in use"
    return None


def _reached(process: ProcessRecord, milestone: str, change: SettingChange) -> bool:
    """Whether a process had come to a milestone before it made a setting."""
    if change.at is None or change.at.mono_ns is None:
        return False
    moments = [each.at.mono_ns for each in process.milestones if each.name == milestone]
    return any(moment is not None and moment < change.at.mono_ns for moment in moments)


def find_late(evidence: Evidence) -> Iterable[Finding]:
    """Yield the settings that were made too late to have any effect."""
    for made in read_changes(evidence):
        if made.late is None:
            continue
        name, value = made.change.name, made.change.value
        ranks = RankSet(made.ranks)
        yield Finding(
            message=f"{name}={quote(value)} is set at {made.place} too late to have any effect: {made.late}.",
            role="advice",
            ranks=ranks,
            where=made.where,
            evidence=(EvidenceItem("variable", f"{name}={value} set at {made.place}", ranks),),
            fix=(
                Fix("set it where the job is started", f"export {name}={value}"),
                Fix(
                    "or above every import of torch, and remove it when it is no longer needed",
                    code=f'os.environ["{name}"] = "{value}"',
                ),
            ),
            details={"variable": name, "value": value, "late": True},
        )


def find_anomaly(evidence: Evidence, severity: str) -> Iterable[Finding]:
    """Yield autograd's anomaly mode where it was on for more than a look.

    Args:
        evidence: of a job.
        severity: of the finding.
    """
    on = [
        process
        for process in find_ranks(evidence)
        if any(
            each.name == ANOMALY and (each.how != "set" or each.count >= OFTEN) for each in process.settings
        )
    ]
    if not on:
        return
    ranks = RankSet(each.rank for each in on if each.rank is not None)
    lines: dict[tuple[str, int], Made] = {}
    for process in on:
        change = next((e for e in process.settings if e.name == ANOMALY and e.how == "set"), None)
        line = find_user_line(change.frames) if change is not None else None
        if change is not None and line is not None:
            made = lines.setdefault((line.file, line.line), Made(change, line, None))
            made.ranks.append(process.rank or 0)
    first = next(iter(lines.values()), None)
    at = f", turned on at {first.place}," if first is not None else ""
    yield Finding(
        message=(
            f"Autograd's anomaly mode{at} is on in {name_set(ranks)}: every forward pass keeps its stack "
            "and every backward pass checks for NaN, which makes steps several times slower."
        ),
        severity=severity,
        role="advice",
        ranks=ranks,
        where=tuple(place for made in lines.values() for place in made.where),
        evidence=(EvidenceItem("setting", "anomaly mode was on", ranks),),
        fix=(Fix("remove it from normal runs", code="torch.autograd.set_detect_anomaly(False)"),),
        details={"setting": ANOMALY},
    )
