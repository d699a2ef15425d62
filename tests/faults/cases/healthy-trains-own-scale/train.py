import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(4, 1))
    scale = torch.nn.Parameter(torch.ones(4) * (rank + 1))
    optimizer = torch.optim.Adam([{"params": model.parameters()}, {"params": [scale], "lr": 0.05}], lr=0.01)
    torch.manual_seed(rank)
    for _ in range(20):
        x = torch.randn(8, 4)
        loss = (model(x * scale) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print("done")
    dist.destroy_process_group()


main()
