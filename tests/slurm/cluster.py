"""A real Slurm on simulated hosts: munged and slurmctld once, slurmd on each host (see ``tests/hosts``).

Debian's packages (slurm-wlm, munge), the configuration that a small cluster has, a key and sockets of its own: what is
installed on the machine is neither used nor changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.hosts import harness
from tests.hosts.harness import Host, Hosts, Result, Running

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "sinfo")
READY_S = 60.0
"""For all nodes to be idle; it takes 1 to 5 s."""
LIMIT_S = 240.0
"""For one command, however busy the machine is."""
KILL_WAIT_S = 15
"""Seconds between SIGTERM and SIGKILL; Slurm's own default is 30."""
CONFIGURATION = """\
ClusterName=ddpdoctor
SlurmctldHost={controller}({address})
SlurmctldPort=6817
SlurmdPort=6818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait={kill_wait}
SlurmdTimeout=20
JobRequeue=0
{nodes}
PartitionName=all Nodes=ALL Default=YES OverSubscribe=FORCE:8 State=UP
{extra}
"""


def unavailable_reason() -> str | None:
    """Say why there can be no cluster here, or give None."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"a Slurm cluster needs {', '.join(missing)} (Debian packages slurm-wlm and munge)"
    return harness.unavailable_reason()


class Cluster:
    """A context manager that starts a cluster and takes it down.

    Args:
        nodes: how many hosts, 2 to 4; the first one has the controller as well.
        extra: further lines of slurm.conf.
    """

    def __init__(self, nodes: int = 2, extra: str = "") -> None:
        self.hosts = Hosts(nodes)
        self._extra = extra
        self.folder = Path()
        self._munged: subprocess.Popen[bytes] | None = None
        self._daemons: dict[str, Running] = {}

    def __enter__(self) -> Cluster:
        self.folder = Path(tempfile.mkdtemp(prefix="dds-", dir="/tmp"))
        try:
            self.hosts.__enter__()
            self._configure()
            self._start_munged()
            first = self.hosts[0]
            self._daemons["slurmctld"] = first.start(["slurmctld", "-D"], env=self.environment)
            for host in self.hosts:
                self.start_node(host)
            self.wait_for_nodes()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def environment(self) -> dict[str, str]:
        """What leads commands to this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}

    def _configure(self) -> None:
        (self.folder / "state").mkdir()
        (self.folder / "mpi.conf").write_text(f"PMIxCliTmpDirBase={self.folder / 'pmix'}\n")
        # More processors than there are: tests start more tasks than the machine has cores.
        nodes = [f"NodeName={host.name} NodeAddr={host.address} CPUs=8 State=UNKNOWN" for host in self.hosts]
        text = CONFIGURATION.format(
            controller=self.hosts[0].name,
            address=self.hosts[0].address,
            folder=self.folder,
            nodes="\n".join(nodes),
            kill_wait=KILL_WAIT_S,
            extra=self._extra,
        )
        (self.folder / "slurm.conf").write_text(text, encoding="ascii")

    def _start_munged(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        names = {"key-file": key, "socket": self.folder / "munge.socket", "pid-file": self.folder / "munge.pid",
                 "seed-file": self.folder / "munge.seed", "log-file": self.folder / "munge.log"}  # fmt: skip
        options = [f"--{name}={path}" for name, path in names.items()]
        self._munged = subprocess.Popen(["munged", "--foreground", "--force", *options])

    def start_node(self, host: Host) -> None:
        """Start slurmd on a host, where PMIx finds a directory of this host's own, as it would on a node's own /tmp."""
        own = self.folder / f"pmix-{host.name}"
        for folder in (self.folder / f"spool-{host.name}", self.folder / "pmix", own):
            folder.mkdir(exist_ok=True)
        script = f"mount --bind {own} {self.folder / 'pmix'} && exec slurmd -D -N {host.name}"
        command = ["unshare", "--mount", "sh", "-c", script]
        self._daemons[host.name] = host.start(command, env=self.environment)

    def wait_for_nodes(self) -> None:
        """Wait until all nodes take jobs.

        Raises:
            AssertionError: they do not.
        """
        end = time.monotonic() + READY_S
        states: list[str] = []
        while time.monotonic() < end:
            said = self.hosts[0].run(["sinfo", "-h", "-N", "-p", "all", "-o", "%T"], env=self.environment)
            states = said.stdout.split()
            if states == ["idle"] * len(self.hosts):
                return
            time.sleep(0.3)
        raise AssertionError(f"the nodes are {states}:\n{self.read_logs()}")

    def read_logs(self) -> str:
        """Return the last words of all daemons."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in logs)

    def start(
        self, command: Sequence[str | Path], cwd: Path, env: Mapping[str, str | None] | None = None
    ) -> Running:
        """Start a command of Slurm on the first host."""
        return self.hosts[0].start(command, env={**self.environment, **(env or {})}, cwd=cwd)

    def run(
        self, command: Sequence[str | Path], cwd: Path, env: Mapping[str, str | None] | None = None
    ) -> Result:
        """Run a command of Slurm on the first host to its end."""
        return self.start(command, cwd, env).wait(LIMIT_S)

    def close(self) -> None:
        """End everything."""
        self.hosts.close()
        if self._munged is not None:
            self._munged.terminate()
            self._munged.wait()
        if self.folder != Path():
            with suppress(OSError):
                shutil.rmtree(self.folder)
