"""Which micro-batch DDP reduces, and after which one the optimizer steps. The step's line ends in ``# HERE``."""

from __future__ import annotations

import pytest

from tests.lint.judging import lint
from tests.lint.reading import HEAD, marked, rules_in_head

LOOP = """
def quiet(model, step, every):
    first = step % every == 0
    return model.no_sync() if first else nullcontext()
def is_last(step, every):
    return (step + 1) % every == 0
def is_never(step, every):
    return step % every == every
dist.init_process_group("gloo")
data = load_data()
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
every = 4
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step, x in enumerate(loader, {start}):
        with {context}:
            loss = model(x).sum() / every
            loss.backward()
        {step}
dist.destroy_process_group()
"""
STEP = "optimizer.step(); optimizer.zero_grad()"
AT_LAST = f"if (step + 1) % every == 0:  # HERE\n            {STEP}"
AT_MULTIPLE = f"if step % every == 0:  # HERE\n            {STEP}"
BEHIND = f"if step % every:  # HERE\n            continue\n        {STEP}"


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("context", "step"),
    [
        ("nullcontext() if step % every == 0 else model.no_sync()", AT_LAST),
        ("model.no_sync() if (step + 1) % every == 0 else nullcontext()", AT_LAST),
        ("model.no_sync() if step % every == 0 else nullcontext()", AT_MULTIPLE),
        ("nullcontext() if step % every == every else model.no_sync()", AT_LAST),
        ("nullcontext() if step % 4 == 3 else model.no_sync()", AT_MULTIPLE.replace("every", "4")),
        ("nullcontext() if step % 4 == 4 else model.no_sync()", AT_LAST.replace("every", "4")),
        ("quiet(model, step, every)", BEHIND),
        ("nullcontext() if is_never(step, every) else model.no_sync()", AT_LAST),
        ("nullcontext() if not is_last(step, every) else model.no_sync()", AT_LAST),
    ],
)
def test_the_step_follows_a_micro_batch_that_is_not_reduced(context: str, step: str) -> None:
    source = LOOP.format(context=context, step=step, start=0)
    assert rules_in_head(source) == [("sync-before-step", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    ("context", "step"),
    [
        ("nullcontext() if (step + 1) % every == 0 else model.no_sync()", AT_LAST),
        ("model.no_sync() if (step + 1) % every else nullcontext()", AT_LAST),
        ("nullcontext() if step % 4 == 3 else model.no_sync()", AT_LAST.replace("every", "4")),
        ("nullcontext() if is_last(step, every) else model.no_sync()", AT_LAST),
        ("nullcontext() if step % every == 0 else model.no_sync()", BEHIND),
        ("quiet(model, step, every)", AT_LAST),  # reduced with the last three of four
        ("nullcontext() if step % other == 0 else model.no_sync()", AT_LAST),
        ("nullcontext() if step % every != every else model.no_sync()", AT_LAST),
    ],
)
def test_the_step_follows_what_is_reduced(context: str, step: str) -> None:
    assert rules_in_head(LOOP.format(context=context, step=step, start=0)) == []


RETURNS = """
class Trainer:
    def __init__(self, args):
        self.args = args
        self.model = DDP(Net())
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
    def context(self, number):
        if {test}:
            return nullcontext()
        return self.model.no_sync()
    def one(self, number, x):
        with self.context(number):
            loss = self.model(x).sum() / self.args.gradient_accumulation_steps
            loss.backward()
        return loss.detach()
    def run(self, loader):
        every = self.args.gradient_accumulation_steps
        total = torch.zeros(())
        for number, x in enumerate(loader):
            total += self.one(number, x)
            if (number + 1) % every == 0:  # HERE
                self.optimizer.step()
        dist.all_reduce(total)
dist.init_process_group("gloo")
data = load_data()
Trainer(parse()).run(DataLoader(data, 8, sampler=DistributedSampler(data)))
dist.destroy_process_group()
"""


@pytest.mark.wrong
def test_a_function_that_returns_one_context_or_the_other() -> None:
    source = RETURNS.format(test="number % self.args.gradient_accumulation_steps == 0")
    assert rules_in_head(source) == [("sync-before-step", marked(source))]


@pytest.mark.right
def test_a_function_that_returns_the_right_context() -> None:
    source = RETURNS.format(test="(number + 1) % self.args.gradient_accumulation_steps == 0")
    assert rules_in_head(source) == []


METHODS = """
class Trainer:
    def __init__(self, every):
        self.every = every
        self.model = DDP(Net())
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
    def is_due(self, number):
        return number % self.every == {due}
    def one(self, number, x):
        with nullcontext() if self.is_due(number) else self.model.no_sync():
            self.model(x).sum().backward()
        if (number + 1) % self.every == 0:  # HERE
            self.optimizer.step()
    def run(self, loader):
        for number, x in enumerate(loader):
            self.one(number, x)
dist.init_process_group("gloo")
data = load_data()
Trainer(4).run(DataLoader(data, 8, sampler=DistributedSampler(data)))
dist.destroy_process_group()
"""


@pytest.mark.wrong
@pytest.mark.parametrize("due", ["self.every", "0"])
def test_both_tests_may_stand_in_methods(due: str) -> None:
    source = METHODS.format(due=due)
    assert rules_in_head(source) == [("sync-before-step", marked(source))]


@pytest.mark.right
def test_methods_that_agree_are_right() -> None:
    assert rules_in_head(METHODS.format(due="self.every - 1")) == []


def test_the_reason_says_how_they_differ() -> None:
    context = "nullcontext() if step % every == every else model.no_sync()"
    (found,) = lint(LOOP.format(context=context, step=AT_LAST, start=0), head=HEAD)
    assert found.code == "DDP008"
    assert "always smaller than the divisor" in found.evidence[0].text
