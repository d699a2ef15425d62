import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from moe import MoELayer

CFG = dict(dim=24, hidden=48, classes=6, tokens=48, steps=120, lr=3e-3, aux=0.01, seed=5)


class Net(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.inp = nn.Linear(10, cfg["dim"])
        self.norm = nn.LayerNorm(cfg["dim"])
        self.moe = MoELayer(cfg["dim"], cfg["hidden"])
        self.out = nn.Linear(cfg["dim"], cfg["classes"])

    def forward(self, x):
        h, aux = self.moe(self.norm(self.inp(x)))
        return self.out(h), aux

    def dense_parameters(self):
        return [p for n, p in self.named_parameters() if ".expert." not in n]

    def expert_parameters(self):
        return [p for n, p in self.named_parameters() if ".expert." in n]


class Stream:
    def __init__(self, cfg, rank):
        g = torch.Generator().manual_seed(cfg["seed"])
        self.centers = torch.randn(cfg["classes"], 10, generator=g) * 2
        self.cfg = cfg
        self.g = torch.Generator().manual_seed(cfg["seed"] + 100 + rank)

    def next(self):
        y = torch.randint(0, self.cfg["classes"], (self.cfg["tokens"],), generator=self.g)
        return self.centers[y] + torch.randn(len(y), 10, generator=self.g), y


def build(cfg, rank):
    torch.manual_seed(cfg["seed"])
    net = Net(cfg)
    torch.manual_seed(cfg["seed"] + 1 + rank)
    for m in net.moe.expert.modules():
        if isinstance(m, nn.Linear):
            m.reset_parameters()
    return net


def reduce_gradients(net, world):
    for p in net.dense_parameters():
        dist.all_reduce(p.grad)
        p.grad.div_(world)
    for p in net.expert_parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        p.grad.div_(world)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    net = build(CFG, rank)
    opt = torch.optim.AdamW(net.parameters(), lr=CFG["lr"])
    stream = Stream(CFG, rank)

    for step in range(CFG["steps"]):
        x, y = stream.next()
        logits, aux = net(x)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        (loss + CFG["aux"] * aux).backward()
        reduce_gradients(net, world)
        opt.step()
        if step % 20 == 0:
            avg = loss.detach().clone()
            dist.all_reduce(avg)
            if rank == 0:
                print(f"{step:4d} loss {avg.item() / world:.4f} aux {aux.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
