import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    stage = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh())
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    for step in range(12):
        if rank == 0:
            given = torch.randn(4, 6)
        else:
            given = torch.empty(4, 6)
            dist.recv(given, src=rank - 1)
            given.requires_grad_()
        out = stage(given)
        if rank + 1 < world:
            dist.send(out.detach(), dst=rank + 1)
            upstream = torch.empty_like(out)
            dist.recv(upstream, src=rank + 1)
            out.backward(upstream)
        else:
            out.square().mean().backward()
        if rank:
            dist.send(given.grad, dst=rank - 1)
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    if rank == 0:
        print("done")
    dist.destroy_process_group()


main()
