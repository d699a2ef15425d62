import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from autoencoder import Autoencoder


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(Autoencoder(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(9):
        optimizer.zero_grad()
        loss = model.module.compute_loss(torch.randn(16, 8))  # culprit
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
