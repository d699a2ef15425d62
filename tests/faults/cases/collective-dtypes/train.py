import torch
import torch.distributed as dist

dist.init_process_group("gloo")
history = []
for step in range(3):
    value = torch.full((4096,), 1.5)
    if step == 1 and dist.get_rank() == 0:
        value = value.double()
    dist.all_reduce(value)  # culprit
    history.append(value.sum().item())
dist.barrier()
dist.destroy_process_group()
