"""Collectives inside a lock (COL009), ports that each rank picks (ENV004), helpers that break their name (CKP001)."""

from __future__ import annotations

import pytest

from tests.lint.judging import assert_found, lint

LOCKED = """\
import contextlib, fcntl
from filelock import FileLock
@contextlib.contextmanager
def hold(path, kind=None):
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.{flag})
        yield
        fcntl.flock(file, fcntl.LOCK_UN)
class Lock:
    def __init__(self, path):
        self.file = open(path, "w")
    def __enter__(self):
        fcntl.lockf(self.file, fcntl.{flag})
    def __exit__(self, *error):
        fcntl.lockf(self.file, fcntl.LOCK_UN)
def main():
    dist.init_process_group("gloo")
    {body}
    dist.destroy_process_group()
main()
"""
MANAGERS = ["FileLock('x.lock')", "hold('x.lock')", "Lock('x.lock')"]


@pytest.mark.wrong
@pytest.mark.parametrize("manager", MANAGERS)
@pytest.mark.parametrize(
    "call", ["dist.barrier()", "dist.broadcast(torch.ones(1), 0)", "model = DDP(torch.nn.Linear(2, 2))"]
)
def test_collective_inside_of_a_lock(manager: str, call: str) -> None:
    body = f"with {manager}:\n        open('x').read()\n        {call}  # here"
    assert_found(LOCKED.format(body=body, flag="LOCK_EX"), "COL009", "error")


@pytest.mark.right
@pytest.mark.parametrize(
    ("body", "flag"),
    [
        *((f"with {each}:\n        open('x').read()\n    dist.barrier()", "LOCK_EX") for each in MANAGERS),
        ("with hold('x.lock'):\n        dist.barrier()", "LOCK_SH"),
        ("with FileLock(f'{dist.get_rank()}.lock'):\n        dist.barrier()", "LOCK_EX"),
        ("with open('x'):\n        dist.barrier()", "LOCK_EX"),
    ],
)
def test_collective_outside_of_the_lock_or_in_one_that_ranks_share(body: str, flag: str) -> None:
    assert lint(LOCKED.format(body=body, flag=flag)) == []


PORTS = """\
import random, socket
def find_port():
    with socket.socket() as server:
        server.bind(("", 0))
        return server.getsockname()[1]
def work(rank, size, port):
    os.environ["MASTER_ADDR"] = "localhost"
    {set}
    dist.init_process_group("gloo", rank=rank, world_size=size)
    dist.barrier()
    dist.destroy_process_group()
if __name__ == "__main__":
    port = {port}
    mp.spawn(work, args=(2, port), nprocs=2)
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    "value",
    [
        "str(find_port())",
        "str(29500 + rank)",
        "f'{random.randint(20000, 30000)}'",
        "str(20000 + os.getpid() % 1000)",
    ],
)
def test_port_that_each_rank_picks(value: str) -> None:
    text = PORTS.format(set=f'os.environ["MASTER_PORT"] = {value}  # here', port="1")
    assert {(each.code, each.where[0].line) for each in lint(text) if each.code == "ENV004"}


@pytest.mark.right
@pytest.mark.parametrize("port", ["find_port()", "random.randint(20000, 30000)", "29500"])
def test_port_that_the_parent_picks(port: str) -> None:
    assert lint(PORTS.format(set='os.environ["MASTER_PORT"] = str(port)', port=port)) == []


@pytest.mark.right
@pytest.mark.parametrize(
    "value",
    [
        "str(comm.bcast(find_port(), root=0))",
        "str(comm.allgather(find_port())[0])",
        "broadcast_port(find_port())",
    ],
)
def test_port_that_ranks_agree_on_before_they_join(value: str) -> None:
    assert lint(PORTS.format(set=f'os.environ["MASTER_PORT"] = {value}', port="1")) == []


HELPER = """\
{decorator}
def {name}(state, path):
    {body}
def main(path):
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(2, 2))
    dist.destroy_process_group()
main("x.pt")
"""


@pytest.mark.wrong
@pytest.mark.parametrize("name", ["save_on_master", "save_on_main_process", "write_on_rank0"])
def test_helper_that_is_named_after_the_master_and_saves_on_all(name: str) -> None:
    text = HELPER.format(decorator="", name=name, body="torch.save(state, path)  # here")
    assert_found(text, "CKP001", "warning")


@pytest.mark.right
@pytest.mark.parametrize(
    ("decorator", "name", "body"),
    [
        ("", "save_on_master", "if dist.get_rank() == 0:\n        torch.save(state, path)"),
        ("@rank_zero_only", "save_on_master", "torch.save(state, path)"),
        ("", "save", "torch.save(state, path)"),
        ("", "save_on_master", "write_if_first(state, path)"),
    ],
)
def test_helper_that_keeps_its_name_or_promises_nothing(decorator: str, name: str, body: str) -> None:
    assert lint(HELPER.format(decorator=decorator, name=name, body=body)) == []


STEPS = """\
from contextlib import nullcontext
class Trainer:
    def __init__(self):
        self.model = DDP(torch.nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.every = 4
    def quiet(self, i):
        if {quiet}:
            return self.model.no_sync()
        return nullcontext()
    def run(self, batches):
        for i, x in enumerate(batches):
            with self.quiet(i):
                self.model(x).sum().backward()
            if {step}:  # here
                self.optimizer.step()
                self.optimizer.zero_grad()
dist.init_process_group("gloo")
Trainer().run(torch.randn(8, 4, 4))
dist.destroy_process_group()
"""
QUIET = "(i + 1) % self.every != 0"


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("quiet", "step"),
    [
        (QUIET, "i % self.every == 0"),
        ("i % self.every", "(i + 1) % self.every == 0"),
        (QUIET, "not i % self.every"),
    ],
)
def test_step_at_another_micro_batch_than_the_one_that_is_reduced(quiet: str, step: str) -> None:
    assert_found(STEPS.format(quiet=quiet, step=step), "DDP008", "error")


@pytest.mark.right
@pytest.mark.parametrize(
    ("quiet", "step"),
    [
        (QUIET, "(i + 1) % self.every == 0"),
        ("i % self.every != self.every - 1", "(i + 1) % self.every == 0"),
        (f"{QUIET} and i + 1 < len(x)", "(i + 1) % self.every == 0 or i + 1 == len(batches)"),
        (QUIET, "(i + 1) % 8 == 0"),
    ],
)
def test_step_behind_the_micro_batch_that_is_reduced(quiet: str, step: str) -> None:
    assert "DDP008" not in {each.code for each in lint(STEPS.format(quiet=quiet, step=step))}


CALLBACKS = """\
class Unfreeze:
    def on_epoch(self, net, epoch):
        if epoch == 2:
            for p in net.body.parameters():
                p.requires_grad = True
class Quiet:
    def on_epoch(self, net, epoch):
        pass
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
    def forward(self, x):
        return self.head(self.body(x))
def fit(net, callbacks, batches):
    {before}
    model = DDP(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(4):
        for each in callbacks:
            each.on_epoch(net, epoch)
        for x in batches:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
def main():
    dist.init_process_group("gloo")
    net = Net()
    {frozen}
    fit(net, {callbacks}, torch.randn(8, 4, 4))
    dist.destroy_process_group()
main()
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    "frozen",
    ["net.body.requires_grad_(False)", "for p in net.body.parameters():\n        p.requires_grad = False"],
)
@pytest.mark.parametrize("callbacks", ["[Unfreeze(), Quiet()]", "[Unfreeze()]"])
def test_callback_that_unfreezes_after_the_wrap(frozen: str, callbacks: str) -> None:
    text = CALLBACKS.format(before="pass", frozen=frozen, callbacks=callbacks)
    assert {(each.code, each.severity) for each in lint(text)} == {("DDP006", "warning")}


@pytest.mark.right
@pytest.mark.parametrize(("before", "frozen"), [("pass", "pass"), ("pass", "net.head.requires_grad_(False)")])
def test_callback_whose_part_was_never_frozen(before: str, frozen: str) -> None:
    text = CALLBACKS.format(before=before, frozen=frozen, callbacks="[Unfreeze(), Quiet()]")
    assert "DDP006" not in {each.code for each in lint(text)}
