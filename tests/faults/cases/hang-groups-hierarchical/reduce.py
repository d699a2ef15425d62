import torch
import torch.distributed as dist


class Hierarchy:
    def __init__(self, per_node=2):
        rank, size = dist.get_rank(), dist.get_world_size()
        self.leaders = list(range(0, size, per_node))
        self.leader_group = None
        if rank in self.leaders:
            self.leader_group = dist.new_group(self.leaders)  # culprit
        for first in self.leaders:
            members = list(range(first, first + per_node))
            group = dist.new_group(members)
            if rank in members:
                self.local_group, self.root = group, first

    def all_reduce(self, value):
        dist.all_reduce(value, group=self.local_group)
        if self.leader_group is not None:
            dist.all_reduce(value, group=self.leader_group)
        dist.broadcast(value, src=self.root, group=self.local_group)


def main():
    dist.init_process_group("gloo")
    hierarchy = Hierarchy()
    for _ in range(5):
        hierarchy.all_reduce(torch.ones(8))
    dist.destroy_process_group()


main()
