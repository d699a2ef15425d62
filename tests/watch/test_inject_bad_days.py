"""When our own part cannot work, the job is none the worse."""

from __future__ import annotations

import ast
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.watch.injecting import INJECT, environment, launch, python, read_journals, write

SOURCE = "import sys\nprint('worked')\nsys.exit(3)\n"


def run_with(folder: Path, run: Path, source: str = SOURCE, **more: str) -> subprocess.CompletedProcess[str]:
    script = write(folder, source)
    return subprocess.run(
        [sys.executable, str(script)],
        env={**environment(run), **more},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("kind", ["missing", "file", "broken link", "relative", "full of text"])
def test_a_run_directory_that_cannot_be_used(tmp_path: Path, kind: str) -> None:
    run = tmp_path / "run"
    if kind == "file":
        run.write_text("")
    elif kind == "broken link":
        run.mkdir()
        (run / "processes").symlink_to(tmp_path / "nowhere")
    elif kind == "relative":
        run = Path("nowhere/run")
    elif kind == "full of text":
        run = Path("x" * 5000)
    done = run_with(tmp_path, run)
    assert (done.returncode, done.stdout, done.stderr) == (3, "worked\n", "")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody who may not write")
def test_a_run_directory_of_somebody_else(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    for folder in [tmp_path, *tmp_path.parents][:3]:
        folder.chmod(0o755)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os; os.setuid(65534); os.execv('/usr/bin/python3', ['python3', '-c', 'print(7)'])",
        ],
        env={**environment(run), "PYTHONPYCACHEPREFIX": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")


def test_a_limit_of_file_size_is_a_full_disk(tmp_path: Path) -> None:
    source = """
        import os, resource, sys
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
        for n in range(40):
            try:
                sys.exit("x" * 100)
            except SystemExit:
                pass
        print("worked")
        raise ValueError("end")
    """
    (tmp_path / "run").mkdir()
    done = run_with(tmp_path, tmp_path / "run", source)
    assert done.stdout == "worked\n"
    assert done.returncode == 1
    (journal,) = read_journals(tmp_path / "run")
    assert 3000 < journal.path.stat().st_size <= 4000
    assert all(event["event"] for event in journal.events)


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to mount a small file system")
def test_a_full_disk_tears_no_later_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(run)], check=False).returncode:
        pytest.skip("may not mount")
    try:
        source = f"""
            import os, sys
            filler = open({str(run / "filler")!r}, "wb", buffering=0)
            try:
                while filler.write(b"x" * 512):
                    pass
            except OSError:
                pass
            for n in range(30):
                try:
                    sys.exit("y" * 900)
                except SystemExit:
                    pass
            os.unlink(filler.name)
            filler.close()
            print("worked")
            raise ValueError("after")
        """
        done = run_with(tmp_path, run, source)
        (journal,) = read_journals(run)
    finally:
        subprocess.run(["umount", "-l", str(run)], check=True)
    assert (done.returncode, done.stdout) == (1, "worked\n")
    assert journal.one("exception")["message"] == "after"


def test_a_run_directory_that_goes_away(tmp_path: Path) -> None:
    source = (
        f"import shutil\nshutil.rmtree({str(tmp_path / 'run')!r})\nprint('worked')\nraise SystemExit(3)\n"
    )
    (tmp_path / "run").mkdir()
    done = run_with(tmp_path, tmp_path / "run", source)
    assert (done.returncode, done.stdout, done.stderr) == (3, "worked\n", "")


def test_a_package_of_ours_that_is_broken(tmp_path: Path) -> None:
    broken = tmp_path / "inject"
    shutil.copytree(INJECT, broken, ignore=shutil.ignore_patterns("__pycache__"))
    for module in ("interpreter/hooks.py", "core/journal.py", "__init__.py"):
        (broken / "ddpdoctor_watch" / module).write_text("1 / 0\n")
        (tmp_path / "run").mkdir(exist_ok=True)
        done = run_with(tmp_path, tmp_path / "run", PYTHONPATH=str(broken))
        assert (done.returncode, done.stdout, done.stderr) == (3, "worked\n", "")


@pytest.mark.parametrize(
    "module", ["interpreter.faults", "core.describe", "interpreter.patches", "core.remote"]
)
def test_a_part_of_ours_that_fails_later(tmp_path: Path, module: str) -> None:
    # Every function of it raises.
    source = f"""
        import sys, threading, types
        ours = sys.modules["ddpdoctor_watch." + {module!r}] if {module!r} != "core.remote" else None
        if ours is None:
            sys.modules["ddpdoctor_watch.core.remote"] = None
        else:
            def fail(*_, **__):
                raise ZeroDivisionError
            code = fail.__code__.replace(co_filename=ours.__file__)
            for name, value in list(vars(ours).items()):
                if isinstance(value, types.FunctionType) and value.__module__ == ours.__name__:
                    setattr(ours, name, types.FunctionType(code, globals()))
        t = threading.Thread(target=lambda: [][1])
        t.start()
        t.join()
        import os
        if os.fork() == 0:
            os._exit(3)
        os.wait()
        raise ValueError("Caught E in DataLoader worker process 0.\\nOriginal Traceback (most recent call last):\\n")
    """
    (tmp_path / "run").mkdir()
    done = run_with(tmp_path, tmp_path / "run", source)
    assert done.returncode == 1
    assert done.stderr.startswith("Exception in thread Thread-1")
    assert "ValueError: Caught E in DataLoader" in done.stderr
    assert "ddpdoctor" not in done.stderr
    main = next(j for j in read_journals(tmp_path / "run") if "forked" not in j.start)
    assert main.one("end")


def test_threads_that_die_by_the_thousand_do_not_fill_the_disk(tmp_path: Path) -> None:
    done = python(
        tmp_path,
        """
        import threading
        threading.excepthook = lambda _: None
        for n in range(1000):
            t = threading.Thread(target=lambda: 1 / 0)
            t.start()
            t.join()
        """,
        check=False,
    )
    assert done.returncode == 0
    assert len(done.main().all("exception")) == 200
    assert "more than 200" in done.main().one("trouble")["text"]
    assert done.main().path.stat().st_size < 500_000


def test_lines_of_many_threads_never_mix(tmp_path: Path) -> None:
    done = python(
        tmp_path,
        """
        import os, threading

        def work():
            for n in range(100):
                pid = os.posix_spawn("/bin/true", ["true"], {})
                os.waitpid(pid, 0)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        """,
    )
    lines = done.main().path.read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == len(lines)
    assert len(done.main().all("child-exit")) == 800


def test_any_python_of_a_job_can_read_our_source() -> None:
    for path in INJECT.rglob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 8))
    # Older ones read only the start-up file: nothing in it but what all of them know.
    start = ast.parse((INJECT / "sitecustomize.py").read_text())
    forbidden = (ast.FunctionDef, ast.AnnAssign, ast.JoinedStr, ast.NamedExpr, ast.ImportFrom)
    assert not [node for node in ast.walk(start) if isinstance(node, forbidden)]


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8", "3.9", "3.10", "3.12", "3.13"])
def test_other_interpreters_of_a_job(tmp_path: Path, version: str) -> None:
    found = next(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), None)
    interpreter = str(found) if found is not None else shutil.which(f"python{version}")
    if interpreter is None:
        pytest.skip(f"no Python {version} here")
    script = write(
        tmp_path,
        """
        import os, sys, threading, multiprocessing
        def work():
            raise KeyError("x")
        if __name__ == "__main__":
            for kind in (threading.Thread, multiprocessing.Process):
                t = kind(target=work)
                t.start()
                t.join()
            print("%s %s" % (sys.path[0] == os.path.dirname(os.path.abspath(__file__)), "sitecustomize" in sys.modules))
            raise ValueError("end")
        """,
    )
    (tmp_path / "run").mkdir()
    ends = []
    for run in (None, tmp_path / "run"):
        # Without the paths of a virtual environment, and without leaving bytecode in the source tree.
        more = {**environment(run), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [interpreter, str(script)], env=more, capture_output=True, text=True, timeout=60
        )
        ends.append((done.returncode, done.stdout, done.stderr))
    assert ends[0] == ends[1]
    assert ends[1][1] == "True False\n"
    kinds = [e["kind"] for j in read_journals(tmp_path / "run") for e in j.all("exception")]
    assert sorted(kinds) == ([] if version in ("2.7", "3.6") else ["thread", "uncaught", "uncaught"])


def test_starting_costs_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = write(tmp_path, "pass")
    (tmp_path / "run").mkdir()
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(15):
        for watched in (False, True):
            variables = environment(tmp_path / "run" if watched else None)
            pid = os.posix_spawn(sys.executable, [sys.executable, str(script)], variables)
            _, status, usage = os.wait4(pid, 0)
            assert status == 0
            times[watched].append(usage.ru_utime + usage.ru_stime)
    cost = statistics.median(times[True]) - statistics.median(times[False])
    with capsys.disabled():
        print(f"\nstart-up of a process that is watched: {cost * 1e3:+.1f} ms of CPU time")
    assert cost < 0.1  # The budget is 3 ms; this only catches an import of something heavy.


def test_nothing_heavy_is_imported_at_start(tmp_path: Path) -> None:
    probe = "import sys; print('\\n'.join(m for m in sys.modules))"
    loaded = launch([sys.executable, "-c", probe], tmp_path).stdout.split()
    heavy = {
        "json",
        "re",
        "traceback",
        "threading",
        "subprocess",
        "socket",
        "ctypes",
        "logging",
        "typing",
        "weakref",
    }
    plain = subprocess.run(
        [sys.executable, "-c", probe], env=environment(None), capture_output=True, text=True, check=True
    ).stdout.split()
    assert not heavy & (set(loaded) - set(plain))
