"""Steps that a rank leaves by what its own batch holds."""

from __future__ import annotations

import pytest

from tests.lint.judging import lint

STEP = """
import torch.nn.functional as F
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 4))
data = load_data()
loader = DataLoader(data, 8, sampler=DistributedSampler(data), collate_fn=collate)
for number, batch in enumerate(loader):
    images, targets = batch["images"], batch["targets"].to("cpu")
    kept = [t for t in targets if t > 0]
    mask = targets >= 0
    {before}
    if {test}:
        continue
    F.mse_loss(model(images), images).backward()
dist.destroy_process_group()
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    "test",
    [
        "batch is None",
        "not kept",
        "len(kept) == 0",
        "mask.sum() == 0",
        "not mask.any()",
        "mask.sum().item() < 2",
        "targets.max() > 9",
        "number > 3 and (not kept)",
    ],
)
def test_a_rank_leaves_a_step_by_its_own_batch(test: str) -> None:
    (found,) = lint(STEP.format(before="pass", test=test))
    assert (found.code, found.severity, found.details["origin"]) == ("COL002", "warning", "batch")
    assert f"(test {test}) and never reach backward" in found.message


@pytest.mark.right
@pytest.mark.parametrize(
    ("before", "test"),
    [
        ("pass", "number >= 100"),
        ("pass", "len(images) < 8"),
        ("pass", "images.size(0) != 8"),
        ("pass", "images.shape[0] == 1"),
        ("seen = mask.sum(); dist.all_reduce(seen)", "seen == 0"),
        ("seen = reduce_max(mask.sum())", "seen.item() == 0"),
    ],
)
def test_what_all_batches_have_alike_or_ranks_agreed_on(before: str, test: str) -> None:
    assert [each for each in lint(STEP.format(before=before, test=test)) if each.code == "COL002"] == []


FUNCTION = """
from torch.utils.data import DataLoader
def step(model, batch):
    kept = [each for each in batch if each.sum() > 0]
    if not kept:
        return None
    loss = model(torch.stack(kept)).sum()
    loss.backward()
    return loss
def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 4))
    data = load_data()
    loader = DataLoader(data, 8, sampler=DistributedSampler(data))
    for batch in {over}:
        step(model, batch)
    dist.destroy_process_group()
main()
"""


@pytest.mark.wrong
def test_a_function_that_is_given_the_batch() -> None:
    assert [each.code for each in lint(FUNCTION.format(over="loader"))] == ["COL002"]


@pytest.mark.right
def test_a_function_that_is_given_what_is_no_batch_of_a_loader() -> None:
    assert lint(FUNCTION.format(over="load_rounds()")) == []
