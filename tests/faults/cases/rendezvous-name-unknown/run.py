import sys
from datetime import timedelta

import torch.distributed as dist
import torch.multiprocessing as mp

DEFAULTS = {"head": "127.0.0.1", "port": "29683", "ranks": "2"}


class Runner:
    def __init__(self, settings):
        self.settings = settings

    def __call__(self, rank):
        url = "tcp://{head}:{port}".format(**self.settings)
        size = int(self.settings["ranks"])
        dist.init_process_group(
            "gloo", init_method=url, rank=rank, world_size=size, timeout=timedelta(seconds=6)
        )
        dist.barrier()


if __name__ == "__main__":
    settings = {**DEFAULTS, **dict(word.split("=", 1) for word in sys.argv[1:])}
    mp.spawn(Runner(settings), nprocs=int(settings["ranks"]))
