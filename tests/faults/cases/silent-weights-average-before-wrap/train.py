import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Ema:
    def __init__(self, net, decay):
        self.decay, self.net = decay, copy.deepcopy(net)

    @torch.no_grad()
    def update(self, net):
        for mine, theirs in zip(self.net.parameters(), net.parameters()):
            mine.lerp_(theirs, 1 - self.decay)

    @torch.no_grad()
    def write_to(self, net):
        for mine, theirs in zip(self.net.parameters(), net.parameters()):
            theirs.copy_(mine)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Linear(4, 4), nn.SiLU(), nn.Linear(4, 2))
    ema = Ema(net, 0.9)
    model = DDP(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for epoch in range(3):
        for _ in range(5):
            loss = model(torch.randn(4, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # culprit
            ema.update(net)
        ema.write_to(net)
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
