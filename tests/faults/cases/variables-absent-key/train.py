import os

import torch.distributed as dist


class Environment:
    def __init__(self):
        self.local_rank = int(os.environ["LOCAL_RANK"])  # culprit
        self.world_size = int(os.environ.get("WORLD_SIZE", 1))


if __name__ == "__main__":
    environment = Environment()
    dist.init_process_group("gloo")
    dist.destroy_process_group()
