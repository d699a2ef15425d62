"""`attach` from an ephemeral container: the job's processes are seen, its files lie in another mount namespace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpdoctor.watch.live.stacks import find_py_spy
from tests.watch.launching import environ, wait_for

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it makes namespaces"),
    pytest.mark.skipif(find_py_spy() is None, reason="no py-spy"),
    pytest.mark.skipif(any(shutil.which(each) is None for each in ("unshare", "nsenter", "pivot_root", "setpriv")),
                       reason="needs util-linux"),
]  # fmt: skip
TRAIN = """\
import torch
import torch.distributed as dist
from data import read_shard

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    read_shard()
dist.all_reduce(torch.ones(2))  # waits
"""
DATA = """\
import pathlib
import time


def read_shard():
    pathlib.Path("/tmp/sleeping").touch()
    time.sleep(10_000)  # sleeps
"""
POD = """\
unshare --mount sh -ec '
    mount --make-rprivate /
    mount --bind "$0" "$0"
    for each in /*; do
        case $each in /proc|/tmp|/sys|/app|/lost+found) ;; *)
            if [ -L $each ]; then ln -sfn $(readlink $each) "$0"$each
            elif [ -d $each ]; then mkdir -p "$0"$each; mount --rbind $each "$0"$each; fi ;;
        esac
    done
    mount -t proc proc "$0/proc"
    cd "$0"
    pivot_root . old
    umount -l /old
    cd /app
    exec "$@" > /tmp/said 2>&1
' "$0" "$@" &
echo ready
sleep 100000
"""
"""A container with a root of its own, in which /app and /tmp are others than outside; $0 is the root."""
CAPABILITIES = (
    "chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw sys_chroot mknod"
)
"""What containers have unless more is granted."""


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Start a job in a container; return a process of its pod and the container's root."""
    root = tmp_path / "root"
    for name in ("app", "tmp", "proc", "old"):
        (root / name).mkdir(parents=True)
    (root / "app" / "train.py").write_text(TRAIN)
    (root / "app" / "data.py").write_text(DATA)
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
        "train.py",
    ]
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "sh", "-c", POD]
    made = subprocess.Popen(
        [*command, str(root), *launch], env=environ(tmp_path, OMP_NUM_THREADS="1"), stdout=subprocess.PIPE
    )
    try:
        assert made.stdout is not None
        assert made.stdout.readline() == b"ready\n"
        first = int(Path(f"/proc/{made.pid}/task/{made.pid}/children").read_text())
        wait_for(lambda: (root / "tmp" / "sleeping").exists() or made.poll() is not None, "rank 1 sleeps")
        yield first, root
    finally:
        made.kill()
        made.wait()
        assert made.stdout is not None
        made.stdout.close()


def attach(pid: int, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Look at the job as an ephemeral container does, with the capabilities of a container and more."""
    bounding = ",".join(["-all", *(f"+{each}" for each in (*CAPABILITIES.split(), *more))])
    return subprocess.run(
        ["nsenter", "--target", str(pid), "--pid", "unshare", "--mount", "--fork", "sh", "-c",
         'mount -t proc proc /proc; exec "$@"', "sh", "setpriv", "--bounding-set", bounding, "--inh-caps", "-all",
         sys.executable, "-m", "ddpdoctor", "attach", "--json", str(folder / "report.json")],
        env=environ(folder), capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_lines_are_read_in_the_containers_own_root(pod: tuple[int, Path], tmp_path: Path) -> None:
    pid, _ = pod
    assert not Path("/app/train.py").exists()
    done = attach(pid, tmp_path, "sys_ptrace")
    assert done.returncode == 1, done.stderr
    finding = json.loads((tmp_path / "report.json").read_text())["findings"][0]
    assert (finding["code"], finding["ranks"], finding["victims"]) == ("COL009", [1], [0])
    lines = {(place["file"], place.get("source")) for place in finding["where"]}
    assert ("data.py", "time.sleep(10_000)  # sleeps") in lines
    assert ("train.py", "dist.all_reduce(torch.ones(2))  # waits") in lines
    refused = attach(pid, tmp_path)
    assert refused.returncode == 3, refused.stdout
    assert "grant this container SYS_PTRACE" in refused.stderr
