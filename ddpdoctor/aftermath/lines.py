"""Lines of logs made plain: colours and progress bars taken out, launchers' prefixes read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

SEGMENT_LIMIT = 16384
"""Characters of a line that are looked at: four times what the table of texts looks at."""
SEGMENTS_KEPT = 8
"""Parts of a line between carriage returns that are looked at, from the end: a progress bar rewrites one line
thousands of times, and what is printed behind it comes last."""

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,40}[ -/]{0,4}[@-~]|\x1b\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|\x1b[@-_]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_TIME = re.compile(
    r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\s{1,4}(?:std(?:out|err) [FP] )?"
)
"""The time that docker, kubectl (CRI log format) and log collectors put before each line."""
_RANK = re.compile(r"^\[rank(\d{1,7})\]:( |(?=\[)|$)")
"""torch.distributed's hook for uncaught exceptions, and c10d's own lines, which have no blank."""
_TEE = re.compile(r"^\[[A-Za-z_][\w.-]{0,40}?(\d{1,5})\]:")
"""torchrun --tee and --redirects: the role's name and the local rank (torch/distributed/elastic/agent/server)."""
_MPI = re.compile(r"^\[\d{1,9},(\d{1,7})\]<std(?:err|out|diag)>: ?")
"""mpirun --tag-output."""
_RAY = re.compile(r"^\((?:[\w.<>-]{1,80} )?pid=(\d{1,10})(?:, ip=([\w.:-]{1,64}))?\) ?")
"""Ray's driver before each line of a worker: actor, process, node."""
_SERVICE = re.compile(
    r"^(?:\[[\w.-]{1,80}/[\w.-]{1,120}(?:/[\w.-]{1,80})?\] |[a-z][\w.-]{0,80}\d {1,20}\| {0,2}(?=\S))"
)
"""docker compose (``worker-0  | ``) and ``kubectl logs --prefix`` (``[pod/worker-0/main] ``)."""
_LABEL = re.compile(r"^ {0,6}(\d{1,7}): ?")
"""srun --label."""
_HOST = re.compile(r"^(?=[\w.-]{0,63}\d)(?![\d-]{1,64}:)[A-Za-z\d][\w.-]{0,63}:(?: |$)")
"""pdsh, with which DeepSpeed starts the ranks of several nodes: a name or an address, which has a digit in it."""
_LAUNCHED = re.compile(
    r"^\[\d{4}-[^\n]{0,4000}?--local[_-]rank(?:=|', ')(\d{1,5})'.{0,12000}\] exits with return code = "
)
"""DeepSpeed's launcher of a process that ended: its command line. Behind pdsh's prefix it is another node's."""
_TASK = re.compile(r"^srun: error: [\w.-]{1,200}: task (\d{1,7}): (?!Killed|Terminated)")
"""srun of one task that ended by itself; of several (``tasks 0-3``) none is named. By SIGKILL and SIGTERM Slurm ends a
step, whatever the reason is, and which task it tells of first says nothing."""
_GLUED = re.compile(
    r"(?:\[[A-Za-z_][\w.-]{0,40}\d{1,7}\]: ?){0,2}(?=Traceback \(most recent call last\)|Fatal Python)"
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a log, or a part of one between carriage returns."""

    number: int
    """Number of the line, from 1."""
    text: str
    """Without the prefix."""
    key: str = ""
    """The prefix: lines of one key come from one process, but for the empty one."""
    rank: int | None = None
    local_rank: int | None = None
    label: int | None = None
    """Task of srun, which is the rank only where each task is one."""
    hooked: bool = False
    """Printed by torch's hook for uncaught exceptions."""


def plain(text: str) -> str:
    """Return text without terminal control."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return _CONTROL.sub("", text)


def read_prefix(text: str, number: int = 0, *, labelled: bool = False) -> Line:
    """Take launchers' prefixes off a line.

    Args:
        text: one plain line.
        number: its number.
        labelled: the log's lines begin with a task's number, as of ``srun --label``, or with a host, as of ``pdsh``.
    """
    rank = local = label = None
    hooked = False
    key = ""
    for _ in range(4):
        found = _TIME.match(text)
        if found:
            text = text[found.end() :]
            continue
        if found := _RANK.match(text):
            rank, hooked = int(found[1]), found[2] == " "
        elif found := _MPI.match(text):
            rank = int(found[1])
        elif found := _TEE.match(text):
            local = int(found[1])
        elif (found := _RAY.match(text)) or (found := _SERVICE.match(text)):
            pass
        elif labelled and label is None and (found := _LABEL.match(text)):
            label = int(found[1])
        elif labelled and not key and (found := _HOST.match(text)):
            pass
        else:
            break
        key += found[0].rstrip()
        text = text[found.end() :]
    return Line(number, text, key, rank, local, label, hooked)


def read_place(line: Line) -> tuple[int | None, int | None]:
    """Return the local rank and the task of srun whose line it is, or that a launcher's line speaks of."""
    if line.local_rank is None and line.label is None and line.rank is None:
        if "exits with return code" in line.text and (found := _LAUNCHED.match(line.text)):
            return int(found[1]), None
        if found := _TASK.match(line.text):
            return None, int(found[1])
    return line.local_rank, line.label


def split_line(raw: bytes, number: int, *, labelled: bool = False) -> Iterator[Line]:
    """Yield what a line of a file holds: usually itself, and after a progress bar what was printed behind it."""
    for part in raw.split(b"\r")[-SEGMENTS_KEPT:] if b"\r" in raw else (raw,):
        text = plain(part[: 4 * SEGMENT_LIMIT].decode("utf-8", "replace"))[:SEGMENT_LIMIT]
        if part or part is raw:
            yield read_prefix(_unglue(text), number, labelled=labelled)


def _unglue(text: str) -> str:
    """Cut what another process, or a progress bar, left on the line before a traceback began."""
    if "Traceback (most recent call last)" not in text and "Fatal Python" not in text:
        return text
    found = _GLUED.search(text)
    before = text[: found.start()].rstrip() if found else ""
    if (
        found is None
        or not before
        or before.endswith(("Original", "|", "+", "+ Exception Group", "traceback :"))
    ):
        return text
    start = read_prefix(before)
    return text if not start.text else text[found.start() :]


def looks_labelled(head: bytes) -> bool:
    """Whether most lines at the start of a log begin with a task's number, or most with a host's name."""
    lines = [line for line in head.decode("utf-8", "replace").splitlines()[:-1][:400] if line.strip()]
    counts = (sum(bool(each.match(line)) for line in lines) for each in (_LABEL, _HOST))
    return len(lines) > 1 and max(counts) > 0.9 * len(lines)
