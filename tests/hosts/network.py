"""The wires between simulated hosts: what the kernel permits, and the commands that build them."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

# A namespace operation takes milliseconds; only a machine in deep trouble needs this long.
COMMAND_LIMIT_S = 30.0
_TOOLS = ("ip", "tc", "ss", "unshare", "nsenter", "setsid", "mount", "env")
_IPTABLES = ("iptables", "iptables-legacy", "iptables-nft")
# Everything that the harness relies on, tried once in namespaces that vanish with the shell.
_PROBE = """
set -e
ip link add br0 type bridge
ip link add a0 type veth peer name a1
tc qdisc add dev a0 root tbf rate 10mbit burst 64kb latency 50ms
mount -t tmpfs tmpfs /dev/shm
mount -t sysfs sysfs /sys
"""


class HarnessError(RuntimeError):
    """The harness itself could not do what it was asked; the message carries the command and its words."""


def execute(command: list[str], stdin: str | None = None) -> str:
    """Run a set-up command of the harness and give its standard output.

    Raises:
        HarnessError: The command failed or did not end within ``COMMAND_LIMIT_S``.
    """
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise HarnessError(f"{' '.join(command)}: no end within {COMMAND_LIMIT_S:.0f} s") from error
    if done.returncode != 0:
        raise HarnessError(f"{' '.join(command)}: exit {done.returncode}\n{stdin or ''}{done.stderr}")
    return done.stdout


def execute_in(pid: int, command: list[str], stdin: str | None = None) -> str:
    """Run a set-up command of the harness in the network namespace of a process (see `execute`)."""
    return execute(["nsenter", "--target", str(pid), "--net", *command], stdin)


@functools.cache
def iptables() -> str | None:
    """Give the first iptables command that can match packet lengths and reject on this kernel, or None."""
    rules = "{0} -w -A INPUT -m length --length 1400:65535 -j DROP && {0} -w -A INPUT -p tcp --syn -j REJECT"
    for name in _IPTABLES:
        if shutil.which(name) is not None:
            probe = ["unshare", "--net", "sh", "-c", rules.format(name)]
            if (
                subprocess.run(probe, capture_output=True, timeout=COMMAND_LIMIT_S, check=False).returncode
                == 0
            ):
                return name
    return None


@functools.cache
def unavailable_reason() -> str | None:
    """Say why hosts cannot be simulated here (not root, a tool or a permission missing), or give None."""
    if os.geteuid() != 0:
        return "several hosts need root (network namespaces)"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"several hosts need {', '.join(missing)} (Debian packages iproute2, util-linux, coreutils)"
    flags = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc"]
    try:
        execute(["unshare", *flags, "sh", "-c", _PROBE])
        if iptables() is None:
            return "several hosts need a working iptables (Debian package iptables)"
    except (HarnessError, subprocess.TimeoutExpired) as error:
        return f"this machine does not permit namespaces or their network: {str(error).strip()[-300:]}"
    return None


def switch_batch(bridges: int, host_pids: list[int], gateways: list[str]) -> str:
    """Give the ``ip -batch`` text that makes bridges and plugs interface k of every host into bridge k."""
    lines = ["link set lo up"]
    for number in range(bridges):
        # No spanning tree and no delay: a port forwards at once.
        lines.append(f"link add br{number} type bridge stp_state 0 forward_delay 0 mcast_snooping 0")
        lines.append(f"addr add {gateways[number]}/24 dev br{number}")
        lines.append(f"link set br{number} up")
        for index, pid in enumerate(host_pids):
            lines.append(f"link add {port_name(index, number)} type veth peer name eth{number} netns {pid}")
            lines.append(f"link set {port_name(index, number)} master br{number} up")
    return "\n".join(lines) + "\n"


def host_batch(addresses: list[str]) -> str:
    """Give the ``ip -batch`` text that brings up a host's loopback and its interfaces (eth0, eth1)."""
    lines = ["link set lo up"]
    for number, address in enumerate(addresses):
        lines.append(f"addr add {address}/24 broadcast + dev eth{number}")
        lines.append(f"link set eth{number} up")
    return "\n".join(lines) + "\n"


def port_name(host_index: int, interface_number: int) -> str:
    """Name the switch's end of a host's cable."""
    return f"p{host_index}-{interface_number}"


def shape(pid: int, device: str, mbit: float) -> None:
    """Limit what a device sends to ``mbit`` megabits per second (1e6 bits), replacing an earlier limit."""
    # A bucket of 10 ms at that rate, and never below one full segment-offload packet (64 KiB), or tbf drops
    # it.
    burst = max(65536, int(mbit * 1e6 / 8 * 0.010))
    limit = ["rate", f"{int(mbit * 1e6)}bit", "burst", str(burst), "latency", "50ms"]
    execute_in(pid, ["tc", "qdisc", "replace", "dev", device, "root", "tbf", *limit])


def shape_towards(pid: int, device: str, mbit: float, address: str, number: int) -> None:
    """Limit what a device sends to one IPv4 address; ``number`` (0 to 99) tells its addresses apart."""
    if "qdisc htb" not in execute_in(pid, ["tc", "qdisc", "show", "dev", device]):
        # htb sends what no filter has classified without a limit.
        execute_in(pid, ["tc", "qdisc", "replace", "dev", device, "root", "handle", "1:", "htb"])
    flow = f"1:{10 + number}"
    rate = f"{int(mbit * 1e6)}bit"
    execute_in(
        pid, ["tc", "class", "replace", "dev", device, "parent", "1:", "classid", flow, "htb", "rate", rate]
    )
    match = ["u32", "match", "ip", "dst", f"{address}/32", "flowid", flow]
    execute_in(pid, ["tc", "filter", "add", "dev", device, "parent", "1:", "protocol", "ip", *match])


def unshape(pid: int, device: str) -> None:
    """Take away the limit of a device; it is an error where there is none."""
    execute_in(pid, ["tc", "qdisc", "del", "dev", device, "root"])
