import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


def build():
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 3))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = build()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(rank)

for step in range(1, 21):
    x = torch.randn(8, 12, generator=generator)
    loss = nn.functional.mse_loss(model(x), x[:, :3])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}, saving")
            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            state = get_model_state_dict(model, options=options)  # culprit
            torch.save(state, f"model-{step}.pt")
        dist.barrier()

dist.destroy_process_group()
