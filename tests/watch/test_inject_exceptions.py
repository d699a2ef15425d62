"""What is written about how a process ended."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.evidence.job import ProcessRecord
from ddpdoctor.watch.readers.records import Shortener, read_exception
from tests.watch.injecting import Event, launch, line_of, python, write

WORLD = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}


def raised(folder: Path, source: str, **variables: str) -> Event:
    """The one exception of a script."""
    return python(folder, source, variables=variables).main().one("exception")


def test_an_uncaught_exception_has_its_frames_innermost_first(tmp_path: Path) -> None:
    event = raised(
        tmp_path,
        """
        def load(path):
            return {}[path]  # here

        def main():
            load("shard")

        main()
        """,
    )
    script = str(tmp_path / "train.py")
    assert (event["kind"], event["type"], event["message"]) == ("uncaught", "KeyError", "'shard'")
    assert [frame[2] for frame in event["frames"]] == ["load", "main", "<module>"]
    assert event["frames"][0] == [script, line_of(Path(script), "# here"), "load"]
    assert event["chain"] == []
    assert event["main"] == script


def test_chained_exceptions_are_kept_nearest_first(tmp_path: Path) -> None:
    event = raised(
        tmp_path,
        """
        def a():
            raise OSError("disk")

        def b():
            try:
                a()
            except OSError:
                raise KeyError("b")

        try:
            b()
        except KeyError as error:
            raise RuntimeError("c") from error
        """,
    )
    links = [(link["link"], link["type"], link["message"]) for link in event["chain"]]
    assert links == [("cause", "KeyError", "'b'"), ("context", "OSError", "disk")]
    assert [frame[2] for frame in event["chain"][1]["frames"]] == ["a", "b"]


def test_a_suppressed_context_is_left_out(tmp_path: Path) -> None:
    event = raised(tmp_path, "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError from None\n")
    assert event["chain"] == []


def test_a_circle_of_causes_ends(tmp_path: Path) -> None:
    event = raised(
        tmp_path, "a = ValueError('a')\nb = ValueError('b')\na.__cause__ = b\nb.__cause__ = a\nraise a\n"
    )
    assert [link["message"] for link in event["chain"]] == ["b"]


def test_members_of_a_group_are_described(tmp_path: Path) -> None:
    event = raised(
        tmp_path,
        """
        def part(n):
            try:
                raise ValueError(n)
            except ValueError as error:
                return error

        raise ExceptionGroup("several", [part(1), ExceptionGroup("inner", [part(2)])])
        """,
    )
    first, inner = event["members"]
    assert (first["type"], first["message"]) == ("ValueError", "1")
    assert inner["members"][0]["frames"][0][2] == "part"


def test_notes_are_kept(tmp_path: Path) -> None:
    assert raised(tmp_path, "e = ValueError()\ne.add_note('look')\nraise e\n")["notes"] == ["look"]


def test_a_very_long_message_is_bounded_at_both_ends(tmp_path: Path) -> None:
    message = raised(tmp_path, "raise ValueError('begin' + 'x' * 50_000_000 + 'end')")["message"]
    assert message.startswith("begin")
    assert message.endswith("end")
    assert "characters omitted" in message
    assert len(message) < 20_000


@pytest.mark.parametrize("text", ["\\xfc\\n\\ud800\\x00", "\\u2028\\U0001f600\\x1b[31m"])
def test_any_text_is_valid_json_on_one_line(tmp_path: Path, text: str) -> None:
    done = python(tmp_path, f"raise ValueError('{text}')")
    assert done.main().one("exception")["message"] == text.encode().decode("unicode_escape")


def test_an_exception_whose_text_fails_is_written_all_the_same(tmp_path: Path) -> None:
    event = raised(
        tmp_path, "class E(Exception):\n    def __str__(self):\n        raise KeyError('x')\n\nraise E\n"
    )
    assert (event["type"], event["message"]) == ("__main__.E", "<its __str__ raised KeyError>")


def test_a_syntax_error_names_the_place_in_the_source(tmp_path: Path) -> None:
    event = raised(tmp_path, "x = 1\ny = (\n")
    assert event["frames"] == [[str(tmp_path / "train.py"), 2, "<module>"]]
    assert event["syntax"] is True


def test_a_syntax_error_of_an_imported_file_keeps_the_importer(tmp_path: Path) -> None:
    write(tmp_path, "def f(:\n", "helper.py")
    event = raised(tmp_path, "import helper\n")
    assert event["frames"][0][:2] == [str(tmp_path / "helper.py"), 1]
    assert event["frames"][-1][:2] == [str(tmp_path / "train.py"), 1]


def test_a_recursion_error_keeps_both_ends_of_its_stack(tmp_path: Path) -> None:
    event = raised(tmp_path, "def f():\n    f()\n\n\ndef main():\n    f()\n\n\nmain()\n")
    assert event["type"] == "RecursionError"
    assert [frame[2] for frame in event["frames"][-2:]] == ["main", "<module>"]
    assert event["frames"][0][2] == "f"
    assert len(event["frames"]) <= 160


def test_a_memory_error_is_written(tmp_path: Path) -> None:
    assert raised(tmp_path, "x = [0] * (1 << 60)\n")["type"] == "MemoryError"


def test_running_out_of_descriptors_is_written(tmp_path: Path) -> None:
    event = raised(
        tmp_path,
        """
        import os, resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        kept = []
        while True:
            kept.append(open("/dev/null"))
        """,
    )
    assert "Too many open files" in event["message"]


def test_a_thread_is_named(tmp_path: Path) -> None:
    event = raised(
        tmp_path,
        """
        import threading

        def work():
            raise ValueError("in the thread")

        thread = threading.Thread(target=work, name="prefetch")
        thread.start()
        thread.join()
        """,
    )
    assert (event["kind"], event["thread"], event["type"]) == ("thread", "prefetch", "ValueError")
    assert event["frames"][0][2] == "work"


def test_a_thread_that_exits_says_nothing(tmp_path: Path) -> None:
    done = python(
        tmp_path,
        "import threading, sys\nt = threading.Thread(target=lambda: sys.exit(3))\nt.start()\nt.join()\n",
    )
    assert not done.every("exception")


@pytest.mark.parametrize(
    "hook",
    ["sys.excepthook = lambda *a: None", "sys.excepthook = lambda *a: os._exit(9)", "sys.excepthook = None"],
)
def test_a_hook_that_the_program_set_later_does_not_hide_the_exception(tmp_path: Path, hook: str) -> None:
    event = raised(tmp_path, f"import os, sys\n{hook}\n1 / 0\n")
    assert (event["kind"], event["late"], event["type"]) == ("uncaught", True, "ZeroDivisionError")
    assert event["frames"][0][1] == 3


def test_a_hook_that_calls_the_original_one_is_followed(tmp_path: Path) -> None:
    event = raised(tmp_path, "import sys\nsys.excepthook = lambda *a: sys.__excepthook__(*a)\n1 / 0\n")
    assert event["kind"] == "uncaught"
    assert "late" not in event


def test_an_exception_that_a_program_only_prints_is_not_called_uncaught(tmp_path: Path) -> None:
    event = raised(
        tmp_path,
        "import sys\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.excepthook(*sys.exc_info())\n",
    )
    assert event["kind"] == "printed"


def test_ctrl_c_is_an_exception_like_others(tmp_path: Path) -> None:
    assert raised(tmp_path, "import signal\nsignal.raise_signal(2)\n")["type"] == "KeyboardInterrupt"


@pytest.mark.parametrize(
    ("call", "how", "status", "text"),
    [
        ("sys.exit(3)", "sys.exit", 3, None),
        ("sys.exit()", "sys.exit", 0, None),
        ("sys.exit('no data')", "sys.exit", 1, "no data"),
        ("exit(4)", "sys.exit", 4, None),
        ("os._exit(5)", "os._exit", 5, None),
    ],
)
def test_an_exit_call_is_written_with_its_place(
    tmp_path: Path, call: str, how: str, status: int, text: str | None
) -> None:
    done = python(tmp_path, f"import os, sys\n\n\ndef stop():\n    {call}\n\n\nstop()\n")
    event = done.main().one("exit-call")
    assert (event["how"], event["status"], event.get("text")) == (how, status, text)
    assert event["frames"][:2] == [
        [str(tmp_path / "train.py"), 5, "stop"],
        [str(tmp_path / "train.py"), 8, "<module>"],
    ]
    assert done.returncode == status
    assert len(done.main().all("end")) == (how == "sys.exit")


def test_an_exit_call_tells_the_exception_that_it_hides(tmp_path: Path) -> None:
    done = python(
        tmp_path,
        """
        import sys
        try:
            open("missing")
        except OSError as error:
            print(error)
            sys.exit(2)
        """,
    )
    hidden = done.main().one("exit-call")["exception"]
    assert hidden["type"] == "FileNotFoundError"
    assert hidden["frames"][0][1] == 4


def test_argparse_says_where_it_was_called(tmp_path: Path) -> None:
    done = python(tmp_path, "import argparse\nargparse.ArgumentParser().parse_args()\n", "--local-rank=0")
    event = done.main().one("exit-call")
    assert event["status"] == 2
    assert [frame[0] for frame in event["frames"]][-1] == str(tmp_path / "train.py")


def test_a_fatal_signal_leaves_the_stack(tmp_path: Path) -> None:
    done = python(tmp_path, "import ctypes\n\n\ndef native():\n    ctypes.string_at(0)\n\n\nnative()\n")
    assert done.returncode == -11
    assert done.main().fault.startswith("Fatal Python error: Segmentation fault")
    assert f'"{tmp_path}/train.py", line 5 in native' in done.main().fault
    assert not done.main().all("end")
    assert "Segmentation fault" not in done.stderr


@pytest.mark.parametrize("how", ["variable", "option", "call"])
def test_a_fault_handler_of_the_users_stays_his(tmp_path: Path, how: str) -> None:
    script = write(
        tmp_path, f"import faulthandler, os\n{'faulthandler.enable()' if how == 'call' else ''}\nos.abort()\n"
    )
    command = [sys.executable, *(["-X", "faulthandler"] if how == "option" else []), str(script)]
    done = launch(command, tmp_path, variables={"PYTHONFAULTHANDLER": "1"} if how == "variable" else {})
    assert done.returncode == -6
    assert "Fatal Python error: Aborted" in done.stderr
    assert done.main().fault == ""


def elastic(folder: Path, source: str, **variables: str) -> dict[str, Any] | None:
    """The error file of a script that an agent would have started."""
    path = folder / "error.json"
    python(folder, source, variables={**WORLD, "TORCHELASTIC_ERROR_FILE": str(path), **variables})
    return json.loads(path.read_text()) if path.exists() else None


def test_the_error_file_has_the_form_of_torchs(tmp_path: Path) -> None:
    written = elastic(tmp_path, "def f():\n    return {}['x']\n\n\nf()\n")
    assert written is not None
    message = written["message"]
    assert message["message"] == "KeyError: 'x'"
    assert message["extraInfo"]["py_callstack"].startswith("Traceback (most recent call last):\n")
    assert "in f\n" in message["extraInfo"]["py_callstack"]
    assert message["extraInfo"]["timestamp"].isdigit()


def test_an_error_file_that_somebody_wrote_is_left_alone(tmp_path: Path) -> None:
    source = (
        "import os\nopen(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('{\"message\": \"his\"}')\n1 / 0\n"
    )
    assert elastic(tmp_path, source) == {"message": "his"}


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nsys.exit(3)\n",
        "raise KeyboardInterrupt\n",
        "import sys\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.excepthook(*sys.exc_info())\n",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', '1 / 0'])\n",
        "import subprocess, sys\nsubprocess.run(['/bin/sh', '-c', f'{sys.executable} -c 1/0'])\n",
        "import os\nif os.fork() == 0:\n    1 / 0\nos.wait()\n",
        "import multiprocessing as m\nif __name__ == '__main__':\n    for how in ('fork', 'spawn', 'forkserver'):\n"
        "        p = m.get_context(how).Process(target=divmod, args=(1, 0))\n        p.start()\n        p.join()\n",
    ],
    ids=["exit", "ctrl-c", "printed", "helper", "helper of a shell", "fork", "multiprocessing"],
)
def test_no_error_file_for_what_is_no_error_of_the_rank(tmp_path: Path, source: str) -> None:
    assert elastic(tmp_path, source) is None


def test_a_wrapper_that_is_no_python_does_not_take_the_rank_away(tmp_path: Path) -> None:
    script = write(tmp_path, "1 / 0\n")
    path = tmp_path / "error.json"
    variables = {**WORLD, "TORCHELASTIC_ERROR_FILE": str(path)}
    done = launch(["/bin/sh", "-c", f"{sys.executable} {script}; true"], tmp_path, variables=variables)
    assert done.main().role == "rank"
    assert path.exists()


def test_what_the_disk_does_not_take_whole_is_no_error_file(tmp_path: Path) -> None:
    # A limit below the size of the text: the agent would fail on half of it.
    source = "import os, resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\nraise ValueError('x' * 500)\n"
    assert elastic(tmp_path, source) is None


def test_the_working_directory_may_have_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = write(tmp_path, "print('on')")
    done = launch(["/bin/sh", "-c", f"cd {gone} && rmdir {gone} && exec {sys.executable} {script}"], tmp_path)
    assert done.stdout == "on\n"
    assert done.main().start["cwd"] == ""
    assert os.path.basename(done.main().start["script"]) == "train.py"


POOLS = {
    "multiprocessing": ("multiprocessing.get_context('spawn').Pool(1)", "pool.map(encode, [[1], None])"),
    "concurrent": (
        "concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context('fork'))",
        "list(pool.map(encode, [[1], None]))",
    ),
}


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_an_error_of_a_pool_has_the_line_inside_the_pool(tmp_path: Path, kind: str, wrapped: bool) -> None:
    pool, call = POOLS[kind]
    work = write(
        tmp_path,
        """
        def encode(row):
            try:
                return len(row)  # deep
            except TypeError as error:
                raise ValueError("row") from error  # here
        """,
        "work.py",
    )
    event = raised(
        tmp_path,
        f"""
        import concurrent.futures, multiprocessing
        from work import encode

        def main(pool):
            try:
                {call}
            except ValueError as error:
                if {wrapped}:
                    raise RuntimeError("encoding") from error
                raise

        if __name__ == "__main__":
            with {pool} as pool:
                main(pool)
        """,
    )
    told = event["chain"][0] if wrapped else event
    assert (told["type"], told["message"]) == ("ValueError", "row")
    assert told["frames"][0] == [str(work), line_of(work, "# here"), "encode"]
    outside = told["frames"] if wrapped else event["parent"]["frames"]
    assert "main" in [frame[2] for frame in outside]
    inner = event["chain"][1 if wrapped else 0]
    assert (inner["link"], inner["type"], inner["frames"][0][1]) == (
        "cause",
        "TypeError",
        line_of(work, "# deep"),
    )


def test_running_out_of_descriptors_says_the_limit(tmp_path: Path) -> None:
    event = raised(
        tmp_path,
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        kept = [open("/dev/null") for _ in range(100)]
        """,
    )
    assert event["open_files"] == 64


def test_a_parser_that_refuses_arguments_has_handled_nothing_of_the_programs(tmp_path: Path) -> None:
    source = """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--lr", type=float)
        parser.parse_args(["--lr", "fast"])
        """
    event = python(tmp_path, source).main().one("exit-call")
    assert event["status"] == 2
    assert "exception" not in event


def test_a_handler_that_raises_in_the_middle_leaves_the_error_file(tmp_path: Path) -> None:
    """DataLoader's handler of SIGCHLD does, wherever the main thread is just then."""
    path = tmp_path / "error.json"
    done = python(
        tmp_path,
        """
        import traceback
        real, calls = traceback.format_exception, []

        def format_exception(*args):
            calls.append(1)
            if len(calls) == 1:
                raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
            return real(*args)

        traceback.format_exception = format_exception
        raise KeyError("x")
        """,
        variables={"TORCHELASTIC_ERROR_FILE": str(path), **WORLD},
    )
    assert json.loads(path.read_text())["message"]["message"] == "KeyError: 'x'"
    assert done.main().all("trouble") == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="ExceptionGroup is new in Python 3.11")
def test_what_a_member_of_a_group_came_from_is_kept(tmp_path: Path) -> None:
    event = raised(
        tmp_path,
        """
        def load():
            return {}["x"]

        try:
            try:
                load()
            except KeyError as error:
                raise ValueError("shard") from error
        except ValueError as error:
            raise ExceptionGroup("tasks", [error])
        """,
    )
    told: Any = {**event, "wall_ns": 1}
    chain = read_exception(told, ProcessRecord(1), Shortener(tmp_path)).chain
    assert [(each.type, each.link) for each in chain] == [("ValueError", "member"), ("KeyError", "cause")]
    assert chain[1].frames[0].function == "load"


CATCHES = """
    import logging, os, sys, traceback
    import torch.distributed as dist

    def train():
        raise ValueError("bad batch")  # here

    def report():
        try:
            train()
        except ValueError as error:
            text = traceback.format_exc()  # caller
            again = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            assert text == again and "ddpdoctor" not in text
    report()
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath("meeting"), rank=0, world_size=1)
    report()
    report()
"""


def test_what_a_rank_makes_a_text_of_is_written_once(tmp_path: Path) -> None:
    """Before it has joined a group it is no rank."""
    seen = python(tmp_path, CATCHES, variables=WORLD).main()
    event = seen.one("caught")
    script = str(tmp_path / "train.py")
    assert (event["type"], event["message"]) == ("ValueError", "bad batch")
    assert event["frames"][0] == [script, line_of(Path(script), "# here"), "train"]
    assert event["caller"] == [[script, line_of(Path(script), "# caller"), "report"]]
    assert not seen.all("exception")


RAY = """
    class Node:
        gcs_address = "10.0.0.1:6379"
        def is_head(self):
            return {own}

    _global_node = None

    def init(address=None):
        global _global_node
        _global_node = Node()
        return "context"
"""


@pytest.mark.parametrize("own", [True, False])
def test_a_cluster_that_the_program_did_not_start_is_written(tmp_path: Path, own: bool) -> None:
    """What of Ray is looked at stands where Ray 2.60 has it; `tests/launchers` runs the real one."""
    package = tmp_path / "ray" / "_private"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "worker.py").write_text(textwrap.dedent(RAY.format(own=own)))
    (tmp_path / "ray" / "__init__.py").write_text("from ray._private.worker import init\n")
    seen = python(
        tmp_path, "import ray\nassert ray.init() == 'context' and ray.init.__name__ == 'init'\n"
    ).main()
    written = [(each["engine"], each["address"]) for each in seen.all("cluster")]
    assert written == ([] if own else [("Ray", "10.0.0.1:6379")])
