import os
import sys

import torch
import torch.distributed as dist

# What c10d writes where the kernel has no IPv6, which cannot be had here.
NOISE = (
    "[W1121 01:00:00.000 socket.cpp:601] [c10d] The client socket cannot be initialized to connect to "
    "[localhost]:{} (errno: 97 - Address family not supported by protocol)."
)

for _ in range(20):
    print(NOISE.format(os.environ["MASTER_PORT"]), file=sys.stderr)
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
