"""Rules of how training data is shared out, and of its order. The line of the mistake ends in ``# HERE``."""

from __future__ import annotations

import pytest

from tests.lint.reading import HEAD, facts_in, marked, rules_in_head

SCRIPT = """
dist.init_process_group("nccl")
dataset = datasets.CIFAR10("data", transform=transforms.RandomCrop(32))
{loader}
model = DDP(models.resnet18().cuda(args.gpu))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    {before}
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""
BATCHES = "torch.utils.data.BatchSampler({}, 16, drop_last=True)"
BATCHED = "loader = DataLoader(dataset, batch_sampler=batches)"
FUNCTIONS = """
class Photos(Dataset):
    def __init__(self, path):
        self.names = os.listdir(path)
    def __getitem__(self, i):
        return self.names[i]

def train(args, model, loader, optimizer, epoch):
    model.train()
    for i, (x, y) in enumerate(tqdm(loader)):
        optimizer.zero_grad()
        F.nll_loss(model(x), y).backward()
        optimizer.step()

def main(args):
    dist.init_process_group("gloo", rank=args.rank)
    model = Net().to(args.device)
    if args.distributed:
        model = DDP(model, device_ids=[args.gpu])
    train_set = Photos(args.path)
    {loader}
    for epoch in range(args.epochs):
        {before}
        train(args, model, loader, torch.optim.Adam(model.parameters()), epoch)
"""
COLLECTED = """
class Photos(Dataset):
    def __init__(self, parts):
        self.parts = parts
    def __getitem__(self, i):
        return self.parts[i]
def read(folder):
    names = sorted(os.listdir(folder))
    return {names}
def collect(folders):
    parts = {empty}
    for folder in folders:
        {add}
    return Photos(parts)
dist.init_process_group("nccl")
dataset = collect(args.folders)
loader = DataLoader(dataset, shuffle=True){mark}
model = DDP(models.resnet18().cuda(args.gpu))
for epoch in range(10):
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
"""
ADDED = [
    ("[]", "parts.append(read(folder))"),
    ("[]", "parts.extend(read(folder))"),
    ("{}", "parts[folder] = read(folder)"),
]
TRAINER = """
class Trainer:
    def __init__(self, model, data, optimizer):
        self.rank = int(os.environ["LOCAL_RANK"])
        self.model = DDP(model.to(self.rank), device_ids=[self.rank])
        self.data, self.optimizer = data, optimizer
    def run_batch(self, x, y):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
    def run_epoch(self, epoch):
        {before}
        for x, y in self.data:
            self.run_batch(x, y)
    def train(self, epochs):
        for epoch in range(epochs):
            self.run_epoch(epoch)

def prepare():
    texts = datasets.MNIST("x")
    {loader}
    return loader

def main():
    dist.init_process_group()
    Trainer(nn.Linear(2, 2), prepare(), None).train(3)
main()
"""
SHUFFLED = "loader = DataLoader({}, batch_size=8, shuffle=True)  # HERE"
SAMPLED = "sampler = DistributedSampler({0})  # HERE\n{1}loader = DataLoader({0}, 8, sampler=sampler)"


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        SCRIPT.format(loader=SHUFFLED.format("dataset"), before="pass"),
        SCRIPT.format(loader="loader = DataLoader(dataset, 16)  # HERE", before="pass"),
        SCRIPT.format(loader="loader = DataLoader(dataset, sampler=RandomSampler(dataset))  # HERE", before="pass"),
        *(
            SCRIPT.format(loader=f"batches = {BATCHES.format(each)}\n{BATCHED}  # HERE", before="pass")
            for each in ("RandomSampler(dataset)", "torch.utils.data.SequentialSampler(dataset)")
        ),
        SCRIPT.format(
            loader="chosen = RandomSampler(dataset) if args.many else torch.utils.data.SequentialSampler(dataset)\n"
            f"batches = {BATCHES.format('chosen')}\n{BATCHED}  # HERE",
            before="pass",
        ),
        FUNCTIONS.format(loader=SHUFFLED.format("train_set"), before="pass"),
        # whatever the test asks: the runs that wrap the model have several ranks
        FUNCTIONS.format(loader=SHUFFLED.format("train_set"), before="pass").replace("args.distributed", "args.other"),
        FUNCTIONS.format(
            loader="sampler = None\n    loader = DataLoader(train_set, sampler=sampler)  # HERE", before="pass"
        ),
        TRAINER.format(loader=SHUFFLED.format("texts"), before="pass"),
    ],
)  # fmt: skip
def test_data_is_not_shared_out(source: str) -> None:
    assert rules_in_head(source) == [("loader-unsharded", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        SCRIPT.format(loader="loader = DataLoader(dataset, shuffle=True, **settings)", before="pass"),
        SCRIPT.format(loader="loader = DataLoader(dataset, batch_sampler=Mine(dataset))", before="pass"),
        *(
            SCRIPT.format(loader=f"{chosen}\nbatches = {BATCHES.format('chosen')}\n{BATCHED}", before="chosen.set_epoch(epoch)")
            for chosen in (
                "chosen = DistributedSampler(dataset)",
                "chosen = DistributedSampler(dataset) if args.distributed else RandomSampler(dataset)",
                "chosen = Mine(dataset)",
            )
        ),
        SCRIPT.format(loader="loader = accelerator.prepare(DataLoader(dataset))", before="pass"),
        SCRIPT.format(
            loader="part = Subset(dataset, range(rank, 100, n))\nloader = DataLoader(part)", before="pass"
        ),
        SCRIPT.format(loader="loader = DataLoader(TensorDataset(torch.randn(8, 2)))", before="pass"),
        SCRIPT.format(loader="loader = DataLoader(stream())", before="pass"),
        FUNCTIONS.format(loader=SHUFFLED.format("train_set"), before="pass").replace(
            "os.listdir(path)", "os.listdir(path)[rank::4]"
        ),
        FUNCTIONS.format(loader=SHUFFLED.format("train_set"), before="pass").replace(
            "optimizer.zero_grad()", "x, y = x[args.rank::2], y[args.rank::2]"
        ),
        FUNCTIONS.format(loader=SAMPLED.format("train_set", "    "), before="sampler.set_epoch(epoch)"),
        TRAINER.format(loader=SHUFFLED.format("texts"), before="pass").replace("DDP(", "print("),
    ],
)  # fmt: skip
def test_data_is_shared_out_or_it_cannot_be_told(source: str) -> None:
    assert rules_in_head(source) == []


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        SCRIPT.format(loader=SAMPLED.format("dataset", ""), before="pass"),
        SCRIPT.format(loader=SAMPLED.format("dataset", "") + "\nsampler.set_epoch(0)", before="pass"),
        SCRIPT.format(
            loader=SAMPLED.format("dataset", "") + "\nother = DistributedSampler(dataset, shuffle=False)",
            before="other.set_epoch(epoch)",
        ),
        FUNCTIONS.format(loader=SAMPLED.format("train_set", "    "), before="pass"),
        TRAINER.format(loader=SAMPLED.format("texts", "    "), before="pass"),
    ],
)
def test_epoch_is_not_set(source: str) -> None:
    seen = [each for each in rules_in_head(source) if each != ("epoch-forgotten", marked(source))]
    assert seen == [("epoch-unset", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        SCRIPT.format(loader=SAMPLED.format("dataset", ""), before="sampler.set_epoch(epoch)"),
        SCRIPT.format(loader=SAMPLED.format("dataset", ""), before="loader.sampler.set_epoch(epoch)"),
        SCRIPT.format(loader=SAMPLED.format("dataset", ""), before="things[0].set_epoch(epoch)"),
        SCRIPT.format(
            loader=SAMPLED.format("dataset", "").replace("(dataset)", "(dataset, shuffle=False)"),
            before="pass",
        ),
        SCRIPT.format(loader=SAMPLED.format("dataset", ""), before="pass").replace("range(10)", "range(1)"),
        FUNCTIONS.format(
            loader=SAMPLED.format("train_set", "    "),
            before="if args.distributed:\n            sampler.set_epoch(epoch)",
        ),
        TRAINER.format(loader=SAMPLED.format("texts", "    "), before="self.data.sampler.set_epoch(epoch)"),
    ],
)
def test_epoch_is_set_or_it_cannot_be_told(source: str) -> None:
    assert rules_in_head(source) == []


HELPER = """
def make(dataset):
    sampler = DistributedSampler(dataset){mark}
    return DataLoader(dataset, 4, sampler=sampler), sampler
dist.init_process_group("gloo")
train, sampler = make(datasets.MNIST("x"))
valid, other = make(datasets.MNIST("y"))
model = DDP(Net())
for epoch in range(3):
    {told}.set_epoch(epoch)
    for x, y in train:
        model(x).sum().backward()
"""


def test_samplers_of_one_helper_are_told_apart() -> None:
    wrong = HELPER.format(told="other", mark="  # HERE")
    assert rules_in_head(wrong) == [("epoch-unset", marked(wrong))]
    assert rules_in_head(HELPER.format(told="sampler", mark="")) == []
    assert rules_in_head(HELPER.format(told="train.sampler", mark="")) == []


@pytest.mark.parametrize(("given", "shared"), [("", False), (", use_ddp=True", True), (", **options", True)])
def test_loader_of_graphs_shares_out_what_it_is_told_to(given: str, shared: bool) -> None:
    source = SCRIPT.format(loader=SHUFFLED.format("dataset"), before="pass")
    source = f"import dgl.dataloading{source}".replace("DataLoader(", "dgl.dataloading.GraphDataLoader(")
    source = source.replace("shuffle=True)", f"shuffle=True{given})")
    assert rules_in_head(source) == ([] if shared else [("loader-unsharded", marked(source))])


def test_sampler_of_batches_is_followed() -> None:
    loader = "sampler = DistributedSampler(dataset)  # HERE\nbatches = torch.utils.data.BatchSampler(sampler, 4, False)\n"
    source = SCRIPT.format(loader=f"{loader}loader = DataLoader(dataset, batch_sampler=batches)", before="{}")
    line = marked(source)
    assert rules_in_head(source.format("pass")) == [("epoch-forgotten", line), ("epoch-unset", line)]
    assert rules_in_head(source.format("sampler.set_epoch(epoch)")) == []


OWN = """
class Own(torch.utils.data.Sampler):
    def __init__(self, n):
        self.n, self.epoch, self.seed = n, 0, 1
    def __iter__(self):
        g = torch.Generator()
        g.manual_seed({seed})
        return iter(torch.randperm(self.n, generator=g).tolist())
    def set_epoch(self, epoch):{mark}
        {body}
"""


@pytest.mark.wrong
def test_sampler_ignores_its_epoch() -> None:
    ignoring = OWN.format(seed="self.seed", body="self.epoch = epoch", mark="  # HERE")
    empty = OWN.format(seed="0", body="pass", mark="  # HERE")
    inherits = """
class Own(DistributedSampler):
    def __iter__(self):  # HERE
        order = list(range(len(self.dataset)))
        random.Random(self.seed).shuffle(order)
        return iter(order[self.rank :: self.num_replicas])
"""
    for source in (ignoring, empty, inherits):
        assert rules_in_head(source) == [("epoch-ignored", marked(source))]


@pytest.mark.right
def test_sampler_uses_its_epoch() -> None:
    uses = OWN.format(seed="self.seed + self.epoch", body="self.epoch = epoch", mark="")
    passes_on = OWN.format(seed="self.seed", body="self.other.set_epoch(epoch)", mark="")
    keeps_order = OWN.format(seed="1", body="pass", mark="").replace("randperm", "arange")
    draws = OWN.format(seed="1", body="pass", mark="").replace("g.manual_seed(1)", "pass")
    for source in (uses, passes_on, keeps_order, draws):
        assert rules_in_head(source) == []


def test_who_may_shuffle_the_samples_is_not_told_their_order() -> None:
    source = SCRIPT.format(loader="loader = DataLoader(dataset, 16)  # HERE", before="pass")
    (fact,) = [each for each in facts_in(HEAD + source) if each.rule == "loader-unsharded"]
    assert fact.details == {"order": "in order"}
    several = facts_in(HEAD + "frame = frame.sample(frac=1.0)\n" + source)
    (fact,) = [each for each in several if each.rule == "loader-unsharded"]
    assert fact.details == {"order": "any order"}


BRANCHES = """if args.{option}:
        sampler = DistributedSampler(train_set)
    else:
        sampler = torch.utils.data.RandomSampler(train_set)
    loader = DataLoader(train_set, 8, sampler=sampler)  # HERE"""


INLINE = """sampler = DistributedSampler(train_set) if args.{option} else torch.utils.data.RandomSampler(train_set)
    loader = DataLoader(train_set, 8, sampler=sampler)  # HERE"""


@pytest.mark.parametrize("branches", [BRANCHES, INLINE])
@pytest.mark.parametrize(
    ("option", "rule"),
    [("repeated", "loader-unsharded"), ("debug", "loader-doubted"), ("hvd", "loader-doubted")],
)
def test_sampler_without_ranks_on_one_side_of_an_option(branches: str, option: str, rule: str) -> None:
    """The model is wrapped whichever side a run takes; some options may mean one rank."""
    source = FUNCTIONS.format(loader=branches.format(option=option), before="sampler.set_epoch(epoch)")
    (fact,) = [each for each in facts_in(HEAD + source) if each.rule.startswith("loader-")]
    assert (fact.rule, fact.details["option"]) == (rule, f"args.{option}")


@pytest.mark.right
@pytest.mark.parametrize(
    "option", ["distributed", "world_size > 1", "n_gpus > 1", "multiprocessing", "rank is not None"]
)
def test_sampler_without_ranks_for_one_rank_alone(option: str) -> None:
    source = FUNCTIONS.format(loader=BRANCHES.format(option=option), before="sampler.set_epoch(epoch)")
    assert [each for each in facts_in(HEAD + source) if each.rule.startswith("loader-")] == []


NESTED = """if args.distributed:
        if args.repeated:
            sampler = RepeatedSampler(train_set, num_replicas=args.world, rank=args.rank)
        else:
            sampler = {inner}
    else:
        {outer}
    loader = DataLoader(train_set, 8, sampler=sampler)  # HERE"""
PLAIN = "sampler = torch.utils.data.RandomSampler(train_set)"
WEIGHTED = """if args.weighted:
            sampler = torch.utils.data.WeightedRandomSampler(args.weights, 10)
        else:
            sampler = torch.utils.data.RandomSampler(train_set)"""


@pytest.mark.wrong
@pytest.mark.parametrize("outer", [PLAIN, WEIGHTED])
def test_sampler_without_ranks_inside_of_the_side_for_several_ranks(outer: str) -> None:
    """The innermost test between it and a sampler that knows ranks is not about ranks."""
    nested = NESTED.format(inner="torch.utils.data.RandomSampler(train_set)", outer=outer)
    source = FUNCTIONS.format(loader=nested, before="pass").replace(
        "if args.distributed:\n        if", "if True:\n        if"
    )
    (fact,) = [each for each in facts_in(HEAD + source) if each.rule.startswith("loader-")]
    assert (fact.rule, fact.details["option"]) == ("loader-unsharded", "args.repeated")


@pytest.mark.right
@pytest.mark.parametrize("outer", [PLAIN, WEIGHTED])
def test_samplers_without_ranks_on_the_side_for_one_rank(outer: str) -> None:
    nested = NESTED.format(inner="DistributedSampler(train_set)", outer=outer)
    source = FUNCTIONS.format(loader=nested, before="pass")
    assert [each for each in facts_in(HEAD + source) if each.rule.startswith("loader-")] == []


TENSORS = """
def main(args):
    dist.init_process_group("nccl")
    {seed}
    x = torch.randn(80, 4{generator})
    data = TensorDataset(x, x.sum(1))
    loader = DataLoader(data, 8, {order})  # HERE
    model = DDP(nn.Linear(4, 1).cuda(args.gpu))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in loader:
        F.mse_loss(model(x), y).backward()
        optimizer.step()
"""
SEEDED = ", generator=torch.Generator().manual_seed(3)"


@pytest.mark.wrong
@pytest.mark.parametrize("order", ["shuffle=True", "sampler=RandomSampler(data)"])
@pytest.mark.parametrize(
    ("seed", "generator"),
    [
        ("torch.manual_seed(args.seed)", ""),
        ("seed_everything(7)", ""),
        ("pass", SEEDED),
        ("torch.manual_seed(args.rank)", SEEDED),
    ],
)
def test_tensors_that_all_ranks_draw_from_one_seed_are_not_sharded(
    order: str, seed: str, generator: str
) -> None:
    source = TENSORS.format(seed=seed, generator=generator, order=order)
    assert rules_in_head(source) == [("loader-unsharded", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    ("seed", "generator", "order"),
    [
        ("pass", "", "shuffle=True"),
        ("torch.manual_seed(dist.get_rank())", "", "shuffle=True"),
        ("pass", ", generator=torch.Generator().manual_seed(args.rank)", "shuffle=True"),
        ("pass", SEEDED, "sampler=RandomSampler(data, replacement=True, num_samples=40)"),
        ("pass", SEEDED, "sampler=DistributedSampler(data, shuffle=False)"),
    ],
)
def test_tensors_of_each_rank_or_samples_that_each_draws(seed: str, generator: str, order: str) -> None:
    source = TENSORS.format(seed=seed, generator=generator, order=order)
    assert "loader-unsharded" not in [rule for rule, _ in rules_in_head(source)]


AMONG_ALL = """
def shuffle(x):
    every = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(every, x)
    return torch.cat(every).chunk(dist.get_world_size())[dist.get_rank()]
"""


@pytest.mark.wrong
def test_own_part_of_what_was_gathered_from_all_ranks_is_no_share_of_a_batch() -> None:
    loop = FUNCTIONS.format(loader=SHUFFLED.format("train_set"), before="pass")
    source = AMONG_ALL + loop.replace("optimizer.zero_grad()", "x = shuffle(x)")
    assert ("loader-unsharded", marked(source)) in rules_in_head(source)
    parts = AMONG_ALL.replace("    dist.all_gather(every, x)\n", "").replace("torch.cat(every)", "x")
    alone = parts + loop.replace("optimizer.zero_grad()", "x = shuffle(x)")
    assert "loader-unsharded" not in [rule for rule, _ in rules_in_head(alone)]


@pytest.mark.parametrize(
    ("sample", "rule"), [("self.names[i]", "loader-unsharded"), ("self.names[0]", "loader-doubted")]
)
def test_samples_that_are_changed_at_random_are_those_of_their_indices(sample: str, rule: str) -> None:
    """Ranks that draw by seeds of their own see the same samples, unless what is drawn takes the place of the index."""
    source = FUNCTIONS.format(loader=SHUFFLED.format("train_set"), before="pass")
    source = source.replace("return self.names[i]", f"return {sample} + torch.randn(2)")
    source = source.replace(
        "dist.init_process_group", "torch.manual_seed(args.rank)\n    dist.init_process_group"
    )
    (fact,) = [each for each in facts_in(HEAD + source) if each.rule.startswith("loader-")]
    assert fact.rule == rule


def test_data_that_are_not_followed_to_their_making_are_asked_about() -> None:
    source = FUNCTIONS.replace("train_set = Photos(args.path)", "train_set = registry.build(args)")
    plain = source.format(loader="loader = DataLoader(train_set, 8, shuffle=True)", before="pass")
    (fact,) = [each for each in facts_in(HEAD + plain) if each.rule.startswith("loader-")]
    assert (fact.rule, fact.details["why"]) == ("loader-doubted", "unknown")
    sharded = source.replace("build(args)", "build(args, shard=args.rank)")
    sharded = sharded.format(loader="loader = DataLoader(train_set, 8, shuffle=True)", before="pass")
    assert [each for each in facts_in(HEAD + sharded) if each.rule.startswith("loader-")] == []


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        ("DataLoader(train_set, 8, shuffle=True)", ("loader-unsharded", None)),
        ("DataLoader(train_set, 8, sampler=RandomSampler(train_set))", ("loader-unsharded", None)),
        ("DataLoader(train_set, 8, shuffle=True, generator=own)", ("loader-doubted", "apart")),
    ],
)
def test_order_that_each_rank_draws_for_itself_shards_nothing(
    loader: str, expected: tuple[str, str | None]
) -> None:
    """An epoch is then N epochs; only who gives the loader a generator of its own may mean that."""
    source = FUNCTIONS.replace(
        "train_set = P", "torch.manual_seed(args.seed + dist.get_rank())\n    train_set = P"
    )
    source = source.format(loader=f"loader = {loader}", before="pass")
    (fact,) = [each for each in facts_in(HEAD + source) if each.rule.startswith("loader-")]
    assert (fact.rule, fact.details.get("why")) == expected
    assert fact.details["order"] == "shuffled"


@pytest.mark.wrong
@pytest.mark.parametrize(("empty", "add"), ADDED)
def test_data_that_are_collected_by_a_helper(empty: str, add: str) -> None:
    source = COLLECTED.format(names="names", empty=empty, add=add, mark="  # HERE")
    assert rules_in_head(source) == [("loader-unsharded", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(("empty", "add"), ADDED)
def test_parts_that_each_rank_reads_for_itself_are_collected(empty: str, add: str) -> None:
    source = COLLECTED.format(
        names="names[dist.get_rank()::dist.get_world_size()]", empty=empty, add=add, mark=""
    )
    assert "loader-unsharded" not in {rule for rule, _ in rules_in_head(source)}
