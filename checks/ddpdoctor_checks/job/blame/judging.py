"""Who failed first and who only followed: the processes of a job put in order of blame, once for all checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.job import JobEnd, TextMatch
from ddpdoctor.evidence.texts.matching import find_entry
from ddpdoctor.judge import once
from ddpdoctor_checks.job.blame.claims import judge_claims
from ddpdoctor_checks.job.blame.complaints import TIMED_OUT, judge_complaints
from ddpdoctor_checks.job.blame.conditions import Context
from ddpdoctor_checks.job.blame.diagnosis import NUMBERS, Diagnosis, Group, fingerprint, was_asked
from ddpdoctor_checks.job.blame.exits import judge_view
from ddpdoctor_checks.job.blame.failures import OWN, Failure, Level, quote_line
from ddpdoctor_checks.job.blame.file_races import settle_race
from ddpdoctor_checks.job.blame.node_losses import killed_by_scheduler, lost_node
from ddpdoctor_checks.job.blame.said import judge_hardware, judge_said
from ddpdoctor_checks.job.blame.told_to_end import single_out_hangups
from ddpdoctor_checks.job.blame.views import Clock, Views

SOME_ONLY = {"CKP002": "ERR001", "CKP005": "ERR001"}
"""Codes of races: they ask that some ranks failed and others did not; else the other code stands."""
BY_LINE = frozenset({"ERR001", "ERR003", "ERR004", "ERR005", "ERR006", "ERR009"})
"""Codes that say little alone: two ranks failed alike only where type and line agree."""


def has_failed(evidence: Evidence) -> bool:
    """Whether the job ended with an error, and it is known of what."""
    return bool(evidence.job) and evidence.job[0].exit_code != 0 and diagnose(evidence).cause is not None


@once
def diagnose(evidence: Evidence) -> Diagnosis:
    """Return the judgement on a job."""
    views = Views(evidence)
    clock = Clock(evidence)
    attempts = sorted({view.attempt for view in views.all if view.role == "rank"}) or [0]
    job = evidence.job[0] if evidence.job else None
    judged = [_judge_attempt(evidence, views, clock, attempt, job) for attempt in attempts]
    told = tuple(failure for each in judged for failure in each.failures)
    failed = [each for each in judged if each.cause is not None]
    chosen = failed[-1] if failed else judged[-1]
    if failed and chosen is not judged[-1] and not judged[-1].failures:
        chosen.recovered = job is None or job.exit_code == 0
    chosen.repeats = tuple(
        (each.attempt, fingerprint(each.cause)) for each in failed if each.cause is not None
    )
    chosen.earlier = tuple(
        (each.attempt, each.cause) for each in failed if each.cause is not None and each is not chosen
    )
    chosen.all_failures = told
    return chosen


def _judge_attempt(
    evidence: Evidence, views: Views, clock: Clock, attempt: int, job: JobEnd | None
) -> Diagnosis:
    # Where we ended the job, ranks that are gone without a word are gone because of that.
    over = bool(evidence.job) and not any(each.stopped for each in evidence.job)
    context = Context(views, clock, attempt, over=over, nodes=_count_nodes(evidence, views))
    context.ended = _ended_by_agent(views)
    context.asked = was_asked(job)
    diagnosis = Diagnosis(evidence, views, clock, context, attempt, job)
    mine = [view for view in views.all if view.attempt == attempt and view.role == "rank"]
    failures = [failure for view in mine if (failure := judge_view(view, context)) is not None]
    diagnosis.failures = failures
    if job is not None and job.exit_code == 0 and job.signal is None and attempt == _last_attempt(views):
        # The launcher saw every rank end well: what was printed on the way did not end the job.
        failures = [each for each in failures if each.level in (Level.AT_EXIT,)]
        diagnosis.failures = failures
    single_out_hangups(diagnosis)
    _follow_own_timeouts(diagnosis)
    stop = _find_stop(evidence, clock)
    own = _doubt_kills([each for each in failures if each.level in OWN and not _is_after(each, stop)])
    if not own:
        rest = [view for view in views.others if view.attempt in (attempt, 0)]
        beside = [failure for view in rest if (failure := judge_view(view, context)) is not None]
        if job is None or job.exit_code != 0 or job.signal is not None:
            beside = [each for each in beside if not _is_after(each, stop)]
            own = [each for each in beside if each.level in OWN and not _passes_on(each, failures)]
            diagnosis.beside = [each for each in beside if each.code is not None]
    _choose(diagnosis, own)
    return diagnosis


def _follow_own_timeouts(diagnosis: Diagnosis) -> None:
    """Take what a rank raised after its own watchdog had given up for what it is: a result of the aborted call."""
    given_up: dict[tuple[int | None, str | None], TextMatch] = {}
    for text in diagnosis.evidence.texts:
        if text.entry in TIMED_OUT:
            given_up.setdefault((text.rank, text.file), text)
    for each in diagnosis.failures:
        source = each.exception.source if each.exception is not None else None
        if source is None or each.level not in OWN or each.rank is None:
            continue
        own = given_up.get((each.rank, source[0]))
        if own is not None and (own.line or 0) < source[1]:
            entry = find_entry(own.entry)
            each.level, each.code, each.sure = Level.COMPLAINT, entry.code, "medium"
            each.entry, each.groups, each.words = entry, own.groups, quote_line(own.text)


def _find_stop(evidence: Evidence, clock: Clock) -> float | None:
    """Return when ddpdoctor told the launcher to end the job, which stood still; None where it did not."""
    stops = [
        clock.seconds(look.stands[0].node, look.at)
        for look in evidence.standstills
        if look.stopped and look.stands
    ]
    return min(stops, default=None)


def _is_after(failure: Failure, stop: float | None) -> bool:
    """Whether a process failed after ddpdoctor had begun to end the job."""
    return stop is not None and failure.at is not None and failure.at >= stop


def _passes_on(beside: Failure, failures: Sequence[Failure]) -> bool:
    """Whether a process only exits because ranks have failed that it has started itself."""
    parent = beside.view.process
    return (
        beside.code == "ERR006"
        and parent is not None
        and any(
            each.view.process is not None
            and (each.view.process.node, each.view.process.parent) == (parent.node, parent.pid)
            for each in failures
        )
    )


def _last_attempt(views: Views) -> int:
    return max((view.attempt for view in views.ranks), default=0)


def _count_nodes(evidence: Evidence, views: Views) -> int:
    seen = {(view.node, view.host) for view in views.ranks}
    return max(
        evidence.launch.nnodes, len({node for node, _ in seen}), len({host for _, host in seen if host})
    )


def _ended_by_agent(views: Views) -> set[tuple[int, int]]:
    """Return node and pid of processes that the agent says it ended."""
    found: set[tuple[int, int]] = set()
    texts = [*views.loose, *(text for view in views.others for text in view.texts)]
    for text in texts:
        if (
            text.entry in ("agent-ends-rank", "agent-kills-rank", "agent-passes-hangup")
            and "pid" in text.groups
        ):
            found.add((text.node, int(text.groups["pid"])))
    return found


def _doubt_kills(own: Sequence[Failure]) -> list[Failure]:
    """A SIGKILL of which nobody knows the sender, after others had failed, was the agent's or the scheduler's."""
    sure = [each for each in own if not _is_doubtful(each)]
    if not sure:
        return list(own)
    start = min((each.at for each in sure if each.at is not None), default=None)
    kept = []
    for each in own:
        if _is_doubtful(each) and (start is None or each.at is None or each.at >= start):
            each.level = Level.ENDED
        else:
            kept.append(each)
    return kept


def _is_doubtful(failure: Failure) -> bool:
    process = failure.view.process
    return (
        failure.code == "ERR005"
        and failure.level == Level.SIGNAL
        and not failure.proof
        and not failure.frames
        and (process is None or process.signal_sender is None)
    )


def _choose(diagnosis: Diagnosis, own: Sequence[Failure]) -> None:
    """Choose the cause by level and time, then the groups that came later, then the victims."""
    seen = [*diagnosis.failures, *diagnosis.beside]
    soft = [each for each in seen if each.level == Level.SOFT]
    threads = [each.before for each in seen if each.before is not None and each.before.level == Level.SOFT]
    silent = [each for each in diagnosis.failures if each.level == Level.SILENT]
    for pool in (own, soft, silent):
        if judge_hardware(diagnosis):
            break
        if pool is silent and (killed_by_scheduler(diagnosis) or lost_node(diagnosis)):
            break
        if pool:
            _blame_first(diagnosis, pool)
            break
    if diagnosis.cause is None:
        judge_complaints(diagnosis)
        _judge_threads(diagnosis, threads)
    judge_said(diagnosis)
    judge_claims(diagnosis)
    if diagnosis.cause is not None:
        refine_unused(diagnosis, diagnosis.cause)
        blamed = {id(each) for group in (diagnosis.cause, *diagnosis.others) for each in group.failures}
        diagnosis.victims = [
            each for each in diagnosis.failures if id(each) not in blamed and id(each.before) not in blamed
        ]


def _judge_threads(diagnosis: Diagnosis, threads: Sequence[Failure]) -> None:
    """Make threads that died the cause where nothing else is, or where their ranks are missed or no rank is.

    A job can outlive a thread for hours, so anything else goes before.
    """
    cause, missed = diagnosis.cause, diagnosis.suspects
    late = list(threads)
    if cause is not None:
        blind = cause.level == Level.COMPLAINT and not missed
        late = [each for each in threads if blind or (each.rank is not None and each.rank in missed)]
    if late:
        diagnosis.reason = None
        _blame_first(diagnosis, late)


def _blame_first(diagnosis: Diagnosis, pool: Sequence[Failure]) -> None:
    groups = _fold(pool, diagnosis)
    diagnosis.cause = _earliest(groups, diagnosis.clock)
    diagnosis.suspects = RankSet()
    later = [group for group in groups if group is not diagnosis.cause]
    diagnosis.others = sorted(later, key=lambda group: _time(group.first))


def _time(failure: Failure) -> float:
    return failure.at if failure.at is not None else float("inf")


def _fold(failures: Iterable[Failure], diagnosis: Diagnosis) -> list[Group]:
    """Fold failures that are alike; races that hit all ranks are none."""
    groups: dict[tuple[object, ...], list[Failure]] = {}
    for each in failures:
        groups.setdefault(_alike(each), []).append(each)
    folded = []
    for members in groups.values():
        first = min(members, key=_time)
        code = first.code
        if code in SOME_ONLY and len(members) >= max(1, len(diagnosis.world)):
            code = SOME_ONLY[code]
        else:
            code = settle_race(code, first, _list_ranks(members), diagnosis.evidence)
        folded.append(Group(code, first.level, members, first))
    return folded


def _list_ranks(members: Sequence[Failure]) -> RankSet:
    return RankSet(each.rank for each in members if each.rank is not None)


def _alike(failure: Failure) -> tuple[object, ...]:
    if failure.code not in BY_LINE:
        return (failure.code,)
    line = failure.line
    place: object = (line.file, line.line) if line is not None else NUMBERS.sub("#", failure.words)
    return (failure.code, failure.type, place, failure.level)


def _earliest(groups: Sequence[Group], clock: Clock) -> Group:
    """Return the group that failed first; where clocks cannot tell, the one whose kind of failure weighs more."""
    start = min(groups, key=lambda group: (_time(group.first), group.level))
    near = [
        group
        for group in groups
        if _time(group.first) - _time(start.first)
        <= clock.tolerance(start.first.view.node, group.first.view.node)
        or group.first.at is None
        or start.first.at is None
        or _may_precede(group.first, start.first, clock)
    ]
    return min(
        near,
        key=lambda group: (
            not _may_precede(group.first, start.first, clock),
            group.level,
            _time(group.first),
            group.ranks.ranges[:1],
        ),
    )


def _may_precede(death: Failure, other: Failure, clock: Clock) -> bool:
    """Whether a death that was noticed later can have come first: peers notice a lost one at once, launchers do not.

    A rank does not get a fatal signal because another raised; to raise because another is gone is common.
    """
    if death.since is None or other.at is None or other.level not in (Level.EXCEPTION, Level.STATUS):
        return False
    return death.since - clock.tolerance(death.view.node, other.view.node) <= other.at


def refine_unused(diagnosis: Diagnosis, group: Group) -> None:
    """Parameters without gradient: on every rank (DDP001), or on some while others wait for them (DDP002)?"""
    if group.code != "DDP001":
        return
    sets = {each.groups.get("indices") or each.groups.get("names") for each in group.failures}
    others = diagnosis.world.minus(group.ranks)
    waited = any(each.level == Level.COMPLAINT for each in diagnosis.failures)
    if len(sets - {None}) > 1 or (others and waited):
        group.code = "DDP002"
    elif others:
        # The others were ended before they could say it or wait for it.
        group.code = "DDP001" if len(group.ranks) > 1 else "DDP002"
        group.first.sure = "medium"
