"""Rules of when gradients are reduced. The line of the mistake ends in ``# HERE``."""

from __future__ import annotations

import pytest

from tests.lint.reading import marked, rules_in_head

LOOP = """
dist.init_process_group("nccl")
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
N = 4
for i, (x, y) in enumerate(batches):
    {body}
    {step}
"""
EVERY = "if (i + 1) % N == 0:\n        optimizer.step()\n        optimizer.zero_grad()"
METHODS = """
class Engine:
    def __init__(self, args):
        self.args = args
        self.net = DDP(Net().cuda())
        self.opt = torch.optim.Adam(self.net.parameters())
        self.scaler = torch.cuda.amp.GradScaler()
    def compute(self, x, y):
        return F.mse_loss(self.net(x), y)
    def fit(self, batches):
        for i, (x, y) in enumerate(batches):
            {body}
            {step}
Engine(args).fit(batches)
"""
SCALED = "if i % self.args.every == 0:\n                self.scaler.step(self.opt)"


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        LOOP.format(
            body="loss = model(x).sum()\n    with model.no_sync():  # HERE\n        loss.backward()",
            step=EVERY,
        ),
        LOOP.format(
            body="out = model(x)\n    loss = F.mse_loss(out, y)\n"
            "    with nullcontext() if (i + 1) % N == 0 else model.no_sync():  # HERE\n        (loss / N).backward()",
            step=EVERY,
        ),
        LOOP.format(
            body="loss = model(x).sum()\n    quiet = model.no_sync if (i + 1) % N else nullcontext\n"
            "    with quiet():  # HERE\n        loss.backward()",
            step=EVERY,
        ),
        METHODS.format(
            body="loss = self.compute(x, y)\n            with self.net.no_sync():  # HERE\n"
            "                self.scaler.scale(loss).backward()",
            step=SCALED,
        ),
    ],
)
def test_no_sync_is_around_the_backward_only(source: str) -> None:
    assert rules_in_head(source) == [("no-sync-without-forward", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        LOOP.format(
            body="with model.no_sync():\n        loss = model(x).sum()\n        loss.backward()", step=EVERY
        ),
        LOOP.format(
            body="with model.no_sync():\n        loss = model(x).sum()\n    with model.no_sync():\n        loss.backward()",
            step=EVERY,
        ),
        LOOP.format(
            body="loss = other(x).sum()\n    with model.no_sync():\n        loss.backward()", step=EVERY
        ),
        LOOP.format(
            body="loss = model(x).sum()\n    with model.no_sync():\n        train_step(model, x).backward()",
            step=EVERY,
        ),
        METHODS.format(
            body="with self.net.no_sync():\n                loss = self.compute(x, y)\n                loss.backward()",
            step=SCALED,
        ),
    ],
)
def test_no_sync_is_around_the_forward_too(source: str) -> None:
    assert rules_in_head(source) == []


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        LOOP.format(body="model(x).sum().backward()  # HERE", step=EVERY),
        METHODS.format(
            body="loss = self.compute(x, y)\n            self.scaler.scale(loss).backward()  # HERE",
            step=SCALED,
        ),
        LOOP.format(body="model(x).sum().backward()  # HERE", step=EVERY).replace(
            "N", "gradient_accumulation_steps"
        ),
        LOOP.format(
            body="for part in x.chunk(4):\n        model(part).sum().backward()  # HERE",
            step="optimizer.step()\n    optimizer.zero_grad()",
        ),
    ],
)
def test_each_micro_batch_is_reduced(source: str) -> None:
    assert rules_in_head(source) == [("accumulation-reduced", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        LOOP.format(body="model(x).sum().backward()", step="optimizer.step()"),
        LOOP.format(body="model(x).sum().backward()", step=EVERY).replace("N = 4", "N = 1"),
        LOOP.format(
            body="model(x).sum().backward()\n    optimizer.step()",
            step="if i % N == 0:\n        schedule.step()",
        ),
        LOOP.format(
            body="model(x).sum().backward()", step=EVERY + "\n        model.require_backward_grad_sync = True"
        ),
        LOOP.format(body="with engine.accumulate(model):\n        model(x).sum().backward()", step=EVERY),
        "engine = Engine(gradient_accumulation_steps=4)\n"
        + LOOP.format(body="model(x).sum().backward()", step=EVERY),
        LOOP.format(body="model(x).sum().backward()", step=EVERY).replace("DDP(", "("),
        LOOP.format(body="g(model(x)).backward()\n    model(y).sum().backward()", step=EVERY),
        LOOP.format(
            body="for part in x.chunk(4):\n        optimizer.zero_grad()\n        model(part).sum().backward()\n"
            "        optimizer.step()",
            step="pass",
        ),
    ],
)
def test_reductions_are_needed_or_it_cannot_be_told(source: str) -> None:
    # where nothing is wrapped, an import of the wrapper would be a finding of its own (DDP015)
    without = () if "DDP(" in source else ("as DDP",)
    assert rules_in_head(source, without=without) == []


ALONE = """
def main(rank):
    dist.init_process_group("nccl")
    data = TensorDataset(torch.randn(80, 2), torch.randn(80, 2))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 4, sampler=sampler)
    model = Net().to(rank)
    {wrap}
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for x, y in loader:
            F.mse_loss(model(x), y).backward()
            {before}
            optimizer.step()  # HERE
main(int(os.environ["LOCAL_RANK"]))
"""
HELPERS = """
class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.SGD(model.parameters(), 1)
    def batch(self, x, y):
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        {before}
        self.optimizer.step()  # HERE
    def epoch(self, number):
        self.loader.sampler.set_epoch(number)
        for x, y in self.loader:
            self.batch(x, y)
def main():
    torch.distributed.init_process_group()
    data = datasets.MNIST("x")
    model = models.resnet50()
    {wrap}
    trainer = Trainer(model, DataLoader(data, sampler=DistributedSampler(data)))
    for epoch in range(3):
        trainer.epoch(epoch)
main()
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        ALONE.format(wrap="pass", before="pass"),
        ALONE.format(wrap="DDP(model)", before="pass"),
        HELPERS.format(wrap="pass", before="pass"),
        HELPERS.format(wrap="pass", before="dist.all_reduce(loss)"),
        HELPERS.format(wrap="pass", before="dist.all_reduce(torch.tensor([1.0, float(loss)]))"),
        ALONE.format(wrap="ends = torch.distributed.algorithms.Join([model])", before="pass"),
        HELPERS.format(wrap="pass", before="log(self.optimizer.param_groups[0]['lr'])"),
        HELPERS.format(
            wrap="model = model.cuda()", before="torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1)"
        ),
    ],
)
def test_nothing_reduces_gradients(source: str) -> None:
    # a program that imports the wrapper, and is not seen to throw one away, is passed over
    unused = ("DDP",) if "DDP(" not in source else ()
    assert rules_in_head(source, without=unused) == [("unwrapped", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        ALONE.format(wrap="model = DDP(model)", before="pass"),
        ALONE.format(wrap="model = wrap(model)", before="pass"),
        ALONE.format(
            wrap="pass", before="for p in model.parameters():\n                dist.all_reduce(p.grad)"
        ),
        ALONE.format(wrap="pass", before="average(model)"),
        ALONE.format(wrap="hook(model)", before="pass"),
        ALONE.format(wrap="from torch.distributed.fsdp import fully_shard", before="pass"),
        ALONE.format(wrap="pass", before="pass")
        .replace("sampler=sampler", "shuffle=True")
        .replace("Sampler", "Other"),
        ALONE.format(wrap="pass", before="pass").replace('dist.init_process_group("nccl")', "pass"),
        HELPERS.format(wrap="if args.cuda:\n        model = DDP(model)", before="pass"),
        HELPERS.format(
            wrap="pass", before="for t in self.model.state_dict().values():\n            dist.all_reduce(t)"
        ),
        HELPERS.format(wrap="pass", before="dist.all_reduce(self.flat)"),
        HELPERS.format(wrap="pass", before="share(self.optimizer.param_groups[0])"),
    ],
)
def test_gradients_are_reduced_or_it_cannot_be_told(source: str) -> None:
    unused = ("DDP",) if "DDP(" not in source else ()
    assert "unwrapped" not in [rule for rule, _ in rules_in_head(source, without=unused)]
