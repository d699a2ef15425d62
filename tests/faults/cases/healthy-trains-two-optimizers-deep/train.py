import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

INNER = 7


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    anchor = [p.detach().clone() for p in model.parameters()]
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    data = TensorDataset(torch.randn(200, 4))
    sampler = DistributedSampler(data)
    step = 0
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (x,) in DataLoader(data, batch_size=5, sampler=sampler):
            loss = (model(x) - x.prod(1, keepdim=True)).square().mean()
            inner.zero_grad()
            loss.backward()
            inner.step()
            step += 1
            if step % INNER == 0:
                for p, before in zip(model.parameters(), anchor):
                    p.grad = before - p.detach()
                    dist.all_reduce(p.grad)
                    p.grad /= dist.get_world_size()
                    p.data.copy_(before)
                outer.step()
                for p, before in zip(model.parameters(), anchor):
                    before.copy_(p.detach())
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
