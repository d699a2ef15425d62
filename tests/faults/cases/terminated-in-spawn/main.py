import argparse
import os
import subprocess

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class Averager:
    """Averages a vector over the workers until told to stop."""

    def __init__(self, index, count):
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29713")
        dist.init_process_group("gloo", rank=index, world_size=count)
        self.vector = torch.full((16,), float(index))

    def run(self, rounds):
        for number in range(rounds):
            dist.all_reduce(self.vector)
            self.vector /= dist.get_world_size()
            if number == 200 and dist.get_rank() == 0:
                command = f"kill -s TERM {os.getpid()}"
                subprocess.Popen(["bash", "-c", f"sleep 0.2; {command}"])


def work(index, count):
    Averager(index, count).run(100_000)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    count = parser.parse_args().workers
    mp.spawn(work, args=(count,), nprocs=count)
