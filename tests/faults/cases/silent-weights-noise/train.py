import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


@torch.no_grad()
def perturb(parameters, scale):
    for p in parameters:
        p.add_(torch.randn_like(p), alpha=scale)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(40 + dist.get_rank())
    model = DDP(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        optimizer.zero_grad()
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()  # culprit
        if step >= 4:
            perturb(model.parameters(), 0.01)
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
