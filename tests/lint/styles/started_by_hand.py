"""python train.py --local_rank 0 --world-size 2 & python train.py --local_rank 1 --world-size 2"""
import argparse
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    args = parser.parse_args()
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29533", rank=args.local_rank,
                            world_size=args.world_size)
    torch.cuda.set_device(args.local_rank)
    model = DDP(nn.Linear(4, 4).cuda(), device_ids=[args.local_rank])
    for step in range(10):
        model(torch.randn(2, 4, device="cuda")).sum().backward()
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
