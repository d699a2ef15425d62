import datetime

import torch
import torch.distributed as dist

dist.init_process_group(backend="gloo", timeout=datetime.timedelta(seconds=8))
value = torch.tensor([1.0])
dist.all_reduce(value)
dist.barrier()
dist.destroy_process_group()
