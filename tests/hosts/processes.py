"""Commands that run on a simulated host, and what a host still holds: processes, listening sockets, files."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Killing is immediate; this only bounds the wait for the kernel to take the processes down on a loaded
# machine.
KILL_LIMIT_S = 20.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one command on one host.

    Attributes:
        host: Name of the host.
        returncode: Exit status; ``-n`` when signal n ended the command.
        stdout: Everything written to standard output (undecodable bytes replaced).
        stderr: Everything written to standard error.
        duration_s: Wall time from start to end, in seconds.
        timed_out: True when the command was killed because its limit had passed.
    """

    host: str
    returncode: int
    stdout: str
    stderr: str
    duration_s: float
    timed_out: bool

    def describe(self) -> str:
        """Give everything about the command as text, for the message of an assertion."""
        state = "timed out" if self.timed_out else f"exit {self.returncode}"
        return (
            f"[{self.host}] {state} after {self.duration_s:.1f} s\n{self.stdout}\n--- stderr\n{self.stderr}"
        )


@dataclass(frozen=True, slots=True)
class HostProcess:
    """One process of a host.

    Attributes:
        pid: Process id as the host sees it.
        outer_pid: Process id as the machine sees it.
        outer_parent: The parent's process id as the machine sees it.
        session: Session id as the machine sees it.
        state: One letter as in ``/proc/PID/stat`` (R, S, D, T, …).
        command: Command line, arguments joined with spaces.
    """

    pid: int
    outer_pid: int
    outer_parent: int
    session: int
    state: str
    command: str


@dataclass(frozen=True, slots=True)
class Listener:
    """One listening socket of a host: kind (tcp, udp, u_str…), local address, and who holds it as ss says."""

    kind: str
    local: str
    holder: str

    @property
    def port(self) -> int | None:
        """The port, or None for a Unix socket."""
        tail = self.local.rpartition(":")[2]
        return int(tail) if tail.isdigit() else None


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What one host still holds after a test; false when that is nothing."""

    host: str
    processes: tuple[HostProcess, ...]
    listeners: tuple[Listener, ...]
    files: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.processes or self.listeners or self.files)


def start_time(pid: int) -> int | None:
    """Give the start time of a process in clock ticks since boot, or None when there is no such process."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])  # field 22 of proc(5); pid and comm are cut off


def _stat(pid: int) -> list[str] | None:
    """Give the fields of ``/proc/PID/stat`` after the command name (state first), or None."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def namespace(pid: int, kind: str) -> str | None:
    """Name a namespace of a process (such as ``pid:[4026531836]``), or give None when that is gone."""
    try:
        return str(Path(f"/proc/{pid}/ns/{kind}").readlink())
    except OSError:
        return None


def all_pids() -> Iterator[int]:
    """Give the ids of all processes of the machine."""
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def processes_in(pid_namespace: str) -> list[HostProcess]:
    """List the living processes of a pid namespace without its first one; zombies are not counted."""
    found = (_inspect(pid) for pid in all_pids() if namespace(pid, "pid") == pid_namespace)
    return [
        process for process in found if process is not None and process.pid != 1 and process.state not in "ZX"
    ]


def _inspect(pid: int) -> HostProcess | None:
    fields = _stat(pid)
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        command = (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        )
    except OSError:
        return None
    inner = next((line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")), None)
    if fields is None or inner is None:
        return None
    return HostProcess(int(inner), pid, int(fields[1]), int(fields[3]), fields[0], command)


class Running:
    """A command that runs on a host.

    Its output goes to files, so an orphan that keeps them open blocks nobody.
    """

    def __init__(self, host: str, pid_namespace: str, enter: subprocess.Popen[bytes], outputs: Path) -> None:
        """Take over a started ``nsenter`` whose output goes to ``outputs``.out and ``outputs``.err."""
        self.host = host
        self._namespace = pid_namespace
        self._enter = enter
        self._outputs = outputs
        self._started = time.monotonic()
        self._ended: float | None = None

    @property
    def outer_pid(self) -> int | None:
        """The command's process id as the machine sees it; None before it started and after it ended."""
        try:
            text = Path(f"/proc/{self._enter.pid}/task/{self._enter.pid}/children").read_text(
                encoding="ascii"
            )
        except OSError:
            return None
        return int(text.split()[0]) if text.split() else None

    @property
    def stdout(self) -> str:
        """What the command has written to standard output so far."""
        return self._read(".out")

    @property
    def stderr(self) -> str:
        """What the command has written to standard error so far."""
        return self._read(".err")

    def _read(self, suffix: str) -> str:
        return Path(f"{self._outputs}{suffix}").read_text(encoding="utf-8", errors="replace")

    def alive(self) -> bool:
        """Tell whether the command still runs."""
        if self._enter.poll() is None:
            return True
        if self._ended is None:
            self._ended = time.monotonic()
        return False

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the command's process group, as a terminal would (Ctrl-C is SIGINT)."""
        pid = self.outer_pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(os.getpgid(pid), number)
        if number == signal.SIGCONT and self.alive():
            self._enter.send_signal(number)  # nsenter stops itself together with its child

    def wait(self, timeout: float) -> Result:
        """Wait for the end of the command; after ``timeout`` seconds kill it with all its descendants."""
        timed_out = False
        try:
            self._enter.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            self.kill()
        self.alive()
        ended = self._ended if self._ended is not None else time.monotonic()
        return Result(
            self.host, self._enter.returncode, self.stdout, self.stderr, ended - self._started, timed_out
        )

    def kill(self) -> None:
        """Kill the command, its session and its descendants.

        What has cut itself loose from both stays: it is a leftover, and a test should see it.
        """
        root = self.outer_pid
        deadline = time.monotonic() + KILL_LIMIT_S
        family = set() if root is None else {root}
        while root is not None and time.monotonic() < deadline:
            processes = processes_in(self._namespace)
            size = 0
            while size != len(family):  # the list is in no order: repeat until no more descendants turn up
                size = len(family)
                family |= {p.outer_pid for p in processes if p.outer_parent in family or p.session == root}
            victims = [p.outer_pid for p in processes if p.outer_pid in family]
            if not victims:
                break
            kill_all(victims)
            time.sleep(_POLL_S)
        self._enter.kill()
        self._enter.wait(KILL_LIMIT_S)


def kill_all(outer_pids: list[int]) -> None:
    """Send SIGKILL to processes; those that are already gone do not matter."""
    for pid in outer_pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
