import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard


class AppState(Stateful):
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer}


def is_main():
    return dist.get_rank() == 0


def save(app, step):
    if is_main():
        dcp.save({"app": app}, checkpoint_id=f"checkpoints/{step}")  # culprit
    dist.barrier()


dist.init_process_group("gloo")
torch.manual_seed(2)
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 10))
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters())
app = AppState(model, optimizer)
for step in range(1, 7):
    batch = torch.randn(4, 10)
    torch.nn.functional.mse_loss(model(batch), batch).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 3 == 0:
        save(app, step)
print("end of training")
dist.destroy_process_group()
