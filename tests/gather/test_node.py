"""Facts of a node, from this machine and from made-up /proc and /sys trees."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence import Interface, NodeFacts, decode, encode
from ddpdoctor.gather import machine, node, tracing, versions
from ddpdoctor.gather.cgroups import CgroupLimits, read_limits
from ddpdoctor.gather.libraries import gather_libraries, mapped_libraries
from ddpdoctor.gather.network import interfaces
from ddpdoctor.gather.network.interfaces import (
    find_advertised,
    find_route,
    holder_of,
    list_interfaces,
    route_to,
)
from ddpdoctor.gather.network.listeners import PROC
from ddpdoctor.gather.node import gather_node
from ddpdoctor.gather.rendezvous_files import find_rendezvous_files

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc and /sys")

LO = Interface("lo", ("127.0.0.1", "::1"), loopback=True)
ETH0 = Interface("eth0", ("10.0.0.5", "fe80::1"))


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_this_node_has_its_facts_and_they_travel() -> None:
    facts = gather_node(3, environ={"OMP_NUM_THREADS": "2"}, master_addr="127.0.0.1", multi_node=True)
    assert (facts.node, facts.host) == (3, socket.gethostname())
    assert facts.cpus is not None
    assert facts.cpus.logical >= facts.cpus.affinity >= 1
    assert (facts.memory_total or 0) > 0
    assert facts.limits is not None
    assert any(each.loopback for each in facts.interfaces)
    assert (facts.route_address, facts.route_interface) == ("127.0.0.1", "lo")
    assert facts.advertised is not None
    assert facts.versions["python"].startswith("3.")
    assert facts.variables == {"OMP_NUM_THREADS": "2"}
    assert len(facts.boot_id or "") == 16
    assert facts.devices or facts.devices_note
    assert decode(NodeFacts, encode(facts)) == facts


def test_torch_is_not_imported_and_it_is_quick() -> None:
    code = (
        "import sys, os; from ddpdoctor.gather.node import gather_node;"
        "f = gather_node(0, environ=os.environ, master_addr=None, multi_node=False);"
        "assert 'torch' not in sys.modules; print(f.versions.get('torch'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip()


def test_names_that_hang_cost_only_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(*_: Any) -> Any:
        release.wait(60)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(socket, "getfqdn", hang)
    monkeypatch.setattr(node, "NAME_LIMIT_S", 0.2)
    start = time.monotonic()
    facts = gather_node(0, environ={}, master_addr="far.example", multi_node=True)
    release.set()
    assert time.monotonic() - start < 30
    assert (facts.fqdn, facts.name_addresses, facts.route_address) == (None, (), None)
    assert facts.name_error == "no answer within 0.2 s"
    assert facts.advertised == "127.0.0.1"
    assert facts.cpus is not None


def test_a_machine_on_which_everything_fails_gives_empty_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken machine")

    for name in (
        "gather_devices",
        "find_leftovers",
        "gather_libraries",
        "list_interfaces",
        "explain_tracing",
    ):
        monkeypatch.setattr(node, name, fail)
    for name in (
        "count_cpus",
        "shared_memory",
        "read_rlimits",
        "boot_id",
        "describe_system",
        "find_container",
    ):
        monkeypatch.setattr(machine, name, fail)
    monkeypatch.setattr(node, "gather_versions", fail)
    monkeypatch.setattr(node, "allowed_variables", fail)
    facts = gather_node(0, environ={}, master_addr=None, multi_node=False)
    assert (facts.interfaces, facts.devices, facts.leftovers) == ((), (), ())
    assert (facts.cpus, facts.limits, facts.boot_id) == (None, None, None)
    assert facts.devices_note
    assert facts.leftovers_note


def test_one_machine_has_one_boot_id_and_others_another(tmp_path: Path) -> None:
    assert machine.boot_id() == machine.boot_id()
    other = _write(tmp_path, {"proc/sys/kernel/random/boot_id": "abc\n"})
    assert machine.boot_id(other) not in (None, machine.boot_id())
    assert machine.boot_id(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("variables", "names", "wanted"),
    [
        ({}, ("127.0.1.1",), ("127.0.1.1", "lo")),
        ({}, (), ("127.0.0.1", "lo")),
        ({}, ("203.0.113.77", "127.0.0.1"), ("127.0.0.1", "lo")),  # the first cannot be bound here
        ({"GLOO_SOCKET_IFNAME": "eth0"}, ("127.0.1.1",), ("10.0.0.5", "eth0")),
        ({"GLOO_SOCKET_IFNAME": "eth0,lo"}, (), ("10.0.0.5", "eth0")),
        ({"GLOO_SOCKET_IFNAME": "^lo"}, (), (None, "^lo")),
        ({"GLOO_SOCKET_IFNAME": "x"}, ("127.0.0.1",), ("127.0.0.1", "lo")),  # torch ignores one character
    ],
)
def test_what_gloo_advertises(
    variables: dict[str, str], names: tuple[str, ...], wanted: tuple[str | None, str | None]
) -> None:
    found = find_advertised(variables, (LO, ETH0), names)
    assert (found.address, found.interface) == wanted
    assert (found.error is None) == (found.address is not None)


def test_what_gloo_advertises_is_what_torch_listens_on(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")

    def listening() -> set[str]:
        lines = (PROC / "net/tcp").read_text().splitlines()[1:]
        return {line.split()[9] + line.split()[1].split(":")[0] for line in lines if line.split()[3] == "0A"}

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    before = listening()
    store = distributed.HashStore()
    group = distributed.ProcessGroupGloo(store, 0, 1, timedelta(seconds=30))
    fresh = {entry[-8:] for entry in listening() - before}
    del group
    address = find_advertised(os.environ, list_interfaces(), ()).address
    assert address == "127.0.0.1"
    assert "0100007F" in fresh


def test_routes() -> None:
    assert find_route("127.0.0.1") == "127.0.0.1"
    assert find_route("not an address") is None
    assert route_to("localhost", 30) in ("127.0.0.1", "::1")
    assert route_to("no-such-host.invalid", 30) is None
    assert route_to(None, 30) is None
    assert holder_of("10.0.0.5", (LO, ETH0)) == "eth0"
    assert holder_of("127.0.1.1", (LO, ETH0)) == "lo"
    assert holder_of("10.9.9.9", (LO, ETH0)) is None


def test_unknown_speeds_are_none() -> None:
    assert [interfaces._positive(speed) for speed in (None, 0, -1, 65535, 100000)] == [None] * 4 + [100000]


V2_CONTAINER = {
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n",
    "sys/fs/cgroup/cpu.max": "250000 100000\n",
    "sys/fs/cgroup/memory.max": "1073741824\n",
}
V2_NESTED = {
    "proc/self/cgroup": "0::/a.slice/b.scope\n",
    "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "sys/fs/cgroup/a.slice/cpu.max": "100000 100000\n",
    "sys/fs/cgroup/a.slice/memory.max": "max\n",
    "sys/fs/cgroup/a.slice/b.scope/cpu.max": "max 100000\n",
    "sys/fs/cgroup/a.slice/b.scope/memory.max": "2048\n",
}
V1_DOCKER = {
    "proc/self/cgroup": "5:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/docker/abc\n",
    "proc/self/mountinfo": (
        "40 30 0:30 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
        "41 30 0:31 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    ),
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "4294967296\n",
}
V1_UNLIMITED = {
    **V1_DOCKER,
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
}
OUTSIDE = {**V2_CONTAINER, "proc/self/cgroup": "0::/../../other\n"}


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (V2_CONTAINER, CgroupLimits(2.5, 1 << 30)),
        (V2_NESTED, CgroupLimits(1.0, 2048)),
        (V1_DOCKER, CgroupLimits(1.5, 4 << 30)),
        (V1_UNLIMITED, CgroupLimits(None, None)),
        (OUTSIDE, CgroupLimits(2.5, 1 << 30)),
        ({"proc/self/cgroup": "junk\n", "proc/self/mountinfo": "more junk\n"}, CgroupLimits()),
        ({}, CgroupLimits()),
    ],
)
def test_control_groups(tmp_path: Path, files: dict[str, str], wanted: CgroupLimits) -> None:
    assert read_limits(_write(tmp_path, files)) == wanted


@pytest.mark.parametrize(
    ("files", "variables", "wanted"),
    [
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"proc/self/cgroup": "0::/kubepods.slice/x\n"}, {}, "kubernetes"),
        ({"proc/self/cgroup": "3:cpu:/lxc/web\n"}, {}, "lxc"),
        ({"run/systemd/container": "systemd-nspawn\n"}, {}, "systemd-nspawn"),
        ({}, {"container": "lxc"}, "lxc"),
        ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
        ({"proc/self/cgroup": "0::/user.slice\n"}, {}, None),
        ({}, {}, None),
    ],
)
def test_containers(
    tmp_path: Path, files: dict[str, str], variables: dict[str, str], wanted: str | None
) -> None:
    assert machine.find_container(variables, _write(tmp_path, files)) == wanted


def test_small_readers(tmp_path: Path) -> None:
    root = _write(
        tmp_path,
        {
            "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
            "sys/class/infiniband/mlx5_1/x": "",
            "sys/class/infiniband/mlx5_0/x": "",
            "etc/os-release": 'NAME="X"\nPRETTY_NAME="X 1 (test)"\n',
        },
    )
    assert machine.ephemeral_ports(root) == (32768, 60999)
    assert machine.rdma_devices(root) == ("mlx5_0", "mlx5_1")
    assert machine.describe_system(root).endswith(", X 1 (test)")
    assert machine.ephemeral_ports(tmp_path / "none") is None
    assert machine.rdma_devices(tmp_path / "none") == ()
    assert machine.shared_memory(str(tmp_path / "none")) is None
    shm = machine.shared_memory(str(tmp_path))
    assert shm is not None
    assert shm.total >= shm.free > 0


@pytest.mark.parametrize(
    ("scope", "capabilities", "part"),
    [
        ("0", "0000000000000000", None),
        ("", "0000000000000000", None),
        ("1", "0000000000000000", "ptrace_scope is 1"),
        ("2", "0000000000000000", "ptrace_scope is 2"),
        ("1", "0000000000080000", None),  # CAP_SYS_PTRACE is bit 19
        ("3", "000001ffffffffff", "ptrace_scope is 3"),
    ],
)
def test_why_stacks_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str, capabilities: str, part: str | None
) -> None:
    monkeypatch.setattr(tracing, "_blocked_calls", lambda: [])
    monkeypatch.setattr(tracing, "_is_undumpable", lambda: False)
    files = {"proc/self/status": f"Name:\tpython\nCapEff:\t{capabilities}\n"}
    if scope:
        files["proc/sys/kernel/yama/ptrace_scope"] = scope + "\n"
    said = tracing.explain_tracing(_write(tmp_path, files))
    assert (said is None) == (part is None)
    if part and said:
        assert part in said


def test_seccomp_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_blocked_calls", lambda: ["process_vm_readv"])
    said = tracing.explain_tracing()
    assert "seccomp" in (said or "")
    assert "SYS_PTRACE" in (said or "")


def test_the_system_calls_are_tried_on_ourselves() -> None:
    assert set(tracing._blocked_calls()) <= {"process_vm_readv", "ptrace"}


def test_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22\nGCC version: 12\n"
    assert versions.driver_version(_write(tmp_path, {"proc/driver/nvidia/version": version})) == "550.54.14"
    opened = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n"
    assert versions.driver_version(_write(tmp_path, {"proc/driver/nvidia/version": opened})) == "570.124.06"
    assert versions.driver_version(tmp_path / "none") is None
    _write(tmp_path, {"torch/__init__.py": "raise SystemExit", "torch/version.py": ""})
    text = "__version__ = '2.9.0+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
    _write(tmp_path, {"torch/version.py": text})
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    found = versions.gather_versions(tmp_path / "none")
    assert (found["torch"], found["cuda"]) == ("2.9.0+cu128", "12.8")
    assert "hip" not in found


def test_the_file_of_a_model_is_hashed_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, {"mine/__init__.py": "raise SystemExit", "mine/net.py": "x = 1\n"})
    monkeypatch.syspath_prepend(str(tmp_path))
    first = versions.hash_model("mine.net:make")
    assert len(first or "") == 16
    (tmp_path / "mine/net.py").write_text("x = 2\n")
    assert versions.hash_model("mine.net:make") not in (None, first)
    assert versions.hash_model("no_such_module_xyz:make") is None
    assert versions.hash_model(f"{tmp_path}/mine/net.py:make") == versions.hash_model("mine.net:make")
    assert versions.hash_model(f"{tmp_path}/no_such_file.py:make") is None
    assert versions.hash_model("../etc/passwd:x") is None


def test_libraries_that_are_mapped(tmp_path: Path) -> None:
    maps = (
        "7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/libnccl.so.2.21.5\n"
        "7f01-7f02 r--p 00000000 08:01 12 /usr/lib/libnccl.so.2.21.5\n"
        "7f02-7f03 r-xp 00000000 08:01 13 /opt/mpi/lib/libmpi.so.40 (deleted)\n"
        "7f03-7f04 r-xp 00000000 08:01 14 /usr/lib/libnccl-net.so\n"
        "7f04-7f05 r-xp 00000000 08:01 15 /usr/lib/libc.so.6\n"
        "7f05-7f06 rw-p 00000000 00:00 0\n"
    )
    found = mapped_libraries(7, _write(tmp_path, {"7/maps": maps}))
    assert [(each.name, each.version, each.source) for each in found] == [
        ("libnccl", "2.21.5", "loaded"),
        ("libmpi", "40", "loaded"),
        ("libnccl-net", None, "loaded"),
    ]
    assert mapped_libraries(8, tmp_path) == ()


def test_libraries_on_the_search_path(tmp_path: Path) -> None:
    named, bare, preload = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    for folder in (named, bare, preload):
        folder.mkdir()
    (named / "libnccl.so.2.18.3").touch()
    (named / "libnccl.so.2").symlink_to("libnccl.so.2.18.3")
    (named / "libnccl.so").symlink_to("libnccl.so.2")
    (bare / "libnccl.so.2").write_bytes(b"\0" * 5000 + b"NCCL version 2.20.3+cuda12.2\0" + b"\0" * 100)
    (preload / "libmpi.so.12").touch()
    environ = {
        "LD_LIBRARY_PATH": f"{named}:{tmp_path / 'none'}::{bare}",
        "LD_PRELOAD": f"{preload / 'libmpi.so.12'}:relative.so",
    }
    found = [each for each in gather_libraries(environ) if each.source == "search-path"]
    assert [(each.name, each.version) for each in found] == [
        ("libmpi", "12"),
        ("libnccl", "2.18.3"),
        ("libnccl", "2.20.3"),
    ]
    assert dataclasses.asdict(found[0])["path"].endswith("/c/libmpi.so.12")


def test_rendezvous_files(tmp_path: Path) -> None:
    stale = tmp_path / "meet ing"
    stale.write_text("old")
    environ = {
        "DIST_URL": f"file://{str(stale).replace(' ', '%20')}",
        "INIT_METHOD": f"file://{tmp_path}/none",
        "MASTER_ADDR": "node0",
    }
    found = {each.named_by: each for each in find_rendezvous_files(environ, {"--rdzv-endpoint": "tcp://x:1"})}
    assert set(found) == {"DIST_URL", "INIT_METHOD"}
    assert (found["DIST_URL"].exists, found["DIST_URL"].size, found["DIST_URL"].open_by) == (True, 3, ())
    assert (found["DIST_URL"].age_s or 0) >= 0
    assert not found["INIT_METHOD"].exists
