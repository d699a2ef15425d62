"""When the world of a node is over before its time: a limit, a rank that failed or died, the agent that is gone."""

from __future__ import annotations

import signal

from ddpdoctor.evidence import RankExit, RankSet
from ddpdoctor.launch.agent import agent_log
from ddpdoctor.launch.traces import keep_last_words
from ddpdoctor.launch.world.rank_states import RankState
from ddpdoctor.launch.world.state import Ending, World

FAILED_GRACE_S = 2.0
"""After the first error the other ranks get so long to write theirs; gloo reports a lost peer at once."""
DEAD_GRACE_S = 6.0
"""After a rank has gone the elastic agent gets so long to end the others (3 s until its SIGKILL) and say how
it went."""
START_GRACE_S = 10.0
"""Beyond the limits of its own work, what the agent may take to start and to end."""
MEETING_GRACE_S = 8.0
"""Beyond ``--timeout``: the agent ends its own waits by it too and then says who did not come. Two dials of 2 s may be
under way, and what they showed is heard for 2 s more."""


def is_out_of_time(world: World, now: float) -> bool:
    """Whether ``--timeout`` is over; the meeting sees that by itself, and gets a moment to say who is missing."""
    until = world.plan.until
    if until is None:
        return False
    return now > until + (MEETING_GRACE_S if world.plan.meets and not world.met else 0.0)


def end_by_timeout(world: World, now: float) -> Ending:
    """Return the ending by ``--timeout``."""
    limit, stage = world.plan.timeout or 0.0, world.find_stage()
    reason = f"stopped by --timeout {limit:g}{_say_how_long(world, stage, now)}"
    return Ending(stage, "cut", reason, limit, "--timeout")


def _say_how_long(world: World, stage: str, now: float) -> str:
    """Return the end of a sentence: how long a stage had run in fact, and how many ranks had started."""
    begun = [s.segments[stage][0].begin for s in world.ranks.values() if s.began(stage)]
    words = f" after {now - min(begun, default=world.started):.1f} s"
    started, nproc = len(world.ranks), world.plan.launch.nproc
    return words if started >= nproc else f"{words}, when {started} of {nproc} ranks of this node had started"


def find_gone(world: World, now: float) -> Ending | None:
    """Tell of ranks that will do no more: one that died comes before those that raised because of it."""
    if world.has_deaths():
        return _find_dead(world, now)
    return _find_failed(world, now)


def _find_failed(world: World, now: float) -> Ending | None:
    failed = [s for s in world.ranks.values() if s.failed]
    if not failed:
        return None
    first = min(failed, key=lambda s: s.since)
    waited = now - first.since > FAILED_GRACE_S
    complete = len(world.ranks) == world.plan.launch.nproc
    if not waited and not (complete and all(s.settled for s in world.ranks.values())):
        return None
    ranks = RankSet(s.rank for s in failed)
    return Ending(first.failed or "rendezvous", "failed", f"{ranks.phrase()} raised an error")


def _find_dead(world: World, now: float) -> Ending | None:
    """Tell of a rank that is gone and did not say why; the elastic agent is asked first."""
    dead = [s for s in world.ranks.values() if s.gone_at and not s.finished and not s.failed]
    if not dead:
        return None
    known = [each for each in world.exits if not each.finished]
    waited = now - min(s.gone_at or now for s in dead)
    if not known and not world.agent_gone and waited < DEAD_GRACE_S:
        return None
    stage = next((e.stage for e in known if e.stage), None) or next((s.stage for s in dead if s.stage), None)
    return Ending(stage or world.find_stage(), "failed", _word_deaths(known, dead))


def find_broken(world: World) -> Ending | None:
    """The agent ended although no rank failed: what it raised itself, or that it was killed."""
    if world.broken is not None:
        return Ending(world.find_stage(), "failed", world.broken)
    if world.agent_gone and world.ended is None and world.blocked is None:
        return Ending(world.find_stage(), "failed", _word_agent_end(world))
    return None


def _word_agent_end(world: World) -> str:
    code = world.agent_exit
    how = f"died of {signal.Signals(-code).name}" if code is not None and code < 0 else f"exited with {code}"
    words = keep_last_words(agent_log(world.plan.workdir))
    return f"the agent process {how}" + (f": {words.splitlines()[-1]}" if words else "")


def find_late(world: World, now: float) -> Ending | None:
    """Tell of a stage that takes longer than it may, or of ranks that do not begin one."""
    limits = world.plan.limits
    for state in world.ranks.values():
        if state.stage and not state.gone and now - state.since > limits[state.stage]:
            return Ending(state.stage, "cut", f"not finished after {limits[state.stage]:g} s")
    allowed = _allowed_before_ranks(world)
    start = world.begun or world.started
    quiet = all(s.settled or s.stage is None for s in world.ranks.values())
    latest = max((s.since for s in world.ranks.values()), default=start)
    if quiet and now - max(start, latest) > allowed:
        reason = f"no heartbeat from the ranks of this node for {allowed:g} s"
        return Ending("rendezvous", "cut", reason, allowed)
    return None


def _allowed_before_ranks(world: World) -> float:
    limits = world.plan.limits
    if world.begun is not None:
        return limits["rendezvous"] + START_GRACE_S
    return world.plan.join_timeout + limits["tcp"] + limits["rendezvous"] + START_GRACE_S


def _word_deaths(known: list[RankExit], dead: list[RankState]) -> str:
    if not known:
        return f"{RankSet(s.rank for s in dead).phrase()} died"
    first = known[0]
    ranks = RankSet(each.rank for each in known).phrase()
    if first.signal:
        return f"{ranks} died of {signal.Signals(first.signal).name}"
    return f"{ranks} exited with code {first.exit_code}"
