"""ENV014: settings for debugging that stand in the script, or are made too late."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.names import Files
from ddpdoctor.source.resolve.texts import find_settings, fold
from ddpdoctor.source.resolve.traces import Step, Trace
from ddpdoctor.source.resolve.walking import find_keyword
from ddpdoctor.source.sameness.apart import ways_of
from ddpdoctor.source.training.cuda import starts_cuda, uses_gpu
from ddpdoctor_checks.environment import settings
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

ANOMALY = frozenset({"torch.autograd.set_detect_anomaly", "torch.autograd.detect_anomaly",
                     "torch.autograd.anomaly_mode.set_detect_anomaly",
                     "torch.autograd.anomaly_mode.detect_anomaly"})  # fmt: skip
BLOCKING = "CUDA_LAUNCH_BLOCKING"


@lint_rule("variable-set", "variable-late", "anomaly-mode", reads="program", setups=True)
def find_switches(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield what a distributed script sets in its environment (``variable-set``), and anomaly mode (``anomaly-mode``).

    name, value: of the variable. gpu: there where the program uses one. ``variable-late`` is
    CUDA_LAUNCH_BLOCKING after CUDA has started; the line that starts it is beside it. What is taken back somewhere in
    the same file is passed over, and so is anomaly mode as a manager around no loop.
    """
    if not trace.joins:
        return
    ways = ways_of(files, trace)
    gpu = {"gpu": "used"} if uses_gpu(trace, files) else {}
    started: Step | None = None
    for step in trace.steps:
        if not ways.is_on_ranks(step):
            continue
        for name, value in () if trace.setup else find_settings(step.node, step.scope, files):
            text = fold(value, step.scope, files)
            if text is None or _is_taken_back(name, step):
                continue
            details, place = {"name": name, "value": text, **gpu}, step.scope.place(step.node)
            if name == BLOCKING and text not in ("", "0") and started is not None:
                beside = started.scope.place(started.node)
                related = (RelatedPlace("noticed", beside),)
                yield SourceFact("variable-late", place, related=related, details=details)
            else:
                yield SourceFact("variable-set", place, details=details)
        call = step.call
        if call is not None and step.name in ANOMALY and _stays_on(call, step, trace):
            yield SourceFact("anomaly-mode", step.scope.place(step.node))
        if started is None and starts_cuda(step, files):
            started = step


def _is_taken_back(name: str, step: Step) -> bool:
    pattern = rf"(?:del\s+os\.environ\[|environ\.pop\(|unsetenv\()\s*['\"]{re.escape(name)}['\"]"
    return re.search(pattern, step.scope.script.text) is not None


def _stays_on(call: ast.Call, step: Step, trace: Trace) -> bool:
    """Whether anomaly mode is turned on, and not for a single look."""
    if step.name.endswith("set_detect_anomaly"):
        mode = find_keyword(call, "mode", 0)
        if mode is None or not (isinstance(mode, ast.Constant) and mode.value):
            return False
    inside = [each.guards for each in trace.steps if any(guard.test is call for guard in each.guards)]
    if not inside:
        return step.name.endswith("set_detect_anomaly")  # not as a manager
    behind = (guards[[guard.test for guard in guards].index(call) :] for guards in inside)
    return any(guard.kind in ("for", "while") for guards in behind for guard in guards)


@check("ENV014", family="source", needs=NEEDS, id="lint.debugging", commands=LINT)
def tell_switches(evidence: Evidence) -> Iterable[Finding]:
    """A debug setting stands in the script, or is made too late."""
    for fact in facts_of(evidence, "variable-set"):
        name, value = fact.details["name"], fact.details["value"]
        setting = settings.DEBUGGING.get(name)
        if (
            setting is not None
            and setting.matters(value)
            and (setting.where == "anywhere" or "gpu" in fact.details)
        ):
            yield tell_fact(
                fact,
                f"The debug setting {name}={value} is set at {name_line(fact.place)}: {setting.effect}.",
                Fix("remove it, and set it only for a debugging run", f"export {name}={value}"),
                why="every run that becomes a rank reaches it",
                severity="warning",
                role="advice",
            )
    for fact in facts_of(evidence, "anomaly-mode"):
        yield tell_fact(
            fact,
            (
                f"autograd's anomaly mode is enabled at {name_line(fact.place)}: each backward pass is "
                "checked and slow."
            ),
            Fix(
                "enable it only for a debugging run",
                code="torch.autograd.set_detect_anomaly(args.debug)",
            ),
            why="every run that becomes a rank reaches it",
            severity="warning",
            role="advice",
        )
    for fact in facts_of(evidence, "variable-late"):
        name = fact.details["name"]
        yield tell_fact(
            fact,
            f"{name} is set at {name_line(fact.place)}, after {name_line(fact.related[0].place)} has "
            "started CUDA, which no longer reads it.",
            Fix("set it before the job starts", f"export {name}={fact.details['value']}"),
            why="CUDA reads it when it starts",
            severity="warning",
            role="advice",
        )
