"""Watching whether a job gets on: when to look closer, what to say of it, and when to end it."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ddpdoctor.evidence.codec import encode
from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.standstill import Standstill
from ddpdoctor.facts.wire import ENDED
from ddpdoctor.watch.keeping import write_below
from ddpdoctor.watch.live.glances import TICK_S, GlanceReader, choose_stall
from ddpdoctor.watch.live.look import Looker, read_pulse
from ddpdoctor.watch.live.native import Insight
from ddpdoctor.watch.live.pace import Glance, Pace
from ddpdoctor.watch.live.policy import Policy, Ruling
from ddpdoctor.watch.live.rank_rings import RankFinder
from ddpdoctor.watch.live.ras import ask_ras
from ddpdoctor.watch.live.recorders import Recorders
from ddpdoctor.watch.live.stillness import Exchange, read_node
from ddpdoctor.watch.live.suspicion import Marks, Suspicion, mark, went_on
from ddpdoctor.watch.run_companions import end_thread

STAGE_WORDS = {"suspected": "suspected", "reminded": "still stalled", "confirmed": "confirmed"}
"""Stages of a hang that is not proven, as they are said."""
SAMPLES_S = 0.7
"""Seconds between the two samples of a look."""
LOOKS_KEPT = 50
JOIN_S = 6.0
"""How long a node waits for what the others see before it judges by its own ranks."""
TRIES = 10
"""Glances in a row that may fail: what is read is written meanwhile."""
STOP_S = 2.0
"""How long a node waits before it ends its own ranks, for the others to hear why."""
HELD_S = 45.0
"""After a request to end, ranks raise and leave for this long: torchrun gives them 30 s (--shutdown-timeout). What
moves meanwhile is no progress."""
MOST_SHARE, FREE_S = 0.01, 30.0
"""Largest share of the job's time that looks may take, and seconds that are free."""


class Monitor:
    """Watches the rings of a run in a thread of its own.

    Args:
        run: the run directory.
        root: the job's working directory.
        judge: says what a look means; called in the thread.
        policy: when to suspect, confirm and end.
        tell: shows one line to the person; called in the thread.
        private: folder in which torch's recorders answer; None where they are not to be asked.
        exchange: what is told to, and heard from, those who watch other ranks of the job; None for the agents' own.
    """

    def __init__(
        self,
        run: Path,
        root: Path,
        judge: Callable[[Standstill], Ruling],
        policy: Policy,
        tell: Callable[[str], object],
        private: Path | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        self._run, self._judge, self._policy, self._tell = run, judge, policy, tell
        self._looker = Looker(root, read_node(os.environ), time.monotonic_ns())
        self._glances = GlanceReader(self._looker)
        self._ranks = RankFinder(run / "processes", self._looker.read_tables)
        self._recorders = Recorders(run, private) if private is not None else None
        self._pace = Pace()
        self._insight = Insight()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ddpdoctor-monitor", daemon=True)
        self._exchange = exchange or Exchange(run)
        self._shared: Standstill | None = None
        self._checked = 0
        self._since = 0.0
        self._alone = False
        self._held_until = 0.0
        self._judged: tuple[float, ...] = ()
        self._ended: Ruling | None = None
        self.elsewhere: str | None = None
        """What was found on another node, which ends the job."""
        self._suspicion: Suspicion | None = None
        self._reported = ""
        """Headline of the deadlock that was said last of a job that is not to be ended."""
        self._unnamed: Standstill | None = None
        """A look at ranks that do not move, of which nobody could be named; kept where the job is then asked to end."""
        self._seen: Marks = {}
        """How far ranks were when the look was taken that other nodes are told of."""
        self._saved = 0
        self._began = time.monotonic()
        self.cost_s = 0.0
        """Spent in looks so far."""
        self.ending: Ruling | None = None
        """Set when the job is to be ended, after the evidence is on disk."""
        self.lost: list[str] = []
        self.said: tuple[str, str] | None = None
        """Stage (see `STAGES`) and sentence of what was told last, as long as it holds."""

    def tell_after(self, first: Callable[[], object]) -> None:
        """Do something before each line that is told."""
        tell = self._tell

        def tell_then(text: str) -> None:
            first()
            tell(text)

        self._tell = tell_then

    @property
    def decided(self) -> bool:
        """Whether the job is to be ended, here or on another node, though `ending` may not be set yet."""
        return self._ended is not None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def hold(self) -> None:
        """Keep what is known: the job was asked to end, so ranks that move now do not show that it makes progress."""
        self._held_until = time.monotonic() + HELD_S

    def _is_held(self) -> bool:
        """Whether the job was asked to end a moment ago."""
        return time.monotonic() < self._held_until

    def close(self) -> None:
        """End; a look that is being taken is given up."""
        self._stop.set()
        end_thread(self._thread, 2.0)
        if self._ended is None and not self._thread.is_alive():
            try:
                self._settle_last()
                self._keep_last()
                self._exchange.leave(self._look_last)
            except Exception as problem:  # ours; the job is over
                self.lost.append(
                    f"a suspected stall could not be resolved: {type(problem).__name__}: {problem}"
                )

    def _watch(self) -> None:
        failures = 0
        while not self._stop.wait(TICK_S):
            try:
                self._tick()
                failures = 0
            except Exception as problem:  # ours; the job goes on
                failures += 1
                if failures == TRIES:
                    self.lost.append(f"watching for hangs ended: {type(problem).__name__}: {problem}")
                    return
            if self._ended is not None:
                if self._shared is not None and self.elsewhere is None:
                    self._exchange.stop(f"{self._ended.code}: {self._ended.headline}")
                    self._stop.wait(STOP_S)
                with contextlib.suppress(OSError):  # the launcher's stack then says nothing new
                    write_below(self._run, ENDED, b"")
                self.ending = self._ended
                return

    def _tick(self) -> None:
        if self._is_held():
            return
        rings = self._ranks.find()
        if not rings:
            return
        now = time.monotonic_ns()
        glances = [self._glances.read(ring, now) for ring in rings]
        if self._is_held():
            return  # the request came while they were read
        stall_after = self._policy.stall_after_s or choose_stall(rings)
        due = self._pace.due(
            glances,
            now,
            min(stall_after, self._policy.hang_timeout_s),
            self._policy.hang_timeout_s,
            world_size=max((ring.world_size or 0 for ring in rings), default=0),
        )
        if self._pace.moved:
            self._move(glances)
        elif self._shared is not None:
            self._share(stall_after, glances)
        if not due or self._ended is not None:
            return
        began = time.monotonic()
        if self.cost_s > MOST_SHARE * (began - self._began) + FREE_S:
            return
        seen = self._looker.look(rings, interval_s=SAMPLES_S, wait=self._stop.wait)
        self.cost_s += max(0.0, time.monotonic() - began - SAMPLES_S)
        if seen is None or [ring.read_count() for ring in rings] != [glance.count for glance in glances]:
            return  # the job went on meanwhile
        if not any(glance.count for glance in glances):
            seen = replace(seen, still_s=min(seen.still_s, self._pace.still_s))
        if (seen.world_size or 0) > len(seen.stands):
            self._save(replace(seen, stage="waiting"))
            if self._shared is None:
                self._since = time.monotonic()
            self._shared, self._checked, self._seen = seen, 0, mark(glances)
            if time.monotonic() - self._since < JOIN_S or not self._exchange.leads():
                return  # all nodes together say more
        self._rule(seen, stall_after, glances)

    def _move(self, glances: Sequence[Glance]) -> None:
        """Something happened: what was said before may not hold any more."""
        if self._suspicion is not None and self._suspicion.has_moved(glances):
            self._withdraw()
        elif self._suspicion is None and self._shared is not None and went_on(self._seen, glances):
            self._save(self._date(self._shared, "withdrawn"))
        if self._shared is not None:
            self._shared, self._alone = None, False
            self._exchange.withdraw()
        if self._suspicion is None:
            self.said = None
        self._unnamed = None

    def _settle_last(self) -> None:
        """Look a last time whether what was suspected holds: between two glances a job may go on and end well."""
        if self._suspicion is None or self._is_held():
            return
        rings = self._ranks.find()
        self._looker.read_tables(rings)
        well = {ring.rank for ring in rings if ring.ended and not ring.status}
        suspects = self._suspicion.suspects
        if (suspects and well >= suspects) or self._suspicion.has_moved(
            [self._glances.read(ring, time.monotonic_ns()) for ring in rings]
        ):
            self._withdraw()

    def _look_last(self) -> Standstill | None:
        """Return how ranks stood when they had all ended; None where there are none."""
        rings = self._ranks.find()
        if not rings or any(read_pulse(ring.pid, ring.ticks).alive for ring in rings):
            return None
        return self._looker.look(rings, interval_s=0.0, wait=lambda _: False)

    def _keep_last(self) -> None:
        """Keep how a job stood when it was asked to end: for how long nothing had moved by then."""
        look = self._suspicion.look if self._suspicion is not None else self._unnamed
        if look is None or not self._is_held():
            return
        held_s = self._held_until - HELD_S - (look.at.mono_ns or 0) / 1e9
        self._save(replace(self._date(look, look.stage), still_s=look.still_s + max(0.0, held_s)))

    def _share(self, stall_after: float, glances: Sequence[Glance]) -> None:
        """Tell the other nodes that nothing has moved, and judge what all of them tell together."""
        assert self._shared is not None
        self._checked += 1
        try:
            self._exchange.publish(self._shared, self._checked)
        except OSError as problem:
            self.lost.append(
                f"a hang could not be reported to the other nodes: {problem.strerror or problem}"
            )
            self._shared = None
            return
        stop = self._exchange.read_stop()
        if stop is not None:
            self._end_with_others(stop)
            return
        joined = self._exchange.join(self._shared) if self._exchange.leads() else None
        if joined is None:
            if not self._alone and time.monotonic() - self._since >= JOIN_S and self._exchange.leads():
                self._alone = True
                self._rule(self._shared, stall_after, glances)
            return
        still_s = joined.still_s + (time.monotonic_ns() - (self._shared.at.mono_ns or 0)) / 1e9
        rungs = (stall_after, self._policy.hang_timeout_s)
        judged = (joined.after_s, *(float(still_s >= rung) for rung in rungs))
        if judged == self._judged:
            return
        self._judged = judged
        self._rule(replace(joined, still_s=still_s), stall_after, glances)

    def _end_with_others(self, stop: str) -> None:
        """Another node ends the job; what all nodes have told until now is kept, for it may have seen less."""
        assert self._shared is not None
        joined = self._exchange.join(self._shared, ended=True)
        if joined is None:
            self._save(self._ask_recorders(self._shared, ends=True))
        else:
            seen = replace(joined, hang_timeout_s=self._policy.hang_timeout_s, stopped=True)
            seen = self._ask_recorders(seen, ends=True)
            ruling = self._judge(seen)
            if ruling.proved or ruling.stalled:
                self._save(replace(seen, stage="proved" if ruling.proved else "confirmed"))
        self._say("proved", f"ended on another node: {stop}")
        self._ended, self.elsewhere = Ruling(True, headline=stop), stop[:2000]

    def _rule(self, seen: Standstill, stall_after: float, glances: Sequence[Glance]) -> None:
        seen = replace(seen, hang_timeout_s=self._policy.hang_timeout_s)
        seen, ruling = self._look_inside(seen, self._judge(seen))
        said_s = self._suspicion.look.still_s if self._suspicion is not None else None
        stage = self._policy.choose_stage(seen, ruling, stall_after, said_s)
        if stage is None:
            self._unnamed = seen if seen.still_s >= stall_after and not ruling.stalled else None
            return
        seen = self._ask_recorders(seen, ends=self._policy.ends(stage))
        ruling = self._judge(seen)
        stage = self._policy.choose_stage(seen, ruling, stall_after, said_s)
        if stage is None:
            return
        ends = self._policy.ends(stage)
        if stage == "proved" and not ends:
            if ruling.headline == self._reported:
                return  # it was said, and the job goes on as was asked for
            self._reported = ruling.headline
        if stage in ("proved", "confirmed"):
            seen = self._ask_ras(seen)
        seen = replace(seen, stage=stage, stopped=ends)
        self._save(seen)
        if stage == "proved":
            more = "" if ends else " (--on-hang report: the job continues)"
            self._say(stage, f"{ruling.code}: {ruling.headline}{more}")
        else:
            marks = mark(glances)
            self._suspicion = Suspicion(seen, marks, frozenset(ruling.ranks) & marks.keys())
            self._say(stage, f"{STAGE_WORDS[stage]} after {seen.still_s:.0f} s: {ruling.headline}")
        if ends:
            self._ended = ruling

    def _ask_recorders(self, seen: Standstill, *, ends: bool) -> Standstill:
        """Return a look with what torch's recorders on this node say.

        Args:
            seen: the look, which is to be kept next.
            ends: the job is to be ended.
        """
        if self._recorders is None:
            return seen
        try:
            return self._recorders.tell(seen, self._ranks.find(), f"{self._saved + 1:04d}", ends=ends)
        except Exception as problem:  # ours; what was seen without them holds
            self.lost.append(f"torch's Flight Recorder was not queried: {type(problem).__name__}: {problem}")
            return seen

    def _ask_ras(self, seen: Standstill) -> Standstill:
        """Return a look with what NCCL's own service says of the job, where there is one."""
        try:
            answer = ask_ras(seen, self._run)
        except Exception as problem:  # ours; what was seen without it holds
            self.lost.append(f"NCCL's RAS service was not queried: {type(problem).__name__}: {problem}")
            return seen
        return replace(seen, ras=(answer,)) if answer is not None else seen

    def _look_inside(self, seen: Standstill, ruling: Ruling) -> tuple[Standstill, Ruling]:
        """Take the native frames of ranks that stall for good where their Python lines do not say in what."""
        if not ruling.unclear or not (ruling.proved or seen.still_s >= self._policy.hang_timeout_s):
            return seen, ruling
        here = {(ring.rank, ring.pid) for ring in self._ranks.find() if ring.rank in ruling.unclear}
        deeper = self._insight.add(seen, here)
        return deeper, self._judge(deeper)

    def _say(self, stage: str, sentence: str) -> None:
        self.said = stage, sentence
        self._tell(sentence)

    def _withdraw(self) -> None:
        assert self._suspicion is not None
        self._tell("stall cleared: the job is making progress again")
        self._insight.forget()
        self._save(self._date(self._suspicion.look, "withdrawn"))
        self._suspicion = None

    def _date(self, look: Standstill, stage: str) -> Standstill:
        """Return a look as of now, at another stage."""
        now = Moment(time.time_ns(), time.monotonic_ns())
        later_s = ((now.mono_ns or 0) - (look.at.mono_ns or 0)) / 1e9
        return replace(look, stage=stage, at=now, after_s=look.after_s + later_s)

    def _save(self, seen: Standstill) -> None:
        """Put a look on disk before anything is done about it."""
        self._saved += 1
        if self._saved > LOOKS_KEPT and seen.stage not in ("proved", "confirmed"):
            return
        try:
            write_below(self._run, f"snapshots/{self._saved:04d}.json", json.dumps(encode(seen)).encode())
        except OSError as problem:
            self.lost.append(f"a snapshot of the ranks could not be saved: {problem.strerror or problem}")
