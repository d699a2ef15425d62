import torch
import torch.distributed as dist
from torch import nn


class Topology:
    def __init__(self, size):
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.size = size
        self.replica = self.rank // size
        self.members = list(range(self.replica * size, (self.replica + 1) * size))
        self.leader_group = None
        if self.rank % size == 0:
            leaders = list(range(0, self.world, size))
            self.leader_group = dist.new_group(leaders)  # culprit
        dist.barrier()
        self.local_group = dist.new_group(self.members)  # culprit


def average(params, group, n):
    for p in params:
        dist.all_reduce(p.grad, group=group)
        p.grad.div_(n)


def hierarchical_average(net, topo):
    params = list(net.parameters())
    average(params, topo.local_group, topo.size)
    if topo.leader_group is not None:
        average(params, topo.leader_group, topo.world // topo.size)
    for p in params:
        dist.broadcast(p.grad, src=topo.members[0], group=topo.local_group)


def main():
    dist.init_process_group("gloo")
    topo = Topology(2)
    torch.manual_seed(4)
    net = nn.Linear(6, 2)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(6):
        g = torch.Generator().manual_seed(step * 4 + topo.rank)
        x = torch.randn(8, 6, generator=g)
        loss = nn.functional.cross_entropy(net(x), (x.sum(1) > 0).long())
        opt.zero_grad()
        loss.backward()
        hierarchical_average(net, topo)
        opt.step()
    if topo.rank == 0:
        print("done", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
