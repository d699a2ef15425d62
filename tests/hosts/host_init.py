"""First process of one simulated host: sets up its private view of the machine, then waits for its end.

Runs as pid 1 of a new pid namespace, so that its end is the end of every process of the host. It ends when
its standard input reaches end of file, which the kernel sees to even when the owner is killed by SIGKILL:
nothing outlives a test run.

Usage: ``host_init.py --owner PID-STARTTIME --name NAME [--dir DIR --shm-bytes N]``; without ``--dir`` it only
holds its namespaces (the switch). Prints its pid as the outside sees it once the host is ready.
"""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys
from pathlib import Path

# sysfs and proc show the namespace that mounted them, so both are mounted anew; the cgroup tree below /sys is
# carried over, as programs read their limits there. boot_id and machine-id tell hosts apart (NCCL hashes the
# first).
_MOUNTS = r"""
set -e
for name in hosts resolv.conf nsswitch.conf machine-id; do
    if [ -e "/etc/$name" ]; then mount --bind "$1/etc/$name" "/etc/$name"; fi
done
mount -t tmpfs -o "size=$2,mode=1777" tmpfs /dev/shm
if [ -d /sys/fs/cgroup ]; then
    mount --rbind /sys/fs/cgroup "$1/cgroup"
    mount -t sysfs sysfs /sys
    mount --rbind "$1/cgroup" /sys/fs/cgroup
    umount --lazy "$1/cgroup"
else
    mount -t sysfs sysfs /sys
fi
mount -t proc proc /proc
mount --bind "$1/etc/boot_id" /proc/sys/kernel/random/boot_id
"""


def main() -> None:
    """Prepare the host, report the outside pid on standard output, and wait for the owner to go."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--owner", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--dir")
    parser.add_argument("--shm-bytes", type=int, default=0)
    options = parser.parse_args()
    outer_pid = Path("/proc/self").readlink()  # /proc is still the outside's: this is not 1
    if options.dir is not None:
        socket.sethostname(options.name)
        subprocess.run(["sh", "-c", _MOUNTS, "sh", options.dir, str(options.shm_bytes)], check=True)
    # Orphans of the host come to pid 1: ignoring SIGCHLD makes the kernel reap them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print(outer_pid, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
