"""What `forward` of the program's own modules does is done where the model is called, wrapped or not."""

from __future__ import annotations

import pytest

from tests.lint.judging import assert_found, lint

NET = """\
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
    def forward(self, x):
        y = self.layer(x)
        {inside}
        return y
def main(x, device):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    {made}
    {called}
main(torch.ones(4), "cpu")
"""
MADE = [
    "net = Net()",
    "net = Net().to(device)",
    "net = Net()\n    net = DDP(net)",
    "net = DDP(Net().to(device))",
    "net = torch.compile(Net())",
    "net = Net()\n    net = net.to(device)\n    net.train()",
]


@pytest.mark.wrong
@pytest.mark.parametrize("made", MADE)
def test_collective_of_a_forward_is_missed_where_some_ranks_call_the_model(made: str) -> None:
    called = "if rank == 0:\n        net(x)  # here"
    assert_found(NET.format(inside="dist.all_reduce(y)", made=made, called=called), "COL002", "error")


@pytest.mark.right
@pytest.mark.parametrize("made", MADE)
def test_forward_that_all_ranks_call_or_that_has_no_collective(made: str) -> None:
    assert lint(NET.format(inside="dist.all_reduce(y)", made=made, called="net(x)")) == []
    assert lint(NET.format(inside="y = y + 1", made=made, called="if rank == 0:\n        net(x)")) == []


RING = """\
class Ring(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
    def turn(self, block):
        rank, world = dist.get_rank(), dist.get_world_size()
        other = torch.empty_like(block)
        {exchange}
        return other
    def forward(self, x):
        block = self.layer(x)
        for hop in range(dist.get_world_size()):
            if {test}:
                block = self.turn(block)
        return block
def main():
    dist.init_process_group("gloo")
    net = Ring()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(4, 4))
main()
"""
RECEIVE = "dist.recv(other, (rank - 1) % world){}"
SEND = "dist.send(block, (rank + 1) % world)"
TURN = "\n        "


@pytest.mark.wrong
@pytest.mark.parametrize("test", ["hop > 0", "hop != dist.get_world_size() - 1", "hop"])
def test_ring_in_which_all_receive_first_below_a_test_that_is_the_same_on_all_ranks(test: str) -> None:
    exchange = RECEIVE.format("  # here") + TURN + SEND
    assert_found(RING.format(exchange=exchange, test=test), "COL011", "warning")


@pytest.mark.right
@pytest.mark.parametrize(
    ("exchange", "test"),
    [
        (
            f"if rank % 2:\n            {RECEIVE.format('')}\n            {SEND}\n"
            f"        else:\n            {SEND}\n            {RECEIVE.format('')}",
            "hop > 0",
        ),
        (RECEIVE.format("") + TURN + SEND, "hop > dist.get_rank()"),
        (
            "work = dist.isend(block, (rank + 1) % world)" + TURN + RECEIVE.format("") + TURN + "work.wait()",
            "hop > 0",
        ),
    ],
)
def test_ring_in_which_some_ranks_send_first(exchange: str, test: str) -> None:
    assert "COL011" not in {each.code for each in lint(RING.format(exchange=exchange, test=test))}
