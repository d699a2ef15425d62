"""Layers of a wrapped model that get no gradient. The line of the mistake ends in ``# HERE``."""

from __future__ import annotations

import pytest

from tests.lint.reading import marked, rules_in_head

MODEL = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        {block}
    def forward(self, x):
        return self.inner(x)
class Body({base}):
    def __init__(self, tasks):
        super().__init__()
        self.block = Block()
        {layer}
        nn.init.zeros_(self.block.inner.bias)
    def forward(self, x, task):
        {use}
dist.init_process_group("gloo")
model = DDP(Body(load_tasks()){options})
for x, task in batches:
    {train}
dist.destroy_process_group()
"""
TRAIN = "model(x, task).sum().backward()"
LAYERS = "self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])"
SKIPS = (
    "for layer in self.layers:\n            if {test}:\n                continue\n            x = layer(x)\n"
    "        return self.block(x)"
)
CALLS = (
    "for layer in self.layers:\n            keep = random.random()\n            if keep > 0.1:\n"
    "                x = x + layer(x)\n        return self.block(x)"
)
HEADS = "self.heads = nn.ModuleDict({t: nn.Linear(4, 2) for t in tasks})"


def make(
    layer: str = "pass",
    use: str = "return self.block(x)",
    *,
    base: str = "nn.Module",
    block: str = "pass",
    options: str = "",
    train: str = TRAIN,
) -> str:
    return MODEL.format(layer=layer, use=use, base=base, block=block, options=options, train=train)


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("source", "rule"),
    [
        (make("self.extra = nn.Linear(4, 2)  # HERE"), "layer-unused"),
        (make("self.scale = nn.Parameter(torch.ones(4))  # HERE"), "layer-unused"),
        (make(block="self.extra = nn.Conv2d(3, 4, 1)  # HERE"), "layer-unused"),
        (make(f"{HEADS}  # HERE", "return self.heads[task](self.block(x))"), "layer-chosen"),
        (make(f"{LAYERS}  # HERE", SKIPS.format(test="random.random() < 0.1")), "layer-skipped"),
        (
            make(f"{LAYERS}  # HERE", SKIPS.format(test="self.training and torch.rand(1) < 0.1")),
            "layer-skipped",
        ),
        (make(f"{LAYERS}  # HERE", CALLS), "layer-skipped"),
    ],
)
def test_a_layer_that_no_forward_pass_uses(source: str, rule: str) -> None:
    assert rules_in_head(source) == [(rule, marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        make("self.extra = nn.Linear(4, 2)", "return self.extra(self.block(x))"),
        make("self.extra = nn.Linear(4, 2)", options=", find_unused_parameters=True"),
        make("self.extra = nn.Linear(4, 2)", options=", static_graph=True"),
        make("self.extra = nn.Linear(4, 2)", options=", **options"),
        make("self.extra = nn.Linear(4, 2)", "return getattr(self, task)(x)"),
        make("self.extra = nn.Linear(4, 2)", "return [m(x) for m in self.children()][-1]"),
        make("self.extra = nn.Linear(4, 2)", base="models.ResNet"),
        make("self.act = nn.ReLU()"),
        make("self.extra = nn.Linear(4, 2) if tasks else None"),
        make("if tasks:\n            self.extra = nn.Linear(4, 2)"),
        make(HEADS, "return sum(h(self.block(x)).sum() for h in self.heads.values())"),
        make(HEADS, "return torch.cat([self.heads[task](x) for task in task])"),
        make(HEADS, "return self.heads[task](x)", train="sum(model(x, t).sum() for t in task).backward()"),
        make(
            HEADS,
            "return self.heads[task](x)",
            train="(model(x, 'a').sum() + model(x, 'b').sum()).backward()",
        ),
        make(HEADS, "return self.heads['first'](x)"),
        make(LAYERS, SKIPS.format(test="x is None")),
        make(LAYERS, SKIPS.format(test="random.random() < 0.1"), options=", find_unused_parameters=True"),
        make("self.extra = nn.Linear(4, 2)", "e = lambda t: self.extra(t)\n        return e(self.block(x))"),
    ],
)
def test_layers_that_a_loss_may_reach_are_none(source: str) -> None:
    assert rules_in_head(source) == []
