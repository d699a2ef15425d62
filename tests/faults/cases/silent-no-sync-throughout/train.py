import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def accumulate(model, optimizer, stream, every):
    with model.no_sync():
        for number, x in enumerate(stream, 1):
            model(x).logsumexp(-1).mean().backward()
            if number % every == 0:
                optimizer.step()  # culprit
                optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(5, 5))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    accumulate(model, optimizer, (torch.randn(2, 5) for _ in range(24)), 2)
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
