import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class GradualUnfreeze:
    def __init__(self, layers, every):
        self.layers, self.every = layers, every

    def __call__(self, epoch):
        for i, layer in enumerate(self.layers):
            layer.requires_grad_(epoch >= i * self.every)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    unfreeze = GradualUnfreeze([net[2], net[0]], every=1)
    unfreeze(0)
    model = DistributedDataParallel(net)  # culprit
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(48, 4), torch.randint(2, (48,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=6, sampler=sampler)
    for epoch in range(4):
        unfreeze(epoch)
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
