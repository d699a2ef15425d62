"""Watching the tiny world from beside: limits, stacks before anything is killed, stage records, evidence.

The supervisor is the command's own process. It never imports torch and never takes part in the world, so
nothing that
hangs or dies there can keep it from writing its report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from ddpdoctor.evidence import (
    Evidence,
    Library,
    NodeFacts,
    RankExit,
    RankSet,
    StageRecord,
    decode,
    encode,
)
from ddpdoctor.evidence.bundle import KINDS
from ddpdoctor.gather.libraries import mapped_libraries
from ddpdoctor.launch.agent import agent_file, agent_log, run_agent
from ddpdoctor.launch.interrupt import Interrupt
from ddpdoctor.launch.plan import Plan
from ddpdoctor.launch.processes import kill_processes
from ddpdoctor.launch.progressing import RankState
from ddpdoctor.launch.request import Progress
from ddpdoctor.launch.server import TorchServer
from ddpdoctor.launch.traces import keep_last_words, keep_stacks
from ddpdoctor.launch.wire import EventReader
from ddpdoctor.watch.live.stacks import merge_stacks, name_problem, take_stacks

POLL_S = 0.02
"""How often the events are read; a look costs well under a millisecond for a handful of ranks."""
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
WORLD_STAGES = ("rendezvous", "backends", "collectives", "ddp", "bandwidth")


@dataclass(slots=True)
class Ending:
    """Why the world was ended before its time."""

    stage: str
    status: str
    """cut or failed; unreached for an interruption."""
    reason: str
    limit_s: float | None = None
    """Where another limit than that of the stage ended it."""
    limit_option: str | None = None
    at: float = field(default_factory=time.monotonic)
    stacks: tuple[Any, ...] = ()
    stacks_note: str | None = None


@dataclass(slots=True)
class World:
    """What is known of the world of this node."""

    ranks: dict[int, RankState] = field(default_factory=dict)
    rows: list[tuple[str, Any]] = field(default_factory=list)
    """Evidence of the agent itself."""
    exits: list[RankExit] = field(default_factory=list)
    broken: str | None = None
    """What the agent or its rendezvous raised."""
    begun: float | None = None
    ended: float | None = None
    agent_gone: bool = False
    blocked: str | None = None
    """Why the ranks were never launched."""
    merged: str | None = None
    """File with the evidence of all nodes, once the exchange brought it."""
    others: str | None = None
    """What another node said when it ended the run."""
    met: bool = False
    """The meeting has ended, well or not: from then on the agent listens to the supervisor."""
    exchanged: bool = False
    libraries: tuple[Library, ...] = ()
    """Communication libraries that are mapped into a rank, read once the group has formed."""


class Supervisor:
    """Runs the agent of one node and keeps it within its limits."""

    def __init__(self, plan: Plan, server: TorchServer, progress: Progress, interrupt: Interrupt) -> None:
        self.plan = plan
        """With the place that the meeting gives to this node."""
        self._server = server
        self._progress = progress
        self._interrupt = interrupt
        self._agent_reader = EventReader(agent_file(plan.workdir))
        self._rank_readers: dict[Path, EventReader] = {}
        self._stage_shown: str | None = None
        self._read_pid: int | None = None
        self._over = False
        """The ranks were ended: what the last ones say of lost peers is no evidence."""
        self.world = World()
        self.ending: Ending | None = None

    def run(self, facts: NodeFacts) -> None:
        """Start the agent and its ranks and return when they have ended or were cut.

        Args:
            facts: this node's, for the other nodes.
        """
        self._started = time.monotonic()
        reader, self._commands = self._server.pipe()
        self._agent = self._server.process(run_agent, encode(self.plan), encode(facts), reader)
        try:
            self._agent.start()
        except (EOFError, OSError) as problem:
            self.world.blocked = f"the process with torch did not start: {problem!r}"
            return
        finally:
            reader.close()
        while not self._is_over():
            self._look()
            ending = self._find_ending()
            if ending is not None:
                self._end(ending)
                break
            time.sleep(POLL_S)
        self._look()
        if self.ending is None:
            now = time.monotonic()
            self.ending = self._find_gone(now) or self._find_broken()

    def exchange(self, path: Path, limit_s: float) -> str | None:
        """Share this node's evidence with the others and return the file with everyone's, if it came.

        Args:
            path: file with this node's evidence.
            limit_s: how long to wait for the others.
        """
        with contextlib.suppress(OSError, ValueError):
            self._commands.send(("publish", str(path)))
        end = time.monotonic() + limit_s
        while time.monotonic() < end and not self.world.agent_gone and self._interrupt.count < 2:
            self._look()
            if self.world.exchanged:
                break
            time.sleep(POLL_S)
        return self.world.merged

    # -- looking

    def _look(self) -> None:
        for event in self._agent_reader.read():
            self._apply_agent(event)
        for path in () if self._over else Path(self.plan.workdir).glob("rank-*.jsonl"):
            reader = self._rank_readers.setdefault(path, EventReader(path))
            for event in reader.read():
                rank = int(path.stem.partition("-")[2])
                state = self.world.ranks.setdefault(rank, RankState(rank))
                state.apply(event)
                if event["event"] == "note":
                    self._progress.note(str(event["text"]))
        for state in self.world.ranks.values():
            if state.pid is not None and not state.gone and not _is_alive(state.pid):
                state.gone_at = time.monotonic()
        if not self._agent.is_alive():
            self.world.agent_gone = True
        self._read_libraries()
        self._show_stage()

    def _read_libraries(self) -> None:
        first = next((s for s in self.world.ranks.values() if s.pid and s.completed("rendezvous")), None)
        if first is not None and first.pid and not first.gone and first.pid != self._read_pid:
            self._read_pid = first.pid
            self.world.libraries = mapped_libraries(first.pid)

    def _apply_agent(self, event: dict[str, Any]) -> None:
        world, kind = self.world, event["event"]
        if kind == "row":
            world.rows.append((event["kind"], event["data"]))
        elif kind == "note":
            self._progress.note(str(event["text"]))
        elif kind == "stage":
            self._progress.stage(str(event["stage"]), float(event["limit"]))
        elif kind == "world-begin":
            world.begun, world.met = event["t"], True
        elif kind == "world-end":
            world.ended = event["t"]
        elif kind == "blocked":
            world.blocked, world.met = str(event["reason"]), True
        elif kind == "rank-failed":
            self._note_exit(event)
        elif kind in ("broken", "world-broken"):
            world.broken = str(event["text"])
        elif kind == "place":
            self._take_place(event)
        elif kind == "peer-cut":
            world.others = str(event["text"])
        elif kind == "exchanged":
            world.exchanged, world.merged = True, event.get("path")

    def _take_place(self, event: dict[str, Any]) -> None:
        """Take in what only the meeting could tell: this node's number, its ranks, the size of the world."""
        launch = dataclasses.replace(
            self.plan.launch, world_size=int(event["world_size"]), nnodes=int(event["nnodes"])
        )
        if self.plan.external:
            launch = dataclasses.replace(launch, node_rank=int(event["node"]))
        self.plan = dataclasses.replace(
            self.plan,
            node=int(event["node"]),
            party=int(event["party"]),
            placed=True,
            leads=bool(event["leads"]),
            first_rank=int(event["first_rank"]),
            launch=launch,
        )

    def _note_exit(self, event: dict[str, Any]) -> None:
        rank = int(event["rank"])
        state = self.world.ranks.get(rank)
        if state is not None and state.failed is not None:
            return  # it said itself what was wrong and then left with 1
        logs = sorted(
            Path(self.plan.workdir, "logs").glob(f"*/attempt_0/{rank - self.plan.first_rank}/stderr.log")
        )
        self.world.exits.append(
            RankExit(
                rank=rank,
                pid=int(event["pid"]),
                stage=state.stage if state else None,
                exit_code=event["exit_code"],
                signal=event["signal"],
                finished=bool(state and state.finished),
                detail=keep_last_words(logs[0]) if logs else event.get("message"),
            )
        )

    def _show_stage(self) -> None:
        stages = [s.stage for s in self.world.ranks.values() if s.stage]
        if stages and stages[0] != self._stage_shown and stages[0] is not None:
            self._stage_shown = stages[0]
            self._progress.stage(stages[0], self.plan.limits[stages[0]])

    def _is_over(self) -> bool:
        world = self.world
        return world.ended is not None or world.agent_gone or world.blocked is not None

    # -- ending

    def _find_ending(self) -> Ending | None:
        now = time.monotonic()
        if self._interrupt.name:
            return Ending(self._current_stage(), "unreached", f"interrupted by {self._interrupt.name}")
        if self._is_over():
            return None
        if self._is_out_of_time(now):
            return self._end_by_timeout(now)
        if self.world.others is not None and not self._has_deaths():
            return Ending(self._current_stage(), "failed", self.world.others)
        return self._find_gone(now) or self._find_late(now)

    def _is_out_of_time(self, now: float) -> bool:
        """Whether ``--timeout`` is over; the meeting sees that by itself, and gets a moment to say who is missing."""
        until = self.plan.until
        if until is None:
            return False
        return now > until + (MEETING_GRACE_S if self.plan.meets and not self.world.met else 0.0)

    def _end_by_timeout(self, now: float) -> Ending:
        limit, stage = self.plan.timeout or 0.0, self._current_stage()
        reason = f"stopped by --timeout {limit:g}{self._say_how_long(stage, now)}"
        return Ending(stage, "cut", reason, limit, "--timeout")

    def _say_how_long(self, stage: str, now: float) -> str:
        """Return the end of a sentence: how long a stage had run in fact, and how many ranks had started."""
        begun = [s.segments[stage][0].begin for s in self.world.ranks.values() if s.began(stage)]
        words = f" after {now - min(begun, default=self._started):.1f} s"
        started, nproc = len(self.world.ranks), self.plan.launch.nproc
        return (
            words
            if started >= nproc
            else f"{words}, when {started} of {nproc} ranks of this node had started"
        )

    def _has_deaths(self) -> bool:
        """Whether a rank of this node is gone and did not say why: then the agent will, and that is the cause."""
        return any(s.gone and not s.finished and not s.failed for s in self.world.ranks.values())

    def _find_gone(self, now: float) -> Ending | None:
        """Tell of ranks that will do no more: one that died comes before those that raised because of it."""
        if self._has_deaths():
            return self._find_dead(now)
        return self._find_failed(now)

    def _find_failed(self, now: float) -> Ending | None:
        failed = [s for s in self.world.ranks.values() if s.failed]
        if not failed:
            return None
        first = min(failed, key=lambda s: s.since)
        waited = now - first.since > FAILED_GRACE_S
        complete = len(self.world.ranks) == self.plan.launch.nproc
        if not waited and not (complete and all(s.settled for s in self.world.ranks.values())):
            return None
        ranks = RankSet(s.rank for s in failed)
        return Ending(first.failed or "rendezvous", "failed", f"{ranks.phrase()} raised an error")

    def _find_dead(self, now: float) -> Ending | None:
        """Tell of a rank that is gone and did not say why; the elastic agent is asked first."""
        dead = [s for s in self.world.ranks.values() if s.gone_at and not s.finished and not s.failed]
        if not dead:
            return None
        known = [each for each in self.world.exits if not each.finished]
        waited = now - min(s.gone_at or now for s in dead)
        if not known and not self.world.agent_gone and waited < DEAD_GRACE_S:
            return None
        stage = next((e.stage for e in known if e.stage), None) or next(
            (s.stage for s in dead if s.stage), None
        )
        return Ending(stage or self._current_stage(), "failed", _word_deaths(known, dead))

    def _find_broken(self) -> Ending | None:
        """The agent ended although no rank failed: what it raised itself, or that it was killed."""
        if self.world.broken is not None:
            return Ending(self._current_stage(), "failed", self.world.broken)
        if self.world.agent_gone and self.world.ended is None and self.world.blocked is None:
            return Ending(self._current_stage(), "failed", self._word_agent_end())
        return None

    def _word_agent_end(self) -> str:
        code = self._agent.exitcode
        how = (
            f"died of {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"exited with {code}"
        )
        words = keep_last_words(agent_log(self.plan.workdir))
        return f"the agent process {how}" + (f": {words.splitlines()[-1]}" if words else "")

    def _find_late(self, now: float) -> Ending | None:
        limits = self.plan.limits
        for state in self.world.ranks.values():
            if state.stage and not state.gone and now - state.since > limits[state.stage]:
                return Ending(state.stage, "cut", f"not finished after {limits[state.stage]:g} s")
        allowed = self._allowed_before_ranks()
        start = self.world.begun or self._started
        quiet = all(s.settled or s.stage is None for s in self.world.ranks.values())
        latest = max((s.since for s in self.world.ranks.values()), default=start)
        if quiet and now - max(start, latest) > allowed:
            reason = f"no heartbeat from the ranks of this node for {allowed:g} s"
            return Ending("rendezvous", "cut", reason, allowed)
        return None

    def _allowed_before_ranks(self) -> float:
        limits = self.plan.limits
        if self.world.begun is not None:
            return limits["rendezvous"] + START_GRACE_S
        return self.plan.join_timeout + limits["tcp"] + limits["rendezvous"] + START_GRACE_S

    def _current_stage(self) -> str:
        stages = [s.stage for s in self.world.ranks.values() if s.stage]
        return min(stages, key=WORLD_STAGES.index) if stages else "rendezvous"

    def _end(self, ending: Ending) -> None:
        """Take the stacks of the ranks that still run, then end them; the agent lives on."""
        self.ending = ending
        running = {s.rank: s.pid for s in self.world.ranks.values() if s.pid and not s.settled}
        if running and ending.status != "unreached":
            self._progress.note("sampling the stacks of all ranks")
            stacks = take_stacks(running.values())
            by_rank = {rank: stacks[pid] for rank, pid in running.items()}
            ending.stacks, ending.stacks_note = keep_stacks(merge_stacks(by_rank)), name_problem(by_rank)
        self._look()
        self._over = True
        with contextlib.suppress(OSError, ValueError):
            self._commands.send(("cut", f"{ending.stage}: {ending.reason}"))
        for state in self.world.ranks.values():
            if state.pid and not state.gone:
                with contextlib.suppress(psutil.Error):
                    kill_processes([psutil.Process(state.pid)])

    # -- evidence

    def collect(self, node: int, origin: float) -> Evidence:
        """Return what this node's world left behind.

        Args:
            node: this node's index.
            origin: `time.monotonic` value of the start of the command.
        """
        rows: dict[str, list[Any]] = {kind: [] for kind in KINDS}
        types = _row_types()
        for kind, data in [*self.world.rows, *(row for s in self.world.ranks.values() for row in s.rows)]:
            if kind in types:
                rows[kind].append(decode(types[kind], data))
        exits = [*self.world.exits, *self._unexplained_exits()]
        rows["exits"].extend(dataclasses.replace(e, user_step=self._user_step(e.rank)) for e in exits)
        rows["stages"].extend(self._record(stage, node, origin) for stage in WORLD_STAGES)
        found: dict[str, Any] = {kind: tuple(value) for kind, value in rows.items()}
        return Evidence(launch=self.plan.launch, **found)

    def _user_step(self, rank: int) -> str | None:
        state = self.world.ranks.get(rank)
        return state.user_step if state else None

    def _unexplained_exits(self) -> list[RankExit]:
        """Ranks that are gone although nobody of ours ended them and the agent cannot say why."""
        if self.world.exits or self.ending is None or self.ending.status != "failed":
            return []
        dead = [s for s in self.world.ranks.values() if s.gone and not s.finished and s.failed is None]
        if "died" not in self.ending.reason:
            return []
        detail = "the agent process was gone as well" if self.world.agent_gone else None
        return [RankExit(s.rank, s.pid or 0, s.stage, detail=detail) for s in dead]

    def _record(self, stage: str, node: int, origin: float) -> StageRecord:
        states = self.world.ranks
        record = StageRecord(node, stage, "passed", limit_s=self.plan.limits[stage])
        if not self.plan.runs(stage):
            return dataclasses.replace(record, status="skipped", reason="not selected")
        begun = [s for s in states.values() if s.began(stage)]
        if begun:
            start = min(s.segments[stage][0].begin for s in begun)
            spent = [s.spent(stage) for s in begun]
            record = dataclasses.replace(
                record,
                started_s=start - origin,
                duration_s=max((v for v in spent if v is not None), default=None),
                finished=RankSet(s.rank for s in begun if s.completed(stage)),
                unfinished=RankSet(s.rank for s in begun if not s.completed(stage)),
            )
        ending = self.ending
        if ending is not None and ending.stage == stage:
            start = min((s.segments[stage][0].begin for s in begun), default=self._started)
            return dataclasses.replace(
                record,
                status=ending.status,
                reason=ending.reason,
                started_s=start - origin,
                duration_s=ending.at - start,
                limit_s=record.limit_s if ending.limit_s is None else ending.limit_s,
                limit_option=ending.limit_option,
                stacks=ending.stacks,
                stacks_note=ending.stacks_note,
            )
        if len(record.finished) == self.plan.launch.nproc:
            return record
        return dataclasses.replace(record, status="unreached", reason=self._why_unreached())

    def _why_unreached(self) -> str:
        if self.world.blocked:
            return self.world.blocked
        if self.ending is not None:
            return f"the run ended in stage {self.ending.stage}: {self.ending.reason}"
        return "the ranks did not get that far"


def _row_types() -> dict[str, Any]:
    import typing

    hints = typing.get_type_hints(Evidence)
    return {
        kind: typing.get_args(hints[kind])[0] for kind in KINDS if typing.get_origin(hints[kind]) is tuple
    }


def _word_deaths(known: list[RankExit], dead: list[RankState]) -> str:
    if not known:
        return f"{RankSet(s.rank for s in dead).phrase()} died"
    first = known[0]
    ranks = RankSet(each.rank for each in known).phrase()
    if first.signal:
        return f"{ranks} died of {signal.Signals(first.signal).name}"
    return f"{ranks} exited with code {first.exit_code}"


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
