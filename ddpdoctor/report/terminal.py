"""Format ``text``: the report for a person at a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.facts.versions import describe_untried
from ddpdoctor.judge.finding import EvidenceItem, Finding, Where
from ddpdoctor.judge.runner import CheckRow
from ddpdoctor.report.listing import count_findings, put_listing
from ddpdoctor.report.model import Report
from ddpdoctor.report.registry import RenderOptions
from ddpdoctor.report.standing import describe_movement, put_stands
from ddpdoctor.report.summary import (
    PROGRESS,
    count_checks,
    count_reasons,
    describe_counts,
    describe_family,
    describe_item,
    describe_next,
    describe_partial,
    describe_read,
    describe_remark,
    describe_standing,
    describe_stop,
    describe_suppressed,
    families,
    list_notable,
    read_good,
    split_findings,
)
from ddpdoctor.report.timeline import choose_rows, day_of, list_rows
from ddpdoctor.report.words import count, fold_hosts, format_ranks, format_seconds, format_share
from ddpdoctor.text.paper import Paper

NAME = "ddpdoctor"
HANG = len(NAME) + 3
MARKS = {"pass": "✓", "fail": "✖", "error": "✖", "unknown": "?", "skipped": "–"}
WARNED = "!"
STYLES = {"pass": "green", "fail": "red", "error": "red", "unknown": "yellow", "skipped": "dim"}
LABEL = 9
"""Columns of the words where, seen, fix … with the gap after them."""
EVIDENCE_SHOWN = 6
"""Observations of one finding that are shown without -v: enough for one per rank of a small node."""
TIMELINE_SHOWN = 10
PLACES_SHOWN = 6
PLACE_COLUMNS = (24, 40, 24)
"""Most columns for ranks, file:line and function."""
REMARKS_SHOWN = 10
REASONS_SHOWN = 5
"""Different reasons of inconclusive checks that are shown without -v: about two lines of text."""


class TextRenderer:
    """The verdict, what is wrong and what to do, what passed in one line a family, and the next command."""

    name = "text"
    description = "human-readable text for the terminal"

    def render(self, report: Report, options: RenderOptions) -> str:
        """Return the text for a terminal of ``options.width`` columns."""
        paper = Paper(width=options.width, color=options.color, ascii=options.ascii)
        problems, follows, notes = split_findings(report.findings)
        if report.command == "run" and options.verbosity <= 0 and not notes:
            if report.verdict.status == "healthy":
                return _say_nothing_found(paper, report, options)
            doubt = describe_stop(report.evidence) or describe_partial(report.evidence)
            if report.verdict.status == "unknown" and doubt is not None:
                return _say_nothing_found(paper, report, options, doubt)
        _put_verdict(paper, report, problems)
        if options.verbosity < 0:
            return paper.text()
        paper.gap()
        for number, line in enumerate(list_notable(report)):
            paper.put(line, label="" if number else "read", indent=2, hang=2 + LABEL, label_style="dim")
        paper.gap()
        if report.command == "lint":
            active = [each for each in report.findings if each.state == "active"]
            put_listing(paper, active, verbose=options.verbosity > 0)
            problems, notes = [], []
        for number, finding in enumerate(problems):
            _put_finding(paper, finding, report, first=number == 0, verbose=options.verbosity > 0)
        _put_timeline(paper, report, verbose=options.verbosity > 0)
        if report.command == "attach" and report.evidence.standstills:
            paper.gap()
            put_stands(paper, report.evidence.standstills[-1], verbose=options.verbosity > 0)
        paper.gap()
        for finding in follows:
            _put_label(paper, "follows", f"{finding.code} {finding.name}: {finding.message}", 2)
        paper.gap()
        if report.command not in ("attach", "lint") or options.verbosity > 0:
            _put_families(paper, report, verbose=options.verbosity > 0)
        paper.gap()
        _put_remarks(paper, report, notes, verbose=options.verbosity > 0)
        paper.gap()
        for path in options.written:
            paper.put_verbatim(f"report {path}", indent=2)
        paper.put_verbatim(f"next: {describe_next(report)}", indent=2, style="bold")
        paper.put(describe_counts(report, verbose=options.verbosity > 0), indent=2, style="dim")
        return paper.text()


def _say_nothing_found(paper: Paper, report: Report, options: RenderOptions, doubt: str | None = None) -> str:
    """Say of a job that nothing was found, in few lines.

    Args:
        paper: to write on.
        report: of the job.
        options: of the output.
        doubt: why that says little: it was stopped, or not all of its ranks were seen; None where it ended well.
    """
    verdict = report.verdict
    size = report.world.size
    ranks = f"world size {size}" if describe_partial(report.evidence) is not None else count(size, "rank")
    parts = [f"{ranks}, {format_seconds(report.duration_s)}", count_checks(verdict)]
    if doubt is not None:
        found = "no verdict" if describe_stop(report.evidence) is None else "no failure before that"
        paper.put_parts(f"{NAME} ? {doubt}", [found, *parts], hang=HANG, style="yellow")
        standing = describe_standing(report)
        if standing is not None:
            paper.put(standing, indent=HANG)
    else:
        paper.put_parts(f"{NAME} ✓ nothing found", parts, hang=HANG, style="green")
    cost = _describe_cost(report)
    for path in options.written:
        paper.put_verbatim(f"report {path}{cost}", indent=0)
    return paper.text()


def _describe_cost(report: Report) -> str:
    """Return what looking at steps and batches took, on the rank where it took most; nothing where none was made."""
    shares = [each.share for each in report.evidence.training if each.share is not None]
    if not shares:
        return ""
    return f" · watching cost {format_share(max(shares))}"


def _put_verdict(paper: Paper, report: Report, problems: Sequence[Finding]) -> None:
    verdict = report.verdict
    took = format_seconds(report.duration_s)
    stopped = f"interrupted by {report.interrupted}" if report.interrupted else ""
    if verdict.status == "healthy" and report.command == "attach" and report.evidence.standstills:
        moved = describe_movement(report.evidence.standstills[-1])
        paper.put_parts(f"{NAME} ✓ moving", [stopped, moved, took], hang=HANG, style="green")
        return
    if verdict.status == "healthy":
        good = read_good(report)
        counted = count_checks(verdict)
        parts = [part for part in verdict.headline.split(" · ") if part not in (good, counted)]
        paper.put_parts(f"{NAME} ✓ {good}", [stopped, *parts, took], hang=HANG, style="green")
        return
    if verdict.status == "problems" and report.command == "lint":
        style = "red" if any(each.severity == "error" for each in problems) else "yellow"
        mark = MARKS["fail"] if style == "red" else WARNED
        title = f"{NAME} {mark} {count_findings(report)}"
        paper.put_parts(title, [describe_read(report.evidence.sources), took], hang=HANG, style=style)
        return
    if verdict.status == "problems" and problems:
        first = problems[0]
        style = "red" if first.severity == "error" else "yellow"
        title = f"{NAME} {_mark(first)} {first.code} {first.name}"
        sure = f"{first.confidence} confidence"
        paper.put_parts(title, [sure, stopped, took], hang=HANG, style=style)
        return
    if (standing := describe_standing(report)) is not None:
        paper.put_parts(
            f"{NAME} ? hang, root cause not determined", [stopped, took], hang=HANG, style="yellow"
        )
        paper.gap()
        paper.put(standing, indent=2, style="bold")
        return
    word, style = ("failed", "red") if verdict.status == "error" else ("inconclusive", "yellow")
    paper.put_parts(f"{NAME} ? {word}", [stopped, took], hang=HANG, style=style)
    paper.put(verdict.headline.removesuffix(f"; {count_checks(verdict)}"), indent=2)


def _put_finding(paper: Paper, finding: Finding, report: Report, *, first: bool, verbose: bool) -> None:
    """The first finding has its title in the verdict's line; the others bring theirs and are indented."""
    indent = 2 if first else 4
    if not first:
        paper.gap()
        style = "red" if finding.severity == "error" else "yellow"
        title = f"{_mark(finding)} {finding.code} {finding.name}"
        words = [finding.severity or "", f"{finding.confidence} confidence"]
        paper.put_parts(title, words, indent=2, hang=4, style=style)
    paper.put(finding.message, indent=indent, style="bold" if first else None)
    if first:
        paper.gap()
    _put_places(paper, finding, report, indent, verbose)
    _put_evidence(paper, finding.evidence, report, indent, verbose)
    _put_fixes(paper, finding, indent)
    if finding.victims:
        words_on = f"{format_ranks(finding.victims, report.world.size)} (not the cause)"
        _put_label(paper, "affected", words_on, indent)
    if not first:
        _put_label(paper, "more", f"ddpdoctor explain {finding.code}", indent)


def _put_timeline(paper: Paper, report: Report, *, verbose: bool) -> None:
    """The time axis over all logs: its zero is the cause."""
    rows = list_rows(report)
    if not rows:
        return
    paper.gap()
    shown = rows if verbose else choose_rows(rows, TIMELINE_SHOWN)
    paper.put(f"timeline ({day_of(report)}, local time)", indent=2, style="bold")
    widths = [
        max(paper.width_of(cell) for cell in column)
        for column in zip(*((r.at, r.gap) for r in shown), strict=True)
    ]
    for row in shown:
        label = f"{row.at.ljust(widths[0])}  {row.gap.rjust(widths[1])}  "
        style = "red" if row.zero else None if row.kind == "cause" else "dim"
        who = f"{row.who}: " if row.who else ""
        paper.put(
            f"{who}{row.text}", label=label.rstrip(), indent=4, hang=4 + sum(widths) + 4, label_style=style
        )
    if len(rows) > len(shown):
        paper.put(f"… {len(rows) - len(shown)} more (-v shows them)", indent=4)


def _mark(finding: Finding) -> str:
    return MARKS["fail"] if finding.severity == "error" else WARNED


def _put_label(paper: Paper, label: str, text: str, indent: int) -> None:
    paper.put(text, label=label, indent=indent, hang=indent + LABEL, label_style="dim")


def _put_places(paper: Paper, finding: Finding, report: Report, indent: int, verbose: bool) -> None:
    """One row a place: ranks, file:line, function, source; source goes below where the row is too narrow."""
    places = finding.where if verbose else finding.where[:PLACES_SHOWN]
    if not places:
        return
    rows = [(_who(place, report), f"{place.file}:{place.line}", place.function or "") for place in places]
    sizes = [min(most, max(paper.width_of(row[i]) for row in rows)) for i, most in enumerate(PLACE_COLUMNS)]
    start = indent + LABEL
    left = paper.width - start - sum(sizes) - 6
    for number, (place, row) in enumerate(zip(places, rows, strict=True)):
        style = "bold" if place.role == "culprit" else None
        cells: list[tuple[str, int, str | None]] = [("where", LABEL - 2, "dim")] if number == 0 else []
        cells += [(row[0], sizes[0], None), (row[1], sizes[1], style), (row[2], sizes[2], None)]
        source = place.source or ""
        beside = bool(source) and paper.width_of(source) <= left
        if beside:
            cells.append((source, left, style))
        paper.put_row(cells, indent=indent if number == 0 else start)
        if source and not beside:
            paper.put_row([(source, paper.width - start - 2, style)], indent=start + 2)
    if len(finding.where) > len(places):
        _put_label(paper, "", f"… {len(finding.where) - len(places)} more places (-v shows them)", indent)


def _who(place: Where, report: Report) -> str:
    if place.role == "caller":
        return "called from"
    words = format_ranks(place.ranks, report.world.size) if place.ranks else ""
    if place.role == "noticed":
        words = f"detected on {words}" if words else "detected at"
    return f"{words} on {place.host}".strip() if place.host and len(report.world.nodes) > 1 else words


def _put_evidence(
    paper: Paper, items: Sequence[EvidenceItem], report: Report, indent: int, verbose: bool
) -> None:
    shown = items if verbose else items[:EVIDENCE_SHOWN]
    for number, item in enumerate(shown):
        _put_label(paper, "seen" if number == 0 else "", describe_item(item, report.world.size), indent)
    if len(items) > len(shown):
        _put_label(paper, "", f"… {len(items) - len(shown)} more (-v shows them)", indent)


def _put_fixes(paper: Paper, finding: Finding, indent: int) -> None:
    for number, fix in enumerate(finding.fix):
        _put_label(paper, "fix" if number == 0 else "", fix.text, indent)
        for line in (fix.command or "").splitlines():
            paper.put_verbatim(f"$ {line}", indent=indent + LABEL + 2, style="cyan")
        for line in (fix.code or "").splitlines():
            paper.put_verbatim(line, indent=indent + LABEL + 2, style="cyan")


def _put_families(paper: Paper, report: Report, *, verbose: bool) -> None:
    grouped = families(report.checks)
    if report.command != "check":  # what a job gives no evidence for is no line of its own
        grouped = {name: rows for name, rows in grouped.items() if any(r.status != "skipped" for r in rows)}
    name_width = max([paper.width_of(name) for name in grouped], default=0) + 2
    errors = {f.code for f in report.findings if f.state == "active" and f.severity == "error"}
    counted = {name: _count_statuses(rows, errors) for name, rows in grouped.items()}
    count_width = max([paper.width_of(text) for text, _ in counted.values()], default=0) + 3
    for name, rows in grouped.items():
        text, style = counted[name]
        shown = paper.clean(text)
        label = paper.clean(name).ljust(name_width) + shown
        words = describe_family(report, name)
        hang = 2 + name_width + count_width
        paper.put(words, label=label, indent=2, hang=hang, label_style=style, dotted=True)
        if verbose:
            for row in rows:
                _put_row(paper, row)


def _count_statuses(rows: Sequence[CheckRow], errors: set[str]) -> tuple[str, str | None]:
    """Return ``✖ 1 ! 1 ✓ 9 ? 2`` without what was not applicable, and the style of the worst.

    Args:
        rows: checks of one family.
        errors: codes that were found with severity error; other failures are warnings.
    """
    counts: dict[tuple[str, str], int] = {
        (MARKS["fail"], "red"): 0,
        (WARNED, "yellow"): 0,
        (MARKS["unknown"], "yellow"): 0,
        (MARKS["pass"], "green"): 0,
    }
    for row in rows:
        if row.status == "fail" and not errors.intersection(row.codes):
            counts[(WARNED, "yellow")] += 1
        elif row.status != "skipped":
            counts[(MARKS[row.status], STYLES[row.status])] += 1
    present = {key: number for key, number in counts.items() if number}
    if not present:
        return f"{MARKS['skipped']} {len(rows)}", "dim"
    worst = next(iter(present))[1]
    return " ".join(f"{mark} {number}" for (mark, _), number in present.items()), worst


def _put_row(paper: Paper, row: CheckRow) -> None:
    source = "" if row.source == NAME else f" (from {row.source})"
    reason = f"{row.status}: {row.reason}" if row.status != "pass" and row.reason else ""
    label = f"{MARKS.get(row.status, '?')} {row.id}{source}"
    paper.put(reason, label=label, indent=4, hang=8, label_style=STYLES.get(row.status))


def _put_remarks(paper: Paper, report: Report, notes: Sequence[Finding], *, verbose: bool) -> None:
    """Notes, then everything that is no pass and no finding, counted by reason."""
    for note in notes:
        paper.put(note.message, label=f"info {note.code} {note.name}", indent=2, label_style="cyan")
        for fix in note.fix[:1]:
            paper.put(f"{fix.text}: {fix.command}" if fix.command else fix.text, indent=7)
    untried = describe_untried(report.world.torch) if report.command == "check" else None
    if untried is not None:
        paper.put(untried, label="info", indent=2, label_style="cyan")
    for status, words in (("error", "failed to run"), ("unknown", "inconclusive"), ("skipped", "skipped")):
        rows = [row for row in report.checks if row.status == status]
        if not verbose:
            rows = [row for row in rows if _is_worth_telling(row, report)]
        if rows:
            style = None if status == "skipped" else "yellow"
            reasons = count_reasons(rows, most=None if verbose else REASONS_SHOWN)
            paper.put(reasons, label=f"{len(rows)} {words}:", indent=2, hang=4, label_style=style)
    _put_suppressed(paper, report, verbose=verbose)
    if verbose:
        for node in report.evidence.training:
            for reason, ranks in node.abstained.items():
                who = format_ranks(ranks, report.world.size)
                paper.put(f"{who}: {reason}", label="not sampled", indent=2, hang=4, label_style="yellow")
    hosts = [node.host for node in report.world.nodes]
    if len(hosts) > 1:
        paper.put(fold_hosts(hosts), label="nodes", indent=2)


def _is_worth_telling(row: CheckRow, report: Report) -> bool:
    """Whether the reason of a row that did not run is shown without ``-v``.

    What does not apply never is. Where a job has a verdict, what else could not be decided is beside the point; of
    a live job the snapshot is shown above.
    """
    if row.status == "error":
        return True
    if row.status == "skipped" or (report.command == "attach" and row.id == PROGRESS):
        return False
    return report.command == "attach" or report.verdict.code is None


def _put_suppressed(paper: Paper, report: Report, *, verbose: bool) -> None:
    """How many findings were told not to count, and what hides nothing although it says so."""
    words = describe_suppressed(report)
    if words:
        number = sum(f.suppression is not None for f in report.findings)
        paper.put(words, label=f"{count(number, 'finding')} suppressed:", indent=2, hang=4)
    shown = report.remarks if verbose else report.remarks[:REMARKS_SHOWN]
    for remark in shown:
        paper.put(remark.text, label=f"{describe_remark(remark)}:", indent=2, hang=4, label_style="yellow")
    if len(report.remarks) > len(shown):
        paper.put(f"… {len(report.remarks) - len(shown)} more (-v shows them)", indent=4)
