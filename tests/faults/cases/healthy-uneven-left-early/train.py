import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    data = TensorDataset(torch.randn(80 + 16 * rank, 8))
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(data, 8)
    for step, (inputs,) in enumerate(loader):
        if step == 6:
            break
        model(inputs).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print("trained", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
