import torch.distributed as dist


class Node:
    def __init__(self):
        self.parent = None

    def depth(self):
        return 1 + self.parent.depth() if self.parent else 0  # culprit


dist.init_process_group("gloo")
root, leaf = Node(), Node()
leaf.parent = root
if dist.get_rank() == 0:
    root.parent = leaf
print(leaf.depth())
dist.barrier()
dist.destroy_process_group()
