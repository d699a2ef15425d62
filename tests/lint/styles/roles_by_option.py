import argparse
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--role", choices=["server", "client"])
args = parser.parse_args()
dist.init_process_group("gloo", init_method="tcp://10.0.0.1:2345", world_size=2, rank=0 if args.role == "server" else 1)
x = torch.ones(4)
if args.role == "server":
    dist.recv(x, src=1)
    dist.send(x * 2, dst=1)
else:
    dist.send(x, dst=0)
    dist.recv(x, src=0)
dist.destroy_process_group()
