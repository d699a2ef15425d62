"""Mistakes behind functions, classes and objects of the program. The line of the mistake ends in ``# HERE``."""

from __future__ import annotations

import pytest

from tests.lint.judging import lint
from tests.lint.reading import marked, rules_in_head

RING = """
def worker(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model = DDP(Net())
    keys = nn.Linear(2, 2)
    for x in batches:
        q = model(x)
        for a, b in zip(keys.parameters(), model.module.parameters()):
            a.data.lerp_(b, 0.1)
        k = keys(x).detach()
        got = torch.empty_like(k)
        {first}  # HERE
        {second}
        (q @ got.t()).sum().backward()
    dist.destroy_process_group()
if __name__ == "__main__":
    torch.multiprocessing.spawn(worker, (2,), nprocs=2)
"""
SEND, RECEIVE = "dist.send(k, (rank + 1) % world)", "dist.recv(got, (rank - 1) % world)"


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("first", "second", "rule"), [(SEND, RECEIVE, "all-send"), (RECEIVE, SEND, "all-receive")]
)
def test_all_ranks_of_a_spawned_program_begin_on_one_side(first: str, second: str, rule: str) -> None:
    source = RING.format(first=first, second=second)
    assert rules_in_head(source) == [(rule, marked(source))]


@pytest.mark.right
def test_ranks_that_begin_on_different_sides() -> None:
    first = f"{SEND} if rank % 2 else {RECEIVE}"
    second = f"{RECEIVE} if rank % 2 else {SEND}"
    assert rules_in_head(RING.format(first=first, second=second)) == []


TEACHER = """
class Average:
    def __init__(self, net):
        self.shadow = copy.deepcopy(net)  # HERE
    def __call__(self, x):
        with torch.no_grad():
            return self.shadow(x)
def build():
    net = Net()
    {made}
    return model, teacher, torch.optim.SGD(model.parameters(), 0.1)
dist.init_process_group("gloo")
torch.manual_seed({seed})
model, teacher, optimizer = build()
for x in batches:
    F.mse_loss(model(x), teacher(x)).backward()
    optimizer.step()
dist.destroy_process_group()
"""
EARLY = "teacher = Average(net)\n    model = DDP(net)"


@pytest.mark.wrong
def test_an_object_that_a_function_gives_in_a_tuple_is_followed() -> None:
    source = TEACHER.format(made=EARLY, seed="3 + dist.get_rank()")
    assert rules_in_head(source) == [("copied-before-wrap", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    ("made", "seed"),
    [
        (EARLY, "3"),
        ("model = DDP(net)\n    teacher = Average(model.module)", "3 + dist.get_rank()"),
    ],
)
def test_a_copy_of_what_is_equal_on_all_ranks(made: str, seed: str) -> None:
    assert rules_in_head(TEACHER.format(made=made, seed=seed)) == []


DEVICE = """
class Env:
    def __init__(self):
        self.local_rank = {value}
    def start(self):
        torch.cuda.set_device(self.local_rank)  # HERE
        dist.init_process_group("nccl")
def my_rank():
    return {value} if dist.is_initialized() else 0
env = Env()
env.start()
dist.destroy_process_group()
"""


@pytest.mark.wrong
@pytest.mark.parametrize("value", ['int(os.environ["RANK"])', 'int(os.environ.get("RANK", 0))'])
def test_the_rank_that_an_object_keeps_as_a_device(value: str) -> None:
    source = DEVICE.format(value=value)
    assert rules_in_head(source) == [("device-by-rank", marked(source))]


@pytest.mark.wrong
def test_the_rank_that_a_function_gives_as_a_device() -> None:
    source = DEVICE.replace("self.local_rank = {value}", "self.local_rank = my_rank()")
    source = source.format(value='int(os.environ["RANK"])').replace(" if dist.is_initialized() else 0", "")
    assert rules_in_head(source) == [("device-by-rank", marked(source))]


@pytest.mark.right
def test_a_job_whose_ranks_are_those_of_one_node_has_one() -> None:
    source = DEVICE.format(value='int(os.environ["RANK"])')
    assert rules_in_head(source.replace('group("nccl")', 'group("nccl", rank=local_rank)')) == []


@pytest.mark.right
@pytest.mark.parametrize("value", ['int(os.environ["LOCAL_RANK"])', 'int(os.environ["RANK"]) % 8'])
def test_the_rank_in_the_node_is_a_device(value: str) -> None:
    assert rules_in_head(DEVICE.format(value=value)) == []


LEADERS = """
class Nodes:
    def __init__(self, size):
        rank, world = dist.get_rank(), dist.get_world_size()
        self.leader = {leader}
        self.is_leader = rank == self.leader
        self.group = None
        {made}
dist.init_process_group("gloo")
nodes = Nodes(8)
dist.destroy_process_group()
"""
BELOW = "if self.is_leader:\n            self.group = dist.new_group(list(range(0, world, size)))"


@pytest.mark.wrong
@pytest.mark.parametrize("leader", ["rank // size * size", "size * (rank // size)"])
def test_the_first_rank_of_each_block_makes_a_group_alone(leader: str) -> None:
    (found,) = lint(LEADERS.format(leader=leader, made=BELOW))
    assert found.code == "COL006"


@pytest.mark.right
def test_all_ranks_make_the_group_of_the_first_ones() -> None:
    made = "self.group = dist.new_group(list(range(0, world, size)))"
    assert rules_in_head(LEADERS.format(leader="rank // size * size", made=made)) == []


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
