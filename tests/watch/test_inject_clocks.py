"""Where the time of steps goes, as a rank writes it down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpdoctor.facts.training_rows import choose_sampled
from tests.watch.injecting import python, torchrun
from tests.watch.test_inject_loaders import START

CLOCKS = """
    import ddpdoctor_watch.training.clocks as clocks
    import ddpdoctor_watch.core.journal as journal
    from ddpdoctor_watch.models import ddp
    now = [0]
    import ddpdoctor_watch.core.stopwatch as stopwatch
    stopwatch.monotonic = lambda: now[0]
    state = clocks._state

    def step(late=0):
        stopwatch.enter(stopwatch.DATA); now[0] += 2_000_000 + late
        stopwatch.enter(stopwatch.FORWARD); now[0] += 3_000_000
        stopwatch.enter(stopwatch.OTHER); now[0] += 1_000_000
        ddp.reducing = True
        clocks.begin_backward(); now[0] += 5_000_000
        stopwatch.begin_call(True); now[0] += 7_000_000
        stopwatch.end_call(); now[0] += 1_000_000
        clocks.end_step(1); now[0] += 4_000_000
        stopwatch.enter(stopwatch.OTHER)
        now[0] += 500_000_000; stopwatch.skip()
"""

SUMS = (
    CLOCKS
    + """
    for _ in range(3 + 131):
        step()
    assert state.steps == 131, state.steps
    assert state.width == 4
    assert [each.first for each in state.columns] == list(range(1, 132, 4))
    assert sum(each.count for each in state.columns) == 131
    whole = state.columns[3]
    assert whole.spent == [4 * each for each in (2_000_000, 2_000_000, 0, 3_000_000, 5_000_000, 4_000_000, 7_000_000)]
    assert whole.reduced == 4 and whole.met == 2
    assert whole.first <= whole.sampled < whole.first + 4
    # What was kept is of the step that is said, also after columns were joined.
    unit = 523_000_000
    for each in state.columns[:-1]:
        assert (each.marks[0] - state.columns[0].marks[0]) == unit * (each.sampled - state.columns[0].sampled)
    print([each.sampled for each in state.columns])
"""
)

RESTS = (
    CLOCKS
    + """
    from ddpdoctor_watch.training import gradients

    def run(steps, scale):
        noted = []
        for _ in range(steps):
            gradients.note_backward(stopwatch.state.resting != 0)  # as `backwards` does
            noted.append(not gradients._busy)
            for phase, took in ((stopwatch.FORWARD, 3000), (stopwatch.OTHER, 1000)):
                stopwatch.enter(phase); now[0] += scale * took
            ddp.reducing = True
            clocks.begin_backward(); now[0] += scale * 6000
            clocks.end_step(1)
        return noted

    assert all(run(3 + 1039, 100))  # one millisecond each: the first steps are all measured
    taken = run(1600 + 1, 100)[1:]
    assert sum(taken) == 100 and all(sum(taken[at : at + 16]) == 1 for at in range(0, 1600, 16)), taken
    assert len({taken[at : at + 16].index(True) for at in range(0, 1600, 16)}) == 16  # not evenly
    assert sum(run(16, 2000)[1:]) <= 2  # sixteen steps after another length it is noticed
    assert all(run(16, 2000)[1:])  # twenty milliseconds
    assert sum(run(160, 1000)[32:]) == 64  # ten
    steps = state.steps
    assert steps == sum(each.count for each in state.columns) == 1039 + 1601 + 16 + 16 + 160
    assert all(each.first <= each.sampled < each.first + state.width and each.met for each in state.columns[:-1])
    short = [each for each in state.columns if 1100 < each.first and each.first + state.width < 2600]
    assert len(short) > 10
    for each in short:  # what one step took counts for those beside it
        assert each.spent[stopwatch.FORWARD] == 300_000 * each.count, [(c.first, c.count, c.spent[3], c.reduced) for c in state.columns]
        assert each.spent[stopwatch.BACKWARD] == 600_000 * each.count, each.spent
        assert each.reduced == each.count
    print("rested", stopwatch.state.resting != 0)
    rank, = {stopwatch.state.thread, stopwatch.state.resting} - {0, -1}
    import threading
    other = threading.Thread(target=lambda: (stopwatch.wake(), clocks.end_step(1)))
    before = stopwatch.state.thread
    other.start(); other.join()
    assert stopwatch.state.thread == before and state.steps == steps
"""
)

CLOSERS = (
    CLOCKS
    + """
    clocks.end_step(1)
    for _ in range(20):  # two optimizers in turn: one ends the steps
        clocks.end_step(2)
        clocks.end_step(1)
    assert state.steps == 18, state.steps
    for _ in range(20):  # the first is used no longer
        clocks.end_step(2)
    assert state.closer == 2
    assert state.steps == 18 + 17, state.steps
    import threading
    thread = threading.Thread(target=lambda: (stopwatch.enter(stopwatch.DATA), stopwatch.meet(), clocks.begin_backward()))
    thread.start()
    thread.join()
    watch = stopwatch.state
    assert watch.phase == stopwatch.OPTIMIZER and not watch.marks
    print("told")
"""
)

LOADER = """
    import gc, weakref
    import ddpdoctor_watch.training.clocks as clocks
    import ddpdoctor_watch.core.stopwatch as stopwatch
    begin()
    clocks.end_step(1)

    class Breaks(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            if index == 3:
                raise LookupError("no sample")
            return index

    loader = DataLoader(Breaks())
    import traceback
    for attempt in range(2):
        try:
            print([int(each) for each in loader])
        except LookupError:
            text = traceback.format_exc()
            assert "ddpdoctor" not in text, text
            assert "_next_data" in text
    for workers in (0, 1):
        loader = DataLoader(TensorDataset(torch.arange(5)), num_workers=workers, persistent_workers=bool(workers))
        for epoch in range(3):
            iterator = iter(loader)
            assert [int(each) for each, in iterator] == list(range(5))
            assert next(iterator, None) is None
            assert stopwatch.state.phase == stopwatch.OTHER
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from range(3)

    for workers in (0, 1):
        loader = DataLoader(Stream(), num_workers=workers, persistent_workers=bool(workers))
        for epoch in range(2):
            assert [int(each) for each in loader] == [0, 1, 2]
            assert stopwatch.state.phase == stopwatch.OTHER  # what follows is no waiting for data
    gone = weakref.ref(iter(DataLoader(data)))
    assert gone() is None  # not kept alive until the garbage is collected
    assert sum(clocks._state.loaders.values()) > 0
    assert stopwatch.state.spent[stopwatch.STARTING] > 0
    print("told")
"""

TRAIN = """
    import time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    going, coming = ([1, 5], [1, 2]) if rank == 0 else ([2, 3], [5, 3])
    for _ in range(3):
        dist.all_to_all_single(torch.empty(sum(coming), 4), torch.randn(sum(going), 4), coming, going)
    for step in range(30):
        loss = model(torch.randn(2, 4)).sum()
        if rank == 1:
            time.sleep(0.02)
        loss.backward()
        if rank == 0:
            time.sleep(0.005)
        optimizer.step()
        optimizer.zero_grad()
    del model
    dist.destroy_process_group()
"""


@pytest.mark.long
def test_of_short_steps_some_are_measured_and_count_for_all(tmp_path: Path) -> None:
    done = python(tmp_path, START + RESTS)
    assert done.returncode == 0, done.stderr
    assert "rested" in done.stdout


def test_steps_are_summed_in_columns_that_grow_wider(tmp_path: Path) -> None:
    done = python(tmp_path, START + SUMS)
    assert not done.returncode, done.stderr
    told = json.loads(done.stdout)
    assert told == [choose_sampled(first, 4) for first in range(1, 132, 4)]  # as who reads it takes it to be
    assert len({step % 4 for step in told}) > 2


@pytest.mark.long
def test_one_optimizer_ends_the_steps_on_one_thread(tmp_path: Path) -> None:
    assert "told" in python(tmp_path, START + CLOSERS).stdout


def test_waiting_for_batches_changes_nothing_of_a_loader(tmp_path: Path) -> None:
    assert "told" in python(tmp_path, START + LOADER).stdout


def test_a_rank_writes_when_it_came_and_what_was_measured(tmp_path: Path) -> None:
    done = torchrun(tmp_path, TRAIN)
    first, second = (done.rank(number).all("times")[-1] for number in (0, 1))
    for event in (first, second):
        assert event["steps"] == 27
        assert event["bytes"] == 80
        assert [look[0] for look in event["looks"]] == [4, 5, 6, 7, 8, 9, 10]
        assert (event["routings"], event["routed"]) == (3, 3 * (9 if event is first else 13))
        assert event["frames"][0][2] == "<module>"
    came = {column[0]: column[-1] for column in first["columns"]}
    late = sorted(
        column[-1] - came[column[0]] for column in second["columns"]
    )  # at the last meeting, the backward
    assert 8_000 < late[len(late) // 2] < 19_000  # 20 ms, less the 5 ms that the other is late
    other = sorted(column[3] / column[1] for column in second["columns"])
    assert other[len(other) // 2] >= 20_000
    behind = sorted(look[-1] for look in first["looks"])
    assert behind[len(behind) // 2] >= 5_000  # Python behind the backward
