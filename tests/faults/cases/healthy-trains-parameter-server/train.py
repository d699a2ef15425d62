import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if rank == 0 else None
    for step in range(10):
        for p in model.parameters():
            dist.broadcast(p.data, src=0)
        model.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        for p in model.parameters():
            dist.reduce(p.grad, dst=0)
        if rank == 0:
            for p in model.parameters():
                p.grad /= world
            optimizer.step()
    if rank == 0:
        print("done")
    dist.destroy_process_group()


main()
