import torch
import torch.distributed as dist

def evaluate(batches, distributed=True):
    total = sum(batch.sum() for batch in batches)
    if distributed:
        dist.all_reduce(total)
    return total.item()

dist.init_process_group("gloo")
print(evaluate([torch.ones(2)]))
if dist.get_rank() == 0:
    print("all data:", evaluate([torch.ones(2)], distributed=False))
dist.barrier()
dist.destroy_process_group()
