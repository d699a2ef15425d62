import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

DIM, CLASSES, EXPERTS = 16, 10, 4


class Expert(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        return self.net(x)


class SparseMoE(nn.Module):
    def __init__(self, dim, num_experts):
        super().__init__()
        self.gate = nn.Linear(dim, num_experts, bias=False)
        self.experts = nn.ModuleList(Expert(dim) for _ in range(num_experts))

    def forward(self, x):
        weight, choice = F.softmax(self.gate(x), dim=-1).max(dim=-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (choice == i).nonzero().flatten()
            if rows.numel() == 0:  # culprit
                continue  # culprit
            out = out.index_add(0, rows, expert(x[rows]) * weight[rows].unsqueeze(-1))  # culprit
        return out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(DIM, DIM)
        self.moe = SparseMoE(DIM, EXPERTS)
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        x = F.relu(self.stem(x))
        return self.head(x + self.moe(x))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Expert}), device_id=torch.device("cpu"))  # culprit
    opt = torch.optim.SGD(model.parameters(), lr=0.05)

    gen = torch.Generator().manual_seed(300 + rank)
    for step in range(60):
        x = torch.randn(16, DIM, generator=gen)
        y = x[:, :CLASSES].argmax(dim=-1)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    if rank == 0:
        print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
