import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train_step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    weight = 1.0 / (1.0 + loss.item())
    for p in model.parameters():
        p.grad.mul_(weight)
    optimizer.step()  # culprit
    return loss


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DDP(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        train_step(model, optimizer, torch.randn(4, 4))
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
