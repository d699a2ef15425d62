import subprocess
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset


def collate(rows):
    time.sleep(0.02)
    return torch.stack([row[0] for row in rows])


def epoch(loader, victim):
    batches = iter(loader)
    for number, batch in enumerate(batches):
        dist.all_reduce(batch)
        if victim and number == 10:
            subprocess.run(["kill", "-KILL", str(batches._workers[1].pid)], check=True)


def main():
    dist.init_process_group("gloo")
    data = TensorDataset(torch.arange(600.0))
    epoch(DataLoader(data, batch_size=2, num_workers=2, collate_fn=collate), dist.get_rank() == 1)
    dist.destroy_process_group()


main()
