"""Ranks that were told to end: by a closed terminal, by a launcher that starts anew, or by whom nothing shows."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.texts.matching import find_entry
from ddpdoctor_checks.common.stage_evidence import name_signal
from ddpdoctor_checks.job.blame.conditions import HUP, TERM
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.failures import Failure, Level


def single_out_hangups(diagnosis: Diagnosis) -> None:
    """Blame some ranks that SIGHUP ended while the others were not: no terminal of the job was closed then."""
    hung = [each for each in diagnosis.failures if each.code == "ENV012"]
    ranks = RankSet(each.rank for each in hung if each.rank is not None)
    job = diagnosis.job
    if not ranks or not diagnosis.world.minus(ranks):
        return
    if _is_hung_up(diagnosis) or (job is not None and (job.signal == HUP or job.interrupted == "SIGHUP")):
        return
    for each in hung:
        each.code, each.level = "ERR005", Level.SIGNAL


def _is_hung_up(diagnosis: Diagnosis) -> bool:
    """Whether a launcher says that it got SIGHUP, or passes it on."""
    texts = [*diagnosis.views.loose, *(text for view in diagnosis.views.others for text in view.texts)]
    return any(text.entry in ("agent-hung-up", "agent-passes-hangup") for text in texts)


def _starts_anew(diagnosis: Diagnosis, ended: Sequence[Failure]) -> bool:
    """Whether the launcher ended the ranks to start them again: with a node that has joined."""
    senders = [each.view.process.signal_sender or "" for each in ended if each.view.process is not None]
    later = any(view.attempt > diagnosis.attempt for view in diagnosis.views.ranks)
    return later and bool(senders) and all(sender.startswith("agent") for sender in senders)


def judge_ended(diagnosis: Diagnosis, ended: Sequence[Failure]) -> None:
    """All ranks were told to end: by whom, and was it the terminal?"""
    signals = {each.view.process.signal for each in ended if each.view.process is not None}
    job = diagnosis.job
    texts = [*diagnosis.views.loose, *(text for view in diagnosis.views.others for text in view.texts)]
    hung = any(each.code == "ENV012" for each in ended) or (job is not None and job.signal == HUP)
    if hung or _is_hung_up(diagnosis):
        diagnosis.cause = Group("ENV012", Level.ENDED, list(ended), ended[0])
        return
    if job is not None and (job.stopped or job.interrupted is not None):
        return
    if _starts_anew(diagnosis, ended):
        return
    told = any(find_entry(text.entry).id == "agent-signalled" for text in texts)
    if TERM in signals or told or (job is not None and job.signal == TERM):
        for each in ended:
            each.code, each.sure = "ERR005", "medium"
        diagnosis.cause = Group("ERR005", Level.ENDED, list(ended), ended[0])
        return
    names = ", ".join(name_signal(signal) for signal in sorted(s for s in signals if s is not None))
    senders = [each.view.process.signal_sender for each in ended if each.view.process is not None]
    by = next((f" by {sender}" for sender in senders if sender is not None), "")
    diagnosis.reason = (
        f"all ranks were signaled to stop{by} ({names or 'interrupted'}), and nothing shows why"
    )
