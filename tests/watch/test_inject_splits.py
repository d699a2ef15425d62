"""What is written down of parts of data sets, and of samples that a sampler gives once more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.watch.injecting import python
from tests.watch.test_inject_loaders import START

BEGIN = """
    import numpy
    from torch.utils.data import Subset, SubsetRandomSampler
    from torch.utils.data.distributed import DistributedSampler
    begin()
"""


@pytest.mark.parametrize(
    "indices", ["[7, 1, 4]", "range(1, 8, 3)", "torch.tensor([4, 1, 7])", "numpy.array([1, 7, 4])"]
)
def test_a_part_is_told_alike_however_it_is_given(tmp_path: Path, indices: str) -> None:
    script = START + BEGIN + f"    for batch in DataLoader(Subset(data, {indices})):\n        pass\n"
    script += "    for batch in DataLoader(data, sampler=SubsetRandomSampler([7, 4, 1])):\n        pass\n"
    first, second = python(tmp_path, script).main().all("loader")
    assert first["split"] == second["split"]
    assert first["split_size"] == 3
    assert first["origin"] == second["origin"]


def test_what_is_no_explicit_part_is_not_told(tmp_path: Path) -> None:
    script = START + BEGIN + "    for batch in DataLoader(data):\n        pass\n"
    script += "    for batch in DataLoader(Subset(Subset(data, [1, 2]), [0])):\n        pass\n"
    assert all("split" not in event for event in python(tmp_path, script).main().all("loader"))


def test_samples_that_fill_up_are_counted(tmp_path: Path) -> None:
    script = (
        START
        + BEGIN
        + """
    for rank in range(4):
        sampler = DistributedSampler(data, num_replicas=4, rank=rank, shuffle=False)
        for batch in DataLoader(data, 2, sampler=sampler): pass
    """
    )
    events = {event["number"]: event for event in python(tmp_path, script).main().all("epoch")}
    assert [events[number]["padded"] for number in (1, 2, 3, 4)] == [0, 0, 1, 1]
