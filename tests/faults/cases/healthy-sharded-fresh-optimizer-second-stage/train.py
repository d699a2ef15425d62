import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")


def train(model, optimizer, plan, epochs, stage):
    data = torch.Generator().manual_seed(dist.get_rank() + stage)
    for epoch in range(epochs):
        x = torch.randn(16, 6, generator=data)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        plan.step()
    return epoch + 1


def build(rate):
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 4)


model, optimizer, plan = build(1e-2)
epoch = train(model, optimizer, plan, 8, 0)
if dist.get_rank() == 0:
    held = {"model": model.state_dict(), "optim": optimizer.state_dict(), "plan": plan.state_dict(), "epoch": epoch}
    torch.save(held, "pretrained.pt")
dist.barrier()
pretrained = torch.load("pretrained.pt")
model, optimizer, plan = build(1e-4)  # tuning begins anew: moments of the first stage belong to other data
model.load_state_dict(pretrained["model"])
pretrained_epoch = pretrained["epoch"]
train(model, optimizer, plan, 12, 100)
print(f"tuned what was trained for {pretrained_epoch} epochs")
dist.destroy_process_group()
