"""Jobs in which nobody failed on its own account: ranks that lost a peer, waited in vain, or were told to end."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.texts.matching import find_entry
from ddpdoctor_checks.common.stage_evidence import name_signal
from ddpdoctor_checks.job.blame.conditions import HUP, SCHEDULER_KILLS, TERM, settle_text
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.failures import Failure, Level, quote_line
from ddpdoctor_checks.job.blame.lagging import find_busy, find_lag, find_mismatch
from ddpdoctor_checks.job.blame.members import describe_unheard, find_stopped, lose_members, unheard_ranks
from ddpdoctor_checks.job.blame.views import View

NOTICED_S = 5.0
"""How late an end may be noticed: torchrun looks at its ranks at an interval, 5 s by default in older releases
(torch/distributed/run.py, --monitor-interval)."""
TIMED_OUT = (
    "nccl-timed-out",
    "nccl-id-timed-out",
    "gloo-timed-out",
    "gloo-closed-on-timeout",
    "barrier-names-ranks",
    "loader-seed-timed-out",
)
"""Entries of ranks that waited to the end of a limit."""
ID_TIMED_OUT = "nccl-id-timed-out"
STORE_BARRIER = ("store-barrier-waits", "store-barrier-timed-out")
"""Entries in which a rank of a group says that it waits at the store for the others."""
UNREACHED = ("client-timed-out", "client-refused", "client-timed-out-unnamed", "client-unanswered")
"""Entries of ranks that never reached the store."""
UNEXCHANGED = "parameters-not-exchanged"
"""Entry of ranks whose first collective gave them nothing of the others."""
LARGEST_WORLD = 1 << 20
"""Ranks that are counted one by one."""
UNJOINED = (
    "store-timed-out",
    "client-timed-out",
    "client-refused",
    "client-timed-out-unnamed",
    "client-unanswered",
    "store-socket-timed-out",
    "clients-missing",
)
"""Entries of ranks that waited for others to join."""


def judge_complaints(diagnosis: Diagnosis) -> None:
    """Name the cause where only victims spoke; where that cannot be done, say why in ``reason``."""
    said = [*diagnosis.failures, *diagnosis.beside]
    waiting = [each for each in said if each.level == Level.COMPLAINT]
    waiting.sort(key=lambda each: each.at if each.at is not None else float("inf"))
    at_exit = [each for each in diagnosis.failures if each.level == Level.AT_EXIT]
    ended = [each for each in diagnosis.failures if each.level == Level.ENDED]
    ended = ended or [each for each in diagnosis.beside if each.code == "ENV012"]
    if waiting and (_first_ended(diagnosis, waiting, ended) or _unresolved(diagnosis, waiting)):
        return
    if waiting:
        _judge_waiting(diagnosis, waiting)
    elif at_exit:
        first = min(at_exit, key=lambda each: each.at if each.at is not None else float("inf"))
        diagnosis.cause = Group("ERR010", Level.AT_EXIT, at_exit, first)
    elif ended:
        _judge_ended(diagnosis, ended)
    elif diagnosis.job is not None and (diagnosis.job.exit_code or diagnosis.job.signal):
        diagnosis.reason = (
            "cannot determine the first failure: no rank recorded an exception, signal or exit code"
        )


def _blame(diagnosis: Diagnosis, code: str, failures: Sequence[Failure], suspects: RankSet) -> None:
    diagnosis.cause = Group(code, Level.COMPLAINT, list(failures), failures[0])
    diagnosis.suspects = suspects


def _judge_waiting(diagnosis: Diagnosis, waiting: Sequence[Failure]) -> None:
    early = _finished_early(diagnosis, waiting)
    if early:
        _blame(diagnosis, "COL008", waiting, RankSet(view.rank for view in early if view.rank is not None))
        return
    for code in ("NET006", "COL002", "NET011"):
        coded = [each for each in waiting if each.code == code]
        if coded:
            _blame(diagnosis, code, coded, _missing(diagnosis, code, coded))
            return
    outside = [each for each in waiting if _waits_outside(each)]
    absent = _absent(diagnosis)
    if outside and absent:
        _blame(diagnosis, "NET006", outside, absent)
        return
    if find_stopped(diagnosis) is not None:
        diagnosis.reason = (
            f"only affected ranks were seen ({waiting[0].words}); {describe_unheard(diagnosis)}"
        )
        return
    late = [each for each in waiting if each.entry is not None and each.entry.id in TIMED_OUT]
    apart = find_mismatch(late)
    if apart is not None:
        odd = [each for each in late if each.rank in apart.ranks]
        odd[0].groups = {**odd[0].groups, **apart.groups}
        _blame(diagnosis, "COL003", odd, apart.ranks)
        return
    roots = _find_roots(diagnosis, late)
    if roots:
        _blame(diagnosis, "COL002", late, roots)
        return
    lag = find_lag(diagnosis) if late else None
    if lag is not None and lag.inside:
        _blame(diagnosis, "COL005", late, lag.ranks)
        return
    if lag is not None:
        _blame(diagnosis, "COL002", [each for each in late if each.rank not in lag.ranks] or late, lag.ranks)
        return
    if late:
        heard = RankSet(each.rank for each in late if each.rank is not None)
        if len(heard) == len(diagnosis.world) > 1 and _may_be_cut(diagnosis, late):
            _blame(diagnosis, "NET011", late, RankSet())
        else:
            complained = RankSet(each.rank for each in waiting if each.rank is not None)
            silent = diagnosis.world.minus(complained).minus(_timed_out(diagnosis))
            if silent and not silent.minus(unheard_ranks(diagnosis)):
                diagnosis.reason = (
                    f"only affected ranks were seen ({late[0].words}); {describe_unheard(diagnosis)}"
                )
                return
            busy = find_busy(diagnosis, heard, TIMED_OUT)
            if busy is not None:
                _blame(diagnosis, "COL009", late, RankSet([busy]))
                late[0].sure = "medium"
                return
            _blame(diagnosis, "COL005", late, silent.minus(unheard_ranks(diagnosis)))
        return
    stuck = [each for each in waiting if each.code == "ERR011"]
    if stuck:
        _blame(diagnosis, "ERR011", stuck, RankSet())
        return
    unreached = [each for each in waiting if each.entry is not None and each.entry.id in UNREACHED]
    seen = RankSet(view.rank for view in diagnosis.views.ranks if view.rank is not None)
    if unreached and 0 not in seen:
        _blame(diagnosis, "NET006", unreached, diagnosis.world.minus(seen) or RankSet([0]))
        return
    if all(each.entry is not None and each.entry.id == UNEXCHANGED for each in waiting):
        waiting[0].sure = "medium"
        _blame(diagnosis, "BKD002", waiting, RankSet())
        return
    silent = diagnosis.world.minus(RankSet(each.rank for each in diagnosis.failures if each.rank is not None))
    silent = silent.minus(unheard_ranks(diagnosis))
    there = [f"{silent.phrase()} recorded no failure"] if silent else []
    unheard = describe_unheard(diagnosis)
    diagnosis.reason = "; ".join(
        [f"only affected ranks were seen ({waiting[0].words})", *there, *([unheard] if unheard else [])]
    )


def _find_roots(diagnosis: Diagnosis, late: Sequence[Failure]) -> RankSet:
    """Return the ranks whose NCCL id all others waited for; none where one of them complained too.

    The first rank of a group publishes the id when it begins its own first collective on GPUs there
    (``ProcessGroupNCCL::broadcastUniqueNCCLID``). The numbers in the message are those in the group: they are taken for
    ranks of the job where the number of the one that waited is its rank.
    """
    roots = set()
    for each in late:
        if each.entry is None or each.entry.id != ID_TIMED_OUT or each.groups.get("rank") != str(each.rank):
            return RankSet()
        roots.add(int(each.groups["root"]))
    failed = {each.rank for each in diagnosis.failures if each.level != Level.ENDED}
    return RankSet() if roots & failed else RankSet(roots)


def _timed_out(diagnosis: Diagnosis) -> RankSet:
    """Return the ranks that said themselves that they had waited, however they ended afterwards."""
    return RankSet(
        view.rank
        for view in diagnosis.views.ranks
        if view.rank is not None and any(text.entry in TIMED_OUT for text in view.texts)
    )


def _may_be_cut(diagnosis: Diagnosis, late: Sequence[Failure]) -> bool:
    """Whether ranks that all waited in vain may have lost the link between their nodes.

    Not where the nodes could talk to each other at the end, nor where the ranks waited in different lines: then they
    waited for each other.
    """
    if diagnosis.context.nodes < 2:
        return False
    seen = {
        each.seen_as for each in diagnosis.evidence.members if each.seen_as not in (None, "unknown", "left")
    }
    if seen:
        return bool(seen & {"silent", "cut"})
    return len({(line.file, line.line) for each in late if (line := each.line) is not None}) == 1


def _missing(diagnosis: Diagnosis, code: str, coded: Sequence[Failure]) -> RankSet:
    if code == "COL002":
        named = [each.groups.get("missing", "") for each in coded]
        return RankSet(int(part) for text in named for part in text.replace(",", " ").split())
    if code == "NET006" and coded[0].groups.get("expected", "").isdigit():
        waited = RankSet(
            int(text.groups["waiter"])
            for text in diagnosis.evidence.texts
            if text.entry in STORE_BARRIER and "waiter" in text.groups
        )
        expected, joined = int(coded[0].groups["expected"]), int(coded[0].groups.get("joined", "-1"))
        if expected <= LARGEST_WORLD and len(waited) == joined < expected:
            return RankSet(range(expected)).minus(waited)
    if code == "NET006":
        came = [view.rank for view in diagnosis.views.ranks if view.rank is not None]
        # Where none was started those that lack are a node's, and they have no numbers yet.
        return (_absent(diagnosis) or diagnosis.world.minus(RankSet(came))) if came else RankSet()
    return RankSet()


def _waits_outside(failure: Failure) -> bool:
    """Whether a rank gave up in init_process_group."""
    view = failure.view
    known = failure.entry is not None and failure.entry.id in UNJOINED
    return known and view.reached("init-begin") and not view.reached("init")


def _absent(diagnosis: Diagnosis) -> RankSet:
    """Return the ranks that never called init_process_group, where others of the same attempt were seen to do so."""
    mine = [view for view in diagnosis.views.ranks if view.attempt == diagnosis.attempt]
    came = RankSet(
        v.rank for v in mine if v.rank is not None and (v.reached("init-begin") or v.reached("init"))
    )
    return diagnosis.world.minus(came).minus(unheard_ranks(diagnosis)) if came else RankSet()


def _finished_early(diagnosis: Diagnosis, waiting: Sequence[Failure]) -> list[View]:
    """Return the ranks that ended well before the first complaint of another."""
    start = next((each for each in waiting if each.at is not None), None)
    found = []
    for view in diagnosis.views.ranks:
        process = view.process
        if process is None or view.attempt != diagnosis.attempt or process.ended is None:
            continue
        if process.exit_code not in (0, None) or view.exceptions:
            continue
        # os._exit ends a process at once, without the end of its interpreter.
        last = "exit-call" if process.exit_how == "os._exit" else "end"
        own = next((each.at for each in reversed(process.milestones) if each.name == last), None)
        if not process.clean_end and (last == "end" or own is None):
            continue
        if start is None or start.at is None:
            found.append(view)
            continue
        # The interpreter's own word is exact; the launcher notices an end some time after it.
        late = NOTICED_S if own is None else 0.0
        limit = start.at + late + diagnosis.clock.tolerance(view.node, start.view.node)
        if diagnosis.clock.seconds(view.node, own or process.ended) <= limit:
            found.append(view)
    return found


def _unresolved(diagnosis: Diagnosis, waiting: Sequence[Failure]) -> bool:
    """A name without an address, whoever printed it, is why ranks could not reach that very host."""
    views = [*(each.view for each in waiting), *diagnosis.views.others]
    said = [*diagnosis.views.loose, *(text for view in views for text in view.texts)]
    names = {text.groups.get("host"): text for text in said if text.entry == "name-unresolvable"}
    deaf = [
        each
        for each in waiting
        if each.entry is not None and each.entry.id == "client-timed-out" and each.groups.get("host") in names
    ]
    if not deaf:
        return False
    first = deaf[0]
    text = names[first.groups.get("host")]
    code = settle_text(first.view, find_entry(text.entry), text.groups, diagnosis.context)
    if code is None:
        return False
    diagnosis.cause = Group(code, Level.EXCEPTION, deaf, first)
    return True


def _first_ended(diagnosis: Diagnosis, waiting: Sequence[Failure], ended: Sequence[Failure]) -> bool:
    """A rank that was ended before anybody complained, and not by the agent, is what the others lost."""
    start = next((each.at for each in waiting if each.at is not None), None)
    early = [
        each
        for each in ended
        if start is not None
        and each.at is not None
        and each.at < start
        and each.view.process is not None
        and each.view.process.signal is not None
        and not diagnosis.context.was_ended(each.view)
    ]
    if not early:
        return False
    for each in early:
        each.code, each.sure = "ERR005", "medium"
    diagnosis.cause = Group("ERR005", Level.SIGNAL, early, min(early, key=lambda each: each.at or 0.0))
    return True


LOST_NODES = (
    "node-without-heartbeat", "scheduler-lost-node", "scheduler-node-failure", "mpirun-lost-daemon", "pod-node-gone",
)  # fmt: skip
"""The rendezvous, or the scheduler, says that a node is gone."""


def lost_node(diagnosis: Diagnosis) -> bool:
    """Make a node that went with all its processes the cause; return whether there is one.

    Such a node gave no sign of life any more, or has not a single end, while others have theirs; or the rendezvous says
    that its heartbeat stopped.
    """
    if lose_members(diagnosis):
        return True
    texts = [*diagnosis.views.loose, *(text for view in diagnosis.views.others for text in view.texts)]
    named = next((text for text in texts if text.entry in LOST_NODES), None)
    ends: dict[int, list[bool]] = {}
    for view in diagnosis.views.ranks:
        if view.process is not None and view.attempt == diagnosis.attempt:
            process = view.process
            seen = process.running or process.ended is not None or bool(view.exceptions)
            ends.setdefault(view.node, []).append(seen)
    gone = [node for node, known in ends.items() if not any(known)]
    if len(ends) < 2 or not gone or len(gone) == len(ends):
        if named is None:
            return False
        view = View(named.node, host=named.groups.get("nodes", ""), role="other")
        entry = find_entry(named.entry)
        told = Failure(view, Level.SILENT, "NET015", quote_line(named.text), entry=entry, groups=named.groups)
        diagnosis.cause = Group("NET015", Level.SILENT, [told], told)
        return True
    lost = [
        Failure(view, Level.SILENT, "NET015", "disappeared without a record", sure="medium")
        for view in diagnosis.views.ranks
        if view.node in gone and view.attempt == diagnosis.attempt
    ]
    diagnosis.failures = [each for each in diagnosis.failures if each.view.node not in gone] + lost
    diagnosis.cause = Group("NET015", Level.SILENT, lost, lost[0])
    return True


def killed_by_scheduler(diagnosis: Diagnosis) -> bool:
    """Make the scheduler's own word of a kill for memory the cause; return whether there is one.

    It names a step and not a process: whatever ranks said afterwards, they were ended or lost a peer.
    """
    said = [text for text in diagnosis.views.loose if text.entry in SCHEDULER_KILLS]
    if not said or (diagnosis.job is not None and diagnosis.job.exit_code == 0):
        return False
    view = View(said[0].node, host=said[0].host, role="other")
    told = Failure(view, Level.SIGNAL, "ERR002", quote_line(said[0].text), sure="medium")
    diagnosis.cause = Group("ERR002", Level.SIGNAL, [told], told)
    return True


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


def _judge_ended(diagnosis: Diagnosis, ended: Sequence[Failure]) -> None:
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
