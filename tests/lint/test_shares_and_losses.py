"""Data that ranks do not share, and losses divided by a count of all ranks. The mistake's line ends in ``# HERE``."""

from __future__ import annotations

import pytest

from tests.lint.reading import marked, rules_in_head

SAMPLER = """
from torch.utils.data import Sampler
class Buckets(Sampler):
    def __init__(self, lengths, size, {extra}seed=0):
        self.lengths, self.size, self.seed, self.epoch = lengths, size, seed, 0
    def set_epoch(self, epoch):
        self.epoch = epoch
    def __len__(self):
        return len(self.lengths) // self.size
    def __iter__(self):
        order = list(range(len(self.lengths)))
        random.Random(self.seed + self.epoch).shuffle(order)
        {kept}
        for start in range(0, len(order), self.size):
            yield order[start : start + self.size]
class Rows(Dataset):
    def __init__(self, path):
        self.rows = torch.load(path, map_location="cpu")
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, i):
        return self.rows[i]
dist.init_process_group("gloo")
data = Rows("rows.pt")
batches = Buckets({given})
loader = DataLoader(data, batch_sampler=batches)  # HERE
model = DDP(Net())
for epoch in range(3):
    batches.set_epoch(epoch)
    for x in loader:
        model(x).sum().backward()
dist.destroy_process_group()
"""


@pytest.mark.wrong
def test_a_sampler_of_the_program_that_knows_no_ranks() -> None:
    source = SAMPLER.format(extra="", kept="pass", given="data.rows, 8")
    assert rules_in_head(source) == [("loader-unsharded", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    ("extra", "kept", "given"),
    [
        ("", "order = order[dist.get_rank() :: dist.get_world_size()]", "data.rows, 8"),
        (
            "part=0, parts=1, ",
            "order = order[part::parts]",
            "data.rows, 8, dist.get_rank(), dist.get_world_size()",
        ),
        ("", "order = my_part(order)", "data.rows, 8"),
        ("", "pass", "DistributedSampler(data), 8"),
    ],
)
def test_a_sampler_of_the_program_that_may_know_them(extra: str, kept: str, given: str) -> None:
    assert rules_in_head(SAMPLER.format(extra=extra, kept=kept, given=given)) == []


COUNT = """
def count(y):
    n = (y != 0).sum()
    {reduced}
    return n
dist.init_process_group("gloo")
data = load_data()
loader = DataLoader(data, 8, sampler=DistributedSampler(data))
model = DDP(Net())
for x, y in loader:
    total = F.cross_entropy(model(x), y, reduction={reduction})
    n = count(y)
    loss = total / n{scaled}  # HERE
    loss.backward()
dist.destroy_process_group()
"""


@pytest.mark.wrong
def test_a_sum_over_the_own_samples_by_a_count_of_all_ranks() -> None:
    source = COUNT.format(reduced="dist.all_reduce(n)", reduction="'sum'", scaled="")
    assert rules_in_head(source) == [("loss-divided", marked(source))]


@pytest.mark.wrong
@pytest.mark.parametrize("share", ["total = total / n", "total /= n", "total = total / n.clamp(min=1)"])
def test_a_sum_that_becomes_its_share_under_its_own_name(share: str) -> None:
    whole = COUNT.format(reduced="dist.all_reduce(n)", reduction="'sum'", scaled="")
    source = whole.replace("loss = total / n  # HERE", f"{share}  # HERE").replace("loss.back", "total.back")
    assert rules_in_head(source) == [("loss-divided", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    "share",
    [
        "total = total * dist.get_world_size() / n",
        "total *= 2\n    total /= n",
        "total = penalty(total)\n    total /= n",
    ],
    ids=["times the ranks", "another factor", "of what is not known"],
)
def test_a_sum_that_becomes_something_else(share: str) -> None:
    whole = COUNT.format(reduced="dist.all_reduce(n)", reduction="'sum'", scaled="")
    source = whole.replace("loss = total / n  # HERE", share).replace("loss.back", "total.back")
    assert rules_in_head(source) == []


@pytest.mark.wrong
def test_a_loss_that_was_made_to_add_up() -> None:
    source = COUNT.format(reduced="dist.all_reduce(n)", reduction="'sum'", scaled="")
    source = source.replace("F.cross_entropy(model(x), y, reduction='sum')", "criterion(model(x), y)")
    source = source.replace("for x, y in", "criterion = nn.CrossEntropyLoss(reduction='sum')\nfor x, y in")
    assert rules_in_head(source) == [("loss-divided", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    ("reduced", "reduction", "scaled"),
    [
        ("dist.all_reduce(n)", "'sum'", " * dist.get_world_size()"),
        ("pass", "'sum'", ""),
        ("dist.all_reduce(n, op=dist.ReduceOp.MAX)", "'sum'", ""),
        ("dist.all_reduce(n)\n    n = n / dist.get_world_size()", "'sum'", ""),
        ("dist.all_reduce(n)", "'mean'", ""),
    ],
)
def test_counts_that_agree_with_the_average(reduced: str, reduction: str, scaled: str) -> None:
    assert rules_in_head(COUNT.format(reduced=reduced, reduction=reduction, scaled=scaled)) == []


PARTS = """
class Criterion(nn.Module):
    def count(self, targets):
        n = torch.tensor([float(len(targets))])
        dist.all_reduce(n)
        return {count}
    def forward(self, out, targets):
        n = self.count(targets)
        boxes = F.l1_loss(out, targets, reduction="sum") / n  # HERE
        return {{"class": out.mean(), "boxes": 5 * boxes}}
dist.init_process_group("gloo")
data = load_data()
loader = DataLoader(data, 8, sampler=DistributedSampler(data))
model, criterion = DDP(Net()), Criterion()
for x, y in loader:
    losses = criterion(model(x), y)
    loss = sum(losses.values())
    loss.backward()
dist.destroy_process_group()
"""


@pytest.mark.wrong
def test_a_part_of_a_loss_by_a_count_of_all_ranks() -> None:
    source = PARTS.format(count="torch.clamp(n, min=1).item()")
    assert rules_in_head(source) == [("loss-divided", marked(source))]


@pytest.mark.right
def test_a_part_of_a_loss_by_the_mean_count() -> None:
    source = PARTS.format(count="torch.clamp(n / dist.get_world_size(), min=1).item()")
    assert rules_in_head(source) == []


DRAWN = """
dist.init_process_group("gloo")
torch.manual_seed({seed})
data = torch.load("tokens.pt", map_location="cpu")
def get_batch():
    ix = torch.randint(len(data) - 8, (4,){generator})  # HERE
    x = torch.stack([data[i : i + 8] for i in ix])
    return x{rest}
model = DDP(Net())
for step in range(100):
    model(get_batch()).sum().backward()
dist.destroy_process_group()
"""


@pytest.mark.wrong
@pytest.mark.parametrize("seed", ["1337", "args.seed"])
def test_batches_that_all_ranks_draw_with_one_seed(seed: str) -> None:
    source = DRAWN.format(seed=seed, generator="", rest="")
    assert rules_in_head(source) == [("batches-drawn-alike", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    ("seed", "generator", "rest"),
    [
        ("1337 + dist.get_rank()", "", ""),
        ("int(time.time())", "", ""),
        ("1337", ", generator=own", ""),
        ("1337", "", "[dist.get_rank() :: dist.get_world_size()]"),
    ],
)
def test_batches_that_ranks_draw_apart_or_take_a_part_of(seed: str, generator: str, rest: str) -> None:
    assert rules_in_head(DRAWN.format(seed=seed, generator=generator, rest=rest)) == []


STREAM = """
import io
from PIL import Image
from torch.utils.data import get_worker_info
class Shards(IterableDataset):
    def __init__(self, shards, transform):
        self.shards, self.transform = shards, transform
    def __iter__(self):
        info = get_worker_info()
        for shard in self.shards[{first}]:  # HERE
            yield self.transform(Image.open(io.BytesIO(shard)))
dist.init_process_group("gloo")
model = DDP(Net())
loader = iter(DataLoader(Shards(args.shards, flip), 8, num_workers=2))
for step in range(100):
    model(next(loader)).sum().backward()
dist.destroy_process_group()
"""


@pytest.mark.wrong
def test_a_stream_of_shards_by_worker_alone() -> None:
    source = STREAM.format(first="info.id :: info.num_workers")
    assert rules_in_head(source) == [("stream-unsharded", marked(source))]


@pytest.mark.right
def test_a_stream_of_shards_by_rank_and_worker() -> None:
    first = "dist.get_rank() :: dist.get_world_size()][info.id :: info.num_workers"
    assert rules_in_head(STREAM.format(first=first)) == []
