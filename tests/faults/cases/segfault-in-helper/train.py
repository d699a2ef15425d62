import torch
import torch.distributed as dist

from fastops import copy_rows

dist.init_process_group("gloo")
rows = torch.ones(4, 4)
for step in range(4):
    dist.all_reduce(rows)
    copy_rows(rows, None if step == 2 and dist.get_rank() == 0 else rows)
dist.destroy_process_group()
