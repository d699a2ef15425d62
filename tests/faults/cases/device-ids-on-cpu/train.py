import os

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Runner:
    def __init__(self, model):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.model = DDP(model, device_ids=[self.local_rank])  # culprit


dist.init_process_group("gloo")
Runner(nn.Linear(2, 2))
dist.destroy_process_group()
