"""Rules of models that are wrapped. The line of the mistake ends in ``# HERE``."""

from __future__ import annotations

import pytest

from tests.lint.reading import marked, rules_in_head

PLAIN = """
dist.init_process_group("gloo")
net = Net()
{before}
model = DDP(net)
{between}
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in batches:
    {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LEARNER = """
class Learner:
    def __init__(self, net):
        self.net = net
        self.ddp = DDP(net)
    def loss(self, x, y):
        {loss}
        return loss.mean()
    def unfreeze(self):
        {between}
    def fit(self, batches):
        for x, y in batches:
            loss = self.loss(x, y)
            loss.backward()
Learner(Net()).fit(batches)
"""
OWN = """
class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)
    def forward(self, x):
        return self.head(x)
    def loss(self, x, y):
        return F.mse_loss(self(x), y)
    def resize(self, n):
        self.head = nn.Linear(2, n)

def step(model, optimizer, x, y):
    {loss}
    scaler.scale(loss).backward()
    scaler.step(optimizer)

def main(rank):
    torch.distributed.init_process_group("nccl", rank=rank, world_size=2)
    {before}
    model = torch.nn.parallel.DistributedDataParallel(Own().cuda(rank), device_ids=[rank])
    {between}
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(3):
        model.train()
        for x, y in batches:
            step(model, optimizer, x, y)
"""

LISTED = """
class Pair:
    def __init__(self):
        self.nets = [DDP(net, device_ids=[0]) for net in (Net(), Critic())]
        self.inner = [each.module for each in self.nets]
    def step(self, x):
        critic = self.nets[-1]
        with torch.no_grad():
            fake = self.inner[0](x)
        {loss}
        loss.backward()
        self.optimizers[1].step()
        {between}
{before}
pair = Pair()
for x in batches:
    pair.step(x)
"""
STAGED = """
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 2)
    def freeze(self):
        self.body.requires_grad_(False)
    def forward(self, x):
        return self.head(self.body(x))
class Stages:
    def __init__(self, net, at):
        self.net, self.at = net, at
    def begin(self, epoch):
        if epoch == self.at:
            self.net.body.requires_grad_(True)
dist.init_process_group("gloo")
net = Deep()
{before}
model = DDP(net)
stages = Stages(net, at=3)
for epoch in range(9):
    {between}
    for x in batches:
        loss = model(x).sum()
        loss.backward()
"""
SUMMED = """
dist.init_process_group("gloo")
def step(model, x):
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    return loss.detach()
{before}
model = DDP(Net())
{between}
optimizer = torch.optim.SGD(model.parameters(), 0.1)
total = sum(step(model, x) for x in batches)
{loss}
"""


def make(
    frame: str, loss: str = "loss = F.mse_loss({}(x), y)", between: str = "pass", before: str = "pass"
) -> str:
    """Fill one of the frames in; the model is called as it should be if nothing else is said."""
    name = "self.ddp" if frame is LEARNER else "model"
    return frame.format(loss=loss.replace("{}", name), between=between, before=before)


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        make(PLAIN, "loss = F.mse_loss(model.module(x), y)  # HERE"),
        make(PLAIN, "loss = F.mse_loss(net(x), y) * 2  # HERE"),
        make(PLAIN, "loss = core(x).sum()  # HERE", between="core = model.module"),
        make(PLAIN, "loss = bare(x).sum()  # HERE", between="bare = model.module if ddp else model"),
        make(LEARNER, "loss = F.l1_loss(self.net(x), y)  # HERE"),
        make(LEARNER, "out = self.ddp.module(x)  # HERE\n        loss = out - y"),
        make(OWN, "loss = model.module.loss(x, y)  # HERE"),
        make(
            OWN,
            "bare = model.module if hasattr(model, 'module') else model\n    loss = bare.loss(x, y)  # HERE",
        ),
        make(LISTED, "loss = self.inner[1](fake).mean()  # HERE"),
        make(LISTED, "loss = self.nets[1].module(fake).mean()  # HERE"),
        make(PLAIN, "loss = net(x).sum()  # HERE") + "total = measure(data)\ndist.all_reduce(total)\n",
    ],
)
def test_training_goes_around_the_wrapper(source: str) -> None:
    assert rules_in_head(source) == [("bypassed", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        make(PLAIN),
        make(LEARNER),
        make(OWN),
        make(PLAIN, "loss = F.mse_loss(model(x), y) + model.module.penalty()"),
        make(PLAIN, "loss = F.mse_loss(model(x), net(x).detach())"),
        make(PLAIN, "model.module(x)\n    loss = model(x).sum()"),
        make(PLAIN, "loss = compute(model, x) + model.module(x)"),
        make(
            PLAIN,
            "loss = model(x).sum()\n    bare(x)",
            between="bare = model.module if ddp else model",
        ),
        make(PLAIN, "losses.append(net(x))\n    loss = sum(losses)", between="losses = []"),
        make(PLAIN, "loss = net(x).sum()").replace(
            "    optimizer.step()", "    for p in net.parameters():\n        dist.all_reduce(p.grad)\n    optimizer.step()"
        ),
        make(PLAIN, "loss = net(x).sum()") + "for each in list(weighed):\n    dist.all_reduce(each.data)\n",
        make(LISTED, "loss = critic(fake).mean() - critic(x).mean()"),
        make(LISTED, "loss = self.nets[1](torch.cat([fake, x])).mean()"),
        make(LISTED, "loss = -self.inner[1](self.nets[0](x)).mean()"),
        make(LISTED, "loss = self.inner[1](fake).mean()", between="self.inner[1] = self.nets[1]"),
        make(PLAIN, "loss = teacher(x).sum()", before="teacher = copy.deepcopy(net)"),
        make(PLAIN, "loss = net(x).sum()", before="for x in few:\n    net(x).sum().backward()").replace(
            "loss = net", "loss = model"
        ),
        make(OWN, "loss = model(x).sum()\n    with torch.no_grad():\n        print(model.module.loss(x, y))"),
    ],
)  # fmt: skip
def test_training_goes_through_the_wrapper_or_it_cannot_be_told(source: str) -> None:
    assert rules_in_head(source) == []


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        make(PLAIN, between="model.module.fc = nn.Linear(2, 3)  # HERE"),
        make(PLAIN, between="net.fc = nn.Linear(2, 3)  # HERE"),
        make(PLAIN, between="net.add_module('head', nn.Linear(2, 3))  # HERE"),
        make(PLAIN, between="model.module.fc.weight = nn.Parameter(torch.zeros(2, 2))  # HERE"),
        make(
            PLAIN,
            before="for p in net.fc.parameters():\n    p.requires_grad = False",
            between="for p in model.module.parameters():\n    p.requires_grad = True  # HERE",
        ),
        make(PLAIN, before="net.requires_grad_(False)", between="net.fc.requires_grad_(True)  # HERE"),
        make(PLAIN, between="model.half()  # HERE"),
        make(STAGED, before="net.freeze()", between="stages.begin(epoch)").replace(
            "(True)", "(True)  # HERE"
        ),
        make(SUMMED, "pass", between="model.module.fc = nn.Linear(2, 3)  # HERE"),
        make(LEARNER, between="self.ddp.module.fc = nn.Linear(2, 2)  # HERE"),
        make(OWN, between="model.module.resize(5)  # HERE"),
    ],
)
def test_parameters_are_changed_after_the_wrap(source: str) -> None:
    assert rules_in_head(source) == [("changed-after-wrap", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        make(STAGED, between="stages.begin(epoch)"),
        make(STAGED, before="net.freeze()", between="other.begin(epoch)"),
        make(STAGED, before="net.freeze()", between="Stages(net, at=5)"),
        make(PLAIN, before="net.fc = nn.Linear(2, 3)"),
        make(PLAIN, between="net.fc = nn.Linear(2, 3)\nmodel = DDP(net)"),
        make(PLAIN, between="model.module.steps = 5"),
        make(PLAIN, between="model.require_backward_grad_sync = True"),
        make(PLAIN, between="for p in net.parameters():\n    p.requires_grad = True"),
        make(
            PLAIN,
            before="net.other.requires_grad_(False)",
            between="net.fc.requires_grad_(False)\nnet.fc.requires_grad_(True)",
        ),
        make(PLAIN, between="best = copy.deepcopy(net)\nbest.fc = nn.Linear(2, 2)"),
        make(PLAIN) + "model.module.fc = nn.Linear(2, 2)\n",
        make(PLAIN, between="optimizer = torch.optim.SGD(net.parameters(), 1)"),
        make(OWN, before="net = Own()\n    net.resize(5)"),
        make(
            PLAIN,
            before="DDP._set_params_and_buffers_to_ignore_for_model(net, ['fc.weight'])",
            between="net.fc = nn.Linear(2, 2)",
        ),
    ],
)
def test_parameters_are_changed_in_time(source: str) -> None:
    assert rules_in_head(source) == []
