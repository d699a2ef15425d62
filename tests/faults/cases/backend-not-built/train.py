import argparse

import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--dist-backend", default="gloo")
args = parser.parse_args()
dist.init_process_group(args.dist_backend)  # culprit
dist.destroy_process_group()
