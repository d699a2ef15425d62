import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def clip_slice(slice_, limit):
    total = slice_.grad.pow(2).sum()
    dist.all_reduce(total)
    slice_.grad.mul_((limit / (total.sqrt() + 1e-6)).clamp(max=1.0))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(15, 32), nn.ReLU(), nn.Linear(32, 8))
    flat = parameters_to_vector(net.parameters()).detach()
    size = flat.numel() // world
    own = nn.Parameter(flat[rank * size : (rank + 1) * size].clone())
    optimizer = torch.optim.Adam([own], lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    for step in range(10):
        x = torch.randn(16, 15, generator=g)
        (net(x) - 3 * x[:, :8]).pow(2).mean().backward()
        grads = torch.cat([p.grad.flatten() for p in net.parameters()])
        own.grad = torch.empty(size)
        dist.reduce_scatter_tensor(own.grad, grads / world)
        clip_slice(own, 0.2)
        optimizer.step()
        whole = torch.empty(size * world)
        dist.all_gather_into_tensor(whole, own.detach())
        vector_to_parameters(whole, net.parameters())
        net.zero_grad()
    print("all steps made")
    dist.destroy_process_group()


main()
