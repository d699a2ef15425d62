"""Which launcher started this process, and which rank of what world it made of it.

Only environment variables are read; none of the launchers' own tools is called.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from ddpdoctor.facts import launchers
from ddpdoctor.gather.nodelist import expand_counts, first_host

TORCHRUN, SRUN, MPIRUN, ENV, NONE = "torchrun", "srun", "mpirun", "env", "none"

_PORT_BASE, _PORT_SPAN = 15000, 10000
"""Derived ports lie in 15000-24999: unprivileged, and below Linux' ephemeral range (32768-60999), so that no
outgoing connection holds one. Lightning derives 15000 + the job id's last four digits likewise."""

DEFAULT_PORT = 29500
"""What torch itself takes when nothing is said (``--master-port`` of torch.distributed.run)."""


@dataclass(frozen=True, slots=True)
class Detected:
    """What the environment says about how this process was started."""

    launcher: str = NONE
    """torchrun, srun, mpirun, env (RANK and WORLD_SIZE set by hand or by an operator) or none."""
    family: str | None = None
    """openmpi, mvapich, hydra or intel-mpi for mpirun; kubernetes for env inside a pod."""
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    nnodes: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    run_id: str | None = None
    derived: dict[str, str] = field(default_factory=dict)
    """Field -> where its value comes from, for fields that no variable states as such."""
    missing: tuple[str, ...] = ()
    """Variables that the launch would need and that neither exist nor can be derived."""
    contradictions: tuple[str, ...] = ()
    """One line each: variables of different families, or of one, that cannot all be true."""

    @property
    def is_rank(self) -> bool:
        """Whether this process is one of several ranks that somebody else started."""
        return self.launcher != NONE


def detect_launcher(environ: Mapping[str, str]) -> Detected:
    """Tell which launcher started this process; never raises.

    The innermost launcher wins: torchrun inside srun is torchrun. `facts.launchers` says which of the others it is.
    """
    values = _Values(environ)
    if values.has("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"):
        found = _from_torchrun(values)
    elif (launcher := launchers.find_launcher(environ)) is not None:
        found = _FROM[launcher](values)
    elif values.has("RANK", "WORLD_SIZE"):
        found = _from_plain(values)
    else:
        found = _Draft(NONE, missing=_find_partial(values))
    return found.finish(values)


class _Values:
    """Numbers and texts out of the environment; what is no number is remembered."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.bad: list[str] = []

    def has(self, *names: str) -> bool:
        return all(self._environ.get(name, "") != "" for name in names)

    def text(self, *names: str) -> str | None:
        """The first of these variables that is set."""
        return next((self._environ[name] for name in names if self.has(name)), None)

    def number(self, *names: str) -> int | None:
        """The first of these variables that is set, as a number."""
        for name in names:
            if self.has(name):
                try:
                    return int(self._environ[name])
                except ValueError:
                    line = f"{name}={self._environ[name]!r} is not a number"
                    if line not in self.bad:
                        self.bad.append(line)
        return None


@dataclass(slots=True)
class _Draft:
    """A `Detected` in the making."""

    launcher: str
    family: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    nnodes: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    run_id: str | None = None
    derived: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)

    def derive(self, name: str, value: int | str | None, source: str) -> None:
        """Fill a field that is still empty and note where the value comes from."""
        if getattr(self, name) is None and value is not None:
            setattr(self, name, value)
            self.derived[name] = source

    def finish(self, values: _Values) -> Detected:
        """Fill what follows from the rest, compare families and freeze."""
        if self.launcher != NONE:
            self._fill_layout()
            self.master_addr = self.master_addr or values.text("MASTER_ADDR")
            self.master_port = self.master_port or values.number("MASTER_PORT")
            self._fill_master(values)
            for name, value in (("MASTER_ADDR", self.master_addr), ("MASTER_PORT", self.master_port)):
                if value is None:
                    self.missing.append(name)
        self.contradictions += _find_contradictions(self, values)
        return Detected(
            self.launcher, self.family, self.rank, self.local_rank, self.world_size, self.local_world_size,
            self.node_rank, self.nnodes, self.master_addr, self.master_port, self.run_id, self.derived,
            tuple(self.missing), tuple(dict.fromkeys([*self.contradictions, *values.bad])),
        )  # fmt: skip

    def _fill_layout(self) -> None:
        world, local = self.world_size, self.local_world_size
        if world and local and world % local == 0:
            self.derive("nnodes", world // local, "world size / ranks on this node")
        if world and self.nnodes and world % self.nnodes == 0:
            self.derive("local_world_size", world // self.nnodes, "world size / nodes")
        if self.nnodes == 1:
            self.derive("node_rank", 0, "single node")
            self.derive("local_rank", self.rank, "single node")

    def _fill_master(self, values: _Values) -> None:
        if self.launcher == SRUN or (self.launcher == MPIRUN and values.has("SLURM_JOB_ID")):
            host = first_host(
                values.text("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST") or ""
            )
            self.derive("master_addr", host, "first host of SLURM_STEP_NODELIST")
        if self.nnodes == 1 and self.launcher in (SRUN, MPIRUN):
            self.derive("master_addr", "127.0.0.1", "single node")
        job = values.number("SLURM_JOB_ID", "SLURM_JOBID")
        step = values.number("SLURM_STEP_ID", "SLURM_STEPID") or 0
        name = values.text("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PALS_APID")
        if self.launcher == SRUN and job is not None:
            self.derive(
                "master_port", _PORT_BASE + (job + step) % _PORT_SPAN, "SLURM_JOB_ID and SLURM_STEP_ID"
            )
        elif self.launcher == MPIRUN and name is not None:
            port = _PORT_BASE + zlib.crc32(name.encode(errors="replace")) % _PORT_SPAN
            self.derive("master_port", port, "name of the MPI job")
        elif self.launcher == MPIRUN:
            self.derive("master_port", DEFAULT_PORT, "default of torch")


def _from_torchrun(values: _Values) -> _Draft:
    return _Draft(
        TORCHRUN,
        rank=values.number("RANK"),
        local_rank=values.number("LOCAL_RANK"),
        world_size=values.number("WORLD_SIZE"),
        local_world_size=values.number("LOCAL_WORLD_SIZE"),
        node_rank=values.number("GROUP_RANK"),
        nnodes=values.number("GROUP_WORLD_SIZE"),
        run_id=values.text("TORCHELASTIC_RUN_ID"),
    )


def _from_openmpi(values: _Values) -> _Draft:
    """Open MPI numbers no nodes."""
    return _from_mpi(values, launchers.OPENMPI, "openmpi", "OMPI_COMM_WORLD_LOCAL_SIZE")


def _from_mvapich(values: _Values) -> _Draft:
    return _from_mpi(values, launchers.MVAPICH, "mvapich", "MV2_COMM_WORLD_LOCAL_SIZE")


def _from_hydra(values: _Values) -> _Draft:
    intel = any(values.has(name) for name in ("I_MPI_MPIRUN", "I_MPI_HYDRA_BOOTSTRAP", "I_MPI_ROOT"))
    return _from_mpi(values, launchers.HYDRA, "intel-mpi" if intel else "hydra", "MPI_LOCALNRANKS")


def _from_mpi(values: _Values, launcher: launchers.Launcher, family: str, local_size: str) -> _Draft:
    draft = _Draft(
        MPIRUN,
        family,
        rank=values.number(launcher.rank),
        local_rank=values.number(launcher.local_rank),
        world_size=values.number(*launcher.world_size),
        local_world_size=values.number(local_size),
    )
    return _prefer_torch(draft, values)


def _from_srun(values: _Values) -> _Draft:
    node = values.number("SLURM_NODEID")
    counts = expand_counts(values.text("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE") or "")
    draft = _Draft(
        SRUN,
        rank=values.number(launchers.SRUN.rank),
        local_rank=values.number(launchers.SRUN.local_rank),
        world_size=values.number(*launchers.SRUN.world_size),
        local_world_size=counts[node] if node is not None and node < len(counts) else None,
        node_rank=node,
        nnodes=values.number("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
        run_id=values.text("SLURM_JOB_ID", "SLURM_JOBID"),
    )
    return _prefer_torch(draft, values)


_FROM = {
    launchers.OPENMPI: _from_openmpi,
    launchers.MVAPICH: _from_mvapich,
    launchers.HYDRA: _from_hydra,
    launchers.SRUN: _from_srun,
}


def _from_plain(values: _Values) -> _Draft:
    return _Draft(
        ENV,
        "kubernetes" if values.has("KUBERNETES_SERVICE_HOST") else None,
        rank=values.number("RANK"),
        local_rank=values.number("LOCAL_RANK"),
        world_size=values.number("WORLD_SIZE"),
        local_world_size=values.number("LOCAL_WORLD_SIZE"),
        node_rank=values.number("GROUP_RANK", "NODE_RANK"),
        nnodes=values.number("NNODES"),
    )


def _prefer_torch(draft: _Draft, values: _Values) -> _Draft:
    """Take RANK and its kin where they are complete: env:// reads them and nothing else, right or wrong.

    (``_env_rendezvous_handler`` in torch/distributed/rendezvous.py.)
    """
    if values.has("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        for name, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE"), ("local_rank", "LOCAL_RANK")):
            own, torchs = getattr(draft, name), values.number(variable)
            if torchs is None:
                continue
            if own is not None and own != torchs:
                called = name.replace("_", " ")
                draft.contradictions.append(
                    f"{variable}={torchs}, but {draft.launcher} made this process {called} {own}"
                )
            setattr(draft, name, torchs)
    return draft


def _find_partial(values: _Values) -> list[str]:
    """Return what is missing of a family that is there in part."""
    if values.has("TORCHELASTIC_RUN_ID") or values.has("RANK") or values.has("WORLD_SIZE"):
        return [name for name in ("RANK", "WORLD_SIZE") if not values.has(name)]
    return []


def _find_contradictions(draft: _Draft, values: _Values) -> list[str]:
    lines = _compare_numbers(values)
    if draft.launcher == TORCHRUN and values.has("SLURM_STEP_ID"):
        tasks, nodes = values.number("SLURM_STEP_NUM_TASKS"), values.number("SLURM_STEP_NUM_NODES")
        if (
            tasks
            and nodes
            and tasks > nodes
            and (values.number("SLURM_STEP_ID") or 0) < launchers.FIRST_SPECIAL_STEP
        ):
            lines.append(
                f"srun started torchrun {tasks} times on {nodes} nodes (SLURM_STEP_NUM_TASKS={tasks})"
            )
    world = draft.world_size
    if draft.launcher == TORCHRUN and values.has("SLURM_STEP_ID") and draft.nnodes:
        nodes = values.number("SLURM_STEP_NUM_NODES")
        if nodes and nodes != draft.nnodes:
            lines.append(f"SLURM_STEP_NUM_NODES={nodes}, but torchrun runs on {draft.nnodes} nodes")
    expected = values.number("PET_NNODES") if (values.text("PET_NNODES") or "").isdigit() else None
    if expected and draft.nnodes and draft.launcher == TORCHRUN and expected != draft.nnodes:
        lines.append(f"PET_NNODES={expected}, but torchrun runs on {draft.nnodes} nodes")
    if draft.launcher == TORCHRUN and draft.node_rank is not None and draft.nnodes:
        stale = values.number("NODE_RANK")
        if stale is not None and stale >= draft.nnodes:
            lines.append(f"NODE_RANK={stale}, but torchrun runs on {draft.nnodes} nodes")
    if (
        draft.launcher == ENV
        and draft.local_rank is not None
        and world is not None
        and draft.local_rank >= world
    ):
        lines.append(f"LOCAL_RANK={draft.local_rank} is not below WORLD_SIZE={world}")
    return lines


_BELOW = (
    ("RANK", "WORLD_SIZE"),
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("GROUP_RANK", "GROUP_WORLD_SIZE"),
    ("LOCAL_WORLD_SIZE", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def _compare_numbers(values: _Values) -> list[str]:
    """Return the pairs of one family that cannot both be true: a rank counts from 0 to the size less one."""
    lines = []
    for low, high in _BELOW:
        small, large = values.number(low), values.number(high)
        if small is None or large is None:
            continue
        if low == "LOCAL_WORLD_SIZE":
            if small > large:
                lines.append(f"{low}={small} is above {high}={large}")
        elif not 0 <= small < large:
            lines.append(
                f"{low}={small} is not below {high}={large}" if small >= 0 else f"{low}={small} is negative"
            )
    return lines
