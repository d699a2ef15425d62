"""Rules are declared beside the check that tells of them, come from anywhere, and do no harm where they fail."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator

import pytest

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.facts import Launch
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, LintRule, Registry, check, lint_rule, run_checks
from ddpdoctor.plugins import CHECKS, Entry, load_plugins
from ddpdoctor.source.files.budget import spend
from ddpdoctor.source.files.reading import parse_script
from ddpdoctor.source.gather import judge_scripts
from ddpdoctor.source.reach.paths import PathReader
from ddpdoctor.source.resolve.names import Files, Scope, name_calls
from ddpdoctor.source.resolve.traces import Trace
from tests.lint.judging import HEAD, RULES

TEXT = f"{HEAD}dist.init_process_group('gloo')\ndist.barrier()\n"
BARRIER = len(TEXT.splitlines())
SCRIPT = parse_script(TEXT.encode(), "train.py")


@lint_rule("barrier-made", reads="module")
def find_barriers(module: Scope, files: Files) -> Iterator[SourceFact]:
    for scope in module.walk():
        for call, name in name_calls(scope, files):
            if name == "torch.distributed.barrier":
                yield SourceFact("barrier-made", scope.place(call), details={"function": name})


@check(
    "X-mine-001", name="barrier-made", title="t", severity="info", family="source", needs=("sources",), since="1",
    id="mine.barriers", commands=("lint",),
)  # fmt: skip
def tell_barriers(evidence: Evidence) -> Iterable[Finding]:
    """Tell."""
    facts = (fact for file in evidence.sources for fact in file.facts if fact.rule == "barrier-made")
    return [Finding(message=f"{fact.details['function']} at {fact.place.line}") for fact in facts]


@lint_rule("first-step", reads="program")
def find_failing(trace: Trace, files: Files) -> Iterator[SourceFact]:
    yield SourceFact("first-step", trace.steps[0].scope.place(trace.steps[0].node))
    raise KeyError("a mistake of the rule")


@lint_rule("all-files", reads="files")
def find_undeclared(files: Files) -> Iterator[SourceFact]:
    for module in files.modules:
        yield SourceFact("barrier-made", module.place(module.node.body[0]))


@lint_rule("never", reads="program")
def find_forever(trace: Trace, files: Files) -> Iterator[SourceFact]:
    while trace.steps:
        spend()
    yield SourceFact("never", trace.start.place(trace.start.node))


@lint_rule("last-step", reads="program")
def find_last(trace: Trace, files: Files) -> Iterator[SourceFact]:
    yield SourceFact("last-step", trace.steps[-1].scope.place(trace.steps[-1].node))


def register(registry: Registry) -> None:
    registry.add(tell_barriers)
    registry.add_lint_rules(find_barriers)


def test_plugin_brings_a_rule_and_the_check_that_tells_of_it() -> None:
    registry = load_plugins([Entry("mine", CHECKS, "it", lambda: register)]).checks
    (row,) = judge_scripts([SCRIPT], registry.lint_rules)
    evidence = Evidence(launch=Launch("lint", nproc=0, world_size=0), sources=(row,))
    _, (finding,) = run_checks(registry.checks_of("lint"), evidence)
    assert finding.message == f"torch.distributed.barrier at {BARRIER}"


def test_rule_of_a_plugin_cannot_feed_the_check_of_another() -> None:
    taken = LintRule(("barrier-made",), "module", lambda module, files: ())

    def register_taken(registry: Registry) -> None:
        registry.add_lint_rules(taken)

    plugins = load_plugins(
        [Entry("mine", CHECKS, "it", lambda: register), Entry("other", CHECKS, "it", lambda: register_taken)]
    )
    assert plugins.checks.lint_rules == (find_barriers,)
    (problem,) = plugins.problems
    assert "barrier-made is seen by another rule already" in problem.text


def test_rule_that_fails_costs_neither_the_file_nor_the_others() -> None:
    (row,) = judge_scripts([SCRIPT], [find_failing, find_undeclared, find_barriers])
    assert row.problem is None
    assert [fact.rule for fact in row.facts] == ["first-step", "barrier-made"]
    assert [fact.place.line for fact in row.facts][1] == BARRIER
    assert row.skipped == (
        "undeclared: failed (ValueError: barrier-made is none of all-files)",
        "failing: failed (KeyError: 'a mistake of the rule')",
    )


def test_an_error_in_reading_the_paths_costs_neither_the_file_nor_the_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(reader: PathReader, module: Scope) -> None:
        raise KeyError("a mistake of the reader")

    monkeypatch.setattr(PathReader, "find", fail)
    (row,) = judge_scripts([SCRIPT], [find_barriers])
    assert [fact.rule for fact in row.facts] == ["barrier-made"]
    assert row.skipped == ("uneven collectives: failed (KeyError: 'a mistake of the reader')",)


def test_rule_that_costs_too_much_costs_the_others_nothing() -> None:
    (row,) = judge_scripts([SCRIPT], [find_forever, find_last])
    assert [fact.rule for fact in row.facts] == ["last-step"]
    assert [words.split(":")[0] for words in row.skipped] == ["forever"]


@pytest.mark.parametrize(("facts", "reads"), [((), "module"), (("a",), "modules")])
def test_rule_that_cannot_be_applied_is_refused(facts: tuple[str, ...], reads: str) -> None:
    with pytest.raises(ValueError, match="at least one thing"):
        lint_rule(*facts, reads=reads)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_all_that_a_rule_sees_is_told_in_its_own_file(rule: LintRule) -> None:
    tree = ast.parse(inspect.getsource(sys.modules[rule.detect.__module__]))
    told = {
        argument.value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "facts_of"
        for argument in call.args
        if isinstance(argument, ast.Constant)
    }
    assert set(rule.facts) <= told
