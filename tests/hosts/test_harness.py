"""The harness itself: its hosts are a faithful network, and nothing is left behind."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from . import network
from .harness import Host, Hosts, Leftovers, remove_stale, unavailable_reason
from .processes import all_pids, namespace
from .traffic import GENEROUS_S, LOST_LIMIT_S, PEER, PORT, send, serve, wait_until

pytestmark = pytest.mark.root


# --- a faithful network


def test_hosts_reach_each_other_by_name_and_address_in_every_direction() -> None:
    with Hosts(3) as hosts:
        for host in hosts:
            serve(host)
        for source in hosts:
            for target in hosts:
                assert send(source, target.name) == "ok"
                assert send(source, target.address) == "ok"


def test_each_host_has_its_own_name_loopback_processes_and_shared_memory(pair: Hosts) -> None:
    first, second = pair
    results = pair.run_all(["sh", "-c", "hostname; echo $HOSTNAME; cat /proc/sys/kernel/random/boot_id"])
    names = [result.stdout.split()[:2] for result in results]
    assert names == [["node-a", "node-a"], ["node-b", "node-b"]]
    assert results[0].stdout.split()[2] != results[1].stdout.split()[2]
    serve(first, 29401)
    assert send(first, "127.0.0.1", port=29401) == "ok"
    assert send(second, "127.0.0.1", port=29401) == "ConnectionRefusedError"
    # Not by ps, which cuts lines where COLUMNS is set; a number alone may also stand in a path.
    commands = second.run(["sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"]).stdout
    assert "serve 29400" in commands
    assert "serve 29401" not in commands
    assert first.run(["touch", "/dev/shm/mine"]).returncode == 0
    assert "/dev/shm/mine" in first.files()
    assert "/dev/shm/mine" not in second.files()
    # Some kernels put devices of their own into every namespace (tunl0, sit0, bonding_masters); a machine's are named
    # otherwise than ours, and the switch's are named p0-0 and br0.
    interfaces = set(second.run(["ls", "/sys/class/net"]).stdout.split())
    assert {"eth0", "lo"} <= interfaces
    assert not {name for name in interfaces if name.startswith(("br", "p0-", "p1-", "eth1"))}


def test_outside_world_is_out_of_reach(pair: Hosts) -> None:
    assert send(pair[0], "8.8.8.8", port=53, limit_s=LOST_LIMIT_S) in ("OSError", "TimeoutError")


def test_second_interface_is_a_network_of_its_own() -> None:
    with Hosts(2, second_interface=True) as hosts:
        first, second = hosts
        serve(second)
        assert send(first, second.addresses[1], bind=first.addresses[1]) == "ok"
        first.link_down("eth0", cable=False)
        assert send(first, second.addresses[0], limit_s=LOST_LIMIT_S) in ("OSError", "TimeoutError")
        assert send(first, second.addresses[1]) == "ok"


def test_two_sets_of_hosts_live_side_by_side_and_do_not_meet(pair: Hosts) -> None:
    with Hosts(2) as others:
        serve(others[0], 29402)
        assert send(others[1], others[0].address, port=29402) == "ok"
        assert pair[0].address == others[0].address
        assert send(pair[1], pair[0].address, port=29402) == "ConnectionRefusedError"
    assert send(pair[0], pair[1].address) == "ok"


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torchrun_world_over_two_hosts_reduces(tmp_path: Path) -> None:
    script = tmp_path / "reduce.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "value = torch.full((100_000,), dist.get_rank() + 1.0)\n"
        "dist.all_reduce(value)\n"
        "print(dist.get_rank(), value.unique().tolist(), flush=True)\n"
        "dist.destroy_process_group()\n",
        encoding="utf-8",
    )
    with Hosts(2) as hosts:

        def torchrun(host: Host) -> list[str | Path]:
            world = ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(host.index)]
            master = ["--master-addr", hosts[0].name, "--master-port", str(PORT)]
            return [sys.executable, "-m", "torch.distributed.run", *world, *master, script]

        results = hosts.run_all(torchrun, timeout=150.0, env={"OMP_NUM_THREADS": "1"})
        assert [result.returncode for result in results] == [0, 0], "\n".join(r.describe() for r in results)
        assert [result.stdout.strip() for result in results] == ["0 [3.0]", "1 [3.0]"]
        for host in hosts:
            assert not host.leftovers(files=False)
            # torchrun's own directory of logs stays, under the host's TMPDIR
            assert [Path(file).name.split("_")[0] for file in host.files()][:1] == ["torchelastic"]


# --- names


def test_own_name_may_map_to_loopback(pair: Hosts) -> None:
    first, second = pair
    first.set_name(first.name, "127.0.1.1")
    assert first.run(["getent", "ahostsv4", first.name]).stdout.split()[0] == "127.0.1.1"
    assert second.run(["getent", "ahostsv4", first.name]).stdout.split()[0] == first.address


def test_forgotten_peer_is_unresolvable_at_once_and_may_come_back(pair: Hosts) -> None:
    first, second = pair
    first.forget_name(second.name)
    assert send(first, second.name) == "gaierror"
    assert send(second, first.name) == "ok"
    first.set_name(second.name, second.address)
    assert send(first, second.name) == "ok"


def test_machine_keeps_its_own_name_and_hosts_file() -> None:
    name, text = os.uname().nodename, Path("/etc/hosts").read_bytes()
    with Hosts(2) as hosts:
        hosts[0].set_name("elsewhere", "10.0.0.1")
        assert os.uname().nodename == name
        assert Path("/etc/hosts").read_bytes() == text


# --- commands


def test_command_gets_directory_and_environment_but_no_foreign_launcher_variables(
    pair: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("UNWANTED", "here")
    result = pair[0].run(["sh", "-c", "pwd; env"], env={"WORLD_SIZE": "2", "UNWANTED": None}, cwd=tmp_path)
    lines = result.stdout.splitlines()
    assert lines[0] == str(tmp_path)
    assert "WORLD_SIZE=2" in lines
    assert f"TMPDIR={pair[0].temporary}" in lines
    assert not [line for line in lines if line.startswith(("RANK=", "NCCL_", "UNWANTED="))]


def test_exit_status_and_streams_come_back(pair: Hosts) -> None:
    result = pair[0].run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (result.returncode, result.stdout, result.stderr, result.timed_out) == (3, "out\n", "err\n", False)
    assert pair[0].run(["sh", "-c", "kill -SEGV $$"]).returncode == -signal.SIGSEGV


def test_late_command_is_killed_with_its_children_and_what_it_said_is_kept(pair: Hosts) -> None:
    tree = "echo early; setsid sleep 1001 & sleep 1002 & wait"
    result = pair[0].run(["sh", "-c", tree], timeout=1.5)
    assert result.timed_out
    assert result.stdout == "early\n"
    assert result.returncode == -signal.SIGKILL
    assert not [p for p in pair[0].processes() if "sleep" in p.command]


def test_one_limit_holds_for_all_hosts(pair: Hosts) -> None:
    started = time.monotonic()
    results = pair.run_all(lambda host: ["sleep", "1000" if host.index else "0"], timeout=1.5)
    assert [result.timed_out for result in results] == [False, True]
    assert time.monotonic() - started < GENEROUS_S


def test_interrupt_reaches_the_whole_process_group(pair: Hosts) -> None:
    script = (
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
        "child = os.fork()\n"
        "child or os.write(1, b'ready\\n')\n"
        "signal.sigwait({signal.SIGINT})\n"
        "child and os.waitpid(child, 0)\n"
        "os.write(1, b'parent\\n' if child else b'child\\n')\n"
        "sys.exit(5)\n"
    )
    running = pair[0].start([sys.executable, "-c", script])
    assert wait_until(lambda: running.stdout == "ready\n")
    running.send_signal(signal.SIGINT)
    result = running.wait(GENEROUS_S)
    assert (result.returncode, result.stdout, result.timed_out) == (5, "ready\nchild\nparent\n", False)


# --- what is left


def test_leftovers_are_named_until_everything_is_killed(pair: Hosts) -> None:
    first, second = pair
    orphan = "setsid sh -c 'sleep 1003 & wait' </dev/null >/dev/null 2>&1 & touch $TMPDIR/forgotten"
    assert first.run(["sh", "-c", orphan]).returncode == 0
    assert wait_until(lambda: "sleep 1003" in {process.command for process in first.processes()})
    left = first.leftovers(limit_s=0.0)
    assert "sleep 1003" in {process.command for process in left.processes}
    assert PORT in {listener.port for listener in left.listeners}
    assert left.files == (str(first.temporary / "forgotten"),)
    first.kill_everything()
    (first.temporary / "forgotten").unlink()
    assert not first.leftovers()
    assert second.leftovers(limit_s=0.0).processes
    assert first.run(["hostname"]).stdout == "node-a\n"


def test_unix_sockets_count_as_leftovers(pair: Hosts) -> None:
    path = pair[0].temporary / "agent.sock"
    code = (
        "import socket, sys, time\n"
        "server = socket.socket(socket.AF_UNIX)\n"
        "server.bind(sys.argv[1]); server.listen(); time.sleep(999)"
    )
    pair[0].start([sys.executable, "-c", code, path])
    assert wait_until(lambda: str(path) in {listener.local for listener in pair[0].listeners()})


def test_empty_host_leaves_nothing() -> None:
    with Hosts(2) as hosts:
        assert hosts[0].leftovers() == Leftovers("node-a", (), (), ())
        assert not hosts[0].leftovers()


def _residents(kinds: set[str | None]) -> list[int]:
    """Give the processes of the machine that live in one of these pid namespaces."""
    return [pid for pid in all_pids() if namespace(pid, "pid") in kinds]


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_after_any_end(error: type[BaseException] | None) -> None:
    links = Path("/proc/net/dev").read_text(encoding="ascii").count("\n")
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    hosts = Hosts(2)
    spaces: set[str | None] = set()
    directory = Path()

    def use() -> None:
        nonlocal spaces, directory
        with hosts:
            running = hosts[0].start(["sh", "-c", "setsid sleep 1004 & sleep 1005"])
            assert wait_until(lambda: len(hosts[0].processes()) >= 3)
            assert running.alive()
            spaces = {namespace(process.outer_pid, "pid") for process in hosts[0].processes()}
            directory = hosts[0].directory.parent
            if error is not None:
                raise error

    if error is None:
        use()
    else:
        with pytest.raises(error):
            use()
    hosts.close()
    assert spaces
    assert _residents(spaces) == []
    assert directory.name.startswith("ddh-")
    assert not directory.exists()
    assert Path("/proc/net/dev").read_text(encoding="ascii").count("\n") == links
    assert Path("/proc/self/mountinfo").read_text(encoding="utf-8") == mounts


def test_killed_owner_leaves_no_process_and_its_directory_is_swept(tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    package, root = Path(__file__).parent.name, str(Path(__file__).parent.parent)
    script.write_text(
        f"import sys, time\nsys.path.insert(0, {root!r})\nfrom {package}.harness import Hosts\n"
        "with Hosts(2) as hosts:\n    hosts[0].start(['sleep', '1006'])\n"
        "    while not hosts[0].processes(): time.sleep(0.02)\n"
        "    print(hosts[0].processes()[0].outer_pid, hosts[0].directory.parent, flush=True)\n"
        "    time.sleep(999)\n",
        encoding="utf-8",
    )
    owner = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, directory = owner.stdout.readline().split()
    space = namespace(int(pid), "pid")
    assert space is not None
    assert Path(directory).is_dir()
    owner.kill()
    owner.communicate()
    assert wait_until(lambda: _residents({space}) == [])
    remove_stale()
    assert not Path(directory).exists()


def test_stale_first_process_of_a_dead_owner_is_ended(pair: Hosts) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    command = [sys.executable, "-I", "-S", str(PEER.with_name("host_init.py")), "--owner", f"{dead.pid}-1"]
    stale = subprocess.Popen([*command, "--name", "stale"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    while b"--owner" not in Path(f"/proc/{stale.pid}/cmdline").read_bytes():
        time.sleep(0.01)  # in the middle of its exec it has no command line
    remove_stale()
    stale.communicate()
    assert stale.returncode == -signal.SIGKILL
    assert send(pair[0], pair[1].address) == "ok"


# --- where it cannot work


@pytest.mark.parametrize("count", [0, 1, 5])
def test_impossible_number_of_hosts_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="2 to 4 hosts"):
        Hosts(count)


def test_reason_is_given_where_a_tool_or_right_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unavailable_reason() is None
    probe = network.unavailable_reason.__wrapped__
    with monkeypatch.context() as patch:
        patch.setattr("os.geteuid", lambda: 1000)
        assert probe() == "several hosts need root (network namespaces)"
    with monkeypatch.context() as patch:
        patch.setattr("shutil.which", lambda tool: None if tool == "tc" else f"/bin/{tool}")
        assert "need tc (" in str(probe())
    with monkeypatch.context() as patch:
        patch.setattr(network, "iptables", lambda: None)
        assert "iptables" in str(probe())
    with monkeypatch.context() as patch:
        patch.setattr(network, "_PROBE", "echo refused >&2; exit 1")
        assert "does not permit namespaces" in str(probe())
