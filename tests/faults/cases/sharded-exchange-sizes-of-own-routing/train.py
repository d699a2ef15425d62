from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn


@dataclass
class MoEConfig:
    dim: int = 8
    tokens: int = 32
    steps: int = 10
    lr: float = 1e-2


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sizes):
        ctx.sizes = sizes
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x, output_split_sizes=sizes, input_split_sizes=sizes)  # culprit
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous(), ctx.sizes, ctx.sizes)
        return out, None


class MoELayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.experts = dist.get_world_size()
        self.gate = nn.Linear(config.dim, self.experts)
        self.expert = nn.Linear(config.dim, config.dim)

    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        top, chosen = scores.max(-1)
        order = chosen.argsort()
        sizes = chosen.bincount(minlength=self.experts).tolist()
        tokens = Exchange.apply(x[order].contiguous(), sizes)
        tokens = Exchange.apply(torch.relu(self.expert(tokens)), sizes)
        y = torch.empty_like(x)
        y[order] = tokens
        return x + top.unsqueeze(-1) * y


class Trainer:
    def __init__(self, config):
        self.config = config
        torch.manual_seed(0)
        self.layer = MoELayer(config)
        self.head = nn.Linear(config.dim, 1)
        self.parameters = [*self.layer.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.SGD(self.parameters, lr=config.lr)
        self.data = torch.Generator().manual_seed(dist.get_rank())

    def run(self):
        for step in range(self.config.steps):
            x = torch.randn(self.config.tokens, self.config.dim, generator=self.data)
            loss = (self.head(self.layer(x)) - x.mean(1, keepdim=True)).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            print(f"[rank {dist.get_rank()}] {step} {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Trainer(MoEConfig()).run()
    dist.destroy_process_group()
