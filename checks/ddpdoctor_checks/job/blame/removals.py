"""Whether a file that a rank did not find was there before, and another rank has deleted or renamed it since."""

from __future__ import annotations

import re

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import FileUse
from ddpdoctor_checks.job.blame.failures import Failure

_MISSING = "FileNotFoundError"
_TARGET = re.compile(r"' -> '")
"""What the error of a renaming says between its two paths."""
_PATH = re.compile(r"'(?P<path>[^'\n]{1,400})'")


def read_path(failure: Failure) -> str | None:
    """Return the path that an error names; None where it names none."""
    found = failure.groups.get("path")
    if found is None:
        match = _PATH.search(failure.message)
        found = match["path"] if match is not None else None
    return found


def find_removal(evidence: Evidence, failure: Failure, ranks: RankSet) -> FileUse | None:
    """Return the last deletion, by another rank, of a directory that held the file which a rank then did not find.

    Args:
        evidence: of the job.
        failure: of the rank.
        ranks: all that failed alike.

    Returns:
        None where no rank was seen to delete it, or to write or read the file before that: then it may never
        have been there.
    """
    path = read_path(failure) if (failure.type or "").endswith(_MISSING) else None
    if path is None:
        return None
    files = [file for node in evidence.training for file in node.files]
    removals = [
        use
        for file in files
        if path.startswith(file.path.rstrip("/") + "/")
        for use in file.uses
        if use.operation == "remove" and use.size and use.rank not in ranks
    ]
    last = max(removals, key=lambda use: use.at.wall_ns, default=None)
    used = [use for file in files if file.path == path for use in file.uses]
    was_there = last is not None and any(use.at.wall_ns < last.at.wall_ns for use in used)
    return last if was_there else None


def find_renaming(evidence: Evidence, failure: Failure, ranks: RankSet) -> FileUse | None:
    """Return the writing by another rank of the file that a rank then could not rename, for it was gone.

    Each rank writes that file and renames it: the first to do so takes it from the others.

    Args:
        evidence: of the job.
        failure: of the rank.
        ranks: all that failed alike.

    Returns:
        None where the ranks were not seen to write it in no order.
    """
    renames = (failure.type or "").endswith(_MISSING) and _TARGET.search(failure.message)
    path = read_path(failure) if renames else None
    uses = [
        use
        for node in evidence.training
        for file in node.files
        if file.path == path
        for use in file.uses
        if use.operation == "write" and use.phase and not use.locked
    ]
    phases = {use.phase for use in uses if use.rank in ranks}
    others = [use for use in uses if use.rank not in ranks and use.phase in phases]
    return max(others, key=lambda use: use.at.wall_ns, default=None)
