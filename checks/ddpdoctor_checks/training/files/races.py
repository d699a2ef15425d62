"""CKP and DAT008: files and directories over which ranks race, in jobs that mostly end well."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import FileUse
from ddpdoctor.judge import EvidenceItem, Finding, Fix, NotApplicable, Where, check
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.jobs import JOB, TRAINING
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.wording import capitalise, count_of, join_words, name_set
from ddpdoctor_checks.job.blame.diagnosis import Group
from ddpdoctor_checks.job.blame.file_races import UNREADY, may_name
from ddpdoctor_checks.job.blame.judging import diagnose, has_failed
from ddpdoctor_checks.training.files.file_order import (
    Race,
    find_overwritten,
    find_read_early,
    find_removed,
    find_replaced,
)

_PATHS = 3
"""Paths that are named."""
_GUARD = Fix(
    "write on one rank, to a temporary name first, and synchronize before the other ranks need it",
    code='if dist.get_rank() == 0:\n    torch.save(state, path + ".tmp")\n    os.replace(path + ".tmp", path)\n'
    "dist.barrier()",
)


@check("CKP001", family="training", needs=TRAINING, id="training.checkpoints", required=False, commands=JOB)
def find_checkpoint_raced(evidence: Evidence) -> Iterable[Finding]:
    """Several ranks write one path, with nothing that puts them in order."""
    _require_files(evidence)
    for race in find_overwritten(evidence):
        if race.kind == "download" or not (race.kind == "checkpoint" or all(use.near for use in race.uses)):
            continue
        severity = {"checkpoint": None, "other": "warning"}.get(race.kind, "info")
        if {use.via for use in race.uses} == {"safetensors"}:
            severity = "warning"  # late versions of it write another file and rename it
        yield _tell(
            evidence, race, (
                f"{capitalise(name_set(race.ranks))} all write {_names(race)}{_place(race.uses[0])}, "
                f"{_apart(race)}, without synchronization: the file can be torn, or a mix of their data."
            ),
            (_GUARD,), severity, "high" if race.kind == "checkpoint" else "medium",
        )  # fmt: skip
    for race in find_replaced(evidence):
        sizes = join_words(str(use.size) for use in race.uses)
        yield _tell(
            evidence, race, (
                f"{capitalise(name_set(race.ranks))} each rename a file of their own to "
                f"{_names(race)}{_place(race.uses[0])} ({sizes} bytes): only the last one remains."
            ),
            (Fix("put the rank into the name of what differs across ranks",
                 code='torch.save(state, f"{path}.rank{dist.get_rank()}")'), _GUARD), None, "high",
        )  # fmt: skip


@check(
    "CKP002", family="training", needs=TRAINING, id="training.checkpoint_order", required=False, commands=JOB
)
def find_checkpoint_read_early(evidence: Evidence) -> Iterable[Finding]:
    """A rank read a checkpoint with nothing that made it wait for the rank that writes it, and nothing complained."""
    _require_files(evidence)
    cause = diagnose(evidence).cause if has_failed(evidence) else None
    for race in find_read_early(evidence):
        writer, readers = race.uses[0], race.uses[1:]
        if cause is not None and cause.code == UNREADY and _is_told(race, cause):
            continue
        names = name_set(race.ranks.minus(_only(writer)))
        how = (
            "while it was still being written"
            if race.seen
            else f"{_seconds(readers[0].at.wall_ns - writer.at.wall_ns)} after the writing began, and nothing makes "
            "a reader wait for the end of it"
        )
        yield _tell(
            evidence, race, f"{capitalise(names)} read {_names(race)}{_place(readers[0])} {how}; "
            f"rank {writer.rank} writes it{_place(writer)}.",
            (Fix("synchronize all ranks between writing and reading",
                 code="if rank == 0:\n    torch.save(state, path)\ndist.barrier()\n"
                 'state = torch.load(path, map_location="cpu")'),),
            None if race.seen else "warning", "high" if race.seen else "medium", culprits=readers,
        )  # fmt: skip


@check("CKP005", family="training", needs=TRAINING, id="training.directories", required=False, commands=JOB)
def find_directories_raced(evidence: Evidence) -> Iterable[Finding]:
    """Several ranks delete one directory, or one deletes it while others write into it."""
    _require_files(evidence)
    for race in find_removed(evidence):
        others = [use for use in race.uses if use.operation != "remove"]
        if others:
            writers = name_set(RankSet(use.rank for use in others))
            what = (
                f"Rank {race.uses[0].rank} deletes the directory {_names(race)}{_place(race.uses[0])} "
                f"without synchronization with {writers}, who write there{_place(others[0])}: those files "
                "may be lost."
            )
        else:
            what = (
                f"{capitalise(name_set(race.ranks))} all delete the directory "
                f"{_names(race)}{_place(race.uses[0])}, {_apart(race)}: the later ones delete what the "
                "first has already written there."
            )
        yield _tell(
            evidence, race, what,
            (Fix("do it on one rank, and let the other ranks wait",
                 code="if rank == 0:\n    shutil.rmtree(path, ignore_errors=True)\n"
                 "    os.makedirs(path)\ndist.barrier()"),),
            None, "high" if not others else "medium",
        )  # fmt: skip


@check("DAT008", family="training", needs=TRAINING, id="training.downloads", required=False, commands=JOB)
def find_download_raced(evidence: Evidence) -> Iterable[Finding]:
    """Several ranks fetch or unpack the same files to one place, with nothing that puts them in order."""
    _require_files(evidence)
    for race in find_overwritten(evidence):
        if race.kind == "download":
            via = next((use.via for use in race.uses if use.via is not None), None)
            through = f" through {via}" if via is not None else ""
            yield _tell(
                evidence, race, (
                    f"{capitalise(name_set(race.ranks))} all write "
                    f"{_names(race)}{through}{_place(race.uses[0])}, {_apart(race)}: the first rank to "
                    "finish reads what another rank is still writing."
                ),
                (Fix("download on one rank of each node, then synchronize with a barrier",
                     code='if int(os.environ["LOCAL_RANK"]) == 0:\n    download()\ndist.barrier()'),),
                None, "high",
            )  # fmt: skip


def _is_told(race: Race, cause: Group) -> bool:
    """Whether the error that ended the job says it: of the same file, by all ranks that read that early."""
    readers = {use.rank for use in race.uses[1:]}
    return readers <= set(cause.ranks) and may_name(cause.first, race.files[0].path)


def _require_files(evidence: Evidence) -> None:
    if not any(node.files for node in evidence.training):
        raise NotApplicable("no file was seen that several ranks used and one wrote")


def _tell(
    evidence: Evidence,
    race: Race,
    message: str,
    fixes: tuple[Fix, ...],
    severity: str | None,
    confidence: str,
    culprits: Iterable[FileUse] = (),
) -> Finding:
    named = tuple(culprits) or race.uses
    places: dict[tuple[str, int], Where] = {}
    for use in named:
        line = user_line(use.frames)
        if line is not None:
            known = places.get((line.file, line.line))
            ranks = _only(use) if known is None else known.ranks.union(_only(use))
            places[line.file, line.line] = in_frame(line, ranks, "culprit")
    first = race.uses[0].at.wall_ns
    ranks = race.ranks if named == race.uses else race.ranks.minus(_only(race.uses[0]))
    return Finding(
        message=message,
        ranks=ranks,
        where=tuple(places.values()),
        evidence=tuple(
            EvidenceItem("file", f"{_DID[use.operation]} {race.files[0].path}"
                         + (f", {_seconds(use.at.wall_ns - first)} after rank {race.uses[0].rank}" if place else "")
                         + (f", through {use.via}" if use.via else ""), _only(use))
            for place, use in enumerate(race.uses[:6])
        ),
        fix=fixes,
        details={"paths": [file.path for file in race.files[:20]], "count": len(race.files), "kind": race.kind},
        severity=severity,
        confidence=confidence,
        role="advice" if has_failed(evidence) or severity == "info" else "cause",
    )  # fmt: skip


_DID = {
    "write": "opened to write",
    "replace": "renamed to",
    "read": "opened to read",
    "remove": "began to delete",
}


def _only(use: FileUse) -> RankSet:
    return RankSet((use.rank,))


def _names(race: Race) -> str:
    paths = [file.path for file in race.files]
    if len(paths) > _PATHS:
        return f"{paths[0]} and {count_of(len(paths) - 1, 'more file')}"
    return join_words(paths)


def _place(use: FileUse) -> str:
    return tell_line(user_line(use.frames))


def _apart(race: Race) -> str:
    return f"{_seconds(race.uses[-1].at.wall_ns - race.uses[0].at.wall_ns)} apart"


def _seconds(nanoseconds: int) -> str:
    seconds = nanoseconds / 1e9
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
