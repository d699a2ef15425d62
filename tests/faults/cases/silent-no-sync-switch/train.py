import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def probe_memory(model):
    model.require_backward_grad_sync = False
    model(torch.zeros(64, 4)).sum().backward()
    model.zero_grad()


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 2))
    probe_memory(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for _ in range(9):
        optimizer.zero_grad()
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()  # culprit
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
