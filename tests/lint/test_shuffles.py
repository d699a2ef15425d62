"""Rules of orders that each rank draws for itself and shares out by hand. The mistake's line ends in ``# HERE``."""

from __future__ import annotations

import pytest

from tests.lint.judging import read
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


SHARE = "random.shuffle(paths)\nmine = paths[rank::world]"
LISTED = f"paths = os.listdir('x')\n{SHARE}"


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        # seeds that ranks agree on, or that come in another way
        make(LISTED, "random.setstate(load())"),
        make(LISTED, "for give in (random.seed, np.random.seed):\n    give(0)"),
        make(LISTED, "seed = [rank]\ndist.broadcast_object_list(seed)\nrandom.seed(seed[0])"),
        make(LISTED, "random.seed(1234 + dist.get_world_size())"),
        make(LISTED, "random.seed(cfg.rank_shared_seed)"),
        make(LISTED, "node_rank = int(os.environ['GROUP_RANK'])\nrandom.seed(node_rank)"),
        make(LISTED, "group = rank // 8\nrandom.seed(group)"),
        make(LISTED, "from elsewhere import prepare\nprepare(0)"),
        make(LISTED, "from elsewhere import *"),
        make(LISTED, "torch.multiprocessing.Process(target=print).start()"),
        make("order = torch.randperm(50)\nmine = order[rank::world]", "torch.random.manual_seed(0)"),
        make("order = np.random.permutation(50)\nmine = order[rank::world]", "with fork_rng():\n    pass"),
        # an order that is made one, or put back
        make(
            "order = np.random.permutation(50)\none = torch.from_numpy(order)\ndist.broadcast(one, 0)\nmine = order[rank::world]"
        ),
        make(
            "order = torch.randperm(50)\nfor each in (order, x):\n    dist.broadcast(each, 0)\nmine = order[rank::world]"
        ),
        make(
            "order = torch.randperm(50)\nif rank:\n    order.zero_()\ndist.all_reduce(order)\nmine = order[rank::world]"
        ),
        make("order = torch.randperm(50)\nagree(order)\nmine = order[rank::world]"),
        make(
            "paths = os.listdir('x')\nrandom.shuffle(paths)\nbox = [paths]\nmeet(box)\npaths[:] = box[0]\nmine = paths[rank::world]"
        ),
        make("paths = os.listdir('x')\nrandom.shuffle(paths)\npaths.sort()\nmine = paths[rank::world]"),
        # no shares
        make(
            "def pick(weight, rank):\n    columns = torch.randperm(9)\n    return weight[:, columns[:rank]]\nmine = pick(w, 4)"
        ),
        make("paths = os.listdir('x')\nrandom.shuffle(paths)\nmine = paths[rank:] + paths[:rank]"),
        make(
            "paths = os.listdir('x')\nfew = random.sample(paths, 64)\nmine = few[rank * 4 : (rank + 1) * 4]"
        ),
        make(
            "def share(paths, rank, random):\n    random.shuffle(paths)\n    return paths[rank::8]\nmine = share(p, 1, random.Random(3))"
        ),
    ],
)
def test_what_may_be_one_order_is_passed_over(source: str) -> None:
    assert rules_in_head(source) == []


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        make(
            f"paths = os.listdir('x')\n{SHUFFLED}\nmine = paths[rank::world]", "torch.manual_seed(0)"
        ),  # another generator
        make(
            "order = torch.randperm(50)  # HERE\nper = 50 // world\nstart = rank * per\nmine = order[start : start + per]"
        ),
        make(
            "for turn in range(2):\n    order = torch.randperm(50)  # HERE\n    order = order[rank::world]\nmine = order"
        ),
        make(
            "def seed_worker(worker):\n    random.seed(torch.initial_seed() % 2**32)\n"
            f"paths = os.listdir('x')\n{SHUFFLED}\nmine = DataLoader(paths[rank::world], worker_init_fn=seed_worker)"
        ),
        make(
            f"paths = os.listdir('x')\n{SHUFFLED}\nlast = rank + world * 7\nmine = paths[rank * 4 + last :: world * 8]"
        ),
    ],
)
def test_further_ways_to_share_an_order_out(source: str) -> None:
    assert rules_in_head(source) == [("shares-by-rank", marked(source))]


@pytest.mark.parametrize(
    ("seeding", "found"),
    [
        ("import torch, random\ndef fix(number):\n    random.seed(number)\n", False),
        (
            "import random\ndef fix(number):\n    random.seed(number)\n",
            False,
        ),  # not parsed: it is not about torch
        ("import torch\ndef fix(number):\n    print(number)\n", True),
    ],
)
def test_what_another_file_seeds_counts(seeding: str, found: bool) -> None:
    script = HEAD + make(LISTED, "fix(42)").replace("dist.init", "from randomness import fix\ndist.init")
    rows = read({"train.py": script, "randomness.py": seeding})
    assert [fact.rule for row in rows for fact in row.facts] == ["shares-by-rank"] * found


def test_a_rank_by_its_name_alone_is_not_traced() -> None:
    source = make("mine = share(os.listdir('x'), rank)\n")
    function = "def share(paths, rank):\n    random.shuffle(paths)\n    return paths[rank::8]\n"
    (fact,) = facts_in(HEAD + function + source)
    assert fact.rule == "shares-by-rank"
    assert fact.details == {"way": "unseeded", "function": "random.shuffle", "given": "paths", "seed": "0"}
    assert not fact.traced


def test_names_of_the_facts() -> None:
    source = HEAD + make(
        "order = torch.randperm(len(data))\nmine = order[rank::world]", "torch.manual_seed(rank)"
    )
    (fact,) = facts_in(source)
    assert fact.details == {"way": "seeded", "function": "torch.randperm", "given": "len(data)", "seed": "0"}
    assert [(each.role, source.splitlines()[each.place.line - 1]) for each in fact.related] == [
        ("noticed", "mine = order[rank::world]")
    ]
    assert rules_in(source.replace("rank::world", "0::2")) == []
