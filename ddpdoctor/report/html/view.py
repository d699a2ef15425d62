"""From a report to what the templates show: plain data, everything folded, nothing left to decide."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge.verdict import Verdict
from ddpdoctor.report.html.bandwidth import BandwidthView, view_bandwidth
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.checks import ChecksView, describe_counts, view_checks
from ddpdoctor.report.html.compared import ComparedView, view_compared
from ddpdoctor.report.html.findings import FindingView, view_findings
from ddpdoctor.report.html.links import LinksView, view_links
from ddpdoctor.report.html.matrix import EnvironmentView, view_environment
from ddpdoctor.report.html.overlap import OverlapView, view_overlaps
from ddpdoctor.report.html.pictures.choose import PictureView, choose_picture
from ddpdoctor.report.html.recorded import RecordedView, view_recorded
from ddpdoctor.report.html.results import ResultsView, view_results
from ddpdoctor.report.html.stages import StagesView, view_stages
from ddpdoctor.report.html.standstill import StandstillView, view_standstill
from ddpdoctor.report.html.timed import TimedView, view_timed
from ddpdoctor.report.html.timeline import TimelineView, view_timeline
from ddpdoctor.report.html.trained import TrainedView, view_trained
from ddpdoctor.report.html.world import WorldView, view_world
from ddpdoctor.report.model import Report
from ddpdoctor.report.registry import RenderOptions
from ddpdoctor.report.summary import describe_job, read_good
from ddpdoctor.report.words import count, format_seconds
from ddpdoctor.text.shell import quote_word, quote_words

HEADLINE_LONG = 150
"""Characters from which the headline is set smaller: about three lines at full size."""

VERDICT_WORDS = {
    "problems": "Problem found",
    "unknown": "Inconclusive",
    "error": "ddpdoctor failed",
}


@dataclass(frozen=True, slots=True)
class VerdictView:
    """The verdict as the head of the page shows it."""

    status: str
    tone: str
    """Colour: the status, or warning where no finding is worse than that."""
    word: str
    headline: str
    size: str
    """Class of the headline: short or long."""
    code: str | None
    anchor: str | None
    looked: int
    of: int
    bar: Markup
    counts: str
    name: str
    """Name of the finding that the code belongs to; empty where there is none."""
    confidence: str


@dataclass(frozen=True, slots=True)
class PageView:
    """Everything that the page shows."""

    title: str
    version: str
    command: str
    started: str
    started_iso: str
    duration: str
    interrupted: str | None
    verdict: VerdictView
    picture: PictureView
    facts: tuple[tuple[str, str], ...]
    findings: tuple[FindingView, ...]
    anchors: dict[str, str]
    """Code -> id of its first finding in the page."""
    world: WorldView
    environment: EnvironmentView
    checks: ChecksView
    results: ResultsView
    bandwidth: BandwidthView
    links: LinksView
    stages: StagesView
    timeline: TimelineView | None
    standstill: StandstillView | None
    recorded: RecordedView | None
    trained: TrainedView | None
    compared: tuple[ComparedView, ...]
    timed: TimedView | None
    overlaps: tuple[OverlapView, ...]
    commands: tuple[tuple[str, str], ...]
    absent: tuple[tuple[str, str, bool], ...]
    """Evidence that is missing: kind, reason, and whether it was wanted."""
    caps: tuple[str, ...]


def build_view(report: Report, options: RenderOptions) -> PageView:
    """Return the view data of ``report``."""
    caps = Caps()
    size = report.world.size
    picture = choose_picture(report, caps)
    findings = view_findings(
        report.findings,
        size,
        options.pages or {},
        caps,
        headline=report.verdict.headline,
        read=options.read_source,
    )
    checks = view_checks(report.checks, caps)
    verdict = _verdict(report.verdict, findings, checks, read_good(report))
    return PageView(
        title=f"{verdict.word} · ddpdoctor {report.command}",
        version=report.version,
        command=report.command,
        started=_show_time(report.started_at),
        started_iso=report.started_at,
        duration=format_seconds(report.duration_s),
        interrupted=report.interrupted,
        verdict=verdict,
        picture=picture,
        facts=_facts(report, verdict.headline),
        findings=findings,
        anchors={each.code: each.ident for each in reversed(findings)},
        world=view_world(report, caps),
        environment=view_environment(report.evidence, caps),
        checks=checks,
        results=view_results(report.evidence, size, caps),
        bandwidth=view_bandwidth(report.evidence, caps),
        links=view_links(report.evidence, caps),
        stages=view_stages(report.evidence, report.timings, report.duration_s, caps),
        timeline=view_timeline(report, caps),
        standstill=view_standstill(report.evidence, caps),
        recorded=view_recorded(report.evidence, caps),
        trained=view_trained(report.evidence, caps),
        compared=view_compared(report.evidence, caps),
        timed=view_timed(report.evidence, caps),
        overlaps=view_overlaps(report.evidence, caps),
        commands=_commands(report),
        absent=_absent(report.evidence),
        caps=tuple(dict.fromkeys(caps.notes)),
    )


def _verdict(
    verdict: Verdict, findings: tuple[FindingView, ...], checks: ChecksView, good: str
) -> VerdictView:
    word = (
        good.capitalize()
        if verdict.status == "healthy"
        else VERDICT_WORDS.get(verdict.status, verdict.status)
    )
    headline = (
        verdict.headline.removeprefix(f"{good} · ") if verdict.status == "healthy" else verdict.headline
    )
    # the count stands beside the headline, so it need not be said twice
    looked = f"{verdict.looked} of {verdict.of} checks ran"
    if verdict.status == "healthy":
        scope = headline.removeprefix(looked).removeprefix(" · ")
        headline = f"No problem found: {scope}" if scope else "No problem found"
    headline = headline.removesuffix(f"; {looked}")
    if verdict.status != "problems":  # a finding's message may begin with a host name
        headline = headline[:1].upper() + headline[1:]
    cause = next((each for each in findings if each.code == verdict.code), None)
    worst = any(each.severity == "error" and not each.withdrawn for each in findings)
    tone = "warning" if verdict.status == "problems" and findings and not worst else verdict.status
    return VerdictView(
        verdict.status,
        tone,
        word,
        headline,
        "long" if len(headline) > HEADLINE_LONG else "short",
        verdict.code,
        cause.ident if cause is not None else None,
        verdict.looked,
        verdict.of,
        checks.bar,
        describe_counts(checks.counts),
        cause.name if cause is not None else "",
        cause.confidence if cause is not None else "",
    )


def _show_time(text: str) -> str:
    """``2026-11-20T14:15:03.123456Z`` -> ``2026-11-20 14:15:03 UTC``; anything else as it is."""
    day, _, clock = text.partition("T")
    if len(day) == 10 and clock.endswith("Z"):
        return f"{day} {clock[:8]} UTC"
    return text


def _facts(report: Report, headline: str) -> tuple[tuple[str, str], ...]:
    """Return label and value of what stands in one line below the headline; a label may be empty.

    The headline of a healthy report says some of it already.
    """
    world = report.world
    ranks = count(world.size, "rank")
    nodes = max(len(world.nodes), report.evidence.launch.nnodes)
    rows = [("", f"{ranks} on {count(nodes, 'node')}")] if world.size else []  # source has none
    rows += [
        (label, value)
        for label, value in (
            ("backend", world.backend),
            ("torch", world.torch),
            ("Python", world.python),
            ("launched by", world.launcher),
        )
        if value is not None and value != "none"
    ]
    if report.job is not None:
        rows.append(("job", describe_job(report.job)))
    rows.append(("took", format_seconds(report.duration_s)))
    healthy = report.verdict.status == "healthy"
    return tuple(row for row in rows if not (healthy and row[1] in headline))


def _commands(report: Report) -> tuple[tuple[str, str], ...]:
    rows = []
    if report.invocation:
        rows.append(("Run it again", quote_words(report.invocation)))
    if report.verdict.code:
        rows.append(("Read about the code, offline", f"ddpdoctor explain {quote_word(report.verdict.code)}"))
    rows.append(
        ("Render this page again from the saved JSON", "ddpdoctor report report.json --html report.html")
    )
    return tuple(rows)


def _absent(evidence: Evidence) -> tuple[tuple[str, str, bool], ...]:
    return tuple((kind, why.reason, why.applicable) for kind, why in evidence.absent.items())
