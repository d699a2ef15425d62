"""Launching the user's job and staying beside it until it ends."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.evidence.job import REQUESTS, Moment
from ddpdoctor.watch.commandline import Split
from ddpdoctor.watch.launch.clusters import ClusterWatch
from ddpdoctor.watch.launch.desk import Desk
from ddpdoctor.watch.launch.guardian import Guardian, Witness
from ddpdoctor.watch.launch.limit import Limit
from ddpdoctor.watch.launch.relay import HEAD_BYTES, Relay
from ddpdoctor.watch.launch.result import JobResult
from ddpdoctor.watch.launch.signals import Heard, SignalWait
from ddpdoctor.watch.launch.waiting import RendezvousWatch
from ddpdoctor.watch.live.asking import Reception
from ddpdoctor.watch.live.memory import MemoryWatch
from ddpdoctor.watch.run_companions import Companions, Guard
from ddpdoctor.watch.rundir import RunDirectory

if TYPE_CHECKING:
    from ddpdoctor.watch.live.comparing import CallWatch
    from ddpdoctor.watch.live.monitor import Monitor
    from ddpdoctor.watch.live.uneven import LoaderWatch
    from ddpdoctor.watch.view.live_view import LiveView

INJECT = Path(__file__).parents[1] / "inject"
"""Goes in front of PYTHONPATH; its sitecustomize is the start-up hook."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are the job's: torchrun handles the first four, scripts use the others."""
LOOK_S = 0.2
"""How long a wait for a signal lasts before the child is looked at again; SIGCHLD ends it at once."""
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
"""Why a command that could be started alone may not start beside what is ours (fork(2), open(2))."""
SI_USER = 0
"""si_code of a signal that a process sent with kill(2); others come from the kernel (a terminal's Ctrl-C)."""
PR_SET_PDEATHSIG = 1


def make_command(split: Split) -> list[str]:
    """Return what is launched: torch's own launcher, or the user's command as it is."""
    if split.is_command:
        return list(split.target)
    return [sys.executable, "-m", "torch.distributed.run", *split.torchrun, *split.target]


def make_environment(
    environ: Mapping[str, str],
    run: RunDirectory,
    *,
    watch: bool,
    record: bool = True,
    level: str | None = None,
) -> dict[str, str]:
    """Return the job's environment: the user's and the documented variables.

    Args:
        environ: the user's.
        run: where the processes write what they see.
        watch: whether they do.
        record: whether ranks that are not decorated with ``record`` write torch's error file all the same.
        level: how much is looked at in steps and batches; None leaves it to the environment.
    """
    made = dict(environ)
    if not watch:
        made["DDPDOCTOR_WATCH"] = "0"
        return made
    made["PYTHONPATH"] = os.pathsep.join(filter(None, (str(INJECT), environ.get("PYTHONPATH"))))
    made["DDPDOCTOR_RUN"] = str(run.path)
    made["DDPDOCTOR_STREAMS"] = f"{run.private / 'streams'}|{Relay.describe_targets()}"
    made["DDPDOCTOR_SUPERVISOR"] = str(os.getpid())
    if not record:
        made["DDPDOCTOR_RECORD"] = "0"
    if level is not None:
        made["DDPDOCTOR_WATCH_LEVEL"] = level
    return made


@dataclass(frozen=True, slots=True)
class Company:
    """What is wanted beside a job; each maker is called once the job has been started, so that it waits for none."""

    launched: Callable[[], object] | None = None
    """Called first; must return at once."""
    desk: Desk | None = None
    """Where the agent asks for what other nodes need to know."""
    reception: Reception | None = None
    """Takes looks at the job when somebody asks."""
    waiting: RendezvousWatch | None = None
    """Says when the rendezvous does not come about."""
    clusters: ClusterWatch | None = None
    """Says when the job's ranks run in a cluster that is not ours to watch."""
    monitoring: Callable[[], Monitor | None] | None = None
    """Makes what watches whether the job gets on and says when to end it."""
    comparing: Callable[[], CallWatch | None] | None = None
    """Makes what compares the calls of ranks."""
    counting: Callable[[], LoaderWatch | None] | None = None
    """Makes what compares the lengths of the ranks' loaders."""
    viewing: Callable[[MemoryWatch, Monitor | None], LiveView | None] | None = None
    """Makes what shows the ranks on the terminal."""
    enough: Callable[[], bool] | None = None
    """Whether all that a run was made for has been seen; it is ended then."""


def run_job(
    command: Sequence[str],
    environment: Mapping[str, str],
    run: RunDirectory,
    company: Company = Company(),
    *,
    log_limit: int = HEAD_BYTES,
    limit_s: float | None = None,
) -> JobResult:
    """Run the command to its end, its output carried and kept, its signals passed on.

    Once the command has been started nothing here raises: what fails of ours is in the result.

    Args:
        command: what is launched.
        environment: its variables, of `make_environment`.
        run: where the run is kept.
        company: what is wanted beside it.
        log_limit: bytes kept of each end of a stream.
        limit_s: how long the command may run.

    Raises:
        OSError: the command cannot be started.
    """
    guard = Guard()
    job = _Job(guard, run, company, log_limit)
    watched = {*FORWARDED, signal.SIGCHLD, signal.SIGWINCH}
    if company.viewing is not None and signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
        watched.add(signal.SIGTSTP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        started = time.monotonic()
        try:
            job.launch(command, environment, _follow_us(before))
        except BaseException:
            job.close()
            raise
        job.begin(limit_s)
        stopped = job.stay(watched)
        job.close()
        guard("signals after the job", functools.partial(_drop_pending, watched))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return job.describe_end(stopped, time.monotonic() - started)


class _Job:
    """A running job and what is beside it.

    Args:
        guard: remembers what fails of ours.
        run: where the run is kept.
        company: what is wanted beside it.
        log_limit: bytes kept of each end of a stream.
    """

    def __init__(self, guard: Guard, run: RunDirectory, company: Company, log_limit: int) -> None:
        self._guard, self._run, self._company = guard, run, company
        self._companions = Companions(guard)
        self._relay: Relay | None = None
        self._guardian: Guardian | None = None
        self._witness: Witness | None = None
        self._log_limit = log_limit
        self._memory = MemoryWatch(run.processes)
        self._signals: list[str] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._limit: Limit | None = None
        self._monitor: Monitor | None = None
        self._reception: Reception | None = None
        self._calls: CallWatch | None = None
        self._view: LiveView | None = None
        self._ended: Moment | None = None

    def launch(
        self, command: Sequence[str], environment: Mapping[str, str], prepare: Callable[[], None]
    ) -> None:
        """Start the command, and before it what has to be there from its beginning.

        Where the system has no room for both (descriptors, processes, memory), the command goes first.

        Args:
            command: what is launched.
            environment: its variables.
            prepare: is called in the child.

        Raises:
            OSError: the command cannot be started.
        """
        guard, run = self._guard, self._run
        self._relay = guard(
            "output of the job", lambda: Relay(run.kept, run.private / "streams", limit=self._log_limit)
        )
        self._guardian = guard("cleaning up", lambda: Guardian(run.private, run.path))
        self._witness = guard("signals for the process group", lambda: Witness(command))
        variables = dict(environment)
        if self._relay is None:
            variables.pop("DDPDOCTOR_STREAMS", None)
        try:
            self._child = subprocess.Popen(command, env=variables, preexec_fn=prepare)
        except OSError as problem:
            if problem.errno not in NO_ROOM:
                raise
            guard.note(f"output of the job: {problem.strerror}: the command was started without it")
            self.close()
            self._relay = self._guardian = self._witness = None
            variables.pop("DDPDOCTOR_STREAMS", None)
            self._child = subprocess.Popen(command, env=variables, preexec_fn=prepare)

    def begin(self, limit_s: float | None) -> None:
        """Begin what is wanted beside the child that has been started."""
        guard, company, child = self._guard, self._company, self._child
        assert child is not None
        if self._guardian is not None:
            guard("cleaning up", functools.partial(self._guardian.watch, child.pid))
        relay = self._companions.begin("output of the job", lambda: self._relay)
        guard("memory", self._memory.begin)
        if company.desk is not None:
            company.desk.expect(self._memory, self._signals)
        self._companions.begin("evidence of other nodes", lambda: company.desk)
        self._reception = self._companions.begin("requested snapshots", lambda: company.reception)
        if company.launched is not None:
            guard("loading the checks", company.launched)
        self._limit = guard("stopping the job", lambda: Limit(child, self._run.processes, limit_s))
        self._monitor = self._companions.begin(
            "watching for hangs",
            company.monitoring,
            lambda monitor: monitor.tell_after(relay.end_line) if relay is not None else None,
        )
        self._calls = self._companions.begin("comparing the collectives of ranks", company.comparing)
        self._companions.begin("comparing the DataLoaders of ranks", company.counting)
        if company.viewing is not None and relay is not None:
            make = functools.partial(company.viewing, self._memory, self._monitor)
            self._view = self._companions.begin(
                "the live view", make, functools.partial(_share_screen, relay)
            )

    def close(self) -> None:
        """End what is beside the job."""
        if self._child is None and self._relay is not None:  # no companion yet
            self._guard("output of the job", self._relay.close)
        self._companions.close()
        for helper in (self._witness, self._guardian):
            if helper is not None:
                self._guard("stopping a helper", helper.close)
        self._guard("memory", self._memory.stop)

    def stay(self, watched: Set[signal.Signals]) -> bool:
        """Wait for the child; a signal that was sent to us alone is passed on, one of the whole group it has already.

        Returns:
            Whether it was told to end because it stood still.
        """
        child = self._child
        assert child is not None
        stopped = False
        wait = self._guard("waiting for signals", lambda: SignalWait(watched))
        while child.poll() is None:
            if self._guard("stopping the job", functools.partial(self._enforce, stopped)):
                stopped = True
            if self._company.waiting is not None:
                self._guard("the rendezvous", self._company.waiting.look)
            if self._company.clusters is not None:
                self._guard("clusters", self._company.clusters.look)
            heard = self._guard("waiting for signals", functools.partial(wait, LOOK_S)) if wait else None
            if wait is None:
                self._guard("waiting for the job", functools.partial(_wait_for, child))
            self._guard("a signal", functools.partial(self._hear, heard))
        self._ended = Moment(time.time_ns(), time.monotonic_ns())
        if self._limit is not None:
            self._guard("stopping the job", self._limit.clear)
        return stopped

    def _enforce(self, stopped: bool) -> bool:
        """Keep to the limit of time, and end a job that stands still; return whether that is begun here."""
        if self._limit is None:
            return False
        enough = self._company.enough
        begun = not stopped and (
            (self._monitor is not None and self._monitor.ending is not None)
            or (enough is not None and enough())
        )
        if begun:
            self._limit.end_now()
        self._limit.enforce()
        return begun

    def _hear(self, heard: Heard | None) -> None:
        if heard is None or heard.number == signal.SIGCHLD:
            self._guard("memory", self._memory.look)
        elif heard.number == signal.SIGWINCH:
            if self._relay is not None:
                self._guard("the size of the terminal", self._relay.resize)
            if self._view is not None:
                self._guard("the live view", self._view.refresh)
        elif heard.number == signal.SIGTSTP:
            _stop(self._view, self._guard)
        elif self._reception is not None and heard.number == self._reception.signum:
            self._reception.take_later()
        else:
            self._pass_on(heard)

    def _pass_on(self, heard: Heard) -> None:
        assert self._child is not None
        self._signals.append(signal.Signals(heard.number).name)
        if self._monitor is not None and self._signals[-1] in REQUESTS:
            self._guard("watching for hangs", self._monitor.hold)
        sent = heard.code == SI_USER or heard.code < 0
        witness = self._witness
        known = (
            self._guard("signals for the process group", lambda: witness.heard(heard.number))
            if witness is not None
            else False
        )
        if not known and sent:
            with contextlib.suppress(OSError):
                self._child.send_signal(heard.number)

    def describe_end(self, stopped: bool, duration_s: float) -> JobResult:
        """Return how the job ended.

        Args:
            stopped: it was told to end because it stood still.
            duration_s: how long it ran.
        """
        assert self._child is not None
        monitor, calls = self._monitor, self._calls
        gone = self._guard("the run directory", self._run.restore)
        if monitor is not None and monitor.decided and self._child.returncode != 0:
            # The other nodes were told first; where they were quick, the launcher here ended with them.
            stopped = True
        return JobResult(
            self._child.returncode,
            duration_s,
            self._memory,
            self._signals,
            [*self._companions.lost, *([gone] if gone is not None else ())],
            self._limit is not None and self._limit.over and not stopped,
            stopped,
            monitor.elsewhere if monitor is not None else None,
            self._ended,
            calls.log if calls is not None else None,
        )


def _drop_pending(watched: Set[signal.Signals]) -> None:
    """Take what came since the job has ended: a Ctrl-C for it would end us before the report."""
    while watched & signal.sigpending() and signal.sigtimedwait(watched, 0) is not None:
        pass


def _share_screen(relay: Relay, view: LiveView) -> None:
    relay.screen = view.screen


def _wait_for(child: subprocess.Popen[bytes]) -> None:
    """Wait without hearing signals, where they cannot be waited for."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(LOOK_S)


def _follow_us(mask: set[signal.Signals] | set[int]) -> Callable[[], None]:
    """The launcher gets SIGTERM when we are killed, as if its terminal had asked it to end; nothing is orphaned."""
    prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    return prepare


def _stop(view: LiveView | None, guard: Guard) -> None:
    """Stop as Ctrl-Z asks for, the terminal left to the shell meanwhile."""
    if view is not None:
        guard("the live view", view.pause)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})  # here we stop
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
    if view is not None:
        guard("the live view", view.resume)
