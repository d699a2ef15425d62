import copy

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    history = []
    for epoch in range(4):
        model = DDP(net)
        optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
        for _ in range(3):
            loss = model(torch.randn(4, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        history.append(copy.deepcopy(model.module))
        net = copy.deepcopy(net)
    if dist.get_rank() == 0:
        print("done", len(history))
    dist.destroy_process_group()


main()
