"""The ring of calls: what is written down of torch.distributed's public functions, and that nothing else changes."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.marks import long
from tests.watch.injecting import Journal, Watched, environment, python, torchrun

HEADER, RECORD = 4096, 64
FORMAT = struct.Struct("<QQQQIIIiiIQ")
OTHER, RAISED = 8, 16
FIELDS = ("number", "begin", "end", "ordinal", "signature", "site", "group", "peer", "tag", "flags", "thread")


def read_ring(journal: Journal, *, others: bool = False) -> list[dict[str, Any]]:
    """Read a ring as the supervisor does: records in order, with what their numbers mean."""
    data = journal.path.with_suffix(".ring").read_bytes()
    assert data[:8] == b"DDPRING1"
    count = int.from_bytes(data[64:72], "little")
    tables = {
        kind: {event["number"]: event for event in journal.all(kind)}
        for kind in ("signature", "site", "group")
    }
    rows = []
    for place in range(min(count, 4096)):
        row = dict(zip(FIELDS, FORMAT.unpack_from(data, HEADER + place * RECORD), strict=True))
        for kind, table in tables.items():
            row[kind] = table.get(row[kind], {})
        rows.append(row)
    return [row for row in sorted(rows, key=lambda row: row["number"]) if not row["flags"] & OTHER or others]


def ops(watched: Watched, rank: int) -> list[str]:
    return [row["signature"].get("op", "?") for row in read_ring(watched.ranks()[rank])]


SCRIPT = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    t = torch.ones(2, 3)

    def reduce_it(x):
        dist.all_reduce(x, op=dist.ReduceOp.MAX)

    reduce_it(t)
    reduce_it(t)
    pair = dist.new_group([0, 1])
    dist.broadcast(t, 1, group=pair)
    dist.all_gather_object([None, None], {"rank": rank})
    if rank == 0:
        dist.send(t, 1, tag=7)
    else:
        dist.recv(t, src=0, tag=7)
    work = dist.isend(t, 1 - rank)
    dist.irecv(torch.empty(2, 3), 1 - rank).wait()
    work.wait()
    dist.all_reduce(t, async_op=True).wait()
    dist.monitored_barrier()
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    return torchrun(tmp_path_factory.mktemp("calls"), SCRIPT)


def test_every_call_is_written_down_once(watched: Watched) -> None:
    assert watched.returncode == 0, watched.stderr
    shared = ["all_reduce", "all_reduce", "new_group", "broadcast", "all_gather_object"]
    rest = ["isend", "irecv", "all_reduce", "monitored_barrier", "barrier"]
    assert ops(watched, 0) == [*shared, "send", *rest]
    assert ops(watched, 1) == [*shared, "recv", *rest]


def test_a_call_says_what_it_is(watched: Watched) -> None:
    rows = read_ring(watched.ranks()[0])
    first, second, _, broadcast, _, send = rows[:6]
    assert first["signature"]["shape"] == [2, 3]
    assert first["signature"]["dtype"] == "float32"
    assert first["signature"]["reduction"] == "max"
    assert first["group"]["ranks"] == [0, 1]
    assert first["group"]["default"] is True
    assert (first["ordinal"], second["ordinal"], broadcast["ordinal"]) == (1, 2, 1)
    assert broadcast["group"]["default"] is False
    assert broadcast["peer"] == 1
    assert (send["peer"], send["tag"]) == (1, 7)
    assert first["begin"] < first["end"] <= second["begin"]


def test_a_group_is_written_down_with_the_name_that_it_gets(watched: Watched) -> None:
    """One more than the number; nothing where torch makes the name of the ranks."""
    rows = read_ring(watched.ranks()[0])
    made, used = rows[2], rows[3]
    assert (made["signature"]["op"], str(made["tag"] - 1)) == ("new_group", used["group"]["name"])


def test_a_call_on_a_group_that_a_rank_is_not_in_is_none_on_the_default_group(tmp_path: Path) -> None:
    watched = torchrun(
        tmp_path,
        """
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        t = torch.ones(2)
        dist.all_reduce(t)
        alone = dist.new_group([0])
        dist.all_reduce(t, group=alone)
        dist.all_reduce(t)
        """,
    )
    assert watched.returncode == 0, watched.stderr
    for rank, number in ((0, 1), (1, 0)):
        rows = [row for row in read_ring(watched.ranks()[rank]) if row["signature"].get("op") == "all_reduce"]
        assert [row["ordinal"] for row in rows] == [1, 1, 2]
        assert [bool(row["group"].get("default")) for row in rows] == [True, False, True]
        assert len(rows[1]["group"].get("ranks", ())) == number


def test_a_helper_called_from_two_lines_is_two_sites(watched: Watched) -> None:
    first, second = read_ring(watched.ranks()[0])[:2]
    inner, outer = first["site"]["frames"][:2]
    assert inner[2] == "reduce_it"
    assert second["site"]["frames"][0] == inner
    assert second["site"]["frames"][1][1] == outer[1] + 1


@pytest.mark.long
def test_what_waits_has_no_end(tmp_path: Path) -> None:
    script = """
        import os
        import threading
        import time
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.barrier()
        threading.Timer(2.0, os._exit, [0]).start()
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1))
        time.sleep(600)
    """
    barrier, waiting = read_ring(torchrun(tmp_path, script).ranks()[0])
    assert barrier["end"] > 0
    assert (waiting["signature"]["op"], waiting["end"], waiting["flags"] & RAISED) == ("all_reduce", 0, 0)


def test_what_raised_has_an_end_and_says_so(tmp_path: Path) -> None:
    script = """
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            dist.all_reduce("no tensor")
        except TypeError:
            dist.barrier()
    """
    raised, barrier = read_ring(python(tmp_path, script).main())
    assert (raised["end"] > 0, raised["flags"] & RAISED, barrier["flags"] & RAISED) == (True, RAISED, 0)


def test_what_was_interrupted_says_so_too(tmp_path: Path) -> None:
    """Ctrl-C is no exception that torch's own wrapper catches."""
    script = """
        import torch.distributed as dist

        class Impatient:
            def __reduce__(self):
                raise KeyboardInterrupt

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        local = dist.new_group([0], use_local_synchronization=True)
        try:
            dist.broadcast_object_list([Impatient()], 0)
        except KeyboardInterrupt:
            dist.barrier(group=local)
    """
    made, raised, barrier = read_ring(python(tmp_path, script).main())
    assert made["tag"] == 0
    assert (raised["end"] > 0, raised["flags"] & RAISED, barrier["flags"] & RAISED) == (True, RAISED, 0)


def test_a_library_s_thread_is_told_out_to_where_it_was_started(tmp_path: Path) -> None:
    script = """
        import torch
        import torch.distributed as dist
        from concurrent.futures import ThreadPoolExecutor

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.barrier()
        ThreadPoolExecutor(1).submit(dist.all_reduce, torch.ones(1)).result()
    """
    own, other = read_ring(python(tmp_path, script).main())
    assert ("foreign" in own["site"], other["site"]["foreign"]) == (False, True)
    assert any(file.endswith("threading.py") for file, _, _ in other["site"]["frames"])


@pytest.mark.long
def test_forwards_of_the_wrapper_are_counted(tmp_path: Path) -> None:
    script = """
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("gloo")
        model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
        for _ in range(2):
            model(torch.randn(4, 2)).sum().backward()
        with model.no_sync():
            model(torch.randn(4, 2)).sum().backward()
        del model
        dist.barrier()
        dist.destroy_process_group()
    """
    rows = read_ring(torchrun(tmp_path, script).ranks()[0], others=True)
    assert [row["signature"]["op"] for row in rows[:2]] == ["init_process_group", "DistributedDataParallel"]
    assert all(row["end"] >= row["begin"] for row in rows)
    forwards = [row for row in rows if row["signature"]["op"] == "DistributedDataParallel.forward"]
    assert [row["ordinal"] for row in forwards] == [1, 2, 3]
    assert all(row["end"] >= row["begin"] for row in forwards)
    assert forwards[0]["signature"]["syncs"] is True
    assert [row["signature"]["reduces"] for row in forwards] == [True, True, False]
    assert rows[1]["signature"]["ranks"] == [0, 1]


def test_printed_tracebacks_are_the_same(tmp_path: Path) -> None:
    """torch's decorator is replaced; the marks under its line, its name and its file stay."""
    watched = python(
        tmp_path,
        """
        import traceback
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        for call in (lambda: dist.all_reduce("x"), lambda: dist.new_group([5])):
            try:
                call()
            except Exception:
                traceback.print_exc()
        """,
    )
    command = [sys.executable, str(tmp_path / "train.py")]
    plain = subprocess.run(
        command, cwd=tmp_path, env=environment(None), capture_output=True, text=True, timeout=120, check=True
    )
    assert plain.stderr.count("c10d_logger.py") >= 2
    assert watched.stderr == plain.stderr


@pytest.mark.parametrize("method", ["fork", *long("spawn")])
def test_a_child_does_not_write_into_its_parents_ring(tmp_path: Path, method: str) -> None:
    script = f"""
        import multiprocessing
        import torch
        import torch.distributed as dist

        def child():
            pass

        if __name__ == "__main__":
            dist.init_process_group("gloo")
            dist.barrier()
            process = multiprocessing.get_context("{method}").Process(target=child)
            process.start()
            process.join()
            dist.barrier()
            dist.destroy_process_group()
    """
    watched = torchrun(tmp_path, script, ranks=1)
    assert watched.returncode == 0, watched.stderr
    assert ops(watched, 0) == ["barrier", "barrier"]
    assert len(list(watched.ranks()[0].path.parent.glob("*.ring"))) == 1
