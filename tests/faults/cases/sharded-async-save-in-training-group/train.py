import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

SAVE_EVERY = 3


class ResidualMLP(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return x


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = ResidualMLP(64, 4)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    future = None
    for step in range(1, 301):
        x = torch.randn(4, 64, generator=generator)
        loss = nn.functional.mse_loss(model(x), x.roll(1, 1))
        optimizer.zero_grad()
        loss.backward()  # culprit
        optimizer.step()
        if step % SAVE_EVERY == 0:
            if future is not None:
                future.result()
            state = {"model": get_model_state_dict(model), "step": step}
            future = dcp.async_save(state, checkpoint_id=f"ckpt/{step}")  # culprit
    future.result()
    if dist.get_rank() == 0:
        print("finished", step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
