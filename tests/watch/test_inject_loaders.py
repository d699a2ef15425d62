"""What is written down of DataLoaders: their lengths, once for each place and length."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.watch.injecting import line_of, python

START = """
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, IterableDataset, TensorDataset

    def begin():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    data = TensorDataset(torch.zeros(10, 2))
"""


def test_a_loader_is_measured_when_its_iteration_begins(tmp_path: Path) -> None:
    script = (
        START
        + """
    begin()
    loader = DataLoader(data, batch_size=4, num_workers=1)
    for epoch in range(2):
        for batch in loader:  # loop
            pass
    """
    )
    done = python(tmp_path, script)
    events = done.main().all("loader")
    assert [(event["number"], event["length"], event["workers"]) for event in events] == [
        (1, 3, 1),
        (2, 3, 1),
    ]
    assert events[0]["frames"][0][1] == line_of(tmp_path / "train.py", "# loop")
    assert events[0]["sampler"].endswith("SequentialSampler")


@pytest.mark.long
def test_the_same_again_and_again_is_written_down_fifty_times(tmp_path: Path) -> None:
    script = (
        START
        + """
    begin()
    for size in [4] * 80 + [5]:
        for batch in DataLoader(data, batch_size=size):
            pass
    """
    )
    events = python(tmp_path, script).main().all("loader")
    assert len(events) == 51
    assert (events[-1]["number"], events[-1]["length"]) == (81, 2)


def test_data_of_the_programs_own_is_not_asked(tmp_path: Path) -> None:
    script = (
        START
        + """
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(5))
        def __len__(self):
            raise SystemExit("asked")

    class Own:
        def __iter__(self):
            return iter(range(5))
        def __len__(self):
            raise SystemExit("asked")

    begin()
    for batch in DataLoader(Stream(), batch_size=None):
        pass
    for batch in DataLoader(data, sampler=Own(), batch_size=None):
        pass
    """
    )
    done = python(tmp_path, script)
    assert done.returncode == 0, done.stderr
    assert [event["length"] for event in done.main().all("loader")] == [None, None]


@pytest.mark.long
def test_without_a_process_group_nothing_is_written_down(tmp_path: Path) -> None:
    done = python(tmp_path, START + "\n    for batch in DataLoader(data):\n        pass\n")
    assert done.main().all("loader") == []


def test_epochs_of_a_process_are_not_told_by_its_forked_child(tmp_path: Path) -> None:
    script = (
        START
        + """
    import atexit, os

    begin()
    for batch in DataLoader(data, batch_size=4):
        pass
    if os.fork() == 0:
        atexit._run_exitfuncs()  # as at an end; gloo's own threads do not outlive a fork
        os._exit(0)
    os.wait()
    """
    )
    done = python(tmp_path, script)
    assert len(done.processes) == 2
    (epoch,) = done.every("epoch")
    assert epoch["batches"] == 3
