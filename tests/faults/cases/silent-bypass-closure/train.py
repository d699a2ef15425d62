import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    wrapped = DDP(torch.nn.Linear(4, 1))
    inner = wrapped.module
    optimizer = torch.optim.LBFGS(wrapped.parameters(), lr=0.5, max_iter=3)
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(rank))
    y = x.sum(1, keepdim=True) * (rank + 1)
    for _ in range(6):

        def closure():
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(inner(x), y)  # culprit
            loss.backward()
            return loss

        optimizer.step(closure)
    if rank == 0:
        print("done")
    dist.destroy_process_group()


main()
