import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def checkpoint():
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
        optimizer.state[p]["momentum_buffer"] = torch.ones_like(p)
    return net.state_dict(), optimizer.state_dict()


def main():
    dist.init_process_group("gloo")
    weights, state = checkpoint()
    net = torch.nn.Linear(4, 2)
    net.load_state_dict(weights)
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if dist.get_rank() == 0:
        optimizer.load_state_dict(state)  # culprit
    for _ in range(9):
        optimizer.zero_grad()
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
