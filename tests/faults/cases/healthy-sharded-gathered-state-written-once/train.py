import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


class Writer:
    def __init__(self, every):
        self.every = every

    def __call__(self, step, model):
        if step % self.every:
            return
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if dist.get_rank() != 0:
            assert not state
            return
        torch.save(state, f"model-{step}.pt")


def log_norms(model, step):
    norms = {name: p.full_tensor().norm().item() for name, p in model.named_parameters()}
    if dist.get_rank() == 0:
        print(step, norms)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
for layer in (model[0], model[2], model):
    fully_shard(layer)
optimizer = torch.optim.AdamW(model.parameters())
write = Writer(4)
for step in range(1, 11):
    torch.manual_seed(step * 7 + dist.get_rank())
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    write(step, model)
    if step == 5:
        log_norms(model, step)
print("all steps made")
dist.destroy_process_group()
