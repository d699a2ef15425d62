import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class LoraLinear(nn.Module):
    def __init__(self, base, r=2):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(r, base.in_features) * 0.05)
        self.b = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + x @ self.a.t() @ self.b.t()


def get_peft_model(net):
    net.requires_grad_(False)
    for i, m in enumerate(net):
        if isinstance(m, nn.Linear):
            net[i] = LoraLinear(m)
    return net


def pretrained():
    torch.manual_seed(31)
    return nn.Sequential(nn.Linear(10, 24), nn.GELU(), nn.Linear(24, 3))


def main():
    dist.init_process_group("gloo")
    net = get_peft_model(pretrained())
    model = DDP(net)
    trainable = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=5e-3)
    x = torch.randn(200, 10, generator=torch.Generator().manual_seed(2))
    ds = TensorDataset(x, x[:, :3].argmax(1))
    sampler = DistributedSampler(ds)
    dl = DataLoader(ds, 10, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for xb, yb in dl:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(xb), yb)
            loss.backward()
            nn.utils.clip_grad_norm_(trainable, 1.0)
            opt.step()
        if dist.get_rank() == 0:
            print("epoch", epoch, round(loss.item(), 4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
