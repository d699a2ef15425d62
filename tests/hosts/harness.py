"""Two to four hosts on one machine: ``with Hosts(2) as hosts: hosts.run_all([...], timeout=60)``.

Each host is a set of namespaces (network, host name, mounts, processes, IPC) under a first process of its
own; a further one holds the bridge that joins them. Nothing has a name outside those namespaces, so any
number of test processes may use the harness at once, and nothing is left when the first processes end.
README.md has the whole page.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from .host import DEFAULT_LIMIT_S, Host
from .network import HarnessError, execute_in, host_batch, switch_batch, unavailable_reason
from .processes import KILL_LIMIT_S, Leftovers, Listener, Result, Running, all_pids, kill_all, start_time

__all__ = [
    "HarnessError",
    "Host",
    "Hosts",
    "Leftovers",
    "Listener",
    "Result",
    "Running",
    "unavailable_reason",
]

NAMES = ("node-a", "node-b", "node-c", "node-d")
_INIT = Path(__file__).with_name("host_init.py")
_DIR_PREFIX = "ddh-"  # short: Unix socket paths below it must stay under 108 bytes
_READY_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class _Init:
    """The first process of a host or of the switch: its ``unshare`` parent and its own process id."""

    parent: subprocess.Popen[str]
    pid: int


class Hosts:
    """A context manager that makes hosts, joins them by a switch, and takes everything down again."""

    def __init__(
        self,
        count: int,
        *,
        second_interface: bool = False,
        names: Sequence[str] | None = None,
        shm_bytes: int = 1 << 30,
    ) -> None:
        """Describe the hosts; they are made on entering.

        Args:
            count: How many, 2 to 4.
            second_interface: Give each host an eth1 on a second, separate switch.
            names: Host names; node-a, node-b, … when not given.
            shm_bytes: Size of each host's own /dev/shm.

        Raises:
            ValueError: A count out of range, or not as many distinct names.
        """
        self.names = tuple(names if names is not None else NAMES[:count])
        if not 2 <= count <= len(NAMES) or len(set(self.names)) != count:
            raise ValueError(f"2 to {len(NAMES)} hosts with a name each, not {count} with {self.names}")
        # Other runs' networks are other namespaces, so a clash would do no harm; distinct ones tell outputs
        # apart.
        tens, unit = 64 + os.getpid() // 256 % 64, os.getpid() % 256
        self.subnets = [f"10.{tens + 64 * number}.{unit}" for number in range(1 + second_interface)]
        self._shm_bytes = shm_bytes
        self._inits: list[_Init] = []
        self._starting: list[subprocess.Popen[str]] = []
        self._directory: Path | None = None
        self.hosts: list[Host] = []

    def __enter__(self) -> Hosts:
        remove_stale()
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.hosts)

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def __getitem__(self, index: int) -> Host:
        return self.hosts[index]

    def _make(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix=f"{_DIR_PREFIX}{_owner()}-", dir="/tmp"))
        for index, name in enumerate(self.names):
            # .11, .12, …: the last host has the highest address, which decides who dials in gloo.
            addresses = tuple(f"{subnet}.{11 + index}" for subnet in self.subnets)
            self.hosts.append(Host(index, name, addresses, self._directory / name))
        for host in self.hosts:
            host.hosts_entries = {peer.name: peer.address for peer in self.hosts}
            host.prepare()
        self._start_inits()
        switch, *inits = self._inits
        gateways = [f"{subnet}.1" for subnet in self.subnets]
        batch = switch_batch(len(self.subnets), [init.pid for init in inits], gateways)
        execute_in(switch.pid, ["ip", "-batch", "-"], batch)
        for host, init in zip(self.hosts, inits, strict=True):
            host.attach(init.pid, switch.pid)
            execute_in(init.pid, ["ip", "-batch", "-"], host_batch(list(host.addresses)))

    def _start_inits(self) -> None:
        self._starting.append(self._spawn_init("switch", ["--net", "--mount", "--pid"], []))
        for host in self.hosts:
            extra = ["--dir", str(host.directory), "--shm-bytes", str(self._shm_bytes)]
            kinds = ["--net", "--mount", "--pid", "--uts", "--ipc"]
            self._starting.append(self._spawn_init(host.name, kinds, extra))
        self._inits = [_Init(process, _read_pid(process)) for process in self._starting]

    def _spawn_init(self, name: str, kinds: list[str], extra: list[str]) -> subprocess.Popen[str]:
        script = [sys.executable, "-I", "-S", str(_INIT), "--owner", _owner(), "--name", name, *extra]
        return subprocess.Popen(
            ["unshare", *kinds, "--fork", "--kill-child", "--", *script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def close(self) -> None:
        """Kill all that runs on the hosts and remove every trace of them. May be called more than once."""
        try:
            for init in self._inits:
                if init.parent.poll() is None:  # else the process id may belong to somebody else by now
                    kill_all([init.pid])
            started = {init.parent for init in self._inits}
            for process in self._starting:
                if process not in started:
                    process.kill()  # unshare's end kills the first process that never said that it was ready
                # The kernel ends a pid namespace before its first process: after this nothing of the host is
                # alive.
                process.wait(KILL_LIMIT_S)
                for stream in (process.stdin, process.stdout, process.stderr):
                    if stream is not None:
                        stream.close()
            for running in (running for host in self.hosts for running in host.commands):
                running.kill()
        finally:
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
        self._starting, self._inits, self._directory = [], [], None

    # --- commands on all hosts

    def run_all(
        self,
        command: Sequence[str | Path] | Callable[[Host], Sequence[str | Path]],
        *,
        timeout: float = DEFAULT_LIMIT_S,
        env: Mapping[str, str | None] | Callable[[Host], Mapping[str, str | None]] | None = None,
        cwd: str | Path | None = None,
        on: Sequence[Host] | None = None,
    ) -> list[Result]:
        """Start a command on all hosts at once and wait for all under one limit; what is late is killed.

        Args:
            command: One command for all, or a function that gives each host its own.
            timeout: Seconds for the whole.
            env: As for `Host.start`, or a function that gives each host its own.
            cwd: As for `Host.start`.
            on: The hosts meant, when not all.

        Returns:
            The results, in the order of the hosts.
        """
        started = [
            host.start(
                command(host) if callable(command) else command,
                env=env(host) if callable(env) else env,
                cwd=cwd,
            )
            for host in (self.hosts if on is None else on)
        ]
        deadline = time.monotonic() + timeout
        return [running.wait(max(0.0, deadline - time.monotonic())) for running in started]

    # --- trouble between two hosts

    def drop_ports(
        self,
        source: Host,
        target: Host,
        first: int = 1,
        last: int = 65535,
        *,
        both_ways: bool = False,
        established: bool = False,
        reject: bool = False,
    ) -> None:
        """Let the target's firewall swallow TCP from ``source`` to its ports ``first`` to ``last``.

        Only attempts to connect are dropped, as a firewall that keeps state does: answers to the target's own
        connections pass. ``established=True`` drops every packet; ``reject=True`` answers with a reset
        instead ("connection refused"); ``both_ways`` does the same in the other direction.
        """
        match = ["-p", "tcp", *([] if established else ["--syn"]), "--dport", f"{first}:{last}"]
        action = ["REJECT", "--reject-with", "tcp-reset"] if reject else ["DROP"]
        self._filter(source, target, [*match, "-j", *action], both_ways)

    def drop_larger(self, source: Host, target: Host, size: int, *, both_ways: bool = True) -> None:
        """Let IP packets of more than ``size`` bytes, headers included, vanish between two hosts.

        It bites for a ``size`` below the MTU; nobody is told, so path MTU discovery does not help.
        """
        for host in (source, target):
            for number in range(len(host.addresses)):
                host.segment_in_software(f"eth{number}")
        self._filter(
            source, target, ["-m", "length", "--length", f"{size + 1}:65535", "-j", "DROP"], both_ways
        )

    def drop_all(self, source: Host, target: Host, *, both_ways: bool = True) -> None:
        """Let everything vanish between two hosts while their links stay up."""
        self._filter(source, target, ["-j", "DROP"], both_ways)

    def limit_pair(self, first: Host, second: Host, mbit: float) -> None:
        """Limit what two hosts send each other over eth0 to ``mbit`` megabits per second, each way.

        Other pairs run free. Replaces a `Host.limit_rate` of these hosts.
        """
        first.limit_rate_towards(second, mbit)
        second.limit_rate_towards(first, mbit)

    def heal(self) -> None:
        """Undo `drop_ports`, `drop_larger` and `drop_all` on all hosts."""
        for host in self.hosts:
            host.firewall("-F", "INPUT")

    def _filter(self, source: Host, target: Host, rule: list[str], both_ways: bool) -> None:
        target.firewall("-A", "INPUT", "-s", ",".join(source.addresses), *rule)
        if both_ways:
            self._filter(target, source, rule, both_ways=False)


def remove_stale() -> None:
    """Remove what a killed earlier run may have left: first processes and directories whose owner is gone."""
    for pid in all_pids():
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            if str(_INIT) in words and "--owner" in words and not _alive(words[words.index("--owner") + 1]):
                os.kill(pid, signal.SIGKILL)
    for directory in Path("/tmp").glob(f"{_DIR_PREFIX}*-*-*"):
        if not _alive(directory.name.removeprefix(_DIR_PREFIX).rpartition("-")[0]):
            shutil.rmtree(directory, ignore_errors=True)  # two runs may clean up at the same time


def _owner() -> str:
    """Name this process so that a later one with the same process id is told apart: pid and start time."""
    return f"{os.getpid()}-{start_time(os.getpid())}"


def _alive(owner: str) -> bool:
    pid, _, started = owner.partition("-")
    return pid.isdigit() and str(start_time(int(pid))) == started


def _read_pid(process: subprocess.Popen[str]) -> int:
    """Give the process id that a first process reports when its host is ready."""
    line = _readline(process.stdout, _READY_LIMIT_S)
    if not line.strip().isdigit():
        process.kill()
        raise HarnessError(f"a host did not start: {line}{process.communicate()[1]}")
    return int(line)


def _readline(stream: IO[str] | None, limit_s: float) -> str:
    if stream is None or not select.select([stream], [], [], limit_s)[0]:
        return ""
    return stream.readline()
