"""Evidence about the stages of `check`: how each ended, and what the ranks did when one was cut."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from ddpdoctor.evidence.ranks import RankSet
from ddpdoctor.facts.ownership import USER, find_owner

STAGES = ("facts", "smoke", "tcp", "rendezvous", "backends", "collectives", "ddp", "bandwidth", "strategies")
"""The stages of `check` in the order in which they run; the last one only where it is asked for."""
DEFAULT_STAGES = STAGES[:-1]
"""Those that run where nothing is said."""
STRATEGIES = ("fsdp2", "tp", "pp", "dcp")
"""What the stage of that name can try."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a Python stack, innermost first in a list."""

    file: str
    line: int
    function: str
    source: str | None = None
    """Text of the line, stripped; None where nobody read it."""
    owner: str | None = field(default=None, compare=False)
    """Whose the file is (`ddpdoctor.facts.ownership`), where the process said otherwise than the path alone says."""

    @property
    def whose(self) -> str:
        """Whose the file is: the user's, a package's, torch's, Python's or ddpdoctor's."""
        return self.owner or _find_owner(self.file)

    @property
    def is_user(self) -> bool:
        """Whether the file is one of the user's own."""
        return self.whose == USER


_find_owner = functools.lru_cache(65_536)(find_owner)


@dataclass(frozen=True, slots=True)
class StackClass:
    """Ranks whose main threads stood at the same place."""

    ranks: RankSet
    frames: tuple[Frame, ...]
    state: str | None = None
    """Process state from /proc: for a process that py-spy could not read, and for one that is stopped (T, t) or
    uninterruptible (D) whatever its stack says."""


@dataclass(frozen=True, slots=True)
class StageRecord:
    """How one stage ended on one node."""

    node: int
    stage: str
    status: str
    """passed, failed (an error in it), cut (at a limit), skipped (deselected, not applicable) or
    unreached (an earlier one ended the run)."""
    reason: str | None = None
    started_s: float | None = None
    """Seconds after the start of the command."""
    duration_s: float | None = None
    limit_s: float | None = None
    """Limit of the stage in seconds; where it was cut, the limit of what cut it."""
    finished: RankSet = field(default_factory=RankSet)
    unfinished: RankSet = field(default_factory=RankSet)
    stacks: tuple[StackClass, ...] = ()
    stacks_note: str | None = None
    """Why there are no stacks, if there should be."""
    limit_option: str | None = None
    """Where another limit than the stage's own cut it: the option that sets it, e.g. ``--timeout``."""


@dataclass(frozen=True, slots=True)
class RankError:
    """An exception that ended a stage in a rank."""

    rank: int
    stage: str
    type: str
    message: str
    frames: tuple[Frame, ...] = ()
    """Innermost first."""


@dataclass(frozen=True, slots=True)
class Defect:
    """A mistake of ddpdoctor's own, which says nothing about the machine."""

    node: int
    stage: str
    who: str
    """Which part of ours, e.g. ``the agent of node 0``."""
    text: str
    """Type and text of the exception."""
    file: str
    """File of ddpdoctor's own, from the folder on in which ddpdoctor lies."""
    line: int
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class RankExit:
    """A rank process that is gone and was not told to go."""

    rank: int
    pid: int
    stage: str | None
    exit_code: int | None = None
    signal: int | None = None
    finished: bool = False
    """Whether it had written its clean end before it died."""
    detail: str | None = None
    """Last words on stderr, or kernel evidence."""
    user_step: str | None = None
    """Step of the user's ``--model`` that ran when it died: import, factory, forward, …; None outside of it."""


@dataclass(frozen=True, slots=True)
class SmokeResult:
    """One device touched on its own, in a process that can be killed."""

    node: int
    device: str
    ok: bool
    seconds: float | None = None
    error: str | None = None
    local_rank: int | None = None
    kind: str = "compute"
    """compute, copy (host to device and back) or peer-copy (to another device, contents compared)."""
    peer: str | None = None
    killable: bool = True
    """False when the process did not die of SIGKILL: stuck in the driver."""
