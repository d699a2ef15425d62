"""Sums of all ranks that are divided by the count of one."""

from __future__ import annotations

import pytest

from tests.lint.judging import find_marked, lines_of, lint

FUNCTION = """
def evaluate(model, loader, device, world_size):
    correct, total = torch.zeros((), device=device), 0
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum()
        total += {size}
    {reduce}
    accuracy = {ratio}  # here
    {after}
    return accuracy
"""
USUAL = {
    "size": "y.size(0)",
    "reduce": "dist.all_reduce(correct)",
    "ratio": "correct.item() / total",
    "after": "pass",
}
CLASS = """
class HitRate:
    def __init__(self):
        self.hits, self.seen = torch.zeros(1), 0

    def update(self, scores, target):
        self.hits += (scores.argmax(1) == target).sum()
        self.seen += len(target)
        {more}

    def compute(self):
        dist.all_reduce(self.hits, op=dist.ReduceOp.SUM)
        return (self.hits / self.seen).item()  # here
"""
TENSORS = """
def evaluate(model, loader, device):
    right = seen = 0
    for x, y in loader:
        right += int(model(x).argmax(1) == y)
        seen += 1
    rights = torch.tensor([right], device=device)
    seens = torch.tensor([seen], device=device)
    dist.all_reduce(rights)
    {more}
    right, seen = rights.item(), seens.item()
    print(f"{{right}} of {{seen}}")
    return right / max(seen, 1)  # here
"""


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"size": "len(y)"},
        {"size": "y.shape[0]"},
        {"size": "1"},
        {"ratio": "100.0 * correct.item() / max(total, 1)"},
        {"reduce": "dist.all_reduce(correct, op=dist.ReduceOp.SUM)"},
        {"reduce": "dist.reduce(correct, 0)"},
    ],
)
def test_sum_of_all_ranks_over_the_count_of_one(other: dict[str, str]) -> None:
    text = FUNCTION.format(**USUAL | other)
    found = [each for each in lint(text) if each.code == "NUM005"]
    assert lines_of(found, "NUM005") == find_marked(text)
    assert "too large by about the number of ranks" in found[0].message


@pytest.mark.parametrize(
    ("text", "more"), [(CLASS, "pass"), (TENSORS, "pass")], ids=["attributes", "copies in tensors"]
)
def test_sum_and_count_of_an_object_or_in_tensors(text: str, more: str) -> None:
    text = text.format(more=more)
    assert lines_of(lint(text), "NUM005") == find_marked(text)


@pytest.mark.parametrize(
    "other",
    [
        {"reduce": "dist.all_reduce(correct); total = join(total)"},
        {"reduce": "dist.all_reduce(correct); join(total)"},
        {"reduce": "for each in (correct, total): dist.all_reduce(each)"},
        {"reduce": "dist.all_reduce(correct); sums = [correct, total]; join(sums)"},
        {"reduce": "dist.all_reduce(correct, op=dist.ReduceOp.AVG)"},
        {"reduce": "dist.all_reduce(correct, group=nodes)"},
        {"reduce": "dist.all_reduce(correct); correct /= world_size"},
        {"size": "y.size(0) * world_size"},
        {"size": "batch_size"},
        {"ratio": "correct.item() / total / world_size"},
        {"ratio": "correct.item() / (total * world_size)"},
        {"ratio": "correct.item() / len(loader.dataset)"},
        {"after": "accuracy = accuracy / dist.get_world_size()"},
        {"after": "accuracy /= world_size"},
    ],
)
def test_silent_where_the_count_may_be_that_of_all(other: dict[str, str]) -> None:
    assert not lines_of(lint(FUNCTION.format(**USUAL | other)), "NUM005")


@pytest.mark.parametrize(
    ("text", "more"),
    [(CLASS, "self.seen = join(self.seen)"), (CLASS, "join(self.seen)"), (TENSORS, "dist.all_reduce(seens)")],
)
def test_silent_where_the_count_of_an_object_or_in_tensors_is_reduced(text: str, more: str) -> None:
    assert not lines_of(lint(text.format(more=more)), "NUM005")
