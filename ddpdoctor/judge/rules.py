"""Rules of `lint`: each sees one kind of mistake in source that was read; the check that tells it stands beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ddpdoctor.evidence.sources import SourceFact

READS = ("module", "program", "files", "launch")

Detector = Callable[..., Iterable[SourceFact]]


@dataclass(frozen=True, slots=True)
class LintRule:
    """What sees one kind of mistake; made by `lint_rule`, applied by `ddpdoctor.source.rules`."""

    facts: tuple[str, ...]
    """What it sees: each a `SourceFact.rule` that no other rule yields."""
    reads: str
    """What ``detect`` is given: ``module`` (a file as a `Scope`, and all `Files` that are read together), ``program``
    (what a script does from its first line on as a `Trace`, and all files), ``files`` (all files alone), or ``launch``
    (a file that starts a job as a `LaunchFile`, and all scripts that are read together)."""
    detect: Detector
    setups: bool = False
    """Whether a rule that reads ``program`` is also given what each function does that makes the process group by
    itself, from its own first line on (`Trace.setup`): libraries have functions that no file that is read calls."""
    classes: bool = False
    """Whether it is also given what the objects of each class do that make ranks (`Trace.owner`)."""

    @property
    def name(self) -> str:
        """What it is called where it was stopped."""
        return self.detect.__name__.removeprefix("find_").replace("_", " ")


def lint_rule(
    *facts: str, reads: str, setups: bool = False, classes: bool = False
) -> Callable[[Detector], LintRule]:
    """Declare a function that reads source as a rule of `lint`.

    Args:
        facts: see `LintRule.facts`.
        reads: see `LintRule.reads`.
        setups: see `LintRule.setups`.
        classes: see `LintRule.classes`.

    Raises:
        ValueError: it sees nothing, or reads what there is not.
    """
    if not facts or reads not in READS:
        raise ValueError(f"a rule sees at least one thing and reads one of {', '.join(READS)}")
    return lambda detect: LintRule(facts, reads, detect, setups, classes)
