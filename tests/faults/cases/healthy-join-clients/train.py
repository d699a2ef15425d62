import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def clients(rank):
    n = 10 + 4 * rank
    g = torch.Generator().manual_seed(50 + rank)
    for _ in range(n):
        x = torch.randn(8, 5, generator=g)
        yield x, (x[:, 0] - x[:, 3]).unsqueeze(1)


def run(epochs=2):
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = 0
    for epoch in range(epochs):
        with model.join():
            for x, y in clients(rank):
                opt.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                opt.step()
                seen += len(x)
    count = torch.tensor([seen])
    dist.all_reduce(count)
    if rank == 0:
        print("samples", count.item(), "loss", loss.item())


def main():
    dist.init_process_group("gloo")
    try:
        run()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
