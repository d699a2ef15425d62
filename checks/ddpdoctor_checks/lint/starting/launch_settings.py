"""ENV013, ENV014, ENV007: a launch file leaves workarounds on, or starts a script with an option it does not know."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact, SourcePlace
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.files.reading import Script
from ddpdoctor.source.launching.launch_files import Job, LaunchFile
from ddpdoctor.source.launching.shell import is_known
from ddpdoctor_checks.environment import settings
from ddpdoctor_checks.lint.common import LINT, facts_of, name_line, tell_fact

OPTION = re.compile(r"local[-_]rank", re.IGNORECASE)
PARSES = re.compile(r"\.parse_args\(")
ELSEWHERE = re.compile(
    r"parse_known_args|\bsys\.argv\b|\bfire\b|\bclick\b|\bhydra\b|\btyro\b|HfArgumentParser|\bjsonargparse\b|parents="
)
"""Ways in which a script takes options that it does not name."""
REASONED = re.compile(
    r"\b(?:do not|don.?t|need(?:ed|s)?|necessary|required?|otherwise|hang(?:s|ing)?|without|because|must|bugs?"
    r"|work.?around)\b",
    re.IGNORECASE,
)
"""Words of a comment that says why a setting is there: it was not forgotten."""


@lint_rule("launch-setting", "launch-local-rank", reads="launch")
def find_settings(launch: LaunchFile, scripts: Sequence[Script]) -> Iterator[SourceFact]:
    """Yield what a launch file sets for its ranks, and a script that cannot take the option of its launcher.

    ``launch-setting``: name, value; those of several nodes only where there are several. ``launch-local-rank``: the
    parser is beside it.
    """
    several = any(
        (job.nodes is not None and job.nodes[0] > 1) or job.starter.nodes != 1 for job in launch.jobs
    )
    counts = {name: {each.value for each in launch.settings if each.name == name} for name in settings.KNOWN}
    for setting in launch.settings:
        known = settings.KNOWN.get(setting.name)
        if known is None or setting.conditional or not is_known(setting.value) or not launch.jobs:
            continue
        if len(counts[setting.name]) > 1 or (known.where == "rdma" and not several):
            continue
        if any(REASONED.search(text) for text in _find_comments(launch, setting.line)):
            continue
        if known.matters(setting.value) and known.severity == "warning":
            details = {"name": setting.name, "value": setting.value}
            yield SourceFact("launch-setting", launch.place(setting.line, setting.name), details=details)
    for job in launch.jobs:
        yield from _find_unknown_option(launch, job, scripts)


def _find_comments(launch: LaunchFile, line: int) -> Iterator[str]:
    """Yield the comment of a line, and those directly above it."""
    yield launch.lines[line - 1].partition(" #")[2]
    while line > 1 and launch.lines[line - 2].lstrip().startswith("#"):
        line -= 1
        yield launch.lines[line - 1]


def _find_unknown_option(launch: LaunchFile, job: Job, scripts: Sequence[Script]) -> Iterator[SourceFact]:
    """Yield ``torch.distributed.launch`` of a script whose parser has no option for the local rank."""
    starter = job.starter
    if starter.kind != "launch" or "use-env" in starter.options or not starter.complete:
        return
    script = _find_script(launch, starter.script, scripts)
    if script is None or "ArgumentParser(" not in script.text:
        return
    line = next((n for n, text in enumerate(script.lines, 1) if PARSES.search(text)), 0)
    if line and not any(OPTION.search(text) or ELSEWHERE.search(text) for text in script.lines):
        parser = SourcePlace(script.name, line, 1, script.lines[line - 1].strip())
        place = launch.place_of(starter, "torch.distributed.launch")
        yield SourceFact("launch-local-rank", place, (RelatedPlace("noticed", parser),))


def _find_script(launch: LaunchFile, name: str, scripts: Sequence[Script]) -> Script | None:
    """Return the script that is started, from the folder of the launch file or from one above."""
    if not name.endswith(".py") or not is_known(name):
        return None
    folder = PurePosixPath(launch.name).parent
    known = {script.name: script for script in scripts}
    for base in (folder, *folder.parents):
        found = known.get(str(base / name))
        if found is not None:
            return found if found.tree is not None and not found.unrelated else None
    return None


@check("ENV013", family="source", needs=("sources",), id="lint.launch_workarounds", commands=LINT)
def tell_workarounds(evidence: Evidence) -> Iterable[Finding]:
    """A launch file sets a workaround such as NCCL_P2P_DISABLE=1."""
    yield from _tell_settings(evidence, workaround=True)


@check("ENV014", family="source", needs=("sources",), id="lint.launch_debugging", commands=LINT)
def tell_debugging(evidence: Evidence) -> Iterable[Finding]:
    """A launch file sets a debug variable such as CUDA_LAUNCH_BLOCKING=1."""
    yield from _tell_settings(evidence, workaround=False)


def _tell_settings(evidence: Evidence, *, workaround: bool) -> Iterator[Finding]:
    for fact in facts_of(evidence, "launch-setting"):
        name, value = fact.details["name"], fact.details["value"]
        if (name in settings.WORKAROUNDS) is not workaround:
            continue
        kind = "workaround" if workaround else "debug setting"
        why = (
            "it disables a feature for every job that this file starts"
            if workaround
            else "every job that this file starts has it"
        )
        yield tell_fact(
            fact,
            f"The {kind} {name}={value} is set at {name_line(fact.place)}: {settings.KNOWN[name].effect}.",
            Fix("remove it, unless this machine needs it", code=f"unset {name}")
            if workaround
            else Fix("remove it, and set it only for a debugging run", code=f"export {name}={value}"),
            why=why,
            severity="warning",
            role="advice",
        )


@check("ENV007", family="source", needs=("sources",), id="lint.launch_local_rank", commands=LINT)
def tell_local_rank(evidence: Evidence) -> Iterable[Finding]:
    """torch.distributed.launch passes an option that the script's parser does not have."""
    for fact in facts_of(evidence, "launch-local-rank"):
        yield tell_fact(
            fact,
            f"torch.distributed.launch at {name_line(fact.place)} passes --local-rank, which the parser at "
            f"{name_line(fact.related[0].place)} rejects.",
            Fix("start with torchrun, and read LOCAL_RANK", code="torchrun --nproc-per-node=8 train.py"),
            why="the script has no option for the local rank, and parse_args rejects what it does not know",
        )
