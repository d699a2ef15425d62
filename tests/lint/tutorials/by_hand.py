import torch, torch.distributed as dist, os
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets
import torch.nn as nn
def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
        param.grad.data /= size
def run(rank, size):
    torch.manual_seed(1234)
    ds = datasets.MNIST("./data")
    sampler = DistributedSampler(ds)
    train_set = DataLoader(ds, batch_size=128, sampler=sampler)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(10):
        sampler.set_epoch(epoch)
        for data, target in train_set:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data), target)
            loss.backward()
            average_gradients(model)
            optimizer.step()
if __name__ == "__main__":
    dist.init_process_group("gloo")
    run(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()
