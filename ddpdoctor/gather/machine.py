"""What a machine gives to its processes: cores, memory, limits, the container around them."""

from __future__ import annotations

import hashlib
import os
import platform
import resource
from collections.abc import Mapping
from pathlib import Path

import psutil

from ddpdoctor.evidence.facts import Cpus, Limits, SharedMemory

ROOT = Path("/")


def read_text(path: Path) -> str:
    """Return the stripped text of a file, empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def count_cpus(quota: float | None) -> Cpus:
    """Return the cores that this process may use.

    Args:
        quota: cores that the control group allows, None without a limit.
    """
    logical = os.cpu_count() or 1
    try:
        affinity = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not Linux
        affinity = logical
    return Cpus(logical, affinity, quota)


def total_memory() -> int | None:
    """Return the machine's memory in bytes."""
    try:
        return int(psutil.virtual_memory().total)
    except (OSError, psutil.Error):
        return None


def shared_memory(path: str = "/dev/shm") -> SharedMemory | None:
    """Return size and free bytes of the file system for POSIX shared memory; None where there is none."""
    try:
        state = os.statvfs(path)
    except OSError:
        return None
    return SharedMemory(state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize)


def read_rlimits() -> Limits:
    """Return the resource limits of this process, which its ranks inherit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Limits(_finite(soft), _finite(hard), _finite(locked))


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def rdma_devices(root: Path = ROOT) -> tuple[str, ...]:
    """Return the names of InfiniBand and RoCE adapters."""
    try:
        return tuple(sorted(os.listdir(root / "sys/class/infiniband")))
    except OSError:
        return ()


def ephemeral_ports(root: Path = ROOT) -> tuple[int, int] | None:
    """Return the first and last port that the kernel hands out by itself (ip(7), ip_local_port_range)."""
    words = read_text(root / "proc/sys/net/ipv4/ip_local_port_range").split()
    return (int(words[0]), int(words[1])) if len(words) == 2 and all(w.isdigit() for w in words) else None


def describe_system(root: Path = ROOT) -> str:
    """Return kernel, architecture and distribution in one line."""
    line = f"{platform.system()} {platform.release()} {platform.machine()}"
    for entry in read_text(root / "etc/os-release").splitlines():
        if entry.startswith("PRETTY_NAME="):
            return f"{line}, {entry.partition('=')[2].strip(chr(34))}"
    return line


def boot_id(root: Path = ROOT) -> str | None:
    """Return a hash that is equal for processes of one boot and one network namespace, else different.

    Two containers on one machine get different values unless they share the host's network: what matters is
    whether 127.0.0.1 means the same to both.
    """
    boot = read_text(root / "proc/sys/kernel/random/boot_id")
    if not boot:
        return None
    try:
        space = os.readlink(root / "proc/self/ns/net")
    except OSError:
        space = ""
    return hashlib.sha256(f"{boot}/{space}".encode()).hexdigest()[:16]


_CGROUP_MARKS = (("kubepods", "kubernetes"), ("libpod", "podman"), ("docker", "docker"), ("lxc", "lxc"))


def find_container(environ: Mapping[str, str], root: Path = ROOT) -> str | None:
    """Return the kind of container around this process by the usual marks, None where there is none.

    The marks: the service variables of Kubernetes, /.dockerenv, podman's and systemd's /run files
    (systemd.io/CONTAINER_INTERFACE), Apptainer's variables, and names in /proc/self/cgroup.
    """
    if environ.get("KUBERNETES_SERVICE_HOST") or os.path.exists(root / "var/run/secrets/kubernetes.io"):
        return "kubernetes"
    if environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    if os.path.exists(root / "run/.containerenv"):
        return "podman"
    if os.path.exists(root / ".dockerenv"):
        return "docker"
    said = read_text(root / "run/systemd/container") or environ.get("container", "")
    if said:
        return said
    groups = read_text(root / "proc/self/cgroup")
    return next((kind for mark, kind in _CGROUP_MARKS if mark in groups), None)
