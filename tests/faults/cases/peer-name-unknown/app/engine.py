from datetime import timedelta

import torch
import torch.distributed as dist


class Engine:
    def __enter__(self):
        dist.init_process_group("gloo", timeout=timedelta(seconds=6))
        return self

    def __exit__(self, *_):
        dist.destroy_process_group()

    def run(self):
        dist.all_reduce(torch.ones(3))
