"""What was tried in the tiny world: backends, initialisation, collectives, DDP, the user's model."""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.evidence import (
    BackendResult,
    CollectiveCase,
    Evidence,
    Experiment,
    InitResult,
    ModelResult,
    RankMessage,
    UserError,
)
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.words import count, format_bytes, format_ranks, format_seconds, is_known

ROWS_SHOWN = 60
"""Rows of one table: thirteen operations with their reductions and groups fit twice."""
UNUSED_SHOWN = 100
"""Unused parameters that are named."""
MESSAGES_SHOWN = 8
"""Different error texts of one row."""
MESSAGE_LENGTH = 600
"""Characters of one error text."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one thing that was tried ended."""

    name: str
    status: str
    """pass, fail or skipped."""
    words: str
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GridCell:
    """Cases of one operation and type."""

    status: str
    """pass, fail, skipped, or none where no case exists."""
    words: str


@dataclass(frozen=True, slots=True)
class GridView:
    """Operations by type."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[GridCell, ...]], ...]
    failures: tuple[tuple[str, str], ...]
    """Case and error."""
    unsupported: tuple[tuple[str, str], ...]
    """What a backend says that it does not have: its words, and the operations."""
    summary: str


@dataclass(frozen=True, slots=True)
class ModelView:
    """The user's model."""

    factory: str
    facts: tuple[tuple[str, str], ...]
    unused: tuple[tuple[str, str, str, str], ...]
    """Name, owning module, whether its forward ran, ranks."""
    errors: tuple[tuple[str, str | None, str | None], ...]
    """Words, place and source line."""


@dataclass(frozen=True, slots=True)
class ResultsView:
    """Everything that was tried."""

    backends: tuple[Outcome, ...]
    initialisations: tuple[Outcome, ...]
    experiments: tuple[Outcome, ...]
    strategies: tuple[Outcome, ...]
    grid: GridView | None
    models: tuple[ModelView, ...]


def view_results(evidence: Evidence, size: int, caps: Caps) -> ResultsView:
    """Return what was tried, folded over ranks."""
    return ResultsView(
        tuple(_backend(each, size, caps) for each in evidence.backends),
        tuple(_initialisation(each, size, caps) for each in evidence.initialisations),
        tuple(_experiment(each, size, caps) for each in evidence.experiments),
        tuple(_experiment(each, size, caps) for each in evidence.strategies),
        _grid(evidence.collectives, size, caps) if evidence.collectives else None,
        tuple(_model(each, size, caps) for each in evidence.model),
    )


def _messages(messages: tuple[RankMessage, ...], size: int, caps: Caps, what: str) -> tuple[str, ...]:
    taken = caps.take(messages, MESSAGES_SHOWN, f"errors of {what}")
    return tuple(
        f"{format_ranks(each.ranks, size)}: {caps.clip(each.text, MESSAGE_LENGTH, f'an error of {what}')}"
        for each in taken
    )


def _backend(result: BackendResult, size: int, caps: Caps) -> Outcome:
    name = f"{result.backend} {result.version}" if result.version else result.backend
    remarks = _messages(result.failures, size, caps, result.backend)
    if result.failures:
        words = (
            f"formed on {format_ranks(result.group, size)}, works on {format_ranks(result.collective, size)}"
        )
        return Outcome(name, "fail", words, (result.reason, *remarks) if result.reason else remarks)
    if result.collective:
        device = f" with tensors on {result.device}" if result.device else ""
        return Outcome(name, "pass", f"works on {format_ranks(result.collective, size)}{device}", remarks)
    why = "not tried" if result.device_present else "no device for it"
    return Outcome(
        name, "skipped", result.reason or (why if result.built else "not in this PyTorch build"), ()
    )


def _initialisation(result: InitResult, size: int, caps: Caps) -> Outcome:
    return _outcome(f"{result.method}://", result, size, caps, ())


def _experiment(result: Experiment, size: int, caps: Caps) -> Outcome:
    remarks = []
    if result.tensor:
        remarks.append(f"first incorrect: {result.tensor}")
    if is_known(result.largest_difference) and result.largest_difference > 0:
        remarks.append(f"largest difference {result.largest_difference:.3g}")
    return _outcome(result.name.replace("-", " "), result, size, caps, tuple(remarks))


def _outcome(
    name: str, result: InitResult | Experiment, size: int, caps: Caps, remarks: tuple[str, ...]
) -> Outcome:
    if result.skipped is not None:
        return Outcome(name, "skipped", result.skipped, remarks)
    failures = _messages(result.failures, size, caps, name)
    if failures or not result.passed:
        return Outcome(
            name, "fail", f"failed, correct on {format_ranks(result.passed, size)}", (*remarks, *failures)
        )
    return Outcome(name, "pass", f"correct on {format_ranks(result.passed, size)}", remarks)


def _grid(cases: tuple[CollectiveCase, ...], size: int, caps: Caps) -> GridView:
    backends = {case.backend for case in cases}
    table: dict[str, dict[str, list[CollectiveCase]]] = {}
    columns: dict[str, None] = {}
    failures = []
    unsupported: dict[str, dict[str, None]] = {}
    for case in cases:
        row = case.op + (f" {case.reduction}" if case.reduction else "")
        row += f", {case.group}" if case.group != "world" else ""
        column = f"{case.backend} {case.dtype}" if len(backends) > 1 else case.dtype
        columns[column] = None
        if case.unsupported is not None:
            unsupported.setdefault(case.unsupported, {})[f"{row}, {column}"] = None
        table.setdefault(row, {}).setdefault(column, []).append(case)
        label = f"{row}, {column}, {count(case.count, 'element')}"
        failures += [(label, words) for words in _messages(case.failures, size, caps, label)]
    rows = caps.take(list(table.items()), ROWS_SHOWN, "operations")
    return GridView(
        tuple(columns),
        tuple((name, tuple(_cell(by_type.get(column, [])) for column in columns)) for name, by_type in rows),
        caps.take(failures, ROWS_SHOWN, "errors of collectives"),
        tuple(
            (caps.clip(words, MESSAGE_LENGTH, "what is not supported"), "; ".join(names))
            for words, names in caps.take(list(unsupported.items()), MESSAGES_SHOWN, "what is not supported")
        ),
        f"{count(len({case.op for case in cases}), 'operation')}, "
        f"{count(len(columns), 'dtype')}, "
        f"{count(len(cases), 'case')}: "
        + (f"{count(len(failures), 'error')}" if failures else "none incorrect"),
    )


def _cell(cases: list[CollectiveCase]) -> GridCell:
    if not cases:
        return GridCell("none", "")
    tried = [case for case in cases if case.unsupported is None]
    if not tried:
        return GridCell("skipped", "not supported")
    good = sum(not case.failures and bool(case.passed) for case in tried)
    if good < len(tried):
        return GridCell("fail", f"{good} of {len(tried)}")
    return GridCell("pass", f"{good}")


def _model(result: ModelResult, size: int, caps: Caps) -> ModelView:
    facts = [
        ("Parameters", f"{result.parameters:,} in {format_bytes(result.parameter_bytes)}"),
        ("Trainable", f"{result.trainable:,}"),
        ("Tried on", f"{format_ranks(result.ranks, size)}, {count(result.steps, 'step')}"),
    ]
    if result.buckets is not None:
        facts.append(("Buckets", f"{result.buckets:,}"))
    if is_known(result.step_s):
        facts.append(("Step", format_seconds(result.step_s)))
    if is_known(result.step_s_with_search):
        facts.append(("Step with unused-parameter search", format_seconds(result.step_s_with_search)))
    for label, value in (
        ("Unused-parameter search needed", result.find_unused_needed),
        ("Static graph possible", result.static_graph_ok),
    ):
        facts.append((label, "could not be determined" if value is None else "yes" if value else "no"))
    unused = tuple(
        (
            each.name,
            f"{each.module or 'root'} ({each.module_class})",
            "yes" if each.forward_ran else "no",
            format_ranks(each.ranks, size),
        )
        for each in caps.take(result.unused, UNUSED_SHOWN, "unused parameters")
    )
    return ModelView(
        result.factory, tuple(facts), unused, tuple(_user_error(e, size, caps) for e in result.errors)
    )


def _user_error(error: UserError, size: int, caps: Caps) -> tuple[str, str | None, str | None]:
    kind = f"{error.type}: " if error.type else ""
    words = f"{error.step} {error.kind} on {format_ranks(error.ranks, size)}: {kind}{error.message}"
    place = None
    if error.file is not None:
        place = error.file if error.line is None else f"{error.file}:{error.line}"
        place += f" in {error.function}" if error.function else ""
    return caps.clip(words, MESSAGE_LENGTH, "an error of the model"), place, error.source
