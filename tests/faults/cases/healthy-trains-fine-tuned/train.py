import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def wrap(net):
    model = DDP(net)
    return model, torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    net[0].requires_grad_(False)
    net[2].requires_grad_(False)
    model, optimizer = wrap(net)
    for epoch in range(3):
        if epoch:
            net[4 - 2 * epoch].requires_grad_(True)
            del model
            model, optimizer = wrap(net)
        for _ in range(5):
            loss = nn.functional.cross_entropy(model(torch.randn(4, 4)), torch.randint(2, (4,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
