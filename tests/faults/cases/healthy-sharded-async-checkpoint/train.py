import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard


class CheckpointManager:
    def __init__(self, folder):
        self.folder = folder
        self.group = dist.new_group(backend="gloo")
        self.pending = None

    def save(self, step, model, optimizer):
        self.wait()
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state, "step": step}
        self.pending = dcp.async_save(state, checkpoint_id=f"{self.folder}/step-{step}", process_group=self.group)

    def wait(self):
        if self.pending is not None:
            self.pending.result()
            self.pending = None


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    fully_shard(model[0])
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkpoints = CheckpointManager("checkpoints")
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(1, 13):
        x = torch.randn(4, 32, generator=generator)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 0:
            checkpoints.save(step, model, optimizer)
    checkpoints.wait()
    dist.barrier()
    if dist.get_rank() == 0:
        print("all checkpoints written")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
