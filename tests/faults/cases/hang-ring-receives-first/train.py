import math
import torch
import torch.distributed as dist
import torch.nn as nn


class RingAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def rotate(self, block):
        rank, world = dist.get_rank(), dist.get_world_size()
        incoming = torch.empty_like(block)
        dist.recv(incoming, src=(rank - 1) % world)  # culprit
        dist.send(block, dst=(rank + 1) % world)  # culprit
        return incoming

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores, values = [], []
        kv = torch.stack([k, v]).detach().contiguous()
        for hop in range(dist.get_world_size()):
            if hop > 0:
                kv = self.rotate(kv)
            kk, vv = (k, v) if hop == 0 else kv.unbind(0)
            scores.append(q @ kk.transpose(-1, -2) / math.sqrt(q.size(-1)))
            values.append(vv)
        att = torch.cat(scores, -1).softmax(-1)
        return self.out(att @ torch.cat(values, -2))


def sync_grads(net):
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = RingAttention(16)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    seq = torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(9))
    part = seq.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]
    for step in range(5):
        loss = (net(part) - part).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        sync_grads(net)
        opt.step()
        if dist.get_rank() == 0:
            print(step, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
