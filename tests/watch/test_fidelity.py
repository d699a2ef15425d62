"""What a job can tell of ``run``: the same as under torchrun, but for what docs/run.md lists."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.gather.network.ports import free_port
from tests.marks import long, mostly_long
from tests.watch.injecting import write
from tests.watch.launching import (
    TORCHRUN,
    alive,
    doctor,
    environ,
    finish,
    pair,
    scripts,
    start,
    torchrun_pair,
    wait_for,
)

PROBE = """
    import json, multiprocessing, os, pickle, resource, signal, sys, threading, warnings

    class Thing:
        pass

    def name_of(thing, queue):
        queue.put([type(thing).__module__, type(thing) is Thing, __name__])

    def through(method):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        child = context.Process(target=name_of, args=(Thing(), queue))
        child.start()
        found = queue.get()
        child.join()
        return [found, child.exitcode]

    def handler(number):
        return getattr(signal.getsignal(number), "__qualname__", str(signal.getsignal(number)))

    def view():
        with open(os.devnull) as stream:
            first = stream.fileno()
        main = sys.modules["__main__"]
        return {
            "argv": sys.argv, "orig": sys.orig_argv, "cwd": os.getcwd(), "main": main.__name__, "name": __name__,
            "file": globals().get("__file__"), "path": sys.path, "path0": sys.path[0],
            "spec": getattr(getattr(main, "__spec__", None), "name", None),
            "pickled": type(pickle.loads(pickle.dumps(Thing()))) is Thing,
            "children": {m: through(m) for m in ("fork", "spawn", "forkserver")} if __name__ == "__main__" else None,
            "flags": list(sys.flags), "repr_flags": repr(sys.flags), "xoptions": sys._xoptions, "warnings": sys.warnoptions,
            "filters": [str(f) for f in warnings.filters], "environ": dict(os.environ),
            "isatty": [os.isatty(n) for n in (0, 1, 2)], "stdin": sys.stdin.read() if sys.stdin else None,
            "streams": [[s.encoding, s.errors, s.line_buffering, s.write_through] for s in (sys.stdout, sys.stderr)],
            "handlers": {n.name: handler(n) for n in signal.Signals},
            "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "first": first,
            "threads": threading.active_count(), "leads": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
            "limits": [resource.getrlimit(n) for n in range(16)], "nice": os.nice(0), "umask": os.umask(0o22),
            "modules": sorted(sys.modules), "marker": getattr(sys, "marker", None),
            "hook": sys.excepthook is sys.__excepthook__, "trace": [repr(sys.gettrace()), repr(sys.getprofile())],
        }

    def tell(rank):
        with open(os.path.join(os.environ["OUT"], f"rank-{rank}.json"), "w") as file:
            json.dump(view(), file)
        print(f"said by {rank}\\n", end="")  # in one write: ranks share the stream
        print(f"complained by {rank}\\n", end="", file=sys.stderr)

    if __name__ == "__main__":
        tell(os.environ["RANK"])
"""
SPAWN = """
    import multiprocessing, os
    import probe

    def rank(number):
        os.environ.update(RANK=str(number), WORLD_SIZE="2", LOCAL_RANK=str(number))
        probe.tell(number)

    if __name__ == "__main__":
        context = multiprocessing.get_context("spawn")
        children = [context.Process(target=rank, args=(n,)) for n in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
"""
LAUNCHERS = """
    import os, subprocess, sys

    NAMES = {
        "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
        "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    }
    rank, size, local = NAMES[os.path.basename(sys.argv[0])]
    tasks = [
        subprocess.Popen(sys.argv[1:], env={**os.environ, rank: str(n), size: "2", local: str(n), "SLURM_STEP_ID": "0"})
        for n in range(2)
    ]
    sys.exit(max(task.wait() for task in tasks))
"""
"""What srun and mpirun do for their tasks, as far as these can tell."""
TASK = """
    import os
    import probe

    probe.tell(os.environ.get("SLURM_PROCID") or os.environ["OMPI_COMM_WORLD_RANK"])
"""
OURS = {"PYTHONPATH", "DDPDOCTOR_RUN", "DDPDOCTOR_STREAMS", "DDPDOCTOR_SUPERVISOR"}
"""Variables that docs/run.md names."""
EACH_TIME = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "OUT"}
"""Variables that differ between two launches of torchrun."""
EARLIER = {"__future__", "_json", "atexit", "faulthandler", "traceback", "_socket"}
"""Modules of the standard library that start-up may load earlier than the program would."""


def views(folder: Path) -> list[dict[str, Any]]:
    """What the ranks of one launch saw, without what differs anyway."""
    seen = []
    for path in sorted(folder.glob("rank-*.json")):
        view = json.loads(re.sub(r"0x[0-9a-f]+|pipe_handle=\d+|tracker_fd=\d+", "", path.read_text()))
        view["environ"] = {k: v for k, v in view["environ"].items() if k not in OURS | EACH_TIME}
        view["modules"] = [
            name for name in view["modules"] if not name.startswith("ddpdoctor_watch") and name not in EARLIER
        ]
        seen.append(view)
    return seen


def compare(tmp_path: Path, ranks: int = 2) -> list[dict[str, Any]]:
    """Compare what the ranks saw; return it."""
    plain, watched = views(tmp_path / "plain"), views(tmp_path / "watched")
    assert len(plain) == ranks
    for one, other in zip(plain, watched, strict=True):
        assert other == one
    return watched


FORMS: dict[str, tuple[list[str], list[str]]] = {
    "script": ([*TORCHRUN, *"--standalone --nproc-per-node=2 probe.py a --b".split()],
               "--standalone --nproc 2 probe.py a --b".split()),
    "module": ([*TORCHRUN, *"--standalone --nproc_per_node 2 -m pkg.mod --x".split()],
               "--standalone --nproc_per_node 2 -m pkg.mod --x".split()),
    "program": ([*TORCHRUN, *"--standalone --nproc-per-node 2 --no-python".split(), sys.executable, "-O", "probe.py"],
                ["--standalone", "--nproc", "2", "--no-python", sys.executable, "-O", "probe.py"]),
    "torchrun": ([scripts("torchrun"), *"--standalone --nproc-per-node 2 ./probe.py a".split()],
                 ["--", scripts("torchrun"), *"--standalone --nproc-per-node 2 ./probe.py a".split()]),
    "launch": ([sys.executable, *"-m torch.distributed.launch --standalone --nproc-per-node 2 probe.py a".split()],
               ["--", sys.executable, *"-m torch.distributed.launch --standalone --nproc-per-node 2 probe.py a".split()]),
    "spawn": ([sys.executable, "spawn_script.py", "x"], ["--", sys.executable, "spawn_script.py", "x"]),
}  # fmt: skip
"""Name -> command line without us, arguments of ``run``."""


@pytest.mark.parametrize("form", mostly_long(FORMS, "script", "torchrun"))
def test_a_script_sees_the_same_however_it_is_launched(tmp_path: Path, form: str) -> None:
    write(tmp_path, PROBE, "probe.py")
    write(tmp_path, SPAWN, "spawn_script.py")
    (tmp_path / "pkg").mkdir()
    write(tmp_path / "pkg", PROBE, "mod.py")
    plain, watched = pair(tmp_path, *FORMS[form])
    assert (plain.code, watched.code) == (0, 0), watched.stderr.decode()
    assert sorted(watched.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    assert b"complained by 1" in watched.stderr
    compare(tmp_path)


@pytest.mark.parametrize("name", ["srun", "mpirun"])
def test_a_task_of_a_clusters_launcher_sees_the_same(tmp_path: Path, name: str) -> None:
    write(tmp_path, PROBE.replace('"children": {', '"children": {} and {'), "probe.py")
    write(tmp_path, TASK, "train.py")
    launcher = write(tmp_path, LAUNCHERS, name)
    launcher.write_text(f"#!{sys.executable} -IS\n{launcher.read_text()}")
    launcher.chmod(0o755)
    command = [f"./{name}", sys.executable, "-W", "ignore", "-X", "utf8", "train.py", "--lr", "0.1"]
    plain, watched = pair(tmp_path, command, ["--", *command])
    assert (plain.code, watched.code) == (0, 0), watched.stderr.decode()
    assert sorted(watched.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    compare(tmp_path)
    report = json.loads((tmp_path / "watched" / "run" / "report.json").read_text())
    assert sorted(each["rank"] for each in report["evidence"]["processes"]) == [0, 1]


@pytest.mark.slow
@pytest.mark.long
def test_a_script_sees_the_same_under_accelerate(tmp_path: Path) -> None:
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    write(tmp_path, PROBE, "probe.py")
    given = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --main_process_port {} probe.py a"
    start = [sys.executable, "-m", "accelerate.commands.launch"]
    commands = [[*start, *given.format(free_port()).split()] for _ in range(2)]
    plain, watched = pair(tmp_path, commands[0], ["--", *commands[1]])
    assert (plain.code, watched.code) == (0, 0), watched.stderr.decode()
    # Its two ranks write to one stream: their lines may run into each other, with us and without.
    assert sorted(watched.stdout) == sorted(plain.stdout)
    compare(tmp_path)


def test_settings_of_the_environment_and_stdin_reach_the_script(tmp_path: Path) -> None:
    write(tmp_path, PROBE, "probe.py")
    (tmp_path / "site").mkdir()
    write(tmp_path / "site", "import sys\nsys.marker = 'the users own'\n", "sitecustomize.py")
    write(tmp_path, "first line\nsecond line\n", "given")
    variables = {
        "PYTHONOPTIMIZE": "1",
        "PYTHONWARNINGS": "error::UserWarning",
        "PYTHONDEVMODE": "1",
        "PYTHONUTF8": "1",
        "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}relative",
        "MINE": "kept",
    }
    # One after the other: what one reads of stdin, another cannot.
    for folder, command in (
        (tmp_path / "plain", [*TORCHRUN, "--standalone", "probe.py"]),
        (tmp_path / "watched", doctor(tmp_path / "watched", "--standalone", "probe.py")),
    ):
        with (tmp_path / "given").open("rb") as stdin:
            process = start(command, folder, tmp_path, env=environ(folder, **variables), stdin=stdin)
            assert finish(process, folder).code == 0
    (seen,) = compare(tmp_path, 1)
    assert seen["marker"] == "the users own"
    assert seen["stdin"] == "first line\nsecond line\n"
    assert seen["environ"]["MINE"] == "kept"
    assert "utf8_mode=1" in seen["repr_flags"]


WAITING = """
    import os, signal, sys, time

    def note(text):
        with open(os.path.join(os.environ["OUT"], "rank-" + os.environ["RANK"]), "a") as file:
            file.write(text + chr(10))

    def handle(number, frame):
        note(signal.Signals(number).name)
        time.sleep(0.5)  # saving a checkpoint, say
        note("saved")
        sys.exit(0)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)
    note("ready")
    time.sleep(100)
"""


def ready(folder: Path, ranks: int = 2) -> bool:
    return len([path for path in folder.glob("rank-?") if path.read_text().startswith("ready\n")]) == ranks


@pytest.mark.parametrize("to", ["command", *long("group")])
@pytest.mark.parametrize("number", [signal.SIGTERM, *long(signal.SIGINT, signal.SIGHUP)])
def test_a_signal_does_what_it_does_to_torchrun(tmp_path: Path, number: signal.Signals, to: str) -> None:
    write(tmp_path, WAITING)

    def act(process: subprocess.Popen[bytes], folder: Path) -> None:
        wait_for(lambda: ready(folder), "the ranks did not come up")
        (os.kill if to == "command" else os.killpg)(process.pid, number)

    plain, watched = torchrun_pair(tmp_path, "--nproc-per-node=2", "train.py", act=act)
    assert watched.code == plain.code
    for rank in ("rank-0", "rank-1"):
        heard = (tmp_path / "plain" / rank).read_text()
        assert (tmp_path / "watched" / rank).read_text() == heard
        assert heard == f"ready\n{number.name}\nsaved\n"
    said = watched.stderr.partition(b"\nddpdoctor ")[0]  # before our report, which may quote it
    assert said.count(b"SignalException") == plain.stderr.count(b"SignalException")


def on_terminal(command: list[str], folder: Path, cwd: Path, act: Callable[[int], None]) -> tuple[int, bytes]:
    """Run a command on a terminal of its own, ``act`` being given the other end; its exit code and what was shown."""
    folder.mkdir(exist_ok=True)
    pid, master = pty.fork()
    if pid == 0:
        try:
            os.chdir(cwd)
            os.execve(command[0], command, environ(folder))
        finally:
            os._exit(127)
    shown = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # EIO: nobody has it open any more
            while part := os.read(master, 4096):
                shown.extend(part)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        act(master)
        wait_for(lambda: not alive(pid), "the command did not end")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    reader.join(10)
    os.close(master)
    code = os.waitstatus_to_exitcode(status)
    return (code if code >= 0 else 128 - code), bytes(shown)


@pytest.mark.parametrize("times", [2, *long(1)])
def test_ctrl_c_on_a_terminal(tmp_path: Path, times: int) -> None:
    write(tmp_path, WAITING)
    found = []
    for name in ("plain", "watched"):
        folder = tmp_path / name
        given = ["--standalone", "--nproc-per-node=2", "train.py"]
        command = [*TORCHRUN, *given] if name == "plain" else doctor(folder, *given)

        def act(master: int, folder: Path = folder) -> None:
            wait_for(lambda: ready(folder), "the ranks did not come up")
            os.write(master, b"\x03")
            if times == 2:
                wait_for(lambda: "SIGINT" in (folder / "rank-0").read_text(), "the first one came to no rank")
                os.write(master, b"\x03")

        code, shown = on_terminal(command, folder, tmp_path, act)
        wait_for(lambda: "saved" in (folder / "rank-1").read_text(), "a rank was not asked to end")  # noqa: B023  # at once
        lines = (folder / "rank-0").read_text().split()
        # Whether torchrun's SIGTERM or a second SIGINT still finds the rank saving is a matter of half a second.
        found.append((code, lines[:2], lines[-1], b"got signal: 2" in shown))
    assert found[1] == found[0]
    assert found[0][1:3] == (["ready", "SIGINT"], "saved")


TERMINAL = """
    import os, sys, time
    folder = os.environ["OUT"]
    with open(os.path.join(folder, "rank-" + os.environ["RANK"]), "w") as file:
        file.write("ready" + chr(10))
    size = tuple(os.get_terminal_size(1))
    while os.get_terminal_size(1) == size:
        time.sleep(0.05)
    print([os.isatty(n) for n in (0, 1, 2)], size, tuple(os.get_terminal_size(1)))
"""


def test_a_terminal_is_one_with_its_size(tmp_path: Path) -> None:
    write(tmp_path, TERMINAL)
    found = []
    for name in ("plain", "watched"):
        folder = tmp_path / name
        given = ["--standalone", "train.py"]
        command = [*TORCHRUN, *given] if name == "plain" else doctor(folder, *given)

        def act(master: int, folder: Path = folder) -> None:
            wait_for(lambda: ready(folder, 1), "the rank did not come up")
            fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 41, 121, 0, 0))

        code, shown = on_terminal(command, folder, tmp_path, act)
        found.append((code, [line for line in shown.splitlines() if line.startswith(b"[")]))
    assert found[1] == found[0]
    assert found[0][1] == [b"[True, True, True] (0, 0) (121, 41)"]
