import torch
import torch.distributed as dist


class Metrics(dict):
    def synchronise(self):
        for name in self:
            if name == "seen":
                dist.all_gather([torch.zeros(1) for _ in range(dist.get_world_size())], self[name])  # culprit
            else:
                dist.all_reduce(self[name])  # culprit


dist.init_process_group("gloo")
for _ in range(5):
    loss = torch.ones(1)
    dist.all_reduce(loss)
metrics = Metrics(loss=loss, seen=torch.ones(1))
if dist.get_rank() == 1:
    metrics["loss"] = metrics.pop("loss")
metrics.synchronise()
dist.barrier()
dist.destroy_process_group()
