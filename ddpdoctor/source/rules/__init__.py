"""Rules: what is a mistake where it stands. One module for each subject.

Rules of modules look at one file; rules of programs at what a script does from its first line on, and under which
tests; rules of all files at what they are together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import inf
from weakref import WeakKeyDictionary

from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.source.budget import OverBudgetError, describe_cut, limit_steps
from ddpdoctor.source.names import Files, Scope
from ddpdoctor.source.reading import TOO_DEEP
from ddpdoctor.source.rules.checkpoints import (
    find_early_reads,
    find_loads_on_one_device,
    find_prefixes,
)
from ddpdoctor.source.rules.data import find_epoch_ignored, find_epoch_unset, find_unsharded
from ddpdoctor.source.rules.devices import find_cpu_tensors, find_devices_by_rank, find_unset_devices
from ddpdoctor.source.rules.files import find_raced_directories, find_raced_downloads, find_raced_writes
from ddpdoctor.source.rules.gathers import find_gathered
from ddpdoctor.source.rules.launching import (
    find_group_order,
    find_local_rank_options,
    find_unguarded_spawns,
)
from ddpdoctor.source.rules.metrics import find_results
from ddpdoctor.source.rules.models import find_bypassed, find_changed
from ddpdoctor.source.rules.pointing import (
    find_roots_apart,
    find_roots_that_differ,
    find_unmatched_messages,
    find_unwaited,
)
from ddpdoctor.source.rules.reductions import find_redundant, find_unenclosed, find_unwrapped
from ddpdoctor.source.rules.rendezvous import find_fixed_files, find_ports
from ddpdoctor.source.rules.settings import find_switches
from ddpdoctor.source.rules.setups import (
    find_device_ids,
    find_reentrant,
    find_small_batches,
    find_undestroyed,
)
from ddpdoctor.source.rules.shuffles import find_shuffles
from ddpdoctor.source.rules.splits import find_splits, find_workers
from ddpdoctor.source.rules.wrapping import find_data_parallel
from ddpdoctor.source.traces import Trace, trace_programs

Rule = Callable[[Scope, Files], Iterable[SourceFact]]
"""From a module and all files that are read together to what the rule sees in that module."""
RULES: tuple[Rule, ...] = (
    find_data_parallel,
    find_epoch_ignored,
    find_local_rank_options,
    find_ports,
    find_fixed_files,
    find_unwaited,
    find_roots_apart,
)
ProgramRule = Callable[[Trace, Files], Iterable[SourceFact]]
"""From what one program does to what the rule sees, in whatever files."""
PROGRAM_RULES: tuple[ProgramRule, ...] = (
    find_unguarded_spawns,
    find_group_order,
    find_switches,
    find_raced_writes,
    find_raced_directories,
    find_raced_downloads,
    find_early_reads,
    find_loads_on_one_device,
    find_prefixes,
    find_unset_devices,
    find_devices_by_rank,
    find_cpu_tensors,
    find_unmatched_messages,
    find_roots_that_differ,
)
WholeRule = Callable[[Files], Iterable[SourceFact]]
"""From all files that are read together to what the rule sees in any of them."""
WHOLE_RULES: tuple[WholeRule, ...] = (
    find_unsharded,
    find_epoch_unset,
    find_bypassed,
    find_changed,
    find_unenclosed,
    find_redundant,
    find_unwrapped,
    find_gathered,
    find_results,
    find_splits,
    find_shuffles,
    find_workers,
    find_small_batches,
    find_device_ids,
    find_reentrant,
    find_undestroyed,
)


def find_facts(
    module: Scope, files: Files, budget: float = inf, cut: list[str] | None = None
) -> tuple[SourceFact, ...]:
    """Return what all rules see in one module, in order of the lines.

    Args:
        module: the module.
        files: all that are read together.
        budget: steps that each rule may take.
        cut: takes words on the rules that were stopped there.
    """
    cut = [] if cut is None else cut
    found = [
        fact for rule in RULES for fact in _apply(partial(rule, module), files, _name(rule), budget, cut)
    ]
    found += _apply(partial(_judge_programs, module), files, "programs", budget, cut)
    found += [fact for fact in _find_whole(files, inf, []) if fact.place.file == module.script.name]
    return tuple(sorted(found, key=lambda each: (each.place.cell or 0, each.place.line, each.place.column)))


def _judge_programs(module: Scope, files: Files) -> Iterator[SourceFact]:
    for trace in trace_programs(module, files):
        yield from _judge(trace, files)


def _judge(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield what the rules of programs see, each line once."""
    known = set()
    for rule in PROGRAM_RULES:
        for fact in rule(trace, files):
            if (fact.rule, fact.place) not in known:
                known.add((fact.rule, fact.place))
                yield fact


_WHOLE: WeakKeyDictionary[Files, tuple[SourceFact, ...]] = WeakKeyDictionary()


def prepare_facts(files: Files, budget: float = inf, cut: list[str] | None = None) -> None:
    """Apply the rules of all files, so that processes that are forked afterwards need not do it each for itself.

    Args:
        files: all that are read together.
        budget: steps that each rule may take.
        cut: takes words on the rules that were stopped there.
    """
    _find_whole(files, budget, [] if cut is None else cut)


def _find_whole(files: Files, budget: float, cut: list[str]) -> tuple[SourceFact, ...]:
    if files not in _WHOLE:
        found: list[SourceFact] = []
        for rule in WHOLE_RULES:
            try:
                found += _apply(rule, files, _name(rule), budget, cut)
            except RecursionError:  # one file must not cost the others
                cut.append(f"{_name(rule)}: {TOO_DEEP}")
        _WHOLE[files] = tuple(found)
    return _WHOLE[files]


def _name(rule: Callable[..., object]) -> str:
    return rule.__name__.removeprefix("find_").replace("_", " ")


def _apply(rule: WholeRule, files: Files, name: str, budget: float, cut: list[str]) -> list[SourceFact]:
    """Return what a rule sees before its budget is spent."""
    found: list[SourceFact] = []
    try:
        with limit_steps(budget):
            found.extend(rule(files))
    except OverBudgetError:
        cut.append(describe_cut(name, budget))
    return found
