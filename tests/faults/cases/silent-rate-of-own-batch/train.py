import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def make_optimizer(model, batch_size, base=0.1):
    return torch.optim.SGD(model.parameters(), lr=base * batch_size / 8)


def main():
    dist.init_process_group("gloo")
    batch_size = 8 if dist.get_rank() == 0 else 6
    model = DDP(torch.nn.Linear(4, 3))
    optimizer = make_optimizer(model, batch_size)
    for _ in range(9):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(batch_size, 4)), torch.randint(3, (batch_size,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # culprit
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
