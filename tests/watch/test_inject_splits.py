"""What a rank tells of the data set that a loader reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset, SubsetRandomSampler, TensorDataset

from ddpdoctor.watch.inject.ddpdoctor_watch.training import splits


class Counted(Dataset[int]):
    """Holds a number only, and may give anything."""

    def __init__(self) -> None:
        self.size = 40

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


class Files(Counted):
    """Holds names of files."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.names = [f"{folder}/{n}.jpg" for n in range(40)]


def describe(dataset: Dataset[object], sampler: RandomSampler | None = None) -> Mapping[str, object]:
    loader: DataLoader[object] = DataLoader(dataset, shuffle=sampler is None, sampler=sampler)
    return splits.describe_split(loader, loader.sampler, 1)


def test_a_data_set_that_is_drawn_whole_has_its_size_and_a_digest_of_what_it_holds() -> None:
    rows = torch.rand(40, 3)
    one, same, other = (describe(TensorDataset(each)) for each in (rows, rows.clone(), torch.rand(40, 3)))
    assert one["whole"] == 40
    assert one["origin"] == same["origin"] != other["origin"]
    turned = describe(TensorDataset(rows.t().contiguous().t()))
    assert turned["origin"] == one["origin"]
    assert describe(Files("a"))["origin"] != describe(Files("b"))["origin"]


def test_what_is_drawn_otherwise_or_holds_nothing_is_not_told() -> None:
    rows = TensorDataset(torch.rand(40, 3))
    assert describe(Counted()) == {}
    assert describe(rows, RandomSampler(rows, replacement=True)) == {}
    assert describe(rows, RandomSampler(rows, num_samples=20)) == {}
    assert "whole" not in describe(Subset(rows, range(20)))
    loader = DataLoader(rows)
    assert splits.describe_split(loader, loader.sampler, 1) == {}


def test_the_first_numbers_of_a_tensor_are_read_without_a_copy_of_it() -> None:
    wide = torch.zeros(1).expand(1 << 40).reshape(1 << 20, 1 << 20)
    assert describe(TensorDataset(wide))["whole"] == 1 << 20


def test_an_explicit_part_has_a_reach_where_torchs_samplers_draw_all_of_it() -> None:
    rows = TensorDataset(torch.rand(40, 3))
    part = Subset(rows, [3, 31, 7])
    assert (describe(part)["split_size"], describe(part)["split_reach"]) == (3, 32)
    plain = DataLoader(rows, sampler=SubsetRandomSampler([5, 2]))
    assert splits.describe_split(plain, plain.sampler, 1)["split_reach"] == 6
    assert describe(part, RandomSampler(part, replacement=True))["split_reach"] is None
    assert describe(part, RandomSampler(part, num_samples=2))["split_reach"] is None
    by_hand: DataLoader[object] = DataLoader(part, batch_sampler=[[0], [2]])
    assert splits.describe_split(by_hand, by_hand.sampler, 1)["split_reach"] is None
    twice = DataLoader(part, sampler=SubsetRandomSampler([0, 2]))  # a part of the part
    assert splits.describe_split(twice, twice.sampler, 1)["split_reach"] is None


@pytest.mark.parametrize(
    "indices",
    [
        [5, 9, 30],
        (5, 9, 30),
        range(5, 31),
        list(np.array([5, 9, 30])),
        np.array([5, 9, 30], dtype=np.int32),
        torch.tensor([5, 9, 30]),
        [5, 9, 30] * 100,
    ],
)
def test_indices_of_any_kind_are_sketched(indices: Sequence[int]) -> None:
    told = describe(Subset(TensorDataset(torch.rand(40, 3)), indices))
    assert told["split_reach"] == 31
    hashes = told["split"]
    assert isinstance(hashes, list)
    assert len(set(hashes)) == len(set(map(int, indices)))


@pytest.mark.parametrize(
    "indices",
    [
        [],
        [0.5, 1.0],
        ["a"],
        [*range(10), "a"],
        [2**64],
        np.arange(40)[::-1],
        np.arange(40).astype(">i8"),
        np.array([1.0, 2.0]),
        np.array(["a"], dtype=object),
        torch.tensor([[1], [2]]),
        torch.tensor([True]),
        np.zeros((1 << 20) + 1, dtype=np.int64),
        {3: 4},
    ],
)
def test_what_is_no_list_of_indices_is_left_alone(indices: Any) -> None:
    assert describe(Subset(TensorDataset(torch.rand(40, 3)), indices), RandomSampler([1])) == {}
