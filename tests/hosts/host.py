"""One simulated host: its names, its commands, what it still holds, and the troubles of its cable."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from .network import HarnessError, execute_in, iptables, port_name, shape, shape_towards, unshape
from .processes import (
    KILL_LIMIT_S,
    HostProcess,
    Leftovers,
    Listener,
    Result,
    Running,
    kill_all,
    namespace,
    processes_in,
)

DEFAULT_LIMIT_S = 60.0
_POLL_S = 0.05
# What a developer's own launcher or shell may have set, and a host of a test must not inherit.
_FOREIGN_PREFIXES = ("PET_", "SLURM_", "OMPI_", "PMI_", "TORCHELASTIC_", "GLOO_", "NCCL_")
_FOREIGN = frozenset(
    {
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    }
)


class Host:
    """One simulated host. Made by `Hosts`, not by hand."""

    def __init__(self, index: int, name: str, addresses: tuple[str, ...], directory: Path) -> None:
        self.index = index
        self.name = name
        self.addresses = addresses
        self.directory = directory
        self.hosts_entries: dict[str, str] = {}
        self._init_pid = 0
        self._switch_pid = 0
        self._pid_namespace = ""
        self.commands: list[Running] = []

    @property
    def address(self) -> str:
        """The IPv4 address of eth0."""
        return self.addresses[0]

    @property
    def temporary(self) -> Path:
        """The host's own temporary directory (TMPDIR of its commands); the path is the same from outside."""
        return self.directory / "tmp"

    def prepare(self) -> None:
        """Write the files that the first process mounts over the machine's own."""
        for name in ("etc", "tmp", "cgroup"):
            (self.directory / name).mkdir(parents=True)
        etc = self.directory / "etc"
        (etc / "resolv.conf").write_text(
            "# no name server: names come from the hosts file only\n", encoding="ascii"
        )
        # "files" alone makes an unknown name fail at once with "Name or service not known", as a working DNS
        # would.
        (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n", encoding="ascii")
        (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n", encoding="ascii")
        (etc / "boot_id").write_text(f"{uuid.uuid4()}\n", encoding="ascii")
        self._write_hosts()

    def attach(self, init_pid: int, switch_pid: int) -> None:
        self._init_pid = init_pid
        self._switch_pid = switch_pid
        self._pid_namespace = namespace(init_pid, "pid") or ""

    # --- names

    def set_name(self, name: str, address: str) -> None:
        """Let this host's hosts file map ``name`` (its own, a peer's, a new one) to ``address``."""
        self.hosts_entries[name] = address
        self._write_hosts()

    def forget_name(self, name: str) -> None:
        """Take ``name`` out of this host's hosts file: it is then unresolvable here.

        Raises:
            KeyError: The name was not in the file.
        """
        del self.hosts_entries[name]
        self._write_hosts()

    def _write_hosts(self) -> None:
        # Written in place: a new file would not be the one that is mounted over /etc/hosts.
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
        lines += [f"{address} {name}" for name, address in self.hosts_entries.items()]
        (self.directory / "etc" / "hosts").write_text("\n".join(lines) + "\n", encoding="utf-8")

    # --- commands

    def start(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str | Path | None = None,
    ) -> Running:
        """Start a command in a session of its own on this host and return at once.

        Args:
            command: Program and arguments; no shell.
            env: Additions to the environment; None takes a variable away. Launcher variables of the test's
                own environment (RANK, MASTER_*, PET_*, SLURM_*, NCCL_*, GLOO_*, …) are not inherited.
            cwd: Working directory; the test's own when not given.
        """
        outputs = self.directory / f"command-{len(self.commands)}"
        enter = [
            "nsenter",
            "--target",
            str(self._init_pid),
            "--net",
            "--uts",
            "--ipc",
            "--mount",
            "--pid",
            "--",
        ]
        # Joining a mount namespace moves to "/": env puts that right. setsid, in the child, does not fork.
        place = ["env", "-C", str(cwd or Path.cwd()), "setsid", "--"]
        with Path(f"{outputs}.out").open("wb") as out, Path(f"{outputs}.err").open("wb") as err:
            process = subprocess.Popen(
                [*enter, *place, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self._environment(env or {}),
                start_new_session=True,
            )
        running = Running(self.name, self._pid_namespace, process, outputs)
        self.commands.append(running)
        return running

    def run(
        self,
        command: Sequence[str | Path],
        *,
        timeout: float = DEFAULT_LIMIT_S,
        env: Mapping[str, str | None] | None = None,
        cwd: str | Path | None = None,
    ) -> Result:
        """Run a command on this host (see `start`), kill it after ``timeout`` seconds, say how it went."""
        return self.start(command, env=env, cwd=cwd).wait(timeout)

    def _environment(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        own = {"HOSTNAME": self.name, "TMPDIR": str(self.temporary)}
        kept = {
            k: v for k, v in os.environ.items() if k not in _FOREIGN and not k.startswith(_FOREIGN_PREFIXES)
        }
        merged: dict[str, str | None] = {**kept, **own, **changes}
        return {name: value for name, value in merged.items() if value is not None}

    # --- what is there

    def processes(self) -> list[HostProcess]:
        """List the host's living processes (its first process is the harness's own and is left out)."""
        return processes_in(self._pid_namespace)

    def listeners(self) -> list[Listener]:
        """List the host's listening sockets: TCP, UDP and Unix."""
        command = ["nsenter", "--target", str(self._init_pid), "--net", "--mount", "--pid", "ss", "-HOlntuxp"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEFAULT_LIMIT_S, check=False)
        if done.returncode != 0:
            raise HarnessError(f"ss on {self.name}: {done.stderr.strip()}")
        rows = [line.split() for line in done.stdout.splitlines() if line.strip()]
        return [Listener(row[0], row[4], row[-1] if row[-1].startswith("users:") else "") for row in rows]

    def files(self) -> list[str]:
        """List what lies in the host's temporary directory and its /dev/shm, as paths on the host."""
        shm = Path(f"/proc/{self._init_pid}/root/dev/shm")
        found = [str(path) for path in sorted(self.temporary.rglob("*"))]
        return found + [f"/dev/shm/{path.relative_to(shm)}" for path in sorted(shm.rglob("*"))]

    def leftovers(self, limit_s: float = 10.0, *, files: bool = True) -> Leftovers:
        """Say what the host still holds, once nothing is left or ``limit_s`` seconds have passed.

        ``files=False`` leaves files out: torchrun, for one, always leaves its directory of logs in TMPDIR.
        """
        deadline = time.monotonic() + limit_s
        while True:
            held = tuple(self.files()) if files else ()
            now = Leftovers(self.name, tuple(self.processes()), tuple(self.listeners()), held)
            if not now or time.monotonic() > deadline:
                return now
            time.sleep(_POLL_S)

    def kill_everything(self) -> None:
        """Kill every process of the host, as its power switch would; the host itself stays usable.

        Children before their parents: a launcher gets SIGTERM when what stays beside it is killed, and would have time
        to tell others that it stops.
        """
        deadline = time.monotonic() + KILL_LIMIT_S
        while (processes := self.processes()) and time.monotonic() < deadline:
            kill_all(sorted((process.outer_pid for process in processes), reverse=True))
            time.sleep(_POLL_S)

    # --- its cable

    def set_mtu(self, mtu: int, interface: str = "eth0", *, switch: bool = True) -> None:
        """Set the MTU of an interface; with ``switch=False`` the switch's port keeps its own.

        A host on 9000 behind a port on 1500 is the classic black hole: the port swallows what is too long and
        tells nobody.
        """
        if not switch:
            self.segment_in_software(interface)
        execute_in(self._init_pid, ["ip", "link", "set", interface, "mtu", str(mtu)])
        if switch:
            execute_in(self._switch_pid, ["ip", "link", "set", self._port(interface), "mtu", str(mtu)])

    def limit_rate(self, mbit: float, interface: str = "eth0", *, direction: str = "both") -> None:
        """Limit a link to ``mbit`` megabits per second (token bucket).

        Args:
            mbit: The rate, in 1e6 bits per second.
            interface: The interface whose cable is meant.
            direction: "out" (what the host sends), "in" (what it gets) or "both".

        Raises:
            ValueError: Another direction.
        """
        if direction not in ("out", "in", "both"):
            raise ValueError(f"direction is out, in or both, not {direction!r}")
        if direction != "in":
            shape(self._init_pid, interface, mbit)
        if direction != "out":
            shape(self._switch_pid, self._port(interface), mbit)

    def limit_rate_towards(self, peer: Host, mbit: float) -> None:
        """Limit what this host sends to one peer over eth0; what it sends to others runs free."""
        shape_towards(self._init_pid, "eth0", mbit, peer.address, peer.index)

    def unlimit_rate(self, interface: str = "eth0", *, direction: str = "both") -> None:
        """Undo `limit_rate` with the same direction; "out" undoes `limit_rate_towards`."""
        if direction != "in":
            unshape(self._init_pid, interface)
        if direction != "out":
            unshape(self._switch_pid, self._port(interface))

    def link_down(self, interface: str = "eth0", *, cable: bool = True) -> None:
        """Pull the cable at the switch, or with ``cable=False`` take the interface down on the host.

        Without a cable address and route stay; an interface that is down loses its route.
        """
        self._set_link(interface, cable, "down")

    def link_up(self, interface: str = "eth0", *, cable: bool = True) -> None:
        """Undo `link_down` with the same arguments."""
        self._set_link(interface, cable, "up")

    def _set_link(self, interface: str, cable: bool, state: str) -> None:
        pid, device = (self._switch_pid, self._port(interface)) if cable else (self._init_pid, interface)
        execute_in(pid, ["ip", "link", "set", device, state])

    def _port(self, interface: str) -> str:
        return port_name(self.index, int(interface.removeprefix("eth")))

    def segment_in_software(self, interface: str) -> None:
        # A veth hands over segment-offload packets of up to 64 KiB whole. Wires carry single packets, and
        # only those meet a length rule or a port's MTU as they would in a machine room.
        execute_in(self._init_pid, ["ip", "link", "set", interface, "gso_max_segs", "1"])

    def firewall(self, *rule: str) -> None:
        execute_in(self._init_pid, [iptables() or "iptables", "-w", "10", *rule])
