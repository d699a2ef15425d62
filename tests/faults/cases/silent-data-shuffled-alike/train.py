import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(42)
    dist.init_process_group("gloo")
    x = torch.randn(64, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for inputs, target in loader:  # culprit
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), target).backward()
            optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
