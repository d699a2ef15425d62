"""Which process is which, what it starts, and what it sees of their ends."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.watch.injecting import Journal, Watched, launch, line_of, python, write

RANK = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "GROUP_RANK": "1"}


def child(done: Watched) -> Journal:
    """The one process that the program started."""
    main = done.main()
    found = [p for p in done.processes if p is not main]
    (one,) = found
    return one


def test_start_says_who_it_is(tmp_path: Path) -> None:
    variables = {
        **RANK,
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_RUN_ID": "job",
        "MY_PASSWORD": "secret",
    }
    done = python(tmp_path, "pass", "--lr", "1", variables=variables)
    start = done.main().one("start")
    assert start["argv"] == [sys.executable, str(tmp_path / "train.py"), "--lr", "1"]
    assert (start["role"], start["rank"], start["local_rank"], start["world_size"]) == ("rank", 3, 1, 8)
    assert (start["group_rank"], start["attempt"], start["run_id"]) == (1, 2, "job")
    assert start["cwd"] == str(tmp_path)
    assert start["isatty"] == [False, False, False]
    assert start["variables"]["RANK"] == "3"
    assert "secret" not in done.main().path.read_text()
    assert done.main().path.name == f"{start['pid']}-{start['start_ticks']}.jsonl"
    assert done.main().path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("variables", "rank", "role"),
    [
        ({"LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "x"}, None, "rank"),
        ({"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"}, 5, "rank"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None, "other"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "4294967290"}, None, "other"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": "0"}, None, "other"),
        (
            {
                **{"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0"},
                **{"OMPI_COMM_WORLD_RANK": "6", "OMPI_COMM_WORLD_SIZE": "8"},
            },
            6,
            "rank",
        ),
        ({"MV2_COMM_WORLD_RANK": "2", "MV2_COMM_WORLD_SIZE": "4"}, 2, "rank"),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, 2, "rank"),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, 2, "rank"),
        ({"RANK": "x", "WORLD_SIZE": ""}, None, "other"),
        ({}, None, "other"),
    ],
)
def test_a_rank_is_known_by_its_launchers_variables(
    tmp_path: Path, variables: dict[str, str], rank: int | None, role: str
) -> None:
    start = python(tmp_path, "pass", variables=variables).main().start
    assert (start["rank"], start["role"]) == (rank, role)


@pytest.mark.parametrize("name", ["torchrun", "accelerate"])
def test_a_launcher_is_known_by_its_name(tmp_path: Path, name: str) -> None:
    script = write(tmp_path, "pass", name)
    assert launch([sys.executable, str(script)], tmp_path, variables=RANK).main().role == "launcher"


@pytest.mark.parametrize(
    "variables",
    [
        RANK,
        {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"},
        {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"},
    ],
    ids=["torchrun", "srun", "mpirun"],
)
def test_what_a_rank_starts_is_no_rank(tmp_path: Path, variables: dict[str, str]) -> None:
    done = python(
        tmp_path,
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'pass'])\n",
        variables=variables,
    )
    assert done.main().role == "rank"
    helper = child(done)
    same = done.main().start["rank"]
    assert (helper.role, helper.start["inherited"], helper.start["rank"]) == ("other", True, same)


def test_ranks_that_a_rank_like_launcher_starts_are_ranks(tmp_path: Path) -> None:
    # A pod's launcher has RANK, its node's number; what it starts has variables of its own.
    source = """
        import os, subprocess, sys
        subprocess.run([sys.executable, "-c", "pass"], env={**os.environ, "LOCAL_RANK": "0", "RANK": "3"})
    """
    done = python(tmp_path, source, variables={"RANK": "3", "WORLD_SIZE": "8"})
    assert child(done).role == "rank"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing(tmp_path: Path, method: str) -> None:
    done = python(
        tmp_path,
        f"""
        import multiprocessing as m

        def work(n):
            raise ValueError(n)

        if __name__ == "__main__":
            p = m.get_context("{method}").Process(target=work, args=(5,), name="reader")
            p.start()
            p.join()
            print(p.pid, p.exitcode)
        """,
    )
    pid, code = map(int, done.stdout.split())
    assert code == 1
    (process,) = [p for p in done.processes if p.start["pid"] == pid]
    event = process.one("exception")
    assert (event["kind"], event["type"], event["message"]) == ("uncaught", "ValueError", "5")
    assert event["frames"][0][2] == "work"
    role = process.one("role")
    assert (role["role"], role["name"], role["target"].split(".")[-1]) == ("child", "reader", "work")
    assert process.all("end")
    assert [e for e in done.every("child-exit") if e["pid"] == pid][0]["code"] == 1  # noqa: RUF015  # Reads better.
    assert not process.all("exit-call")


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("end", ["raise SystemExit(6)", "sys.exit(6)"])
def test_children_of_multiprocessing_that_exit(tmp_path: Path, method: str, end: str) -> None:
    done = python(
        tmp_path,
        f"import multiprocessing as m, sys\n\n\ndef work():\n    {end}\n\n\nif __name__ == '__main__':\n"
        f"    p = m.get_context('{method}').Process(target=work)\n    p.start()\n    p.join()\n    print(p.exitcode)\n",
    )
    assert done.stdout == "6\n"
    process = next(p for p in done.processes if p.all("exit-call"))
    event = process.one("exit-call")
    assert (event["status"], event["frames"][0][1:]) == (6, [5, "work"])


def test_a_child_forked_in_a_handler_does_not_inherit_the_error(tmp_path: Path) -> None:
    done = python(
        tmp_path,
        """
        import multiprocessing as m
        try:
            1 / 0
        except ZeroDivisionError:
            p = m.get_context("fork").Process(target=print)
            p.start()
            p.join()
        """,
    )
    assert not done.every("exception")


def test_a_forked_child_writes_a_file_of_its_own(tmp_path: Path) -> None:
    done = python(
        tmp_path,
        """
        import os, sys
        pid = os.fork()
        if pid == 0:
            os.abort()
        os.waitpid(pid, 0)
        """,
    )
    forked = child(done)
    assert forked.start["forked"] is True
    assert forked.start["ppid"] == done.main().start["pid"]
    assert "Aborted" in forked.fault
    assert done.main().fault == ""
    assert done.main().one("child-exit") | {"pid": forked.start["pid"], "signal": 6} == done.main().one(
        "child-exit"
    )


@pytest.mark.parametrize(
    "wait",
    [
        "os.waitpid(pid, 0)",
        "os.wait()",
        "os.wait3(0)",
        "os.wait3(options=0)",
        "os.wait4(pid, 0)",
        "os.waitid(os.P_PID, pid, os.WEXITED)",
    ],
)
@pytest.mark.parametrize("end", ["exit 9", "kill -9 $$"])
def test_the_end_of_a_child_is_seen_by_every_wait(tmp_path: Path, wait: str, end: str) -> None:
    done = python(
        tmp_path,
        f"import os\npid = os.posix_spawn('/bin/sh', ['sh', '-c', '{end}'], os.environ)\n{wait}\nprint(pid)\n",
    )
    event = done.main().one("child-exit")
    assert event["pid"] == int(done.stdout)
    assert event.get("code", event.get("signal")) == 9
    assert ("code" in event) == end.startswith("exit")
    assert event["mono_ns"] > done.main().start["mono_ns"]


def test_waiting_without_an_end_says_nothing(tmp_path: Path) -> None:
    done = python(
        tmp_path,
        """
        import os, signal, time
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exec sleep 60"], os.environ)
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        assert os.wait3(os.WNOHANG)[0] == 0
        assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is None
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        os.kill(pid, 0)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.waitpid(pid, 0)
        """,
    )
    assert done.main().one("child-exit")["signal"] == 9
    assert [event["signal"] for event in done.main().all("kill")] == [signal.SIGSTOP, signal.SIGKILL]


def test_subprocess_and_who_killed_it(tmp_path: Path) -> None:
    done = python(
        tmp_path,
        """
        import subprocess, sys
        subprocess.run(["/bin/sh", "-c", "exit 3"])
        p = subprocess.Popen(["sleep", "60"])
        p.terminate()
        print(p.wait(), p.pid)
        """,
    )
    status, pid = map(int, done.stdout.split())
    assert status == -15
    first, second = done.main().all("child-exit")
    assert first["code"] == 3
    assert (second["signal"], second["pid"]) == (15, pid)
    kill = done.main().one("kill")
    assert (kill["pid"], kill["signal"]) == (pid, 15)
    assert kill["mono_ns"] < second["mono_ns"]


def test_a_group_that_is_killed(tmp_path: Path) -> None:
    done = python(
        tmp_path,
        "import os, subprocess\np = subprocess.Popen(['sleep', '60'], start_new_session=True)\nos.killpg(p.pid, 9)\np.wait()\n",
    )
    assert done.main().one("kill")["pgid"] == done.main().one("child-exit")["pid"]


def test_an_exec_keeps_the_file_and_says_start_again(tmp_path: Path) -> None:
    done = python(
        tmp_path,
        "import os, sys\nif len(sys.argv) == 1:\n    os.execv(sys.executable, [sys.executable, __file__, 'x'])\n",
    )
    assert len(done.processes) == 1
    assert [event["argv"][2:] for event in done.main().all("start")] == [[], ["x"]]
    assert len(done.main().all("end")) == 1


def test_a_signal_handler_that_raises_in_the_middle_of_us_is_heard(tmp_path: Path) -> None:
    # The elastic agent ends in this way. Thousands of our calls under a timer: some are hit.
    done = python(
        tmp_path,
        """
        import os, signal, sys

        class Stop(TimeoutError):
            pass

        def handler(*_):
            raise Stop

        signal.signal(signal.SIGALRM, handler)
        heard = 0
        for n in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0004)
                while True:
                    try:
                        sys.exit(n)
                    except SystemExit:
                        pass
            except Stop:
                heard += 1
        print(heard)
        """,
        check=False,  # More exit calls than are kept.
    )
    assert done.stdout == "400\n"


def test_what_raises_in_our_hands_is_ours_unless_python_called_it_by_itself(tmp_path: Path) -> None:
    done = python(
        tmp_path,
        """
        import signal, sys
        from ddpdoctor_watch.core import journal

        def own():
            raise LookupError("of the program, called by us")

        def handler(signum, interrupted):
            signal.signal(signum, signal.SIG_DFL)
            raise TimeoutError("of the program")

        def any_handler(*given):
            deeper()

        def deeper():
            raise TimeoutError("of the program, deeper")

        def trace(frame, event, arg):
            raise LookupError("of a debugger")

        def interrupted_by(what):
            signal.signal(signal.SIGUSR1, what)
            signal.raise_signal(signal.SIGUSR1)

        def traced():
            sys.settrace(trace)
            own()

        for function in (own, lambda: interrupted_by(handler), lambda: interrupted_by(any_handler), traced):
            try:
                function()
            except Exception as error:
                try:
                    journal.failed("test", error)
                    print("kept", error)
                except Exception as raised:
                    print("raised", raised is error, error)
        """,
        check=False,  # one trouble is what is asked for
    )
    assert done.stdout.splitlines() == [
        "kept of the program, called by us",
        "raised True of the program",
        "raised True of the program, deeper",
        "raised True of a debugger",
    ]
    assert [event["where"] for event in done.main().all("trouble")] == ["test"]


def test_a_storm_of_forks_goes_through(tmp_path: Path) -> None:
    done = python(
        tmp_path,
        """
        import os
        for n in range(300):
            pids = [os.fork() for _ in range(1)]
            if pids[0] == 0:
                os._exit(n % 2)
            os.waitpid(pids[0], 0)
        """,
    )
    assert done.returncode == 0
    assert len(done.main().all("child-exit")) == 300
    assert all(len(p.all("start")) == 1 for p in done.processes)
    # All of the first hundred, and of the others those that did not end well.
    assert len(done.processes) == 1 + 100 + 100
    assert len(list((tmp_path / "run" / "processes").iterdir())) == 2 * 201


def test_of_thousands_of_helpers_those_stay_that_say_something(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "processes"
    folder.mkdir(parents=True)
    for number in range(2000):
        (folder / f"{number}-0.fault").touch()
    done = python(
        tmp_path,
        """
        import subprocess, sys
        for code in ("pass", "1 / 0", "import sys; sys.exit(3)", "import os; os._exit(0)", "pass"):
            subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
        """,
    )
    assert done.returncode == 0
    main = done.main()
    ends = {event["pid"]: event["code"] for event in main.all("child-exit")}
    assert sorted(ends[p.start["pid"]] for p in done.processes if p is not main) == [1, 3]
    assert len(ends) == 5


def test_a_few_helpers_stay(tmp_path: Path) -> None:
    done = python(tmp_path, "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'])")
    assert child(done).all("end")


def test_the_program_may_close_every_descriptor(tmp_path: Path) -> None:
    done = python(
        tmp_path,
        """
        import os
        os.closerange(3, 4096)
        files = [open(f"file{n}", "w") for n in range(1100 if os.sysconf("SC_OPEN_MAX") > 1200 else 10)]
        1 / 0
        """,
    )
    assert done.main().one("exception")["type"] == "ZeroDivisionError"
    assert all(path.read_text() == "" for path in tmp_path.glob("file*"))


def test_a_daemon_is_followed(tmp_path: Path) -> None:
    done = python(
        tmp_path,
        """
        import os, sys
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.closerange(3, writing)
                1 / 0
            os._exit(0)
        os.close(writing)
        os.read(reading, 1)
        """,
    )
    (event,) = done.every("exception")
    assert event["type"] == "ZeroDivisionError"


def test_environment_of_the_children_is_kept(tmp_path: Path) -> None:
    done = python(
        tmp_path,
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import os; print(os.environ[\"DDPDOCTOR_RUN\"])'])\n",
    )
    assert done.stdout == f"{tmp_path / 'run'}\n"
    assert os.path.isdir(tmp_path / "run" / "processes")


def test_a_loader_worker_that_crashes_leaves_its_stack_and_torch_its_message(tmp_path: Path) -> None:
    found = python(
        tmp_path,
        """
        import ctypes
        from torch.utils.data import DataLoader, Dataset

        class Rows(Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return ctypes.string_at(index, 8)  # here

        if __name__ == "__main__":
            list(DataLoader(Rows(), num_workers=1))
        """,
    )
    (worker,) = [process for process in found.processes if process.role == "loader-worker"]
    line = line_of(tmp_path / "train.py", "# here")
    assert f'train.py", line {line} in __getitem__' in worker.fault
    assert "Unexpected segmentation fault encountered in worker" in found.stderr
    assert found.main().one("child-exit")["signal"] == 11


def test_a_signal_that_a_process_sends_to_itself_has_the_line(tmp_path: Path) -> None:
    found = python(
        tmp_path,
        """
        import os
        def stop():
            os.kill(os.getpid(), 9)  # here
        stop()
        """,
    )
    event = found.main().one("kill")
    assert event["frames"][0][1:] == [line_of(tmp_path / "train.py", "# here"), "stop"]
