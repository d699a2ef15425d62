"""Methods of objects that stand in a list: callbacks and hooks. The line of the mistake ends in ``# HERE``."""

from __future__ import annotations

import pytest

from tests.lint.reading import marked, rules_in_head

HOOKS = """
class Log:
    def after_epoch(self, runner):
        if dist.get_rank() == 0:
            print(runner.epoch)
class Save:
    def __init__(self, path):
        self.path = path
    def after_epoch(self, runner):
        {guard}
        torch.save(runner.model.module.state_dict(), "last.pt")  # HERE
class Runner:
    def __init__(self, model, hooks=()):
        self.model = model
        self.hooks = {kept}
    def register(self, hook):
        self.hooks.append(hook)
    def call(self, name):
        for hook in self.hooks:
            getattr(hook, name)(self)
    def run(self, batches):
        for self.epoch in range(3):
            for x in batches:
                self.model(x).sum().backward()
            {call}
dist.init_process_group("gloo")
{start}
runner.run(batches)
dist.destroy_process_group()
"""
BY_NAME = "self.call('after_epoch')"
DIRECT = "[hook.after_epoch(self) for hook in ()]\n            for hook in self.hooks:\n                hook.after_epoch(self)"
GIVEN = "runner = Runner(DDP(Net()), [Log(), Save('x')])"
REGISTERED = "runner = Runner(DDP(Net()))\nrunner.register(Log())\nrunner.register(Save('x'))"
SET = "runner = Runner(DDP(Net()))\nrunner.hooks = [Log(), Save('x')]"
ADDED = "runner = Runner(DDP(Net()))\nrunner.hooks += [Save('x')]"


@pytest.mark.wrong
@pytest.mark.parametrize("call", [BY_NAME, DIRECT])
@pytest.mark.parametrize(
    ("kept", "start"),
    [("list(hooks)", GIVEN), ("[]", REGISTERED), ("[]", SET), ("[*hooks]", GIVEN), ("[]", ADDED)],
)
def test_what_a_hook_of_a_list_does_is_followed(call: str, kept: str, start: str) -> None:
    source = HOOKS.format(guard="pass", kept=kept, call=call, start=start)
    assert rules_in_head(source) == [("write-raced", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize("start", [GIVEN, REGISTERED, SET])
def test_a_hook_that_writes_on_one_rank_is_right(start: str) -> None:
    guard = "if dist.get_rank() != 0:\n            return"
    assert rules_in_head(HOOKS.format(guard=guard, kept="list(hooks)", call=BY_NAME, start=start)) == []


@pytest.mark.right
def test_a_hook_that_is_in_no_list_is_not_run() -> None:
    source = HOOKS.format(guard="pass", kept="[Log()]", call=BY_NAME, start="runner = Runner(DDP(Net()))")
    assert rules_in_head(source) == []
