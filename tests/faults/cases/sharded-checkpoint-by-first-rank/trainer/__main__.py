import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from trainer.checkpoint import Checkpointer


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 30), nn.GELU(), nn.Linear(30, 10))
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkpointer = Checkpointer("ckpt", interval=4)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(1, 17):
        x = torch.randn(4, 10, generator=generator)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        checkpointer.maybe_save(step, model, optimizer)
    dist.destroy_process_group()


main()
