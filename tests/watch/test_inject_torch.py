"""Ranks of torch: under its launcher, spawned, with loaders, and in the errors of DistributedDataParallel."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.marks import long
from tests.watch.injecting import Event, Journal, Watched, line_of, python, torchrun

MODEL = """
    import os, sys, torch, torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 4)
            self.idle = nn.Linear(4, 4)
            self.heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])

        def forward(self, x):
            self.heads[1](x)
            return self.heads[0](self.body(x))
"""


def alone(**more: str) -> dict[str, str]:
    """Variables of a world of one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return {**world, **more}


def names(process: Journal) -> list[str]:
    return [event["name"] for event in process.all("milestone")]


def failing(folder: Path, source: str, **variables: str) -> tuple[Watched, Event]:
    """A world of one that fails with an error of DDP, and its ddp event."""
    done = python(folder, MODEL + source, variables=alone(**variables))
    return done, done.main().one("ddp")


@pytest.mark.long
def test_unused_parameters_under_the_launcher(tmp_path: Path) -> None:
    done = torchrun(
        tmp_path,
        MODEL
        + """
    def main():
        dist.init_process_group("gloo")  # init
        model = DistributedDataParallel(Model())  # wrap
        for step in range(3):
            model(torch.ones(2, 4)).sum().backward()  # step

    main()
    """,
    )
    script = tmp_path / "train.py"
    assert done.returncode == 1
    assert "ddpdoctor" not in done.stderr

    launcher = done.main()
    assert launcher.role == "launcher"
    assert launcher.start["module"] == "torch.distributed.run"
    assert {event["pid"] for event in launcher.all("child-exit")} == {p.start["pid"] for p in done.ranks()}
    assert launcher.one("exception")["type"].endswith("ChildFailedError")

    assert [p.start["rank"] for p in done.ranks()] == [0, 1]
    for rank in done.ranks():
        assert names(rank) == ["import", "init-begin", "init", "wrap-begin", "wrap", "first-forward"]
        begun, wrapped = rank.all("milestone")[1], rank.all("milestone")[3]
        assert [str(script), line_of(script, "# init"), "main"] in begun["frames"]
        assert [str(script), line_of(script, "# wrap"), "main"] in wrapped["frames"]
        assert begun["variables"]["MASTER_PORT"]
        init = rank.one("init")
        assert (init["backend"], init["world_size"], init["init_method"]) == ("gloo", 2, "env://")
        assert init["rank"] == rank.start["rank"]
        assert rank.one("torch")["version"].startswith("2.")
        failure = rank.one("exception")
        assert "Expected to have finished reduction" in failure["message"]
        assert [str(script), line_of(script, "# step"), "main"] in failure["frames"]
        # The agent read the error file that nobody but us wrote.
        assert "in main\n      model(torch.ones(2, 4)).sum().backward()  # step" in done.stderr


def test_unused_parameters_are_named_with_their_owners(tmp_path: Path) -> None:
    _, event = failing(
        tmp_path,
        """
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Model())
    for step in range(3):
        model(torch.ones(2, 4)).sum().backward()
    """,
    )
    rows = {row["name"]: row for row in event["parameters"]}
    assert list(rows) == ["idle.weight", "idle.bias", "heads.1.weight", "heads.1.bias"]
    assert [row["index"] for row in rows.values()] == [2, 3, 6, 7]
    assert rows["idle.bias"]["module"] == "idle"
    assert rows["idle.bias"]["class"] == "torch.nn.modules.linear.Linear"
    assert rows["heads.1.weight"]["shape"] == [2, 4]
    assert [row["forward_ran"] for row in rows.values()] == [False, False, True, True]
    assert not any(row["grad"] for row in rows.values())
    assert (event["count"], event["certain"], event["find_unused_parameters"]) == (8, True, False)


@pytest.mark.long
def test_what_ran_is_of_the_iteration_before_the_error(tmp_path: Path) -> None:
    _, event = failing(
        tmp_path,
        """
    class Branching(Model):
        def forward(self, x, both):
            y = self.heads[0](self.body(x)) + self.heads[1](x)
            return y + self.idle(x).sum() if both else y

    dist.init_process_group("gloo")
    model = DistributedDataParallel(Branching())
    for both in (True, True, False, False):
        model(torch.ones(2, 4), both).sum().backward()
    """,
    )
    assert {row["name"]: row["forward_ran"] for row in event["parameters"]} == {
        "idle.weight": False,
        "idle.bias": False,
    }


@pytest.mark.long
def test_after_the_first_forwards_modules_are_no_longer_looked_at(tmp_path: Path) -> None:
    done, event = failing(
        tmp_path,
        """
    class Late(Model):
        def forward(self, x, both):
            y = self.heads[0](self.body(x)) + self.heads[1](x)
            return y + self.idle(x).sum() if both else y

    dist.init_process_group("gloo")
    model = DistributedDataParallel(Late())
    for step in range(12):
        model(torch.ones(2, 4), step < 10).sum().backward()
        print(vars(torch.nn.Module)["_compiled_call_impl"] is not None, end=" ")
    """,
    )
    assert done.stdout.split() == ["True"] * 5 + ["False"] * 6
    assert {row["forward_ran"] for row in event["parameters"]} == {None}
    assert [row["name"] for row in event["parameters"]] == ["idle.weight", "idle.bias"]


@pytest.mark.long
def test_a_parameter_that_is_ready_twice_is_named(tmp_path: Path) -> None:
    _, event = failing(
        tmp_path,
        """
    from torch.utils.checkpoint import checkpoint

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            x = self.one(x)
            return checkpoint(self.two, checkpoint(self.two, x, use_reentrant=True), use_reentrant=True)

    dist.init_process_group("gloo")
    model = DistributedDataParallel(Shared())
    model(torch.ones(2, 4)).sum().backward()
    """,
    )
    (row,) = event["parameters"]
    assert row["module"] == "two"
    assert row["forward_ran"] is True


@pytest.mark.parametrize("compiled", ["model", *long("wrapper", "function")])
def test_compiled_models_get_no_hooks(tmp_path: Path, compiled: str) -> None:
    done, event = failing(
        tmp_path,
        f"""
    import torch._dynamo
    torch._dynamo.config.error_on_recompile = False
    dist.init_process_group("gloo")
    model = Model()
    if {compiled!r} == "function":
        step = torch.compile(lambda x: x * 2, backend="eager")
    model = torch.compile(model, backend="eager") if {compiled!r} == "model" else model
    model = DistributedDataParallel(model)
    model = torch.compile(model, backend="eager") if {compiled!r} == "wrapper" else model
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        print(vars(torch.nn.Module)["_compiled_call_impl"] is None)
    """,
    )
    assert set(done.stdout.split()) == {"True"}
    assert {row["forward_ran"] for row in event["parameters"]} == {None}
    assert "ddpdoctor" not in done.stderr


@pytest.mark.long
def test_models_that_differ_are_described_on_each_rank(tmp_path: Path) -> None:
    done = torchrun(
        tmp_path,
        MODEL
        + """
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3 + rank))
    DistributedDataParallel(model)
    """,
    )
    rows = [row for rank in done.ranks() for event in rank.all("ddp") for row in event["parameters"]]
    assert rows
    assert {row["name"] for row in rows} == {"1.weight"}


def test_a_script_with_record_keeps_its_own_error_file(tmp_path: Path) -> None:
    done = torchrun(
        tmp_path,
        """
        import os, sys
        from torch.distributed.elastic.multiprocessing.errors import record

        @record
        def main():
            if os.environ["RANK"] == "1":
                raise ValueError("bad shard")
            import time
            time.sleep(120)

        main()
        """,
    )
    failure = done.rank(1).one("exception")
    assert (failure["kind"], failure["message"]) == ("uncaught", "bad shard")
    # record's text has its own wrapper's frame first; ours would begin at the script's last line.
    assert "ValueError: bad shard" in done.stderr
    # Who stopped the other rank: the agent, by its id or by that of its group.
    pid = done.rank(0).start["pid"]
    assert (pid, 15) in [
        (event.get("pid", event.get("pgid")), event["signal"]) for event in done.main().all("kill")
    ]
    assert not done.rank(0).all("end")


def test_restarts_are_told_apart(tmp_path: Path) -> None:
    source = "import os\nraise ValueError(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
    done = torchrun(tmp_path, source, ranks=1, variables={"PET_MAX_RESTARTS": "1"})
    assert [(p.start["attempt"], p.one("exception")["message"]) for p in done.ranks()] == [(0, "0"), (1, "1")]


def test_spawned_ranks_tell_their_own_exception(tmp_path: Path) -> None:
    done = python(
        tmp_path,
        """
        import os, torch.distributed as dist, torch.multiprocessing as mp

        def work(rank, size, path):
            dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
            dist.barrier()  # both are there before the one that raises has the other ended
            dist.destroy_process_group()
            if rank == 1:
                raise ValueError("bad shard")  # here

        if __name__ == "__main__":
            mp.spawn(work, args=(2, os.path.abspath("meeting")), nprocs=2)
        """,
    )
    main = done.main()
    role = main.one("role")
    assert (role["role"], role["how"], len(role["children"])) == (
        "launcher",
        "torch.multiprocessing.spawn",
        2,
    )
    assert main.one("exception")["type"].endswith("ProcessRaisedException")
    ranks = {p.one("init")["rank"]: p for p in done.processes if p.all("init")}
    assert [p.start["pid"] for _, p in sorted(ranks.items())] == role["children"]
    assert {n: p.one("role")["index"] for n, p in ranks.items()} == {0: 0, 1: 1}
    assert ranks[1].one("role")["target"].endswith(".work")
    assert ranks[1].one("init")["init_method"].startswith("file://")
    failure = ranks[1].one("exception")
    assert (failure["kind"], failure["type"], failure["message"]) == ("uncaught", "ValueError", "bad shard")
    assert failure["frames"][0][1] == line_of(tmp_path / "train.py", "# here")
    assert not ranks[1].all("exit-call")
    assert names(ranks[0])[-1] == "destroy"
    assert "ddpdoctor" not in done.stderr


LOADER = """
    import os, sys, torch
    from torch.utils.data import DataLoader, Dataset

    class Shards(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, n):
            if n == 5:
                self.fail(n)
            return torch.tensor(n)

        def fail(self, n):
            {failure}

    if __name__ == "__main__":
        for batch in DataLoader(Shards(), batch_size=2, num_workers=2, multiprocessing_context="{method}"):
            pass
"""


@pytest.mark.parametrize("method", ["fork", *long("spawn")])
def test_a_loader_worker_that_raises_is_shown_with_its_own_frames(tmp_path: Path, method: str) -> None:
    failure = "try:\n                {}[n]\n            except KeyError as e:\n                raise OSError(f'shard {n}') from e"
    done = python(tmp_path, LOADER.replace("{failure}", failure).replace("{method}", method))
    event = done.main().one("exception")
    assert (event["kind"], event["worker"], event["type"], event["message"]) == (
        "worker",
        0,
        "OSError",
        "shard 5",
    )
    assert event["frames"][0][2] == "fail"
    assert event["frames"][0][0] == str(tmp_path / "train.py")
    assert [(link["link"], link["type"], link["message"]) for link in event["chain"]] == [
        ("cause", "KeyError", "5")
    ]
    assert event["parent"]["type"] == "OSError"
    assert [frame[2] for frame in event["parent"]["frames"]][-1] == "<module>"
    workers = [p for p in done.processes if p.role == "loader-worker"]
    assert sorted(p.one("role")["worker"] for p in workers) == [0, 1]
    assert all(p.start["ppid"] == done.main().start["pid"] for p in workers)


def test_a_loader_worker_that_is_killed_is_named_by_its_number(tmp_path: Path) -> None:
    done = python(
        tmp_path, LOADER.replace("{failure}", "os.kill(os.getpid(), 9)").replace("{method}", "fork")
    )
    # Which of them torch notices first: the death, or that what the worker has sent cannot be fetched from it.
    failure = done.main().one("exception")
    told = ("is killed by signal: Killed", "exited unexpectedly")
    lost = failure["type"].endswith(("EOFError", "ConnectionResetError", "ConnectionRefusedError"))
    assert lost or any(text in failure["message"] for text in told), failure
    killed = next(p for p in done.processes if p.role == "loader-worker" and p.all("kill"))
    assert (killed.role, killed.one("role")["worker"], killed.one("kill")["signal"]) == (
        "loader-worker",
        0,
        9,
    )
    assert not killed.all("end")


def test_a_script_that_only_imports_torch_says_so_once(tmp_path: Path) -> None:
    done = python(tmp_path, "import torch, torch.distributed\nprint(torch.ones(1).sum().item())\n")
    assert done.stdout == "1.0\n"
    assert names(done.main()) == ["import"]
    assert done.main().one("end")


def test_the_supervisor_may_be_allowed_to_look(tmp_path: Path) -> None:
    # Without Yama prctl knows no such option and says so; where there is no file the call is not made.
    done = python(
        tmp_path,
        """
        import ctypes, sys
        import ddpdoctor_watch.torchpatches as patches
        calls = []

        class Library:
            def __init__(self, *args, **kwargs):
                pass

            def prctl(self, *arguments):
                calls.append(arguments)

        ctypes.CDLL = Library
        patches.allow_tracing()
        patches.YAMA = __file__
        patches.allow_tracing()
        import os
        if os.fork() == 0:
            print(calls, flush=True)
            os._exit(0)
        os.wait()
        """,
        variables={"DDPDOCTOR_SUPERVISOR": "1234"},
    )
    assert done.stdout == f"{[(0x59616D61, 1234, 0, 0, 0)] * 2}\n"


def test_unfinished_initialisation_shows(tmp_path: Path) -> None:
    done = python(
        tmp_path,
        """
        import datetime, torch.distributed as dist
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:1", rank=1, world_size=2,
                                timeout=datetime.timedelta(seconds=1))
        """,
    )
    assert names(done.main()) == ["import", "init-begin"]
    detail: dict[str, Any] = done.main().all("milestone")[-1]["detail"]
    assert (detail["rank"], detail["world_size"], detail["init_method"]) == (1, 2, "tcp://127.0.0.1:1")
    assert json.dumps(done.main().one("exception"))
    assert "ddpdoctor" not in done.stderr
