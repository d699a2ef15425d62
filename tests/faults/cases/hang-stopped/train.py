import os
import subprocess

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    for step in range(400):
        value = torch.ones(4)
        dist.all_reduce(value)
        if step == 100 and dist.get_rank() == 1:
            subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -STOP {os.getpid()}"])
        torch.mm(torch.ones(256, 256), torch.ones(256, 256))
        if step > 100:
            subprocess.run(["sleep", "0.01"])
    dist.destroy_process_group()


main()
