"""Streams that give each rank every n-th file or sample, which may be more on some ranks than on others."""

from __future__ import annotations

import pytest

from tests.lint.reading import HEAD, facts_in

STREAM = """
class Lines(IterableDataset):
    def __init__(self, files, rank, world_size):
        self.files, self.rank, self.world_size = files, rank, world_size
    def __iter__(self):
        for {head}:
            {body}
dist.init_process_group("gloo")
model = DDP(Net())
loader = DataLoader(Lines(list_files(), dist.get_rank(), dist.get_world_size()), 8)
"""
LOOP = """\
for x in loader:
    loss = model(x).sum()
    loss.backward()
"""
JOINED = """\
with Join([model]):
    for x in loader:
        loss = model(x).sum()
        loss.backward()
"""
BY_FILE = ("name in self.files[self.rank :: self.world_size]", "yield from open(name)")
BY_LINE = (
    "number, line in enumerate(lines())",
    "if number % self.world_size == self.rank:\n                yield line",
)


def rules(head: str, body: str, loop: str) -> list[str]:
    return [each.rule for each in facts_in(HEAD + STREAM.format(head=head, body=body) + loop)]


@pytest.mark.parametrize(("head", "body"), [BY_FILE, BY_LINE])
def test_a_share_by_rank_to_its_end_is_a_question(head: str, body: str) -> None:
    assert "shards-doubted" in rules(head, body, LOOP)


@pytest.mark.right
@pytest.mark.parametrize(
    ("head", "body", "loop"),
    [
        ("name in self.files", "yield from open(name)", LOOP),
        (BY_FILE[0], "yield from padded(name)", LOOP),
        (*BY_FILE, f"{LOOP}    if loss.item() < limit:\n        break\n"),
        (*BY_FILE, f"{LOOP}    dist.all_reduce(loss.detach())\n"),
        (*BY_FILE, JOINED),
    ],
)
def test_shares_that_may_be_of_one_length_are_not_asked_for(head: str, body: str, loop: str) -> None:
    assert "shards-doubted" not in rules(head, body, loop)
