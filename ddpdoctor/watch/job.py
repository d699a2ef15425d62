"""Launching the user's job and staying beside it until it ends."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ddpdoctor.watch.asking import Reception
from ddpdoctor.watch.commandline import Split
from ddpdoctor.watch.limit import Limit
from ddpdoctor.watch.memory import MemoryWatch
from ddpdoctor.watch.nodes import Desk
from ddpdoctor.watch.relay import HEAD_BYTES, Relay
from ddpdoctor.watch.rundir import RunDirectory
from ddpdoctor.watch.signals import SignalWait
from ddpdoctor.watch.waiting import RendezvousWatch

if TYPE_CHECKING:
    from ddpdoctor.evidence.collectives import CallLog
    from ddpdoctor.watch.comparing import CallWatch
    from ddpdoctor.watch.live import LiveView
    from ddpdoctor.watch.monitor import Monitor
    from ddpdoctor.watch.uneven import LoaderWatch

T = TypeVar("T")

INJECT = Path(__file__).with_name("inject")
"""Goes in front of PYTHONPATH; its sitecustomize is the start-up hook."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are the job's: torchrun handles the first four, scripts use the others."""
LOOK_S = 0.2
"""How long a wait for a signal lasts before the child is looked at again; SIGCHLD ends it at once."""
SI_USER = 0
"""si_code of a signal that a process sent with kill(2); others come from the kernel (a terminal's Ctrl-C)."""
PR_SET_PDEATHSIG = 1
GROUP_S = 0.05
"""How long after a signal of ours the witness may get its own: who kills one process after the other (systemd, Slurm)
takes microseconds for each."""
MOST_LOST = 20
"""Different failures of ours that are remembered."""


@dataclass(slots=True)
class JobResult:
    """How the launched command ended."""

    returncode: int
    """As subprocess gives it: negative for a signal."""
    duration_s: float
    memory: MemoryWatch
    signals: list[str] = field(default_factory=list)
    """Signals that came while it ran."""
    lost: list[str] = field(default_factory=list)
    timed_out: bool = False
    """It was told to end because its limit was over."""
    stopped: bool = False
    """It was told to end because it stood still."""
    stopped_elsewhere: str | None = None
    """What was found on another node, where that was seen."""
    calls: CallLog | None = None
    """What its ranks called, where some of it is worth keeping."""

    @property
    def exit_code(self) -> int:
        """What a shell would have seen; 1 where a hang was ended."""
        if self.stopped:
            return 1
        return self.returncode if self.returncode >= 0 else 128 - self.returncode


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


def run_job(
    command: Sequence[str],
    environment: Mapping[str, str],
    run: RunDirectory,
    *,
    log_limit: int = HEAD_BYTES,
    limit_s: float | None = None,
    launched: Callable[[], object] | None = None,
    desk: Desk | None = None,
    monitoring: Callable[[], Monitor | None] | None = None,
    reception: Reception | None = None,
    waiting: RendezvousWatch | None = None,
    viewing: Callable[[MemoryWatch, Monitor | None], LiveView | None] | None = None,
    comparing: Callable[[], CallWatch | None] | None = None,
    counting: Callable[[], LoaderWatch | None] | None = None,
) -> JobResult:
    """Run the command to its end, its output carried and kept, its signals passed on.

    Args:
        command: what is launched.
        environment: its variables, of `make_environment`.
        run: where the run is kept.
        log_limit: bytes kept of each end of a stream.
        limit_s: how long the command may run.
        launched: called once when the command has been started; must return at once and not raise.
        desk: where the agent asks for what other nodes need to know.
        monitoring: makes what watches whether the job gets on and says when to end it; called when it has been
            started, so that nobody waits for its imports.
        reception: takes looks at the job when somebody asks.
        waiting: says when the rendezvous does not come about.
        viewing: makes what shows the ranks on the terminal; called when the command has been started; must not raise.
        comparing: makes what compares the calls of ranks; called when the command has been started.
        counting: the same for the lengths of their loaders.

    Raises:
        OSError: the command cannot be started.
    """
    relay = Relay(run.logs, run.private / "streams", limit=log_limit)
    memory = MemoryWatch(run.processes)
    signals: list[str] = []
    guard = _Guard()
    started = time.monotonic()
    watched = {*FORWARDED, signal.SIGCHLD, signal.SIGWINCH}
    if viewing is not None and signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
        watched.add(signal.SIGTSTP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    witness = _Witness(command, run.private)
    monitor: Monitor | None = None
    view: LiveView | None = None
    calls: CallWatch | None = None
    loaders: LoaderWatch | None = None
    try:
        child = subprocess.Popen(command, env=dict(environment), preexec_fn=_follow_us(before))
        relay.start()
        guard("memory", memory.begin)
        if desk is not None:
            guard("what other nodes saw", functools.partial(desk.open, memory, signals))
        if reception is not None:
            guard("looks that are asked for", reception.open)
        if launched is not None:
            launched()
        limit = Limit(child, run.processes, limit_s)
        monitor = guard("watching for hangs", monitoring) if monitoring is not None else None
        if monitor is not None:
            monitor.tell_after(relay.end_line)
            monitor.start()
        calls = guard("comparing the calls of ranks", comparing) if comparing is not None else None
        if calls is not None:
            calls.start()
        loaders = guard("comparing the loaders of ranks", counting) if counting is not None else None
        if loaders is not None:
            loaders.start()
        view = (
            guard("the live view", functools.partial(viewing, memory, monitor))
            if viewing is not None
            else None
        )
        if view is not None:
            relay.screen = view.screen
            view.start()
        stopped = _stay(
            child, watched, memory, relay, witness, limit, monitor, waiting, reception, view, signals, guard
        )
    finally:
        if view is not None:
            view.close()
        if monitor is not None:
            monitor.close()
        if calls is not None:
            calls.close()
        if loaders is not None:
            loaders.close()
        if desk is not None:
            desk.close()
        if reception is not None:
            reception.close()
        witness.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        memory.stop()
        relay.close()
    gone = run.restore()
    if monitor is not None and monitor.decided and child.returncode != 0:
        # The other nodes were told first; where they were quick, the launcher here ended with them.
        stopped = True
    return JobResult(
        child.returncode,
        time.monotonic() - started,
        memory,
        signals,
        [
            *guard.lost,
            *relay.lost,
            *(desk.lost if desk is not None else ()),
            *(monitor.lost if monitor is not None else ()),
            *(calls.lost if calls is not None else ()),
            *(loaders.lost if loaders is not None else ()),
            *(reception.lost if reception is not None else ()),
            *([gone] if gone is not None else ()),
        ],
        limit.over and not stopped,
        stopped,
        monitor.elsewhere if monitor is not None else None,
        calls.log if calls is not None else None,
    )


def _follow_us(mask: set[signal.Signals] | set[int]) -> Callable[[], None]:
    """The launcher gets SIGTERM when we are killed, as if its terminal had asked it to end; nothing is orphaned."""
    prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    return prepare


AFTER_US = 'read _; rm -f "$0/streams" "$0/node" "$0/asked" "$0"/fr-*; rmdir "$0"'
"""What the witness does: `close` kills it, so the rest only comes when nobody is left to do it."""


class _Witness:
    """Tells a signal for the whole process group from one for us: beside the launcher, it gets the former too.

    A shell that waits for the end of its input, which ends with us however we end; the signals stay pending in
    it, for /proc to show. Its command line holds the launcher's, so that what is sent by name (``pkill -f
    train.py``) comes to both or to none. Without it torchrun would get such signals twice, and the second one
    breaks off its own stopping of the ranks, which are left behind then. Where we are killed, it removes the
    directory of our sockets.
    """

    def __init__(self, command: Sequence[str], private: Path) -> None:
        self._command = ["sh", "-c", AFTER_US, str(private), *command]
        self._shell: subprocess.Popen[bytes] | None = None
        self._start()

    def _start(self) -> None:
        with contextlib.suppress(OSError):  # no shell: every signal that somebody sent is passed on
            self._shell = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def heard(self, signum: int) -> bool:
        """Return whether the group got the signal; the next one is told apart again."""
        end = time.monotonic() + GROUP_S
        while self._shell is not None and not self._pending() >> (signum - 1) & 1:
            if time.monotonic() > end:
                return False
            time.sleep(GROUP_S / 10)
        if self._shell is None:
            return False
        self.close()
        self._start()
        return True

    def _pending(self) -> int:
        assert self._shell is not None
        try:
            text = Path(f"/proc/{self._shell.pid}/status").read_text()
        except OSError:
            return 0
        return int(text.partition("ShdPnd:")[2].split()[0], 16)

    def close(self) -> None:
        """End it."""
        if self._shell is not None:
            self._shell.kill()
            self._shell.communicate()
            self._shell = None


class _Guard:
    """Calls what is ours while the job runs: whatever it raises is remembered, and the job goes on."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def __call__(self, what: str, call: Callable[[], T]) -> T | None:
        """Return what a call returns; None where it fails."""
        try:
            return call()
        except Exception as problem:
            sentence = f"{what}: {type(problem).__name__}: {problem}"
            if sentence not in self.lost and len(self.lost) < MOST_LOST:
                self.lost.append(sentence)
            return None


def _stay(
    child: subprocess.Popen[bytes],
    watched: Set[signal.Signals],
    memory: MemoryWatch,
    relay: Relay,
    witness: _Witness,
    limit: Limit,
    monitor: Monitor | None,
    waiting: RendezvousWatch | None,
    reception: Reception | None,
    view: LiveView | None,
    seen: list[str],
    guard: _Guard,
) -> bool:
    """Wait for the child; a signal that was sent to us alone is passed on, one of the whole group it has already.

    ``seen`` gets the name of each.

    Returns:
        Whether it was told to end because it stood still.
    """
    stopped = False
    wait = SignalWait(watched)
    while child.poll() is None:
        if monitor is not None and monitor.ending is not None and not stopped:
            stopped = True
            limit.end_now()
        limit.enforce()
        if waiting is not None:
            guard("the rendezvous", waiting.look)
        heard = wait(LOOK_S)
        if heard is None or heard.number == signal.SIGCHLD:
            guard("memory", memory.look)
        elif heard.number == signal.SIGWINCH:
            guard("the size of the terminal", relay.resize)
            if view is not None:
                guard("the live view", view.refresh)
        elif heard.number == signal.SIGTSTP:
            _stop(view)
        elif reception is not None and heard.number == reception.signum:
            reception.take_later()
        else:
            seen.append(signal.Signals(heard.number).name)
            sent = heard.code == SI_USER or heard.code < 0
            if not witness.heard(heard.number) and sent:
                with contextlib.suppress(OSError):
                    child.send_signal(heard.number)
    limit.clear()
    return stopped


def _stop(view: LiveView | None) -> None:
    """Stop as Ctrl-Z asks for, the terminal left to the shell meanwhile."""
    if view is not None:
        view.pause()
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})  # here we stop
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
    if view is not None:
        view.resume()
