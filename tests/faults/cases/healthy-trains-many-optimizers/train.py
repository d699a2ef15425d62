import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    model = DDP(nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)]))
    optimizers = [torch.optim.SGD([p], lr=0.01) for p in model.parameters()]
    other = DDP(nn.Linear(4, 2))
    optimizers.append(
        torch.optim.AdamW([{"params": [other.module.weight]}, {"params": [other.module.bias], "lr": 0.1}], lr=0.2)
    )
    for _ in range(9):
        loss = other(model(torch.randn(3, 4))).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
