import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class DataParallelLite:
    def __init__(self, net):
        self.net = net
        with torch.no_grad():
            flat = parameters_to_vector(net.parameters())
            dist.broadcast(flat, src=0)
            vector_to_parameters(flat, net.parameters())

    def reduce_gradients(self):
        ps = list(self.net.parameters())
        flat = torch.cat([p.grad.flatten() for p in ps])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for p, g in zip(ps, flat.split([p.numel() for p in ps])):
            p.grad = g.view_as(p).clone()


def policy_batch(rank, it):
    g = torch.Generator().manual_seed(1 + it * 17 + rank)
    s = torch.randn(32, 4, generator=g)
    return s, (s[:, 1] > s[:, 2]).long()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(100 + rank)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    dp = DataParallelLite(net)
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-2)
    for it in range(20):
        s, a = policy_batch(rank, it)
        loss = nn.functional.cross_entropy(net(s), a)
        opt.zero_grad()
        loss.backward()
        dp.reduce_gradients()
        opt.step()
        if rank == 0 and it % 5 == 0:
            print(it, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
