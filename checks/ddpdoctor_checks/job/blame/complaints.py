"""Jobs in which nobody failed on its own account: ranks that lost a peer, waited in vain, or were told to end."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.texts.matching import find_entry
from ddpdoctor_checks.job.blame.conditions import settle_text
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.failures import Failure, Level
from ddpdoctor_checks.job.blame.lagging import find_busy, find_lag, find_mismatch
from ddpdoctor_checks.job.blame.members import describe_unheard, find_stopped, unheard_ranks
from ddpdoctor_checks.job.blame.told_to_end import judge_ended
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
PEER_GONE = "gloo-peer-gone"
SPAWNED = "spawned-process-failed"
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
        judge_ended(diagnosis, ended)
    elif diagnosis.job is not None and (diagnosis.job.exit_code or diagnosis.job.signal):
        diagnosis.reason = (
            "cannot determine the first failure: no rank recorded an exception, signal or exit code"
        )


def _blame(diagnosis: Diagnosis, code: str, failures: Sequence[Failure], suspects: RankSet) -> None:
    diagnosis.cause = Group(code, Level.COMPLAINT, list(failures), failures[0])
    diagnosis.suspects = suspects


def _judge_waiting(diagnosis: Diagnosis, waiting: Sequence[Failure]) -> None:
    """Let one rule after the other look at ranks that waited; the first that knows whom for has the word."""
    if not any(rule(diagnosis, waiting) for rule in _WAITING_RULES):
        silent = diagnosis.world.minus(
            RankSet(each.rank for each in diagnosis.failures if each.rank is not None)
        )
        silent = silent.minus(unheard_ranks(diagnosis))
        there = [f"{silent.phrase()} recorded no failure"] if silent else []
        _only_affected(diagnosis, waiting[0], *there)


def _only_affected(diagnosis: Diagnosis, first: Failure, *more: str) -> None:
    unheard = describe_unheard(diagnosis)
    diagnosis.reason = "; ".join(
        [f"only affected ranks were seen ({first.words})", *more, *([unheard] if unheard else [])]
    )


def _left_early(diagnosis: Diagnosis, waiting: Sequence[Failure]) -> bool:
    early = _finished_early(diagnosis, waiting)
    if early:
        _blame(diagnosis, "COL008", waiting, RankSet(view.rank for view in early if view.rank is not None))
    return bool(early)


def _first_of_spawned(diagnosis: Diagnosis, waiting: Sequence[Failure]) -> bool:
    """torch.multiprocessing.spawn names the first process that failed: if it lost a peer, that one ended well."""
    first = waiting[0]
    spawned = any(text.entry == SPAWNED for text in diagnosis.evidence.texts)
    if not spawned or len(diagnosis.failures) != 1 or first.rank is None or diagnosis.context.nodes > 1:
        return False
    if first.entry is None or first.entry.id != PEER_GONE:
        return False
    others = diagnosis.world.minus(RankSet([first.rank]))
    first.sure = "medium"
    _blame(diagnosis, "COL008", waiting, others if len(others) == 1 else RankSet())
    return True


def _named_by_text(diagnosis: Diagnosis, waiting: Sequence[Failure]) -> bool:
    """Who waited says itself that ranks are missing, did not join a call, or became silent."""
    for code in ("NET006", "COL002", "NET011"):
        coded = [each for each in waiting if each.code == code]
        if coded:
            _blame(diagnosis, code, coded, _missing(diagnosis, code, coded))
            return True
    return False


def _never_joined(diagnosis: Diagnosis, waiting: Sequence[Failure]) -> bool:
    outside = [each for each in waiting if _waits_outside(each)]
    absent = _absent(diagnosis)
    if outside and absent:
        _blame(diagnosis, "NET006", outside, absent)
    return bool(outside and absent)


def _stopped_unheard(diagnosis: Diagnosis, waiting: Sequence[Failure]) -> bool:
    stopped = find_stopped(diagnosis) is not None
    if stopped:
        _only_affected(diagnosis, waiting[0])
    return stopped


def _list_late(waiting: Sequence[Failure]) -> list[Failure]:
    return [each for each in waiting if each.entry is not None and each.entry.id in TIMED_OUT]


def _in_other_calls(diagnosis: Diagnosis, waiting: Sequence[Failure]) -> bool:
    """Some ranks timed out in another call than most under the same number."""
    late = _list_late(waiting)
    apart = find_mismatch(late)
    if apart is None:
        return False
    odd = [each for each in late if each.rank in apart.ranks]
    odd[0].groups = {**odd[0].groups, **apart.groups}
    _blame(diagnosis, "COL003", odd, apart.ranks)
    return True


def _never_began(diagnosis: Diagnosis, waiting: Sequence[Failure]) -> bool:
    late = _list_late(waiting)
    roots = _find_roots(diagnosis, late)
    if roots:
        _blame(diagnosis, "COL002", late, roots)
    return bool(roots)


def _behind(diagnosis: Diagnosis, waiting: Sequence[Failure]) -> bool:
    """The watchdogs' counts of calls show who is behind."""
    late = _list_late(waiting)
    lag = find_lag(diagnosis) if late else None
    if lag is None:
        return False
    if lag.inside:
        _blame(diagnosis, "COL005", late, lag.ranks)
    else:
        _blame(diagnosis, "COL002", [each for each in late if each.rank not in lag.ranks] or late, lag.ranks)
    return True


def _timed_out_alike(diagnosis: Diagnosis, waiting: Sequence[Failure]) -> bool:
    """Ranks waited to the end of a limit, and their calls do not show for whom."""
    late = _list_late(waiting)
    if not late:
        return False
    heard = RankSet(each.rank for each in late if each.rank is not None)
    if len(heard) == len(diagnosis.world) > 1 and _may_be_cut(diagnosis, late):
        _blame(diagnosis, "NET011", late, RankSet())
        return True
    complained = RankSet(each.rank for each in waiting if each.rank is not None)
    silent = diagnosis.world.minus(complained).minus(_timed_out(diagnosis))
    if silent and not silent.minus(unheard_ranks(diagnosis)):
        _only_affected(diagnosis, late[0])
        return True
    busy = find_busy(diagnosis, heard, TIMED_OUT)
    if busy is not None:
        _blame(diagnosis, "COL009", late, RankSet([busy]))
        late[0].sure = "medium"
    else:
        _blame(diagnosis, "COL005", late, silent.minus(unheard_ranks(diagnosis)))
    return True


def _watchdog_stuck(diagnosis: Diagnosis, waiting: Sequence[Failure]) -> bool:
    stuck = [each for each in waiting if each.code == "ERR011"]
    if stuck:
        _blame(diagnosis, "ERR011", stuck, RankSet())
    return bool(stuck)


def _store_unreached(diagnosis: Diagnosis, waiting: Sequence[Failure]) -> bool:
    """Nothing is known of the rank that hosts the store, and others did not reach it."""
    unreached = [each for each in waiting if each.entry is not None and each.entry.id in UNREACHED]
    seen = RankSet(view.rank for view in diagnosis.views.ranks if view.rank is not None)
    if not unreached or 0 in seen:
        return False
    _blame(diagnosis, "NET006", unreached, diagnosis.world.minus(seen) or RankSet([0]))
    return True


def _nothing_exchanged(diagnosis: Diagnosis, waiting: Sequence[Failure]) -> bool:
    if not all(each.entry is not None and each.entry.id == UNEXCHANGED for each in waiting):
        return False
    waiting[0].sure = "medium"
    _blame(diagnosis, "BKD002", waiting, RankSet())
    return True


_WAITING_RULES = (
    _left_early,
    _first_of_spawned,
    _named_by_text,
    _never_joined,
    _stopped_unheard,
    _in_other_calls,
    _never_began,
    _behind,
    _timed_out_alike,
    _watchdog_stuck,
    _store_unreached,
    _nothing_exchanged,
)
"""What tells for whom ranks waited, the surest first."""


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
