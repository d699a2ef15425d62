"""Watching the tiny world from beside: limits, stacks before anything is killed, stage records, evidence.

The supervisor is the command's own process. It never imports torch and never takes part in the world, so
nothing that
hangs or dies there can keep it from writing its report.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import psutil

from ddpdoctor.evidence import (
    NodeFacts,
    encode,
)
from ddpdoctor.gather.libraries import mapped_libraries
from ddpdoctor.launch.agent import agent_file, run_agent
from ddpdoctor.launch.interrupt import Interrupt
from ddpdoctor.launch.plan import Plan
from ddpdoctor.launch.processes import kill_processes
from ddpdoctor.launch.request import Progress
from ddpdoctor.launch.server import TorchServer
from ddpdoctor.launch.traces import keep_stacks
from ddpdoctor.launch.wire import EventReader
from ddpdoctor.launch.world.endings import end_by_timeout, find_broken, find_gone, find_late, is_out_of_time
from ddpdoctor.launch.world.rank_states import RankState
from ddpdoctor.launch.world.state import Ending, World
from ddpdoctor.watch.live.stacks import merge_stacks, name_problem, take_stacks

POLL_S = 0.02
"""How often the events are read; a look costs well under a millisecond for a handful of ranks."""


class Supervisor:
    """Runs the agent of one node and keeps it within its limits."""

    def __init__(self, plan: Plan, server: TorchServer, progress: Progress, interrupt: Interrupt) -> None:
        self._server = server
        self._progress = progress
        self._interrupt = interrupt
        self._agent_reader = EventReader(agent_file(plan.workdir))
        self._rank_readers: dict[Path, EventReader] = {}
        self._stage_shown: str | None = None
        self._read_pid: int | None = None
        self._over = False
        """The ranks were ended: what the last ones say of lost peers is no evidence."""
        self.world = World(plan)
        self.ending: Ending | None = None

    def run(self, facts: NodeFacts) -> None:
        """Start the agent and its ranks and return when they have ended or were cut.

        Args:
            facts: this node's, for the other nodes.
        """
        self.world.started = time.monotonic()
        reader, self._commands = self._server.pipe()
        self._agent = self._server.process(run_agent, encode(self.world.plan), encode(facts), reader)
        try:
            self._agent.start()
        except (EOFError, OSError) as problem:
            self.world.blocked = f"the process with torch did not start: {problem!r}"
            return
        finally:
            reader.close()
        while not self.world.is_over():
            self._look()
            ending = self._find_ending()
            if ending is not None:
                self._end(ending)
                break
            time.sleep(POLL_S)
        self._look()
        if self.ending is None:
            now = time.monotonic()
            self.ending = find_gone(self.world, now) or find_broken(self.world)

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
        for path in () if self._over else Path(self.world.plan.workdir).glob("rank-*.jsonl"):
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
            self.world.agent_gone, self.world.agent_exit = True, self._agent.exitcode
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
            world.note_exit(event)
        elif kind in ("broken", "world-broken"):
            world.broken = str(event["text"])
        elif kind == "place":
            world.take_place(event)
        elif kind == "peer-cut":
            world.others = str(event["text"])
        elif kind == "exchanged":
            world.exchanged, world.merged = True, event.get("path")

    def _show_stage(self) -> None:
        stages = [s.stage for s in self.world.ranks.values() if s.stage]
        if stages and stages[0] != self._stage_shown and stages[0] is not None:
            self._stage_shown = stages[0]
            self._progress.stage(stages[0], self.world.plan.limits[stages[0]])

    # -- ending

    def _find_ending(self) -> Ending | None:
        now = time.monotonic()
        if self._interrupt.name:
            return Ending(self.world.find_stage(), "unreached", f"interrupted by {self._interrupt.name}")
        if self.world.is_over():
            return None
        if is_out_of_time(self.world, now):
            return end_by_timeout(self.world, now)
        if self.world.others is not None and not self.world.has_deaths():
            return Ending(self.world.find_stage(), "failed", self.world.others)
        return find_gone(self.world, now) or find_late(self.world, now)

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


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
