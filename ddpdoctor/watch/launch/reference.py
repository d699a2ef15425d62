"""Running the script of a job once more as its reference: on another number of ranks, or with other arguments.

Whether that can be done is said before; what came of it is evidence like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddpdoctor.evidence.training.references import Samples, StepGap
from ddpdoctor.watch.against.gaps import compare
from ddpdoctor.watch.against.sketches import RunStep, read_steps
from ddpdoctor.watch.commandline import Split

VARIABLE, WIDENED = "DDPDOCTOR_AGAINST", "DDPDOCTOR_AGAINST_BATCH"
"""Read by the hook (``ddpdoctor_watch/training/reference.py``)."""
LAST_STEP = 8
"""Last step of an optimizer that is compared, as the hook has it; a reference has been run long enough then."""
_MARKS = (b'"event":"compared"', b'"step":%d,' % LAST_STEP)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a reference is run."""

    ranks: int
    arguments: tuple[str, ...] = ()
    widened: int = 1


def make_split(split: Split, plan: Plan) -> Split:
    """Return the launch of the reference: the same script on other ranks, further arguments behind its own.

    Args:
        split: of the job, a script or module that torchrun starts.
        plan: how the reference is run.
    """
    return replace(
        split,
        torchrun=(*_drop_count(split.torchrun), "--nproc-per-node", str(plan.ranks))
        if not split.is_module
        else _insert_count(split.torchrun, plan.ranks),
        target=(*split.target, *plan.arguments),
    )


def _drop_count(words: Sequence[str]) -> list[str]:
    kept, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        if word == "--nproc-per-node":
            rest = rest[1:]
        else:
            kept.append(word)
    return kept


def _insert_count(words: Sequence[str], ranks: int) -> tuple[str, ...]:
    """The name of a module follows ``-m``; options stand before it."""
    return ("--nproc-per-node", str(ranks), *_drop_count(words))


def explain_impossible(
    split: Split, nodes: int, *, stdin: str | None, interrupted: bool = False, failed: bool = False
) -> str | None:
    """Return why no reference can be run; None where it can.

    Args:
        split: of the job.
        nodes: that it runs on.
        stdin: why standard input cannot be given to a second run.
        interrupted: the user ended the job.
        failed: it did not end well by itself.
    """
    if interrupted:
        return "the job was interrupted"
    if failed:
        return "the job failed; compare once it runs to its end"
    if split.is_command:
        return "the command launches its own ranks, and how many cannot be chosen for it"
    if nodes > 1:
        return "the job runs on several nodes"
    return stdin


class Enough:
    """Whether a reference has made the steps that are compared: asked again and again while it runs.

    Args:
        processes: the folder of its processes' events.
        ranks: how many of them have to.
    """

    def __init__(self, processes: Path, ranks: int) -> None:
        self._processes, self._ranks = processes, ranks
        self._sizes: dict[str, int] = {}
        self._done: set[str] = set()

    def __call__(self) -> bool:
        """Return whether each rank has written down the last step."""
        for file in self._processes.glob("*.jsonl"):
            size = file.stat().st_size
            if file.name in self._done or self._sizes.get(file.name) == size:
                continue
            self._sizes[file.name] = size
            if _has_last(file.read_bytes().splitlines()):
                self._done.add(file.name)
        return len(self._done) >= self._ranks


def _has_last(lines: Iterable[bytes]) -> bool:
    return any(all(mark in line[:4096] for mark in _MARKS) for line in lines)


@dataclass(frozen=True, slots=True)
class Compared:
    """What comparing two runs gave."""

    steps: tuple[StepGap, ...]
    missing: str | None = None
    """Why there is no step of both."""


def compare_runs(job: Path, reference: Path) -> Compared:
    """Compare what the processes of two runs wrote down.

    Args:
        job: folder of the events of the job's processes.
        reference: that of the reference's.
    """
    mine, other = read_steps(job), read_steps(reference)
    steps = compare(mine, other)
    return Compared(steps, None if steps else _explain_missing(mine, other))


def _explain_missing(mine: dict[tuple[int, int], RunStep], other: dict[tuple[int, int], RunStep]) -> str:
    if not mine:
        return "no optimizer step of this job was recorded"
    if not other:
        return "the reference ended before its first optimizer step"
    return "the two runs have no optimizer step in common"


def find_widening(steps: Sequence[StepGap]) -> int:
    """Return how many times as many samples the job sees in its first step as the reference; 1 where not whole."""
    samples: Samples | None = next((each.samples for each in steps if each.samples is not None), None)
    start = next((gap for each in steps for gap in each.values), None)
    if start is not None and start.difference > start.norm / 1000:
        return 1  # they begin with other parameters: no batch makes them comparable
    if samples is None or samples.job_distinct % samples.reference_distinct:
        return 1
    return samples.job_distinct // samples.reference_distinct


def make_variables(environ: Mapping[str, str], plan: Plan | None = None) -> dict[str, str]:
    """Return the environment of a run that is compared; of the reference where there is a plan."""
    made = {**environ, VARIABLE: "reference" if plan is not None else "job"}
    made.pop(WIDENED, None)
    if plan is not None and plan.widened > 1:
        made[WIDENED] = str(plan.widened)
    return made
