"""How one process failed: what it said or how it died, whose fault that can be, and the code that this settles."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.job import CrashRecord, ExceptionRecord
from ddpdoctor.evidence.texts.entries import NCCL_WARNS
from ddpdoctor.evidence.texts.matching import TextEntry
from ddpdoctor_checks.common.frames import stands_in, user_line
from ddpdoctor_checks.job.blame.views import View

SOFT = frozenset({"BKD002", "BKD013", "NET005", "NET007", "NET016"})
"""Codes of texts that a lost peer can bring about too: any failure of its own kind goes before them."""
WAITING = frozenset({"NET006", "NET011", "NET015", "COL002", "COL005", "ERR011"})
"""Codes of texts that those say who waited for somebody else."""

DIFFERING = frozenset(
    {"hosts-set-different-values", "hosts-use-different-nccl", "hosts-use-different-networks"}
)
"""Entries of what is not the same on all hosts: it explains a failure of communication, and is none."""
DOUBTED = DIFFERING | frozenset({
    "adapter-reports-trouble", "device-handle-unknown", "device-reports-trouble", "fabric-manager-failed",
    "fabric-service-failed", "libfabric-failed", "slot-lost-card",
    "fabric-reports-trouble", "interface-reports-trouble", "nccl-fabric-stale", "peer-path-redirected",
})  # fmt: skip
"""Entries that have other reasons too: they are a cause only where nothing narrower is one."""
QUIET = frozenset({
    *DIFFERING, "device-newer-than-torch", "fabric-manager-failed", "memory-lock-limited", "nccl-connect-retries",
    "libfabric-failed", "nccl-loopback-chosen", "ofi-plugin-unusable", "peer-path-redirected", "plugin-not-loaded",
    "store-unroutable",
})  # fmt: skip
"""Entries of lines that a job may print which runs well: they explain a failure, and are none."""
MESSAGE_LIMIT = 240
"""Characters of a message that a sentence holds."""


class Level(enum.IntEnum):
    """Whose fault a failure can be; the order of blame."""

    EXCEPTION = 0
    """An exception of its own."""
    SIGNAL = 1
    """A fatal signal of its own, or the kernel's."""
    STATUS = 2
    """It ended itself with a status: usage errors, sys.exit, os._exit."""
    SOFT = 3
    """A failure of communication that may be its own."""
    SILENT = 4
    """Gone without a word."""
    COMPLAINT = 5
    """It lost a peer, or waited for one until it timed out."""
    AT_EXIT = 6
    """Aborted after its script had ended."""
    ENDED = 7
    """Told to end: SIGTERM, Ctrl-C, the agent's SIGKILL."""


OWN = (Level.EXCEPTION, Level.SIGNAL, Level.STATUS)
"""Levels among which the time decides."""


@dataclass(slots=True)
class Failure:
    """How one process failed."""

    view: View
    level: Level
    code: str | None
    words: str
    """What it said or how it died, e.g. ``KeyError: 'label_9917'`` or ``signal 11 (SIGSEGV)``."""
    at: float | None = None
    """Seconds, on the axis of `ddpdoctor_checks.job.blame.views.Clock`."""
    exception: ExceptionRecord | None = None
    type: str | None = None
    message: str = ""
    frames: tuple[Frame, ...] = ()
    """Innermost first; a loader worker's, then those of the rank that asked it."""
    entry: TextEntry | None = None
    groups: dict[str, str] = field(default_factory=dict)
    outer: str = ""
    """What it was raised on as, where another exception was made of it: ``RuntimeError: no batch``."""
    outer_line: Frame | None = None
    """The user's line that did so."""
    note: str = ""
    """Where it was raised, e.g. ``in DataLoader worker 3``."""
    proof: tuple[str, ...] = ()
    """What the kernel or the cgroup said."""
    since: float | None = None
    """Earliest moment at which it can have happened, where ``at`` is only when somebody noticed."""
    coarse: bool = False
    """``at`` is known in whole seconds only."""
    worker: View | None = None
    """The loader worker in which it happened."""
    before: Failure | None = None
    """What had ended another thread of the process before."""
    sure: str = "high"
    told: tuple[int, ...] = ()
    """Ranks of which a process that is none says that they failed so."""

    @property
    def rank(self) -> int | None:
        """Rank of the process, or the first that it speaks of."""
        return self.view.rank if self.view.rank is not None else next(iter(self.told), None)

    @property
    def crash(self) -> CrashRecord | None:
        """What faulthandler wrote in the process, or in the loader worker in which it happened."""
        return self.worker.crash if self.worker is not None else self.view.crash

    @property
    def line(self) -> Frame | None:
        """The user's innermost line."""
        return user_line(self.frames)


_STACK = re.compile(
    r"\b(?:NCCL|RCCL|nccl\w{4,40}|CUDA|HIP|CUDNN\w{0,40}|cuDNN|CUBLAS\w{0,40}|cuBLAS|c10d|ProcessGroup\w{0,20}|TCPStore|gloo)\b"
)
"""Words of messages that come out of communication or CUDA."""


def is_of_stack(failure: Failure) -> bool:
    """Whether an exception comes out of communication or CUDA, which report what happened elsewhere too."""
    message = failure.message.partition("\n")[0] or failure.words
    inside = bool(failure.frames) and stands_in(failure.frames[:1], "torch/distributed/")
    return inside or bool(_STACK.search(message))


def choose_level(code: str | None, own: Level) -> Level:
    """Return the level of a text that was settled: one without a code speaks of others."""
    if code is None or code in WAITING:
        return Level.COMPLAINT
    return Level.SOFT if code in SOFT else own


def short_type(name: str) -> str:
    """Return an exception's name without its module: ``torch.OutOfMemoryError`` stays telling without torch."""
    return name.rpartition(".")[2] or name


def _read_sentence(message: str) -> str:
    """Return the first line of a message, and what follows where it announces that or was wrapped over lines."""
    lines = [each.strip() for each in message.strip().splitlines()]
    text = lines[0] if lines else ""
    if text.endswith(":") and len(lines) > 1:
        return f"{text} {lines[1]}"  # Error(s) in loading state_dict for Net: size mismatch for …
    for line in lines[1:]:
        if text.endswith((".", ":", "!", "?")) or not line[:1].islower():
            break
        text = f"{text} {line}"
    return text


def describe_exception(kind: str, message: str) -> str:
    """Return ``KeyError: 'label_9917'``: name and first line of the message, cut."""
    line = _read_sentence(message)
    name = short_type(kind)
    text = f"{name}: {line}" if line else name
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"


def quote_line(text: str) -> str:
    """Return a line of a log for a sentence: without a launcher's prefix, cut."""
    text = text.rpartition(NCCL_WARNS)[2]
    bare = re.sub(r"^\s*(?:\[[\w:. -]{1,40}\]:?\s*){0,3}(?:what\(\):\s*)?", "", text).strip()
    return bare if len(bare) <= MESSAGE_LIMIT else bare[: MESSAGE_LIMIT - 1] + "…"
