"""Rules of orders that each rank draws for itself and shares out by hand. The mistake's line ends in ``# HERE``."""

from __future__ import annotations

import pytest

from tests.lint.reading import HEAD, facts_in, marked, rules_in, rules_in_head

FRAME = """
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
{seed}
{data}
model = DDP(Net())
for epoch in range(4):
    for path in mine:
        model(torch.load(path)).sum().backward()
"""
SHUFFLED = "random.shuffle(paths)  # HERE"


def make(data: str, seed: str = "pass") -> str:
    """Fill the frame in."""
    return FRAME.format(data=data, seed=seed)


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        make(f"paths = os.listdir('x')\n{SHUFFLED}\nmine = paths[rank::world]"),
        make(f"paths = os.listdir('x')\n{SHUFFLED}\nmine = paths[rank::world]", "random.seed(1 + rank)"),
        make("order = torch.randperm(len(data)).tolist()  # HERE\nmine = Subset(data, order[rank::world])"),
        make("order = list(np.random.permutation(50))  # HERE\nmine = order[rank * 10 : (rank + 1) * 10]"),
        make("order = np.random.permutation(50)  # HERE\nmine = np.array_split(order, world)[rank]"),
        make("order = torch.randperm(50)  # HERE\nmine = order.chunk(world)[dist.get_rank()]"),
        make("order = torch.randperm(50)  # HERE\nmine = torch.chunk(order, world)[rank]"),
        make("paths = random.sample(names, len(names))  # HERE\nmine = paths[rank::world]"),
        make(
            "def share(paths, rank, world):\n"
            f"    {SHUFFLED}\n"
            "    return paths[rank * (len(paths) // world) : (rank + 1) * (len(paths) // world)]\n"
            "mine = share(os.listdir('x'), rank, world)"
        ),
        make(
            "class Stream(IterableDataset):\n"
            "    def __init__(self, paths):\n        self.paths = paths\n"
            "    def __iter__(self):\n"
            "        random.shuffle(self.paths)  # HERE\n"
            "        yield from self.paths[dist.get_rank() :: dist.get_world_size()]\n"
            "mine = DataLoader(Stream(os.listdir('x')), batch_size=4)"
        ),
        make(
            "paths = sorted(os.listdir('x'))\nfor turn in range(2):\n"
            "    np.random.shuffle(paths)  # HERE\n    mine = paths[rank::world]"
        ),
    ],
)
def test_shares_of_an_order_of_ones_own(source: str) -> None:
    assert rules_in_head(source) == [("shares-by-rank", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        make(f"paths = os.listdir('x')\n{SHUFFLED}\nmine = paths[rank::world]", "random.seed(0)"),
        make(f"paths = os.listdir('x')\n{SHUFFLED}\nmine = paths[rank::world]", "seed_everything(0)"),
        make("paths = os.listdir('x')\nrandom.Random(0).shuffle(paths)\nmine = paths[rank::world]"),
        make(
            "rng = random.Random(3)\npaths = os.listdir('x')\nrng.shuffle(paths)\nmine = paths[rank::world]"
        ),
        make(
            "order = torch.randperm(50, generator=torch.Generator().manual_seed(0))\nmine = order[rank::world]"
        ),
        make("order = np.random.default_rng(1).permutation(50)\nmine = order[rank::world]"),
        make("order = torch.randperm(50)\ndist.broadcast(order, 0)\nmine = order[rank::world]"),
        make(
            "paths = os.listdir('x')\nrandom.shuffle(paths)\nheld = [paths]\ndist.broadcast_object_list(held)\n"
            "paths = held[0]\nmine = paths[rank::world]"
        ),
        make(
            "paths = os.listdir('x')\nif rank == 0:\n    random.shuffle(paths)\nagree(paths)\nmine = paths[rank::world]"
        ),
        make("mine = os.listdir('x')[rank::world]\nrandom.shuffle(mine)"),
        make("paths = os.listdir('x')\nmine = paths[rank::world]\nrandom.shuffle(paths)"),
        make(
            "paths = os.listdir('x')\nrandom.shuffle(paths)\npaths = sorted(paths)\nmine = paths[rank::world]"
        ),
        make("paths = os.listdir('x')\nrandom.shuffle(paths)\nmine = paths[::2]"),
        make(
            "paths = os.listdir('x')\nrandom.shuffle(paths)\nmine = DataLoader(paths[:50], sampler=choose(paths))"
        ),
        make("paths = os.listdir('x')\nrandom.shuffle(paths)\nmine = paths[rank::world]").replace(
            "DDP(", "print("
        ),
    ],
)
def test_an_order_that_ranks_share_or_that_is_not_shared_out(source: str) -> None:
    assert rules_in_head(source) == []


HALVES = "train, val = names[:900], names[900:]\nmine = train[rank::world]"


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        make(f"names = os.listdir('x')\nrandom.shuffle(names)  # HERE\n{HALVES}"),
        make(
            "order = torch.randperm(1000)  # HERE\ncut = 900\nmine = DataLoader(Subset(data, order[:cut]), "
            "sampler=choose())\nvalid = Subset(data, order[cut:])"
        ),
        make(
            "order = np.random.permutation(len(data)).tolist()  # HERE\n"
            "held_out, rest = order[: len(data) // 10], order[len(data) // 10 :]\nmine = pick(rest)",
            "torch.manual_seed(rank)",
        ),
    ],
)
def test_a_split_by_hand_differs_over_ranks(source: str) -> None:
    assert rules_in_head(source) == [("split-by-rank", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        make(f"names = os.listdir('x')\nrandom.shuffle(names)\n{HALVES}", "set_seed(7)"),
        make(f"names = os.listdir('x')\nrandom.Random(1).shuffle(names)\n{HALVES}"),
        make("names = os.listdir('x')\nrandom.shuffle(names)\nval, mine = names[:9], names[10:]"),
        make("words = os.listdir('x')\nrandom.shuffle(words)\nhead, mine = words[:9], words[9:]"),
    ],
)
def test_a_split_by_hand_that_is_the_same_or_none(source: str) -> None:
    assert rules_in_head(source) == []


def test_a_rank_by_its_name_alone_is_not_traced() -> None:
    source = make("mine = share(os.listdir('x'), rank)\n")
    function = "def share(paths, rank):\n    random.shuffle(paths)\n    return paths[rank::8]\n"
    (fact,) = facts_in(HEAD + function + source)
    assert (fact.rule, fact.names) == ("shares-by-rank", ("unseeded", "random.shuffle", "paths"))
    assert not fact.traced


def test_names_of_the_facts() -> None:
    source = HEAD + make(
        "order = torch.randperm(len(data))\nmine = order[rank::world]", "torch.manual_seed(rank)"
    )
    (fact,) = facts_in(source)
    assert fact.names == ("seeded", "torch.randperm", "len(data)")
    assert [(each.role, source.splitlines()[each.place.line - 1]) for each in fact.related] == [
        ("noticed", "mine = order[rank::world]")
    ]
    assert rules_in(source.replace("rank::world", "0::2")) == []
