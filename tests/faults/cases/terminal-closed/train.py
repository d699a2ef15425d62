import argparse
import pathlib
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
options = parser.parse_args()
dist.init_process_group("gloo")
for epoch in range(options.epochs):
    dist.all_reduce(torch.zeros(4))
    if epoch == 3:
        pathlib.Path("started").touch()
    time.sleep(0.2)
dist.destroy_process_group()
