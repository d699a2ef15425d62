"""Facts of the launch, of each node and of each rank; gathered with no rendezvous."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpdoctor.evidence.ranks import RankSet


@dataclass(frozen=True, slots=True)
class Launch:
    """What was asked for, as the node that wrote this evidence understood it."""

    command: str = "check"
    launcher: str = "ddpdoctor"
    """Who starts the ranks: ddpdoctor, torchrun, srun or mpirun."""
    nnodes: int = 1
    nproc: int = 1
    """Ranks on each node."""
    world_size: int = 1
    """Ranks expected over all nodes."""
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    rdzv_backend: str | None = None
    rdzv_endpoint: str | None = None
    rdzv_id: str | None = None
    local_addr: str | None = None
    backend_asked: str | None = None
    """What ``--backend`` said; None when it was left to the devices."""
    backend: str = "gloo"
    """The backend of the default process group."""
    model: str | None = None
    stages: tuple[str, ...] = ()
    """Stages that were selected to run."""
    strategies: tuple[str, ...] = ()
    """What ``--strategy`` named; empty means all, where the stage is selected."""
    variables: dict[str, str] = field(default_factory=dict)
    """Allow-listed variables that described another launch to us and that we did not follow."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface."""

    name: str
    addresses: tuple[str, ...] = ()
    up: bool = True
    loopback: bool = False
    mtu: int | None = None
    speed_mbps: int | None = None
    """Speed in Mbit/s as the driver reports it; None where it does not."""


@dataclass(frozen=True, slots=True)
class Cpus:
    """Processor cores that the ranks may use."""

    logical: int
    affinity: int
    """Cores in the affinity mask of the launching process."""
    quota: float | None = None
    """Cores that the cgroup quota allows; None without a quota."""


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The /dev/shm file system, in bytes."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Soft resource limits of the launching process; None means unlimited."""

    open_files: int | None = None
    open_files_hard: int | None = None
    locked_memory: int | None = None
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator of a node, as the vendor's tool or torch describes it."""

    index: int
    uuid: str | None = None
    name: str | None = None
    kind: str = "cuda"
    capability: str | None = None
    """Compute capability such as ``9.0``."""
    memory_total: int | None = None
    memory_used: int | None = None
    driver: str | None = None
    ecc_uncorrected: int | None = None
    xid: tuple[str, ...] = ()
    """Recent Xid kernel messages of this device."""
    state: str | None = None
    """Anything that the tool reported instead of numbers, e.g. ``[GPU requires reset]``."""
    links: dict[str, str] = field(default_factory=dict)
    """Peer device index -> connection as nvidia-smi topo names it (NV18, PIX, SYS …)."""
    pci: str | None = None


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process that looks like a rank of an earlier job."""

    pid: int
    parent: int
    age_s: float
    command: str
    rank: str | None = None
    run_id: str | None = None
    ports: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    orphaned: bool = True
    """Whether its launcher is gone."""


@dataclass(frozen=True, slots=True)
class Library:
    """A communication library that is loaded or would be found."""

    name: str
    path: str
    version: str | None = None
    source: str = "loaded"
    """loaded (mapped into the process), wheel (installed distribution) or search-path."""


@dataclass(frozen=True, slots=True)
class RendezvousFile:
    """A file that a ``file://`` rendezvous names, as it was before anything was launched."""

    path: str
    named_by: str
    """The variable or option that names it, e.g. ``DIST_URL`` or ``--rdzv-endpoint``."""
    exists: bool = False
    size: int = 0
    """Bytes."""
    age_s: float | None = None
    """Seconds since it was last written."""
    open_by: tuple[int, ...] = ()
    """Processes that have it open."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node before anything was launched on it."""

    node: int
    """Group rank; position in the launch."""
    host: str
    fqdn: str | None = None
    boot_id: str | None = None
    """Hash of the kernel's boot id and network namespace: equal on one machine."""
    name_addresses: tuple[str, ...] = ()
    """What the node's own host name resolves to there."""
    name_error: str | None = None
    advertised: str | None = None
    """The address that gloo publishes from this node with the present settings."""
    advertised_interface: str | None = None
    route_address: str | None = None
    """Source address of the route to the master."""
    route_interface: str | None = None
    interfaces: tuple[Interface, ...] = ()
    ephemeral_ports: tuple[int, int] | None = None
    cpus: Cpus | None = None
    memory_total: int | None = None
    memory_limit: int | None = None
    """Bytes allowed by the cgroup; None without a limit."""
    shared_memory: SharedMemory | None = None
    limits: Limits | None = None
    rdma_devices: tuple[str, ...] = ()
    system: str | None = None
    container: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    """python, torch, cuda, nccl, driver, ddpdoctor, model (hash of the user's --model file)."""
    variables: dict[str, str] = field(default_factory=dict)
    """Allow-listed environment of the launching process."""
    devices: tuple[Device, ...] = ()
    devices_note: str | None = None
    """Why nothing is known of devices, if so."""
    libraries: tuple[Library, ...] = ()
    libraries_note: str | None = None
    """Why nothing is known of libraries, if so."""
    leftovers: tuple[Leftover, ...] = ()
    leftovers_note: str | None = None
    clock_offset_s: float | None = None
    """This node's wall clock minus the hosting node's."""
    clock_error_s: float | None = None
    """Half the round trip over which the offset was measured."""
    tracing: str | None = None
    """Why py-spy may not read other processes here; None when it may."""
    rendezvous_files: tuple[RendezvousFile, ...] | None = None
    """Files of a ``file://`` rendezvous that is configured here; None when nobody looked."""


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank, as it sees itself."""

    rank: int
    local_rank: int
    node: int
    host: str
    pid: int
    world_size: int
    variables: dict[str, str] = field(default_factory=dict)
    """Allow-listed environment of the rank."""
    device: str = "cpu"
    device_uuid: str | None = None
    visible_devices: int = 0
    threads: int | None = None
    """Intra-op threads of torch in this rank."""
    versions: dict[str, str] = field(default_factory=dict)
    arch_list: tuple[str, ...] = ()
    """GPU architectures that this torch has kernels for."""
    cores: RankSet = field(default_factory=RankSet)
    """Numbers of the logical CPUs that this rank may use: launchers bind each rank to its own. Empty is unknown."""
