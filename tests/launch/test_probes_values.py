from __future__ import annotations

import pytest
import torch

from ddpdoctor.launch.probes.exact_values import (
    PERIOD,
    allowed_error,
    make_input,
    make_pattern,
    make_result,
)

SIZES = (1, 2, 3, 4, 5, 16, 17, 64, 1000, 1024)
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int64)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("reduction", ["SUM", "PRODUCT", "MIN", "MAX"])
@pytest.mark.parametrize("size", SIZES)
def test_reductions_are_exact_in_any_order(reduction: str, size: int, dtype: torch.dtype) -> None:
    count = 200
    inputs = [make_input(reduction, rank, size, count, dtype) for rank in range(size)]
    order = torch.randperm(size, generator=torch.Generator().manual_seed(size)).tolist()
    total = inputs[order[0]].clone()
    for rank in order[1:]:
        if reduction == "SUM":
            total += inputs[rank]
        elif reduction == "PRODUCT":
            total *= inputs[rank]
        else:
            total = (
                torch.minimum(total, inputs[rank])
                if reduction == "MIN"
                else torch.maximum(total, inputs[rank])
            )
    assert torch.equal(total, make_result(reduction, size, count, dtype))


@pytest.mark.parametrize("size", SIZES)
def test_leaving_out_any_rank_shows_in_a_sum(size: int) -> None:
    result = make_result("SUM", size, 1023, torch.int64)
    for rank in range(size):
        assert not torch.equal(result - make_input("SUM", rank, size, 1023, torch.int64), result)


def test_patterns_of_different_ranks_differ_everywhere() -> None:
    table = torch.stack([make_pattern(rank, PERIOD, torch.int64) for rank in range(113)])
    assert all(table[:, index].unique().numel() == 113 for index in range(0, PERIOD, 50))


def test_shifted_chunks_are_noticed() -> None:
    whole = make_pattern(3, 4 * PERIOD, torch.int64)
    for shift in (1, 7, 64, 128, 512, 1024, 2048):
        assert not torch.equal(whole[shift : shift + 500], whole[:500])


def test_long_sequences_repeat_the_period() -> None:
    whole = make_pattern(1, 3 * PERIOD + 5, torch.float32)
    assert torch.equal(whole[PERIOD : 2 * PERIOD], whole[:PERIOD])
    assert torch.equal(whole[3 * PERIOD :], whole[:5])


@pytest.mark.parametrize("size", [3, 5, 64, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_average_by_multiplying_first_stays_within_the_allowance(size: int, dtype: torch.dtype) -> None:
    total = torch.zeros(PERIOD, dtype=dtype)
    for rank in range(size):
        total += make_input("AVG", rank, size, PERIOD, dtype) * torch.tensor(1 / size, dtype=dtype)
    error = (total.double() - make_result("AVG", size, PERIOD, torch.float64)).abs().max().item()
    assert error <= allowed_error("AVG", size, dtype)
    assert (allowed_error("AVG", size, dtype) == 0) == (size == 64)


def test_a_boolean_pattern_has_both_values() -> None:
    assert make_pattern(0, 50, torch.bool).unique().numel() == 2
