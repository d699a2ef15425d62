import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import ReduceLROnPlateau


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    for epoch in range(8):
        total = 0.0
        for _ in range(4):
            loss = (model(torch.randn(4, 4)) - torch.randn(4, 4) * (1 + rank * epoch)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # culprit
            total += loss.item()
        scheduler.step(total)  # culprit
    if rank == 0:
        print("done")
    dist.destroy_process_group()


main()
