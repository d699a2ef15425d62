"""What another rank did with the file or directory of which an error speaks: without that, nothing raced."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.training.fingerprints import FileUse, SharedFile
from ddpdoctor_checks.common.frames import user_line
from ddpdoctor_checks.job.blame.failures import Failure

UNREADY, REMOVED, RACED = "CKP002", "CKP005", "CKP001"
"""Codes of a file that was not written yet, of what another rank made or deleted first, and of one that several ranks
write."""
UNKNOWN = "ERR001"
"""Code of any other exception."""
_WRITES = frozenset({"write", "replace"})

_MISSING = "FileNotFoundError"
_TARGET = re.compile(r"' -> '(?P<path>[^'\n]{1,400})'")
"""The second path of the error of a renaming or a link."""
_PATH = re.compile(r"'(?P<path>[^'\n]{1,400})'")


def read_path(failure: Failure) -> str | None:
    """Return the path that an error names, of a link its own; None where it names none."""
    if (failure.type or "").endswith("FileExistsError") and (target := _TARGET.search(failure.message)):
        return target["path"]
    found = failure.groups.get("path")
    if found is None:
        match = _PATH.search(failure.message)
        found = match["path"] if match is not None else None
    return found


def may_name(failure: Failure, path: str) -> bool:
    """Whether an error speaks of a file: by its path, or of none by name."""
    named = read_path(failure)
    return named is None or _is_same(path, named)


def settle_race(code: str | None, failure: Failure, ranks: RankSet, evidence: Evidence) -> str | None:
    """Return the code of an error of a file that some ranks had: a race only where another rank may have caused it.

    Where files were watched, what no other rank made or deleted was there, or was missing, before. A file that rank 0
    does not find and that no other rank was seen to write is missing as well: rank 0 is who writes, and who alone
    loads. So is one that all ranks of a node do not find, or one with the number of the rank in its name, where no rank
    was seen to write it.

    Args:
        code: what the error alone says.
        failure: of the first rank.
        ranks: all that failed so.
        evidence: of the job.
    """
    if code == UNREADY:
        if find_removal(evidence, failure, ranks) is not None:
            return REMOVED
        if find_writing(evidence, failure, ranks) is not None:
            return UNREADY
        own = 0 in ranks or _are_nodes(ranks, evidence) or _names_rank(failure)
        return UNKNOWN if own else UNREADY
    if code == REMOVED:
        if find_rival(evidence, failure, ranks) is not None:
            return REMOVED
        return UNKNOWN if _was_watched(failure, evidence) or list(ranks) == [0] else REMOVED
    if code == UNKNOWN and (failure.type or "").endswith(_MISSING):
        if find_renaming(evidence, failure, ranks) is not None:
            return RACED
        if find_rival(evidence, failure, ranks) is not None:
            return REMOVED
    return code


def _was_watched(failure: Failure, evidence: Evidence) -> bool:
    """Whether the ranks wrote down what they did with files."""
    process = failure.view.process
    watched = evidence.launch.command == "run" and process is not None and process.watched
    return watched or bool(evidence.training)


def _are_nodes(ranks: RankSet, evidence: Evidence) -> bool:
    """Whether ranks are all of some nodes, and others run on other nodes: each node may have files of its own."""
    nodes = [set(node.ranks) for node in evidence.training]
    return len(nodes) > 1 and all(each <= set(ranks) or not each & set(ranks) for each in nodes)


def _names_rank(failure: Failure) -> bool:
    """Whether the name of the file has the number of the rank in it: ``part_2.pt`` is for rank 2 alone."""
    name = os.path.basename(read_path(failure) or "")
    return failure.rank is not None and str(failure.rank) in re.findall(r"\d{1,9}", name)


def find_removal(evidence: Evidence, failure: Failure, ranks: RankSet) -> FileUse | None:
    """Return the last deletion, by another rank, of a file that a rank then did not find, or of its directory.

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
    files = list(_list_files(evidence))
    removals = [
        use
        for file in files
        for use in file.uses
        if use.rank not in ranks
        and (
            (use.operation == "remove" and use.size and path.startswith(file.path.rstrip("/") + "/"))
            or (use.operation == "delete" and _is_same(file.path, path))
        )
    ]
    last = max(removals, key=lambda use: use.at.wall_ns, default=None)
    used = [use for file in files if _is_same(file.path, path) for use in file.uses]
    was_there = last is not None and (
        last.operation == "delete" or any(use.at.wall_ns < last.at.wall_ns for use in used)
    )
    return last if was_there else None


def find_rival(evidence: Evidence, failure: Failure, ranks: RankSet) -> FileUse | None:
    """Return what another rank did first: it made what a rank then could not make, or deleted what one would delete.

    Args:
        evidence: of the job.
        failure: of the rank.
        ranks: all that failed alike.
    """
    path, line = read_path(failure), user_line(failure.frames)
    operations = {"delete", "remove"} if (failure.type or "").endswith(_MISSING) else {"make"}
    for file in _list_files(evidence):
        for use in file.uses:
            if use.rank in ranks or use.operation not in operations or use.size == 0:
                continue
            # rmtree names what is in the directory, without it
            inside = use.operation == "remove" and line is not None and user_line(use.frames) == line
            if inside or (path is not None and _is_same(file.path, path)):
                return use
    return None


def find_writing(evidence: Evidence, failure: Failure, ranks: RankSet) -> FileUse | None:
    """Return the last writing, by another rank, of the file that a rank did not find, or not whole.

    Args:
        evidence: of the job.
        failure: of the rank; where it names no file, the last that it was seen to read.
        ranks: all that failed alike.

    Returns:
        None also where the rank was seen to read the file after it had met the writer: that put the two in order.
    """
    path = read_path(failure)
    reads = [
        (use.at.wall_ns, file.path, use.phase)
        for file in _list_files(evidence)
        if path is None or _is_same(file.path, path)
        for use in file.uses
        if use.operation == "read" and use.rank == failure.rank
    ]
    _, read, phase = max(reads, default=(0, path, ()))
    uses = [
        use
        for file in _list_files(evidence)
        if read is not None and _is_same(file.path, read)
        for use in file.uses
        if use.operation in _WRITES and use.rank not in ranks and (not phase or use.phase == phase)
    ]
    return max(uses, key=lambda use: use.at.wall_ns, default=None)


def _list_files(evidence: Evidence) -> Iterator[SharedFile]:
    return (file for node in evidence.training for file in node.files)


def _is_same(told: str, path: str) -> bool:
    """Whether a path of the report is that of an error, which names it as the program did."""
    path = os.path.normpath(path)
    short, whole = sorted((told, path), key=len)
    return whole == short or (not short.startswith("/") and whole.endswith(f"/{short}"))


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
        for file in _list_files(evidence)
        if file.path == path
        for use in file.uses
        if use.operation == "write" and use.phase and not use.locked
    ]
    phases = {use.phase for use in uses if use.rank in ranks}
    others = [use for use in uses if use.rank not in ranks and use.phase in phases]
    return max(others, key=lambda use: use.at.wall_ns, default=None)
