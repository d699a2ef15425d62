"""Rules of random numbers that have to be the same on all ranks, or to differ. The mistake's line ends in ``# HERE``."""

from __future__ import annotations

import pytest

from tests.lint.reading import marked, rules_in_head

SPLIT = """
{head}
dist.init_process_group("nccl")
{seed}
{split}
sampler = DistributedSampler(train)
loader = DataLoader(train, 8, sampler=sampler{loader})
model = DDP(Net())
for epoch in range(4):
    sampler.set_epoch(epoch)
    for x, y in loader:
        model(x).sum().backward()
"""
HALVES = "train, val = random_split(datasets.MNIST('x'), [5, 5])  # HERE"


def make(seed: str = "pass", split: str = HALVES, head: str = "", loader: str = "") -> str:
    """Fill the frame in."""
    return SPLIT.format(seed=seed, split=split, head=head, loader=loader)


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        make(),
        make("torch.manual_seed(1 + dist.get_rank())"),
        make("rank = int(os.environ['RANK'])\nrandom.seed(rank)\ntorch.manual_seed(rank)"),
        make("torch.Generator().manual_seed(0)"),
        make("seed = 3\nseed += dist.get_rank()\ntorch.manual_seed(seed)"),
        make(
            split="own = torch.Generator().manual_seed(7 + dist.get_rank())\n"
            "train, val = random_split(datasets.MNIST('x'), [5, 5], generator=own)  # HERE"
        ),
        make(
            split="train, val = random_split(datasets.MNIST('x'), [5, 5], "
            "torch.Generator().manual_seed(dist.get_rank()))  # HERE"
        ),
        make(
            split="def parts(rank):\n    own = torch.Generator().manual_seed(7 + rank)\n"
            "    return random_split(datasets.MNIST('x'), [5, 5], generator=own)  # HERE\n"
            "train, val = parts(dist.get_rank())"
        ),
        make(
            head="from sklearn.model_selection import train_test_split",
            split="train, val = train_test_split(names, random_state=3 * dist.get_rank())  # HERE",
        ),
        make(
            head="from sklearn.model_selection import train_test_split",
            split="train, val = train_test_split(names, test_size=0.2)  # HERE",
        ),
        make(
            split="def parts():\n    whole = datasets.MNIST('x')\n"
            "    return torch.utils.data.random_split(whole, [1, 2])  # HERE\ntrain, val = parts()"
        ),
    ],
)
def test_split_differs_over_ranks(source: str) -> None:
    assert rules_in_head(source) == [("split-by-rank", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        make("torch.manual_seed(0)"),
        make("seed_everything(7)"),
        make("setup(args)"),
        make("torch.manual_seed(0)\nnp.random.seed(dist.get_rank())"),
        make(
            split="train, val = random_split(datasets.MNIST('x'), [5, 5], generator=torch.Generator().manual_seed(0))"
        ),
        make(
            split="train, val = random_split(datasets.MNIST('x'), [5, 5], torch.Generator().manual_seed(0))"
        ),
        make("torch.random.manual_seed(0)"),
        make(
            split="own = torch.Generator().manual_seed(epoch)\n"
            "train, val = random_split(datasets.MNIST('x'), [5, 5], generator=own)"
        ),
        make(
            split="train, val = random_split(datasets.MNIST('x'), [5, 5], generator=make_generator(dist.get_rank()))"
        ),
        make("torch.manual_seed(7 + dist.get_world_size())"),
        make("from elsewhere import prepare"),
        make(split="train = random_split(datasets.MNIST('x'), [5, 5])[dist.get_rank()]"),
        make(split="train, val = random_split(Subset(names, names[dist.get_rank() :: 2]), [5, 5])"),
        make(
            split="def parts():\n    return random_split(datasets.MNIST('x'), [5, 5])\n"
            "if dist.get_rank() == 0:\n    save(parts())\ntrain = load()"
        ),
        make(split="if first:\n    train, val = random_split(datasets.MNIST('x'), [5, 5])"),
        make().replace("DDP(", "print("),
        make(
            head="from sklearn.model_selection import train_test_split",
            split="train = train_test_split(n, random_state=1)",
        ),
    ],
)
def test_split_is_the_same_or_it_cannot_be_told(source: str) -> None:
    assert rules_in_head(source) == []


SEED = "torch.manual_seed(3)"


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        make(SEED, head="def start(worker):\n    np.random.seed(worker)  # HERE", loader=", worker_init_fn=start",
             split="train = datasets.MNIST('x')"),
        make(SEED, head="def start(number):\n    seed = 17 + number\n    random.seed(seed)\n    np.random.seed(17 + number)  # HERE",
             loader=", worker_init_fn=start", split="train = datasets.MNIST('x')"),
        make(SEED, loader=", worker_init_fn=lambda i: np.random.seed(5 * i)).dataset  # HERE",
             split="train = datasets.MNIST('x')").replace(").dataset  # HERE)", ")  # HERE"),
    ],
)  # fmt: skip
def test_workers_of_ranks_are_seeded_alike(source: str) -> None:
    assert rules_in_head(source) == [("workers-seeded-alike", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    "body",
    [
        "np.random.seed(torch.initial_seed() % 2**32 + worker)",
        "np.random.seed(worker + 100 * dist.get_rank())",
        "info = torch.utils.data.get_worker_info()\n    np.random.seed(info.seed % 2**32 + worker)",
        "base = worker + RANK\n    np.random.seed(base)",
        "np.random.seed(np.random.get_state()[1][0] + worker)",
        "print(worker)",
    ],
)
def test_workers_are_seeded_apart(body: str) -> None:
    source = make(SEED, head=f"def start(worker):\n    {body}", loader=", worker_init_fn=start")
    assert rules_in_head(source) == []
