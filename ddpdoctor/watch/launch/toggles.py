"""Switches that bring hidden errors up: the variables of each, for the torch that is there, and what they cost."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

BLOCKING = "blocking"
INFO = "info"
DETAIL = "detail"

COSTS = {
    BLOCKING: "every CUDA kernel launch is synchronous, so the job is slower",
    INFO: "more lines in the logs",
    DETAIL: (
        "every collective is verified by another one and logged, so the job is slower and its logs grow; "
        "DDP has been seen to crash with it on gloo"
    ),
}
"""What each costs, said when it is on."""

DECISIVE = {BLOCKING: ("CUDA_LAUNCH_BLOCKING", "1"), DETAIL: ("TORCH_DISTRIBUTED_DEBUG", "DETAIL")}
"""The variable without which a second run would show nothing new."""
_ROCM = ("AMD_SERIALIZE_KERNEL", "3")
"""What torch for AMD's GPUs asks for in place of CUDA_LAUNCH_BLOCKING (the hint in its error messages)."""

_VARIABLES: dict[str, dict[str, str]] = {
    BLOCKING: {},
    INFO: {
        "TORCH_DISTRIBUTED_DEBUG": "INFO",
        "TORCH_CPP_LOG_LEVEL": "INFO",
        "TORCH_SHOW_CPP_STACKTRACES": "1",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV",
    },
    DETAIL: {
        "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
        "TORCH_CPP_LOG_LEVEL": "INFO",
        "TORCH_SHOW_CPP_STACKTRACES": "1",
        "TORCH_NCCL_DESYNC_DEBUG": "1",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": "{recorder}",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,COLL",
    },
}
"""Names as the newest torch has them (docs.pytorch.org: Torch Distributed, "Debugging torch.distributed applications";
"ProcessGroupNCCL Environment Variables"; the tutorial on the Flight Recorder) and NCCL's user guide."""

_OLDER: dict[str, tuple[tuple[int, int], str | None]] = {
    # pytorch#152563: the recorder became that of all backends; the old names still work, with a warning on each rank.
    "TORCH_FR_BUFFER_SIZE": ((2, 9), "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    "TORCH_FR_DUMP_TEMP_FILE": ((2, 9), "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    # pytorch#114077: torch's own variables were told from NCCL's.
    "TORCH_NCCL_DESYNC_DEBUG": ((2, 2), "NCCL_DESYNC_DEBUG"),
    "TORCH_NCCL_DUMP_ON_TIMEOUT": ((2, 2), None),
}
"""Variable -> the torch that brought it, and its name before; None where there was nothing like it."""

_ALIASES = {
    name: before for name, (_, before) in _OLDER.items() if before is not None
}  # either spelling in the environment is the user's own setting


@dataclass(frozen=True, slots=True)
class Applied:
    """An environment with toggles in it."""

    environ: dict[str, str]
    added: dict[str, str] = field(default_factory=dict)
    """What was put in."""
    kept: dict[str, str] = field(default_factory=dict)
    """What the user had set to something else, and is kept."""

    @property
    def told(self) -> dict[str, str]:
        """What was put in, as a report may hold it: paths without the home."""
        from ddpdoctor.gather.scrub import scrub_paths

        return {name: scrub_paths(value) for name, value in self.added.items()}


def find_torch() -> str | None:
    """Return the version of the torch beside this program, without importing it; None where there is none."""
    from ddpdoctor.gather.versions import distribution_version

    return distribution_version("torch")


def choose_variables(toggle: str, torch: str | None, recorder: Path | str) -> dict[str, str]:
    """Return the variables of a toggle under the names that a torch knows them by.

    Args:
        toggle: blocking, info or detail.
        torch: version; None for the newest.
        recorder: prefix of the files into which torch's recorder of collectives is dumped.
    """
    version = _read_version(torch)
    chosen = dict([find_decisive(BLOCKING, torch)]) if toggle == BLOCKING else {}
    for name, value in _VARIABLES[toggle].items():
        since, before = _OLDER.get(name, ((0, 0), None))
        known = name if version is None or version >= since else before
        if known is not None:
            chosen[known] = value.format(recorder=recorder)
    return chosen


def find_decisive(toggle: str, torch: str | None) -> tuple[str, str]:
    """Return the variable that makes blocking or detail what it is for a torch, and its value."""
    return _ROCM if toggle == BLOCKING and "rocm" in (torch or "") else DECISIVE[toggle]


def apply_toggles(environ: Mapping[str, str], wanted: Mapping[str, str]) -> Applied:
    """Lay variables under an environment: what is set there already, under either of its names, stays."""
    applied = Applied(dict(environ))
    for name, value in wanted.items():
        mine = next((each for each in _spellings(name) if each in environ), None)
        if mine is None:
            applied.environ[name] = applied.added[name] = value
        elif environ[mine] != value:
            applied.kept[mine] = environ[mine]
    return applied


def _spellings(name: str) -> tuple[str, ...]:
    before = _ALIASES.get(name)
    newer = next((new for new, old in _ALIASES.items() if old == name), None)
    return tuple(each for each in (name, before, newer) if each is not None)


def _read_version(text: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d{1,4})\.(\d{1,4})", text or "")
    return (int(found[1]), int(found[2])) if found else None
