import torch.distributed as dist


class Topology:
    """Ranks of one pipeline are neighbors: 0-1 is the first replica, 2-3 the second."""

    def __init__(self, pipeline_size):
        rank, world = dist.get_rank(), dist.get_world_size()
        self.stage = rank % pipeline_size
        self.data_rank = rank // pipeline_size
        self.data_size = world // pipeline_size
        self.is_first = self.stage == 0
        self.next_rank, self.previous_rank = rank + 1, rank - 1
        for stage in range(pipeline_size):
            group = dist.new_group(list(range(stage, world, pipeline_size)))
            if stage == self.stage:
                self.data_group = group
