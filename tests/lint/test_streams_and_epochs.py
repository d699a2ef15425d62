"""Streams that are shared out to workers alone (DAT001), samplers whose set_epoch goes elsewhere (DAT002)."""

from __future__ import annotations

import pytest

from tests.lint.judging import find_marked, judge, lines_of, lint, read

HEAD = """\
import random
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, Sampler, get_worker_info
"""
STREAM = """\
def lines(path):
    yield from open(path)
class Stream(IterableDataset):
    def __init__(self, path{parameters}):
        self.path = path
        {kept}
    def __iter__(self):
        info = {info}
        {share}
        for i, line in enumerate(lines(self.path)):
            if i % count == mine:
                yield torch.ones(4) * len(line)
def load(path):
    return DataLoader(Stream(path{given}), batch_size=8, num_workers=2)
def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in load("x.txt"):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
main()
"""
WORKER = "mine, count = (0, 1) if info is None else (info.id, info.num_workers)"
INFOS = ["get_worker_info()", "torch.utils.data.get_worker_info()"]


def make(
    info: str = "get_worker_info()",
    share: str = WORKER,
    parameters: str = "",
    kept: str = "pass",
    given: str = "",
) -> str:
    """Fill the stream in."""
    return STREAM.format(info=info, share=share, parameters=parameters, kept=kept, given=given)


@pytest.mark.wrong
@pytest.mark.parametrize("info", INFOS)
def test_stream_that_is_shared_out_to_workers_alone(info: str) -> None:
    text = make(info, share=f"{WORKER}  # here")
    findings = lint(text, head=HEAD)
    assert {(each.code, each.severity) for each in findings} == {("DAT001", "warning")}
    assert lines_of(findings, "DAT001") == find_marked(text, head=HEAD)


@pytest.mark.wrong
def test_stream_that_hands_its_worker_on_is_reported_where_it_asks() -> None:
    text = make("pick(get_worker_info())  # here", "mine, count = info")
    text = text.replace("class Stream", "def pick(info):\n    return info.id, info.num_workers\nclass Stream")
    assert lines_of(lint(text, head=HEAD), "DAT001") == find_marked(text, head=HEAD)


@pytest.mark.right
@pytest.mark.parametrize(
    "text",
    [
        make(
            share=f"{WORKER}\n        mine += dist.get_rank() * count\n        count *= dist.get_world_size()"
        ),
        make(parameters=", rank", kept="self.rank = rank", given=", dist.get_rank()"),
        make(given=" + str(dist.get_rank())"),
        make(share=f"{WORKER}\n        random.shuffle(self.names)"),
    ],
)
def test_stream_that_knows_ranks_or_draws(text: str) -> None:
    assert "DAT001" not in {each.code for each in lint(text, head=HEAD)}


WHOLE = make("None", "mine, count = 0, 1")
HERE = ("num_workers=2)", "num_workers=2)  # here")
LOOP = 'for x in load("x.txt"):'
FOREVER = """\
def forever(loader):
    while True:
        {body}
def main():
"""
FILES = "def list_shards(path):\n    return [f'{path}-{n_shards}' for n_shards in range(3)]\n"
READ = "from vendor.corpus import read_lines as lines\n"


def replace_in(text: str, *pairs: tuple[str, str]) -> str:
    """Replace texts that have to be there."""
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.wrong
@pytest.mark.parametrize(
    "pairs",
    [
        (),
        ((LOOP, 'for step, x in enumerate(load("x.txt")):'),),
        (
            ("def load(path):\n", FILES + "def load(path):\n"),
            ("Stream(path)", "Stream(list_shards(path)[0])"),
        ),
        (("yield torch.ones(4) * len(line)", "yield torch.ones(4) * random.Random(i).random()"),),
        ((LOOP, 'for step, x in zip(range(10), load("x.txt")):'),),
        ((LOOP, 'batches = iter(load("x.txt"))\n    for step in range(10):\n        x = next(batches)'),),
        ((LOOP, 'batches = iter(load("x.txt"))\n    while True:\n        x = next(batches)'),),
        (
            ("def main():\n", FOREVER.format(body="yield from loader")),
            (LOOP, 'for x in forever(load("x.txt")):'),
        ),
        (
            ("def main():\n", FOREVER.format(body="for x in loader: yield x")),
            (LOOP, 'batches = forever(load("x.txt"))\n    for step in range(10):\n        x = next(batches)'),
        ),
    ],
)
def test_stream_that_is_not_shared_out(pairs: tuple[tuple[str, str], ...]) -> None:
    text = replace_in(WHOLE, HERE, *pairs)
    findings = lint(text, head=HEAD)
    assert {(each.code, each.severity) for each in findings} == {("DAT001", "warning")}
    assert lines_of(findings, "DAT001") == find_marked(text, head=HEAD)
    assert "not sharded" in findings[0].message


@pytest.mark.right
@pytest.mark.parametrize(
    "pairs",
    [
        (
            (
                LOOP,
                'for step, x in enumerate(load("x.txt")):\n        if step % dist.get_world_size(): continue',
            ),
        ),
        (
            (LOOP, 'batches = iter(load("x.txt"))\n    for x in torch.ones(10, 1, 4):'),
            (
                "optimizer.step()",
                "optimizer.step()\n        with torch.no_grad():\n            next(batches)",
            ),
        ),
        (
            ("def main():\n", FOREVER.format(body="for x in loader: yield x[shift:]")),
            (LOOP, 'for x in forever(load("x.txt")):'),
            ("x[shift:]", "next(other)"),
        ),
        (("yield torch.ones(4) * len(line)", "yield torch.randn(4)"),),
    ],
)
def test_stream_whose_share_is_taken_or_drawn(pairs: tuple[tuple[str, str], ...]) -> None:
    assert "DAT001" not in {each.code for each in lint(replace_in(WHOLE, *pairs), head=HEAD)}


@pytest.mark.parametrize(
    "pairs",
    [
        (("def lines(path):\n    yield from open(path)\n", READ),),
        (("class Stream(IterableDataset)", "import vendor\nclass Stream(IterableDataset, vendor.Base)"),),
        (("Stream(path)", 'Stream(os.environ["SOURCE"].format(path))'),),
        (("enumerate(lines(self.path))", "enumerate(queue.Queue().get())"),),
    ],
)
def test_stream_that_leads_to_what_was_not_read_is_asked_for(pairs: tuple[tuple[str, str], ...]) -> None:
    sources = read({"train.py": HEAD + "import os, queue\n" + replace_in(WHOLE, *pairs)})
    assert [each.code for each in judge(sources, questions=True)] == ["DAT001"]
    assert not judge(sources)


BUCKETS = """\
class Buckets(Sampler):
    def __init__(self, lengths, rank, world):
        self.lengths, self.rank, self.world, self.epoch = lengths, rank, world, 0
    def set_epoch(self, epoch):
        self.epoch = epoch
    def __len__(self):
        return len(self.lengths) // self.world
    def __iter__(self):
        order = list(range(len(self.lengths)))
        random.Random({seed}).shuffle(order)
        {counted}
        yield from ([each] for each in order[self.rank :: self.world])
def main(data):
    dist.init_process_group("gloo")
    buckets = Buckets(range(64), dist.get_rank(), dist.get_world_size()){made}
    loader = DataLoader(data, batch_sampler=buckets)
    model = DDP(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        {told}
        for x in loader:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    dist.destroy_process_group()
main(torch.randn(64, 4))
"""
CALLED = "loader.sampler.set_epoch(epoch)  # here"


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("told", "made"),
    [
        (f"if hasattr(loader.sampler, 'set_epoch'):\n            {CALLED}", ""),
        (CALLED, ""),
        ("pass", "  # here"),
    ],
)
def test_epoch_that_never_reaches_the_batch_sampler(told: str, made: str) -> None:
    text = BUCKETS.format(seed="self.epoch", counted="pass", told=told, made=made)
    findings = [each for each in lint(text, head=HEAD) if each.code == "DAT002"]
    assert lines_of(findings, "DAT002") == find_marked(text, head=HEAD)
    assert all("Buckets" in each.message for each in findings)


@pytest.mark.right
@pytest.mark.parametrize(
    ("seed", "counted", "told"),
    [
        ("self.epoch", "pass", "buckets.set_epoch(epoch)"),
        ("self.epoch", "pass", "loader.batch_sampler.set_epoch(epoch)"),
        ("self.epoch", "self.epoch += 1", "pass"),
        ("self.epoch", "pass", "getattr(loader.batch_sampler, 'set_epoch')(epoch)"),
    ],
)
def test_epoch_that_reaches_it_or_is_counted_by_itself(seed: str, counted: str, told: str) -> None:
    text = BUCKETS.format(seed=seed, counted=counted, told=told, made="")
    assert "DAT002" not in {each.code for each in lint(text, head=HEAD)}


HELPERS = """\
from torch.utils.data.distributed import DistributedSampler
def make_samplers(sets, shuffles):
    samplers = []
    for data, shuffle in zip(sets, shuffles):
        sampler = DistributedSampler(data, shuffle={shuffle})  # here
        samplers.append(sampler)
    return samplers
def make_loaders(sets, samplers):
    return [DataLoader(data, batch_size=4, sampler=sampler) for data, sampler in zip(sets, samplers)]
def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sets = [torch.randn(64, 4), torch.randn(32, 4)]
    loaders = make_loaders(sets, make_samplers(sets, [True, False]))
    for epoch in range(4):
        {told}
        for x in loaders[0]:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
main()
"""


@pytest.mark.wrong
@pytest.mark.parametrize("shuffle", ["shuffle", "True", "shuffle and len(data) > 1"])
def test_samplers_that_a_helper_makes_and_nothing_tells_the_epoch(shuffle: str) -> None:
    text = HELPERS.format(shuffle=shuffle, told="pass")
    findings = [each for each in lint(text, head=HEAD) if each.code == "DAT002"]
    assert lines_of(findings, "DAT002") == find_marked(text, head=HEAD)


@pytest.mark.right
@pytest.mark.parametrize(
    ("shuffle", "told"), [("False", "pass"), ("shuffle", "loaders[0].sampler.set_epoch(epoch)")]
)
def test_samplers_that_a_helper_makes_without_shuffling_or_that_get_the_epoch(
    shuffle: str, told: str
) -> None:
    text = HELPERS.format(shuffle=shuffle, told=told)
    assert "DAT002" not in {each.code for each in lint(text, head=HEAD)}


WRAPPED = """\
from torch.utils.data.distributed import DistributedSampler
from project.loaders import Endless
def make_loader(data, training):
    sampler = DistributedSampler(data, shuffle=training)  # here
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    {wrapped}
    return loader
def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = make_loader(torch.randn(64, 4), True)
    for epoch in range(4):
        for x in loader:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
main()
"""


@pytest.mark.wrong
@pytest.mark.parametrize("wrapped", ["pass", "size = len(loader)"])
def test_loader_of_a_helper_that_nothing_tells_the_epoch(wrapped: str) -> None:
    text = WRAPPED.format(wrapped=wrapped)
    findings = [each for each in lint(text, head=HEAD) if each.code == "DAT002"]
    assert lines_of(findings, "DAT002") == find_marked(text, head=HEAD)


@pytest.mark.right
def test_loader_that_what_was_not_read_may_tell_the_epoch() -> None:
    text = WRAPPED.format(wrapped="loader = Endless(loader)")
    assert "DAT002" not in {each.code for each in lint(text, head=HEAD)}


SIZED = "class Sized(DataLoader):\n    pass\n"


def choose(kind: str) -> str:
    """Return a helper that gives the sampler to the loader of a class."""
    made = f"{kind}\n    loader = kind(data, batch_size=4, sampler=sampler)"
    return SIZED + WRAPPED.replace("loader = DataLoader(data, batch_size=4, sampler=sampler)", made).format(
        wrapped="pass"
    )


@pytest.mark.wrong
@pytest.mark.parametrize(
    "kind", ["kind = DataLoader if training else Sized", "kind = DataLoader", "kind = Sized"]
)
def test_loader_of_a_class_that_is_chosen_before(kind: str) -> None:
    findings = [each for each in lint(choose(kind), head=HEAD) if each.code == "DAT002"]
    assert lines_of(findings, "DAT002") == find_marked(choose(kind), head=HEAD)


@pytest.mark.right
def test_loader_of_a_class_that_was_not_read_may_set_the_epoch() -> None:
    for kind in ("kind = Endless", "kind = DataLoader if training else Endless", "kind = training.kind"):
        assert "DAT002" not in {each.code for each in lint(choose(kind), head=HEAD)}


TRAINER = """\
class Trainer:
    def __init__(self):
        self.model = DDP(torch.nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader = self.make_loader()
    def make_loader(self):
        data = TensorDataset(torch.load("x.pt"))
        self.sampler = DistributedSampler(data)  # here
        return DataLoader(data, batch_size=8, sampler=self.sampler)
    def fit(self):
        for epoch in range(3):
            {told}
            for (x,) in self.loader:
                self.optimizer.zero_grad()
                self.model(x).sum().backward()
                self.optimizer.step()
dist.init_process_group("gloo")
Trainer().fit()
dist.destroy_process_group()
"""
SAMPLED = HEAD + "from torch.utils.data import DistributedSampler, TensorDataset\n"


@pytest.mark.right
@pytest.mark.parametrize("told", ["self.sampler.set_epoch(epoch)", "self.loader.sampler.set_epoch(epoch)"])
def test_sampler_that_a_method_keeps_and_gives_to_a_loader_it_returns(told: str) -> None:
    assert lint(TRAINER.format(told=told), head=SAMPLED) == []


@pytest.mark.wrong
def test_sampler_that_a_method_keeps_and_that_gets_no_epoch() -> None:
    text = TRAINER.format(told="pass")
    assert lines_of(lint(text, head=SAMPLED), "DAT002") == find_marked(text, head=SAMPLED)
