import torch
import torch.distributed as dist
from torch import nn

from topology import Topology

STEPS, MICRO = 8, 3


def exchange_forward(topo, module, x):
    if topo.is_first:
        out = module(x)
        dist.send(out.detach(), dst=topo.next_rank)
        return None, out
    inp = torch.empty(len(x), 10)
    dist.recv(inp, src=topo.previous_rank)
    inp.requires_grad_()
    return inp, module(inp)


def run_step(topo, module, batches):
    total = 0.0
    for x, y in batches:
        inp, out = exchange_forward(topo, module, x)
        if topo.is_first:
            grad = torch.empty_like(out)
            dist.recv(grad, src=topo.next_rank)
            out.backward(grad)
        else:
            loss = nn.functional.smooth_l1_loss(out, y) / len(batches)
            loss.backward()
            dist.send(inp.grad, dst=topo.previous_rank)
            total += loss.item()
    return total


def average_gradients(topo, module):
    for p in module.parameters():
        dist.all_reduce(p.grad, group=topo.data_group)
        p.grad /= topo.data_size


def main():
    dist.init_process_group("gloo")
    topo = Topology(pipeline_size=2)
    torch.manual_seed(100 + topo.stage)
    module = nn.Sequential(nn.Linear(6, 10), nn.ReLU()) if topo.is_first else nn.Linear(10, 1)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    stream = torch.Generator().manual_seed(topo.data_rank)
    for step in range(STEPS):
        xs = torch.randn(MICRO, 4, 6, generator=stream)
        optimizer.zero_grad()
        loss = run_step(topo, module, [(x, x[:, :1] - x[:, 1:2]) for x in xs])
        average_gradients(topo, module)
        optimizer.step()
    check = torch.cat([p.detach().flatten() for p in module.parameters()])
    other = check.clone()
    dist.all_reduce(other, op=dist.ReduceOp.MAX, group=topo.data_group)
    assert torch.equal(check, other)
    if dist.get_rank() == dist.get_world_size() - 1:
        print(f"loss {loss:.3f} ok")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
