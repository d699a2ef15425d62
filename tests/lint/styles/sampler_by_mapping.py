import os, torch.distributed as dist
from torch.utils.data import DistributedSampler
share = {"rank": int(os.environ["RANK"]), "num_replicas": int(os.environ["WORLD_SIZE"])}
sampler = DistributedSampler(range(100), **share)
dist.init_process_group("gloo")
dist.destroy_process_group()
