"""A program cannot tell that it is watched, beyond what is documented."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.watch.injecting import INJECT, environment, launch, python, read_journals, write

PROBE = """
    import builtins, json, os, pickle, signal, sys, threading, warnings, faulthandler, importlib.util

    class Thing:
        pass

    def view():
        before = sorted(os.listdir("/proc/self/fd"))
        with open(os.devnull) as stream:
            first = stream.fileno()
        return {
            "argv": sys.argv, "path": sys.path, "path0": sys.path[0], "name": __name__, "file": globals().get("__file__"),
            "spec": repr(getattr(sys.modules["__main__"], "__spec__", None)),
            "modules": sorted(sys.modules), "flags": list(sys.flags), "cwd": os.getcwd(),
            "hook": sys.excepthook is sys.__excepthook__, "exit": [sys.exit.__name__, sys.exit.__module__],
            "environ": {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "DDPDOCTOR_RUN")},
            "pickles": [pickle.loads(pickle.dumps(f)) is f for f in (sys.exit, os._exit, os.waitpid, os.kill, Thing)],
            "threads": threading.active_count(), "first": first,
            "signals": {str(s): str(signal.getsignal(s)) for s in signal.valid_signals()},
            "warnings": [str(f) for f in warnings.filters], "stdin": sys.stdin.read(), "doc": os.waitpid.__doc__,
            "sitecustomize": importlib.util.find_spec("sitecustomize") is not None,
            "cache": [p for p in sys.path_importer_cache if "inject" in p and "ddpdoctor_watch" not in p],
            "recursion": sys.getrecursionlimit(), "switch": sys.getswitchinterval(), "orig": sys.orig_argv[1:],
            "builtins": sorted(vars(builtins)), "trace": [repr(sys.gettrace()), repr(sys.getprofile())],
            "isatty": [s.isatty() for s in (sys.stdin, sys.stdout, sys.stderr)], "buffered": sys.stdout.line_buffering,
            "exitrepr": repr(exit), "umask": os.umask(0o22), "bytecode": sys.dont_write_bytecode,
        }

    print(json.dumps(view()))
"""

OURS = {"__future__", "_json", "atexit", "faulthandler", "traceback"}
"""Modules of the standard library that start-up may load earlier than the program would."""


def without_addresses(text: str) -> str:
    return re.sub(r"\b0x[0-9a-f]+", "0x", text)


def views(folder: Path, command: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the probe sees without and with us."""
    found = []
    (folder / "run").mkdir(exist_ok=True)
    for run in (None, folder / "run"):
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment(run),
            capture_output=True,
            text=True,
            timeout=60,
            input="in",
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        found.append(json.loads(without_addresses(done.stdout)))
    return found[0], found[1]


@pytest.mark.parametrize(
    "options",
    [
        ["train.py", "a", "--b"],
        ["-O", "-W", "error", "-X", "dev", "-u", "train.py"],
        ["-m", "train", "--x"],
        ["-mtrain"],
        ["-m", "pkg"],
        ["-P", "train.py"],
        ["-B", "-q", "-s", "./train.py"],
    ],
    ids=" ".join,
)
def test_a_program_sees_the_same(tmp_path: Path, options: list[str]) -> None:
    write(tmp_path, PROBE)
    (tmp_path / "pkg").mkdir()
    write(tmp_path / "pkg", PROBE, "__main__.py")
    plain, watched = views(tmp_path, [sys.executable, *options])
    extra = set(watched.pop("modules")) - set(plain.pop("modules"))
    assert {name for name in extra if not name.startswith("ddpdoctor_watch")} <= OURS
    assert watched == plain
    assert read_journals(tmp_path / "run")[-1].one("end")


def test_code_on_the_command_line_and_on_stdin_is_run_the_same(tmp_path: Path) -> None:
    done = launch([sys.executable, "-c", "import sys; print(sys.argv, __name__, sys.path[0])", "x"], tmp_path)
    assert done.stdout == "['-c', 'x'] __main__ \n"
    assert done.main().start["script"] == "-c"


@pytest.mark.parametrize(
    ("options", "expected"),
    [(["-m", "train", "x"], "train"), (["-um", "train"], "train"), (["-mtrain"], "train")],
)
def test_start_names_the_module(tmp_path: Path, options: list[str], expected: str) -> None:
    write(tmp_path, "pass")
    done = launch([sys.executable, *options], tmp_path)
    assert done.main().start["module"] == expected


BROKEN = {
    "exception": "def f(x):\n    return 1 / x\nf(0)\n",
    "chain": "try:\n    {}['a']\nexcept KeyError as e:\n    raise RuntimeError('b') from e\n",
    "syntax": "x = (\n",
    "string": "import sys\nsys.exit('no data')\n",
    "status": "import sys\nsys.exit(17)\n",
    "tuple": "import sys\nsys.exit((3, 4))\n",
    "none": "import sys\nsys.exit()\n",
    "quit": "quit(6)\n",
    "bare": "raise SystemExit(5)\n",
    "leave": "import os\nos._exit(7)\n",
    "leave-keyword": "import os\nos._exit(status=8)\n",
    "recursion": "def f():\n    f()\nf()\n",
    "unprintable": "class E(Exception):\n    def __str__(self):\n        raise ValueError\nraise E\n",
    "thread": "import threading\ndef f():\n    1 / 0\nt = threading.Thread(target=f, name='bob')\nt.start()\nt.join()\n",
    "interrupt": "raise KeyboardInterrupt\n",
    "group": "raise ExceptionGroup('g', [ValueError(1), KeyError(2)])\n",
    "notes": "e = ValueError('n')\ne.add_note('look here')\nraise e\n",
    "wait": "import os, sys\nos.waitpid(1 << 22, 0)\n",
    "kill": "import os\nos.kill(1 << 22, 15)\n",
    "exit-traceback": "import sys, traceback\ntry:\n    sys.exit(3)\nexcept SystemExit:\n    pass\n1 / 0\n",
    "exit-in-cause": "import sys\ntry:\n    sys.exit(3)\nexcept SystemExit as e:\n    raise ValueError from e\n",
    "hook": "import sys\nsys.excepthook = lambda *a: print('mine', a[1], file=sys.stderr)\n1 / 0\n",
    "hook-chained": "import sys\ndef h(*a):\n    print('mine', file=sys.stderr)\n    sys.__excepthook__(*a)\nsys.excepthook = h\n1 / 0\n",
    "hook-broken": "import sys\nsys.excepthook = None\n1 / 0\n",
    "hook-raises": "import sys\ndef h(*a):\n    raise ValueError('in the hook')\nsys.excepthook = h\n1 / 0\n",
    "hook-direct": "import sys\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.excepthook(*sys.exc_info())\nprint('on')\n",
    "hook-of-threads": "import threading, sys\nthreading.excepthook = lambda a: print('mine', a.thread.name, file=sys.stderr)\n"
    "t = threading.Thread(target=lambda: 1 / 0, name='bob')\nt.start()\nt.join()\n",
    "atexit": "import atexit\natexit.register(lambda: 1 / 0)\n",
    "process": "import multiprocessing as m\ndef f():\n    1 / 0\nif __name__ == '__main__':\n"
    "    p = m.get_context('fork').Process(target=f)\n    p.start()\n    p.join()\n    print(p.exitcode)\n",
    "process-spawned": "import multiprocessing as m, sys\ndef f():\n    sys.exit(4)\nif __name__ == '__main__':\n"
    "    p = m.get_context('spawn').Process(target=f)\n    p.start()\n    p.join()\n    print(p.exitcode)\n",
    "aborted": "import os\nos.abort()\n",
    "killed": "import os\nos.kill(os.getpid(), 9)\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_end_looks_the_same(tmp_path: Path, name: str) -> None:
    (tmp_path / "run").mkdir()
    script = write(tmp_path, BROKEN[name])
    ends = []
    for run in (None, tmp_path / "run"):
        done = subprocess.run(
            [sys.executable, str(script)], cwd=tmp_path, env=environment(run), capture_output=True, timeout=60
        )
        ends.append((done.returncode, done.stdout, without_addresses(done.stderr.decode())))
    assert ends[1] == ends[0]
    troubles = [event for journal in read_journals(tmp_path / "run") for event in journal.all("trouble")]
    assert not troubles


def test_without_the_run_directory_nothing_happens(tmp_path: Path) -> None:
    script = write(tmp_path, "import sys; print('ddpdoctor_watch.core.journal' in sys.modules, sys.path[1])")
    for more in ({}, {"DDPDOCTOR_RUN": str(tmp_path), "DDPDOCTOR_WATCH": "0"}):
        done = subprocess.run(
            [sys.executable, str(script)],
            env={**environment(None), "PYTHONPATH": str(INJECT), **more},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.startswith("False ")
        assert str(INJECT) not in done.stdout
    assert not (tmp_path / "processes").exists()


def test_the_users_own_sitecustomize_runs(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    write(
        site,
        "import sys\nsys.mine = __name__, __file__\nsys.excepthook = lambda *a: print('hook of the site')\n",
        "sitecustomize.py",
    )
    done = python(
        tmp_path,
        "import sys, sitecustomize\nprint(sys.mine, sitecustomize.__spec__.origin, sys.path[1])\n1 / 0\n",
        variables={"PYTHONPATH": os.pathsep.join([str(INJECT), str(site)])},
    )
    there = str(site / "sitecustomize.py")
    assert done.stdout == f"('sitecustomize', '{there}') {there} {site}\nhook of the site\n"
    assert done.main().one("exception")["type"] == "ZeroDivisionError"


def test_a_broken_sitecustomize_of_the_user_is_reported_as_ever(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (tmp_path / "run").mkdir()
    write(site, "1 / 0", "sitecustomize.py")
    script = write(tmp_path, "print('on')")
    ends = []
    for run in (None, tmp_path / "run"):
        path = str(site) if run is None else os.pathsep.join([str(INJECT), str(site)])
        more = {**environment(run), "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, str(script)], env=more, capture_output=True, text=True, timeout=60
        )
        ends.append((done.returncode, done.stdout, done.stderr))
    assert ends[0] == ends[1]
    assert "ZeroDivisionError" in ends[0][2]
    assert read_journals(tmp_path / "run")[0].one("end")


def test_two_injections_do_not_disturb_each_other(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(INJECT, other, ignore=shutil.ignore_patterns("__pycache__"))
    done = python(
        tmp_path,
        "import os, sys\nours = os.environ['PYTHONPATH'].split(':')\n"
        "print([p for p in sys.path if p in ours], 'sitecustomize' in sys.modules)\n1 / 0\n",
        variables={"PYTHONPATH": os.pathsep.join([str(INJECT), str(other), str(INJECT)])},
    )
    assert done.stdout == "[] False\n"
    assert len(done.main().all("exception")) == 1
    assert len(done.main().all("start")) == 1


def test_interpreters_that_ignore_the_environment_are_left_alone(tmp_path: Path) -> None:
    for option in ("-I", "-E", "-S"):
        done = launch([sys.executable, option, "-c", "print('on')"], tmp_path)
        assert (done.stdout, done.stderr) == ("on\n", "")
    assert not done.processes
