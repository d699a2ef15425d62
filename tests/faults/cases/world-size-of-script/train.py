import os

import torch
import torch.distributed as dist


def set_up(config):
    os.environ["WORLD_SIZE"] = str(config["nodes"] * config["gpus_per_node"])
    dist.init_process_group("gloo")  # culprit


def main():
    set_up({"nodes": 2, "gpus_per_node": 2})
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


main()
