"""Loads with strict=False that find nothing at first, or that are to find little."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.body(x).relu())


def load(model, state):
    """Take a state of the wrapper, or of the model itself."""
    found = model.load_state_dict(state, strict=False)
    if found.missing_keys:
        model.load_state_dict({key.removeprefix("module."): value for key, value in state.items()})


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    source = DDP(Net())
    net = Net()
    load(net, source.state_dict())
    model = DDP(net)
    if model.load_state_dict(source.module.state_dict(), strict=False).missing_keys:
        model.module.load_state_dict(source.module.state_dict())
    tuned = Net(classes=5)
    state = {key: value for key, value in source.module.state_dict().items() if not key.startswith("head")}
    tuned.load_state_dict(state, strict=False)
    tuned.body.load_state_dict(source.state_dict(), strict=False)  # a part that the file has under another name
    nn.Linear(4, 4).load_state_dict({"other.scale": torch.ones(1)}, strict=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("loaded", torch.equal(source.module.body.weight, tuned.body.weight))
    dist.destroy_process_group()


main()
