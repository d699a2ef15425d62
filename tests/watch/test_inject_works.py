"""Asynchronous work that nobody waits for: what is written down of it, and that nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.watch.injecting import Event, Watched, environment, line_of, python, torchrun

SCRIPT = """
    import gc
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel


    class Exchange:
        def start(self, tensor, peer):
            return dist.isend(tensor, peer)  # MARK sent


    def main():
        dist.init_process_group("gloo")
        rank, x = dist.get_rank(), torch.ones(4)
        for _ in range(5):
            dist.all_reduce(x, async_op=True)  # MARK dropped
            x.mul_(0.5)
        dist.all_reduce(x)
        for _ in range(3):
            dist.all_reduce(x, async_op=True)  # MARK settled
        dist.barrier()
        held = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(3)]  # MARK waited
        dist.all_reduce(x)
        for work in held:
            work.wait()
        following = None
        for _ in range(4):
            if following is not None:
                following.wait()
            following = dist.broadcast(x, 0, async_op=True)  # MARK ahead
        polled = dist.all_reduce(x, async_op=True)  # MARK polled
        while not polled.is_completed():
            pass
        dist.all_reduce(x, async_op=True).get_future().then(lambda future: future.value()).wait()  # MARK future
        got = torch.empty(4)
        sent = Exchange().start(x, 1 - rank)
        dist.irecv(got, 1 - rank).wait()  # MARK received
        dist.all_reduce(x)
        del sent  # not before both have received: gloo may drop a send whose Work is gone
        batch = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
        for work in dist.batch_isend_irecv(batch):  # MARK batch
            work.wait()
        dist.send(x, 1) if rank == 0 else dist.recv(got, 0)
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        model(torch.ones(1, 2)).sum().backward()
        del model
        gc.collect()  # torch may abort a process in which a wrapper is alive at its end
        globals()["kept"] = dist.all_gather([got, torch.empty(4)], x, async_op=True)  # MARK kept
        dist.destroy_process_group()


    main()
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Watched, dict[str, Event]]:
    """What ran, and the last event of each marked line of rank 0."""
    folder = tmp_path_factory.mktemp("works")
    ran = torchrun(folder, SCRIPT)
    assert ran.returncode == 0, ran.stderr
    return ran, _by_mark(ran.ranks()[0].all("work"), folder / "train.py")


def _by_mark(events: list[Event], script: Path) -> dict[str, Event]:
    lines = script.read_text().splitlines()
    found = {}
    for event in events:
        text = lines[event["frames"][0][1] - 1]
        found[text.rpartition("# MARK ")[2]] = event
    return found


def _count(event: Event) -> tuple[int, int, int]:
    return event["begun"], event["dropped"], event["kept"]


def test_what_is_thrown_away_is_counted_by_line(watched: tuple[Watched, dict[str, Event]]) -> None:
    event = watched[1]["dropped"]
    assert _count(event) == (5, 5, 0)
    assert (event["op"], event["device"], event["group"]) == ("all_reduce", "cpu", "0")
    assert (event["first"], event["last"]) == (2, 6)
    assert event["calls"] > event["last"]


def test_what_is_held_to_the_end_is_told_apart(watched: tuple[Watched, dict[str, Event]]) -> None:
    event = watched[1]["kept"]
    assert _count(event) == (1, 0, 1)
    assert event["first"] == event["last"] == event["calls"]


def test_a_send_is_seen_although_torch_does_not_decorate_it(
    watched: tuple[Watched, dict[str, Event]],
) -> None:
    event = watched[1]["sent"]
    assert (event["op"], *_count(event)) == ("isend", 1, 1, 0)


def test_a_barrier_right_behind_them_settles(watched: tuple[Watched, dict[str, Event]]) -> None:
    assert watched[1]["settled"]["dropped"] == 0


def test_a_loop_that_runs_ahead_leaves_its_last(watched: tuple[Watched, dict[str, Event]]) -> None:
    assert _count(watched[1]["ahead"]) == (4, 1, 0)


def test_what_was_asked_anything_is_not_written_down(watched: tuple[Watched, dict[str, Event]]) -> None:
    assert set(watched[1]) == {"dropped", "kept", "sent", "settled", "ahead"}
    assert not watched[0].every("trouble")


def _run_both(folder: Path, source: str) -> tuple[str, str]:
    """Return what a program prints to stderr, watched and not."""
    watched = python(folder, source)
    command = [sys.executable, str(folder / "train.py")]
    plain = subprocess.run(
        command, cwd=folder, env=environment(None), capture_output=True, text=True, timeout=120, check=True
    )
    return watched.stderr, plain.stderr


@pytest.mark.long
def test_printed_tracebacks_are_the_same(tmp_path: Path) -> None:
    watched, plain = _run_both(
        tmp_path,
        """
        import traceback
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        calls = (
            lambda: dist.isend("x", 0),
            lambda: dist.isend(torch.ones(1).to_sparse(), 0),
            lambda: dist.irecv([torch.ones(1)], 0),
            lambda: dist.all_reduce("x", async_op=True),
        )
        for call in calls:
            try:
                call()
            except Exception:
                traceback.print_exc()
        """,
    )
    assert plain.count("Traceback") >= 4
    assert watched == plain


@pytest.mark.long
def test_the_class_looks_as_before(tmp_path: Path) -> None:
    source = """
        import inspect
        import sys
        import torch
        import torch.distributed as dist

        def show(*what):
            print(*what, file=sys.stderr)

        class Mine(dist.Work):
            def wait(self, timeout=None):
                return "mine"

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        work = dist.all_reduce(torch.ones(1), async_op=True)
        show(type(dist.Work.wait), dist.Work.wait.__name__, dist.Work.wait.__doc__, type(work.wait), work.wait())
        show(Mine().wait(), isinstance(Mine(), dist.Work), dist.Work.wait(work), sorted(dir(dist.Work)))
        show(inspect.signature(dist.isend), inspect.getsource(dist.isend), dist.isend.__defaults__)
        show(dist.P2POp(dist.isend, torch.ones(1), 0).op is dist.isend, dist.isend.__code__.co_varnames)
    """
    watched, plain = _run_both(tmp_path, source)
    assert watched == plain


def test_who_takes_wait_from_the_class_is_not_judged(tmp_path: Path) -> None:
    script = """
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(3)]
        list(map(dist.Work.wait, works))
    """
    assert python(tmp_path, script).main().all("work")[-1]["blind"] is True


def test_a_forked_child_has_nothing_to_wait_for(tmp_path: Path) -> None:
    script = """
        import os
        import sys
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        work = dist.all_reduce(torch.ones(1), async_op=True)
        if os.fork() == 0:
            os._exit(0)  # gloo's threads are not in a fork: an ordinary end waits for them
        os.wait()
        work.wait()
    """
    assert not python(tmp_path, script).every("work")


@pytest.mark.parametrize("end", ["raise ValueError", "os._exit(0)", "sys.exit(3)"])
def test_it_is_written_down_however_the_program_ends(tmp_path: Path, end: str) -> None:
    script = f"""
        import os
        import sys
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        work = dist.all_reduce(torch.ones(1), async_op=True)  # MARK
        {end}
    """
    watched = python(tmp_path, script)
    event: dict[str, Any] = watched.main().one("work")
    assert event["frames"][0][1] == line_of(tmp_path / "train.py", "# MARK")
    assert event["kept"] == 1


def test_a_function_whose_source_is_not_what_runs_is_left_alone(tmp_path: Path) -> None:
    source = """
        import ddpdoctor_watch.calls.returns as returns

        def build():
            return len("abc")

        def other():
            return len("ab")

        def plain():
            return sorted("ba")

        seen = []
        build.__code__ = other.__code__.replace(co_firstlineno=build.__code__.co_firstlineno, co_name="build")
        assert not returns.see_returns(build, seen.append)
        assert build() == 2
        assert returns.see_returns(plain, lambda value: seen.append(value) or value)
        assert plain() == ["a", "b"] and seen == [["a", "b"]]
    """
    assert python(tmp_path, source).returncode == 0
